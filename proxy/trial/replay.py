"""Replays transcripts through an engine of their own, and reads what it would have sent from its log.

The engine is the proxy's, with a clock that goes by the transcript and a provider that answers as it says. Its log is
in a directory of its own; no model is called, so that no summary is written by one.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from proxy.assembly import Engine
from proxy.config import Settings
from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.recorded.lookup import read_pages
from proxy.lab.upstream import Answer, ScriptedCall, make_call, open_engine
from proxy.model.epoch import Epoch, Replaced, Written
from proxy.read.savings import price_call, read_calls
from proxy.read.session_summary import find_title
from proxy.transcripts.transcript import Transcript, TranscriptCall
from proxy.trial.estimate import Cut, EpochEstimate, SessionEstimate, sum_costs
from proxy.trial.requests import CALL, Requests
from proxy.trial.usage import UsageEstimator
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire import FORMATS
from proxy.wire.headers import find_header
from proxy.wire.translation.responses import write_response

_OK = 200
_IDLE_SECONDS = 5.0
_COMMIT_MS = 30_000  # what is recorded must not depend on how busy the machine is
_HOSTS = {
    "anthropic": "https://api.anthropic.com/v1",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
}
_NO_USAGE = "its transcript has no usage of {0}: counted, with what the provider's cache should hold"
_MISSING = "its transcript is without {0}"
_SIZED = "{0}: their size is taken from the usage of the first call"


class ReplayClock:
    """A clock that is put forward to when a call was made; between calls it runs as time does."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._wall = time.time()
        self._began = time.monotonic()

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by the transcript."""
        return round(1000 * (self._wall + self.monotonic() - self._began))

    def monotonic(self) -> float:
        """Return seconds, never decreasing."""
        return time.monotonic() + self._ahead

    def begin(self, at_ms: int) -> None:
        """Begin a session at this time, which may lie before those of others."""
        if at_ms:
            self._wall = at_ms / 1000 - (self.monotonic() - self._began)

    def wait_until(self, at_ms: int) -> None:
        """Let the time pass until `at_ms`."""
        self._ahead += max(0.0, (at_ms - self.now_ms()) / 1000) if at_ms else 0.0


def group_by_upstream(transcripts: Iterable[Transcript], settings: Settings) -> dict[str, list[Transcript]]:
    """Return transcripts by the provider that they are replayed at: an empty name for the user's own upstreams.

    Where the settings name none, it is the one that the client calls.
    """
    groups: dict[str, list[Transcript]] = {}
    own = "upstreams" in settings.model_fields_set
    for transcript in transcripts:
        usual = FORMATS[transcript.wire].api
        name = "" if own else transcript.provider if transcript.provider in _HOSTS else usual
        groups.setdefault(name, []).append(transcript)
    return groups


def make_settings(settings: Settings, provider: str) -> Settings:
    """Return the settings of a replay: the user's, but that all is managed, and that nothing is written elsewhere."""
    changes: dict[str, object] = {"mode": "manage"}
    if provider:
        changes["upstreams"] = (UpstreamPolicy(name=provider, base_url=_HOSTS[provider]),)
    else:
        usual = UpstreamPolicy().base_url
        changes["upstreams"] = tuple(
            replace(each, kind="openai", base_url=each.base_url or usual) for each in settings.upstreams
        )
    changes["store"] = replace(settings.store, on_failure="forward", max_bytes=0, commit_wait_ms=_COMMIT_MS)
    changes["memory"] = replace(settings.memory, mirror="")
    return settings.model_copy(update=changes)


async def replay(
    settings: Settings, folder: Path, transcripts: Sequence[Transcript], note_call: Callable[[], None]
) -> list[SessionEstimate]:
    """Return the estimates of transcripts, replayed one after another, their log in a folder. Raises StoreUnavailable.

    `note_call` is called after each call.
    """
    clock, expected = ReplayClock(), dict[bytes, Answer]()

    async def answer(asked: ScriptedCall) -> WholeResponse | None:
        known = expected.get(find_header(asked.headers, CALL))
        return await known(asked) if known is not None else None

    async with open_engine(settings, folder, answer, clock) as engine:
        upstream = settings.upstream_policies()[0].name
        return [await _Replay(engine, clock, expected, upstream, each).run(note_call) for each in transcripts]


