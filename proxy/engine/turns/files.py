"""Files that programs show to models: sent whole while they are small, else a reference to what the log has.

A large file is in the log as a call without a conversation, once for each content and path of a session. Its reference
is read like any other (`palimpsest expand`, the tool to recall, the API), and has the outline that epochs show of large
outputs, too.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from textwrap import wrap
from typing import Protocol

import msgspec

from proxy.context.compaction.prompts import MAX_PROSE_CHARACTERS, PROSE_TOKENS, render_file_request
from proxy.context.conversation import FilesPolicy
from proxy.context.memory.traces import fit_text
from proxy.context.outline import LONGEST_LINE, Outline, OutlineJob, outline
from proxy.context.references import cut_to_ends, make_reference
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.job import SentRequest
from proxy.engine.compaction.model_call import ModelCall, ModelResponse
from proxy.engine.compaction.scheduling import find_own_upstream
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.ports import Upstream
from proxy.engine.turns.conversation import Conversations
from proxy.engine.turns.recording import TurnRecorder
from proxy.model.epoch import name_file
from proxy.model.errors import TooLarge, WorkerLost
from proxy.model.exchange import SessionKey, Usage
from proxy.model.parts import FileRefPart
from proxy.model.results import FileHandleResult
from proxy.wire import FORMATS, OWN_FORMAT
from proxy.wire.summary_request import OutputLimit, make_target, write_compact

_TARGET = "/-/api/refs/{}"
# The tokens of a file that a model is shown for a sentence about it: its beginning and its end.
_SHOWN_TOKENS = 6_000
_MOST_SENTENCES, _MOST_AT_ONCE = 256, 4
_NAME, _OUTPUT = "sentences", "the output of a tool"
_FAILURES_APART = (WorkerLost, RuntimeError, ValueError, TypeError)

_log = logging.getLogger("palimpsest.files")


class OutliningWorker(Protocol):
    """Outlines in another process. Raises WorkerLost, and RuntimeError if that has failed."""

    async def outline(self, job: OutlineJob) -> Outline:
        """Return the outline of a content."""
        ...


@dataclass(kw_only=True, eq=False)
class FileProse:
    """Asks a model for a sentence about a content, within the limits for summaries. Each content is asked for once.

    Outputs of tools above `inline_tokens` have theirs made behind the calls that may soon open an epoch, so that it
    shows them.
    """

    model: str
    inline_tokens: int
    worker: SummaryWorker

    def __post_init__(self) -> None:
        self.summarizer, self._jobs = self.worker.summarizer, self.worker.jobs
        self._known = self.summarizer.caller.caches.sentences

    def describe_outputs(self, request: SentRequest) -> None:
        """Start to have sentences written about the newest large outputs of a request."""
        session, history = request.session, request.state.history
        places = [place for place, each in enumerate(history.structures) if each.role == "tool"]
        large = [place for place in places if history.count(place, place + 1) > self.inline_tokens]
        if large and not self._jobs.list_jobs(session, _NAME):
            home = request.state.request
            target = self._find_upstream(home.upstream, home.model).name
            work = partial(self._describe_outputs, request, large[-_MOST_AT_ONCE:])
            self._jobs.start(session, _NAME, work, upstream=target)

    async def _describe_outputs(self, request: SentRequest, places: Sequence[int]) -> None:
        managed = request.state.request
        raws, form = managed.list_raws(), FORMATS[managed.wire]
        for place in places:
            message = form.decode_message(raws[place]).message
            for text in message.outputs or (message.text,):
                if await asyncio.to_thread(self.summarizer.count, text) > self.inline_tokens:
                    seen = await self.summarizer.texts.run_surely(outline, text)
                    await self.describe(managed.session, managed.model, _OUTPUT, seen, text, is_manual=False)

    async def describe(
        self, session: SessionKey, model: str, path: str, seen: Outline, text: str, *, is_manual: bool = True
    ) -> str:
        """Return a sentence about a content, or an empty text if no model has written one. Never raises."""
        name = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        known = self._known.get(session.id) or {}
        if name in known:
            return known[name]
        said, problem = await self._ask(session, model, path, seen, text, is_manual=is_manual)
        if problem:
            _log.info("a file has no sentence of %s: %s", self.model, problem, extra={"session": session.id})
        else:
            known = {**(self._known.peek(session.id) or {}), name: said}
            self._known.put(session.id, dict(list(known.items())[-_MOST_SENTENCES:]))
        return said

    async def _ask(
        self, session: SessionKey, model: str, path: str, seen: Outline, text: str, *, is_manual: bool
    ) -> tuple[str, str]:
        """Return the sentence, or what is in the way of it."""
        home = self.summarizer.find_route(session.upstream)
        if home is None:
            return "", "the upstream of the session is no longer in the settings"
        newest = self.worker.credentials.find_newest(session.id)
        credential = newest[1] if newest else CallCredential(home.upstream, make_target(OWN_FORMAT), ())
        target = self._find_upstream(credential.upstream, model)
        if newest is None and target.name not in self.summarizer.health.owned:
            return "", "no call of this session was accepted lately, so that there is no credential"
        if self._jobs.has_call(target.name, self.model):
            return "", "the local server has a client's call"
        form = self.summarizer.caller.find_form(session, credential, target)
        count = self.summarizer.count
        orders, shown = render_file_request(path, seen, cut_to_ends(text, _SHOWN_TOKENS, count))
        limit = OutputLimit(PROSE_TOKENS, self.summarizer.policy.reasoning_tokens)
        expected = Usage(count(orders) + count(shown), PROSE_TOKENS)
        body = write_compact(form, self.model, orders, shown, limit)
        asked = ModelCall(session, credential, target, form, self.model, body, MAX_PROSE_CHARACTERS, expected)
        response = await self.summarizer.caller.ask(asked, is_manual=is_manual, is_text=True)
        if not isinstance(response, ModelResponse):
            return "", response.reason
        return (" ".join(fit_text(response.text).split()), "") if response.is_text else ("", "it wrote no sentence")

    def _find_upstream(self, home: Upstream, model: str) -> Upstream:
        """Return the upstream at which the model is asked about a conversation with `model` at `home`."""
        return find_own_upstream(self.summarizer.policy, self.model, home, model, self.summarizer.routes)


@dataclass(eq=False)
class FileKeeper:
    """Decides how files are sent, and puts the large ones into the log."""

    policy: FilesPolicy
    cap: int
    recorder: TurnRecorder
    worker: OutliningWorker
    secret: bytes
    prose: FileProse | None = None

    async def handle(self, key: SessionKey, model: str, path: str, content: str) -> FileHandleResult:
        """Return how a file is to be sent in a session with this model; a reference to it is in the log then.

        Raises TooLarge for a file that the log does not keep whole, and StoreUnavailable.
        """
        content = fit_text(content)
        raw = msgspec.json.encode({"role": "file", "name": fit_text(path), "content": content})
        tokens = await self.recorder.count(key, model, [raw])
        if tokens <= self.policy.inline_tokens:
            return FileHandleResult(path=path, inline_content=content)
        if len(raw) > self.cap:
            raise TooLarge(f"{path} has {len(raw):,} bytes; the log keeps {self.cap:,} whole (store.record_cap_bytes)")
        reference = make_reference(self.secret, key.id, sha256(b"file\0" + raw).digest())
        seen = await self._outline(content, path)
        said = await self.prose.describe(key, model, path, seen, content) if self.prose is not None else ""
        exchange = name_file(reference)
        if not await self.recorder.archive.number_calls([exchange]):
            received = msgspec.json.encode({"reference": reference})
            target = _TARGET.format(reference)
            await self.recorder.write_call(key, exchange, model=model, target=target, body=raw, received=received)
        lines = (*wrap(said, LONGEST_LINE), *(seen.structure if self.policy.outline else ()))
        part = FileRefPart(reference, path, seen.kind, tokens, "\n".join(lines))
        return FileHandleResult(path=path, file_ref=part)

    async def _outline(self, content: str, path: str) -> Outline:
        try:
            return await self.worker.outline(OutlineJob(content, path))
        except _FAILURES_APART:
            return await asyncio.to_thread(outline, content, path)


def build_files(
    policy: FilesPolicy,
    conversations: Conversations,
    summaries: SummaryWorker,
    *,
    worker: OutliningWorker,
    secret: bytes,
) -> FileKeeper:
    """Return what keeps files, with a model for sentences about them, and about outputs in epochs, if one is named."""
    prose = None
    if policy.summary_model:
        prose = FileProse(
            model=policy.summary_model,
            inline_tokens=policy.inline_tokens,
            worker=summaries,
        )
        summaries.followers.append(prose.describe_outputs)
    return FileKeeper(policy, conversations.cap, conversations.recorder, worker, secret, prose)
