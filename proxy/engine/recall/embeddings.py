"""Search by similarity: vectors of what sessions say are made behind their calls, and a query gets one in time or none.

Nothing is asked unless `recall.embedding_model` names a model. Vectors of a session are asked for with the newest
credential of its client, at its upstream, in batches one after another, within the limits for summaries. The worker
process, which alone writes the index, says which passages need a vector, and keeps them. Nothing is remembered here: a
batch that is lost with its process is asked for again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from proxy.engine.background.jobs import BackgroundJobs, Job
from proxy.engine.compaction.credentials import CallCredential, CredentialCache
from proxy.engine.compaction.model_call import FailedCall, ModelCall, ModelCaller
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.scheduling import find_own_upstream
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.ports import Embed, PassageStore, Upstream
from proxy.engine.request_resolver import Route
from proxy.model.errors import StoreUnavailable, WorkerLost
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import CONVERSATION, SUCCESS, SessionKey, Usage
from proxy.model.lru import LruCache
from proxy.model.search import QueryVector, SearchQuery
from proxy.retrieval.embeddings import write_embedding_request
from proxy.retrieval.vectors import PassageBatch, VectorBatch

QUERY_SECONDS = 0.5
"""How long a search waits for the vector of its query. One that comes later is there when the same is asked again."""
FIRST_SECONDS, LOCAL_SECONDS, NEXT_SECONDS, RETRY_SECONDS = 2.0, 5.0, 1.0, 60.0
"""Pauses: after a call, after one to a local server, between batches, and after a batch that could not be had."""
_NAME = "vectors"
_MOST_SESSIONS = 4096
_MOST_QUERIES = 256
_LONGEST_QUERY = 2_000
_CHARACTERS_OF_TOKEN = 3  # as few as English has: what is reserved is rather too much
_UNSERVED = frozenset({404, 405, 501})
_DUE_TO_TEXT = frozenset({400, 413, 422})

_log = logging.getLogger("palimpsest.recall")

Result = Literal["done", "more", "single", "later"]
"""What is left of a session: nothing, passages, passages of which one is refused, or what can be tried again later."""


@dataclass(kw_only=True, eq=False)
class Embedder:
    """Has vectors made. Only one batch is under way at a time, and none at a local server that has a client's call."""

    model: str
    policy: CompactionPolicy  # whose `may_receive` holds here, too
    caller: ModelCaller
    store: PassageStore
    jobs: BackgroundJobs
    credentials: CredentialCache
    routes: Sequence[Route]

    def __post_init__(self) -> None:
        self._waiting = LruCache[str, bool](_MOST_SESSIONS)  # sessions; True if passages are asked for one at a time
        self._unserved: set[str] = set()
        self._queries = LruCache[tuple[str, str], asyncio.Future[bytes | None]](_MOST_QUERIES)
        self._running: Job | None = None
        self._is_due = False

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Record that a client's call has ended. Subscribed to the bus, behind the trigger, which keeps credentials."""
        if event.kind not in CONVERSATION or not event.is_final or event.status not in SUCCESS:
            return
        if self.credentials.find_newest(event.session) is None:
            return
        self._waiting.put(event.session, self._waiting.peek(event.session) or False)
        self._wake(LOCAL_SECONDS if self.jobs.is_local(event.upstream, self.model) else FIRST_SECONDS)

    async def embed_query(self, query: SearchQuery) -> QueryVector | None:
        """Return the vector of a query, or None if there is none in time. Never raises."""
        asker = self._find_asker(query)
        text = _clean(query.text[:_LONGEST_QUERY]).strip()
        if asker is None or not text:
            return None
        name = (asker[0].tenant.hex(), text)
        made = self._queries.get(name)
        if made is None:
            request = self._make_request(*asker, [text])
            if request.upstream.name in self._unserved:
                return None
            made = asyncio.get_running_loop().create_future()
            self._queries.put(name, made)
            self.jobs.start(request.session.id, _NAME, partial(self._ask_for_query, name, request, made))
        await asyncio.wait((made,), timeout=QUERY_SECONDS)
        code = made.result() if made.done() else None
        return None if code is None else QueryVector(self.model, code)

    async def _ask_for_query(
        self, name: tuple[str, str], request: ModelCall, made: "asyncio.Future[bytes | None]"
    ) -> None:
        code: bytes | None = None
        try:
            result = await self.caller.ask(request)
            if isinstance(result, FailedCall):
                self._note_failure(request.upstream.name, result)
            else:
                code = result.codes[0]
        finally:
            if code is None:
                self._queries.pop(name)  # so that it is asked for again
            made.set_result(code)

    def _find_asker(self, query: SearchQuery) -> tuple[SessionKey, CallCredential] | None:
        """Return the session for which a query is asked: one that is searched, else the newest of its tenant.

        A search over all tenants has none while there are several: none of them pays for it.
        """
        known = self.credentials.list_sessions()
        if query.sessions is not None:
            known = [key for key in known if key.id in query.sessions]
        if query.tenant is not None:
            known = [key for key in known if key.tenant.hex() == query.tenant]
        elif len({key.tenant for key in known}) > 1:
            return None
        return next((found for key in known if (found := self.credentials.find_newest(key.id)) is not None), None)

    def _find_upstream(self, credential: CallCredential) -> Upstream:
        return find_own_upstream(self.policy, self.model, credential.upstream, "", self.routes)

    def _make_request(self, session: SessionKey, credential: CallCredential, texts: Sequence[str]) -> ModelCall:
        body = write_embedding_request(self.model, texts)
        expected = Usage(sum([len(text) // _CHARACTERS_OF_TOKEN + 1 for text in texts]), 0)
        upstream = self._find_upstream(credential)
        return ModelCall(session, credential, upstream, None, self.model, body, 0, expected, texts=texts)

    def _wake(self, seconds: float) -> None:
        if not self._is_due and self._running is None and len(self._waiting):
            self._is_due = True
            self.jobs.later(seconds, self._start)

    def _put(self, session: str, *, is_single: bool = False) -> None:
        if session not in self._waiting:
            self._waiting.put(session, is_single)
        self._wake(NEXT_SECONDS)

    def _start(self) -> None:
        """Begin the next batch, of the session that has waited longest."""
        self._is_due = False
        session = next(iter(self._waiting))
        found = self.credentials.find_newest(session)
        upstream = self._find_upstream(found[1]).name if found is not None else ""
        if found is None or upstream in self._unserved:  # the credential has expired, or is of no use
            self._waiting.pop(session)
            self._wake(NEXT_SECONDS)
        elif self.jobs.has_call(upstream, self.model):
            self._wake(LOCAL_SECONDS)
        else:
            is_single = bool(self._waiting.pop(session))
            work = partial(self._run, *found, is_single=is_single)
            self._running = self.jobs.start(session, _NAME, work, upstream=upstream)
            if self._running is not None:
                self._running.task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._running = None
        self._wake(LOCAL_SECONDS if task.cancelled() else NEXT_SECONDS)

    async def _run(self, key: SessionKey, credential: CallCredential, *, is_single: bool) -> None:
        """Make the next vectors of a session, and let it wait for more if any are left."""
        session, result = key.id, "more"  # what is left if this is cancelled
        try:
            batch = await self.store.list_passages(session, self.model)
            result = await self._embed(key, credential, batch, is_single=is_single)
        except (WorkerLost, StoreUnavailable) as error:
            _log.info("no vectors are made for now, a later call tries again: %s", error, extra={"session": session})
            result = "later"
        finally:
            if result == "later":
                self.jobs.later(RETRY_SECONDS, partial(self._put, session))
            elif result != "done":
                self._put(session, is_single=result == "single")

    async def _embed(
        self, key: SessionKey, credential: CallCredential, batch: PassageBatch, *, is_single: bool
    ) -> Result:
        """Have the vectors of a batch made, and kept."""
        session, passages, until = key.id, batch.passages, batch.until
        if is_single and len(passages) > 1:
            passages, until = passages[:1], passages[1].number
        codes: Sequence[bytes] = ()
        upstream = self._find_upstream(credential).name
        if passages:
            result = await self.caller.ask(self._make_request(key, credential, [each.text for each in passages]))
            if isinstance(result, FailedCall):
                self._note_failure(upstream, result)
                if result.status not in _DUE_TO_TEXT:
                    return "done" if result.status in _UNSERVED else "later"
                if len(passages) > 1:
                    return "single"
                passages, is_single = (), False  # found, and left out
            else:
                codes = result.codes
        if until > batch.since:
            numbers = tuple([each.number for each in passages])
            made = VectorBatch(stamp=batch.stamp, since=batch.since, until=until, numbers=numbers, codes=tuple(codes))
            if problem := await self.store.keep_vectors(session, self.model, made):
                self._unserved.add(upstream)
                told = "vectors cannot be used and are not asked for until a restart: %s. Check recall.embedding_model"
                _log.warning(told, problem, extra={"model": self.model})
                return "done"
        if not (batch.left or until < batch.until or not batch.is_current):
            return "done"
        return "single" if is_single else "more"

    def _note_failure(self, upstream: str, failure: FailedCall) -> None:
        if failure.status in _UNSERVED:
            if upstream not in self._unserved:
                self._unserved.add(upstream)
                told = (
                    "/v1/embeddings was refused with status %d, and is not asked again until a restart; "
                    "search goes on by words. Check recall.embedding_model"
                )
                _log.warning(told, failure.status, extra={"upstream": upstream, "model": self.model})
        else:
            _log.info(
                "no vectors were made, a later call tries again: %s", failure.reason, extra={"upstream": upstream}
            )


def build_embedding(model: str, worker: SummaryWorker, store: PassageStore) -> Embed | None:
    """Return the function that embeds queries, and let passages be embedded; None if no model is named.

    The limits and the credentials are those of summaries.
    """
    if not model:
        return None
    summarizer = worker.summarizer
    embedder = Embedder(
        model=model,
        policy=worker.policy,
        caller=summarizer.caller,
        store=store,
        jobs=worker.jobs,
        credentials=worker.credentials,
        routes=summarizer.routes,
    )
    summarizer.caller.bus.subscribe(ExchangeRecorded, embedder.note_exchange)
    return embedder.embed_query


def _clean(text: str) -> str:
    """Return a text without lone surrogates, which no request can have."""
    return text.encode("utf-8", "replace").decode()