class _Replay:
    """One transcript at an engine."""

    def __init__(
        self,
        engine: Engine,
        clock: ReplayClock,
        expected: dict[bytes, Answer],
        upstream: str,
        transcript: Transcript,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._expected = expected
        self._transcript = transcript
        self._upstream = upstream
        self._prices = engine.models.prices
        self._usage = UsageEstimator(engine.models, self._upstream, transcript)
        self._errors = 0
        self._sessions: dict[str, None] = {}  # where the log has its calls, in their order

    async def run(self, note_call: Callable[[], None]) -> SessionEstimate:
        """Replay all calls, and return the estimate."""
        transcript = self._transcript
        await self._usage.measure()
        requests = self._usage.requests
        self._clock.begin(transcript.began_ms)
        for number, call in enumerate(transcript.calls):
            await self._make_call(requests, number, call)
            note_call()
        await self._engine.tasks.finish(_IDLE_SECONDS)  # then its log has all that is done behind calls
        return await self._estimate()

    async def _make_call(self, requests: Requests, number: int, call: TranscriptCall) -> None:
        self._clock.wait_until(call.at_ms)
        form, body = FORMATS[self._transcript.wire], requests.make_body(call)
        own = await self._usage.find_own(call)

        async def answer(asked: ScriptedCall) -> WholeResponse:
            usage = own
            if asked.body == body:
                self._usage.note_unchanged()
            else:
                usage = await self._usage.estimate(asked.body, own)
            told = write_response(form, call.answer, number=str(number), model=call.model, usage=usage)
            return WholeResponse(_OK, (), told)

        self._expected.clear()
        self._expected[b"%d" % number] = answer
        client = await make_call(self._engine, form, body, requests.make_headers(number))
        # When the next call comes, what is planned ahead for it has long been planned.
        await asyncio.sleep(0)
        await self._engine.worker.finish()
        self._errors += client.error is not None or client.status != _OK
        self._sessions[client.session] = None

    async def _estimate(self) -> SessionEstimate:
        archive, transcript, usages = self._engine.archive, self._transcript, self._usage.usages
        client = [usage.input or 0 for usage in usages]
        calls_of = [call for session in self._sessions async for call in read_calls(archive, session)]
        exchanges = [call for call in calls_of if call[0].is_managed]
        sent = [rounds[-1].input or 0 for rounds in exchanges]
        upstream = exchanges[0][0].upstream if exchanges else self._upstream
        calls = zip(transcript.calls, usages, strict=True)
        epochs, cut = await self._list_epochs()
        return SessionEstimate(
            transcript.id,
            transcript.client,
            transcript.version,
            transcript.model,
            upstream,
            find_title(FORMATS[transcript.wire], transcript.trails[0] if transcript.trails else ()),
            transcript.source,
            transcript.began_ms,
            sum_costs([self._prices.price(upstream, call.model, usage) for call, usage in calls]),
            sum_costs([cost for call in exchanges if (cost := price_call(call, self._prices)[0]) is not None]),
            tuple(client),
            tuple(sent + client[len(sent) :]),
            sum(usage.output or 0 for usage in usages),
            epochs,
            cut,
            self._errors,
            tuple(_list_reasons(transcript, self._usage)),
        )

    async def _list_epochs(self) -> tuple[tuple[EpochEstimate, ...], Cut]:
        """Return the epochs that were opened, and what the last one of each session shortens."""
        archive, found, cut = self._engine.archive, list[EpochEstimate](), Cut()
        for session in self._sessions:
            numbers = {row.id: row.n async for page in read_pages(archive, session) for row in page}
            epochs = await archive.list_epochs(session)
            for epoch in epochs:
                named = epoch.why, epoch.tokens_before, epoch.tokens_after
                found.append(EpochEstimate(len(found) + 1, numbers.get(epoch.exchange, 0), *named))
            if epochs:
                cut += count_cut(await archive.load_epoch(session, len(epochs)))
        return tuple(found), cut


def count_cut(epoch: Epoch) -> Cut:
    """Return what an epoch shortens."""
    edits = epoch.list_edits()
    kinds = [edit.kind for edit in edits if isinstance(edit, Replaced)]
    told = {place for edit in edits if isinstance(edit, Written) for place in range(edit.start, edit.stop)}
    return Cut(kinds.count("tombstone"), kinds.count("file"), kinds.count("shortened"), len(told))


def _list_reasons(transcript: Transcript, baseline: UsageEstimator) -> Iterator[str]:
    """Yield why the estimate for a session is only one."""
    if transcript.missing:
        *others, last = transcript.missing
        what = f"{', '.join(others)} and {last}" if others else last
        yield (_SIZED if baseline.filler else _MISSING).format(_MISSING.format(what) if baseline.filler else what)
    if baseline.counted:
        whole = len(transcript.calls)
        yield _NO_USAGE.format("any call" if baseline.counted == whole else f"{baseline.counted} of {whole} calls")
