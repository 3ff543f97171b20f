"""The memory of sessions: what is known of them is read from the log, and what is learned is written to it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from proxy.context.compaction.spans import WITHOUT_MODEL
from proxy.context.compaction.summary_text import strip_frame
from proxy.context.memory.facts import (
    choose_items,
    count_items,
    find_request,
    format_episode,
    format_fact,
    list_items,
    list_spans,
)
from proxy.context.memory.learning import learn_facts
from proxy.context.memory.traces import list_turns
from proxy.engine.compaction.job import SummaryJob
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.memory.path import MemoryReader
from proxy.engine.ports import Archive, Clock
from proxy.engine.text_jobs import TextJobs
from proxy.model.epoch import Summary
from proxy.model.errors import BadRequest, NotFound, StoreUnavailable
from proxy.model.lru import LruCache
from proxy.model.memory import (
    LearnedFact,
    MemoryBundle,
    MemoryOrder,
    OrderKind,
    Remembered,
    StoredMemory,
)

DIGEST_TAG = "digest"
"""The tag of a report that was put together without a model."""

_MOST_SESSIONS = 256
_MOST_LOCKS = 4096
_COMMIT_SECONDS = 5.0

_log = logging.getLogger("palimpsest.memory")


class MemoryLog(MemoryReader, Archive, Protocol):
    """The log as memory reads and writes it."""


@dataclass(kw_only=True, eq=False)
class SessionMemory:
    """The memory of all sessions of one server. `listeners` are told of each session whose memory has changed."""

    archive: MemoryLog
    gate: DurabilityWaiter
    clock: Clock
    texts: TextJobs = field(default_factory=lambda: TextJobs({}))
    listeners: list[Callable[[str], None]] = field(default_factory=list)
    _cache: LruCache[str, StoredMemory] = field(default_factory=lambda: LruCache(_MOST_SESSIONS), init=False)
    _locks: LruCache[str, asyncio.Lock] = field(default_factory=lambda: LruCache(_MOST_LOCKS), init=False)
    _generation: int = field(default=0, init=False)
    asked: set[str] = field(default_factory=set, init=False)  # sessions of which memory is to be made
    due: set[str] = field(default_factory=set, init=False)  # answered since: their next request is to begin anew

    async def retrieve(
        self,
        session: str,
        nodes: Sequence[bytes],
        *,
        max_episodic: int,
        max_semantic: int,
    ) -> MemoryBundle:
        """Return the items that a path is shown: its newest reports, and its most important facts."""
        return choose_items(await self.list_items(session, nodes), max_episodic, max_semantic)

    async def list_items(self, session: str, nodes: Sequence[bytes]) -> MemoryBundle:
        """Return all items of a path."""
        return list_items(await self.load(session), nodes)

    async def list_spans(self, session: str, nodes: Sequence[bytes]) -> list[tuple[int, int]]:
        """Return from which place up to which the reports of a path that count cover it."""
        return list_spans(await self.load(session), nodes)

    def is_due(self, session: str) -> bool:
        """Return whether the next request of a session is to begin anew from memory, as somebody asked."""
        return session in self.due

    def forget(self) -> None:
        """Ask the log for memory when it is needed next."""
        self._cache.clear()

    async def load(self, session: str) -> StoredMemory:
        """Return the memory records of a session. A session of which nothing is known has none."""
        generation = self.archive.health.generation
        if generation != self._generation:  # the log lost a record, which may be one of these
            self._cache.clear()
            self._generation = generation
        stored = self._cache.get(session)
        if stored is None:
            stored = await self.archive.load_memory(session)
            self._cache.put(session, stored)
        return stored

    async def remember(self, job: SummaryJob, summary: Summary) -> Remembered | None:
        """Add a report to the memory of its session, with the facts that it teaches.

        Raises StoreUnavailable if the log does not take it in time. Return None for a report without a text.
        """
        report = strip_frame(summary.text).strip()
        if not report:
            return None
        facts, turns = await self._learn(job, summary)
        entry = partial(
            Remembered,
            session=summary.session,
            start=job.span.start,
            stop=job.span.stop,
            last=summary.last,
            first_turn=turns[0],
            last_turn=turns[-1],
            summary=report,
            made_ms=summary.made_ms,
            tags=(DIGEST_TAG,) if summary.level == WITHOUT_MODEL else (),
            facts=facts,
            report=summary.id,
        )
        async with self._lock(summary.session):
            reports, known = count_items(await self.load(summary.session))
            remembered = entry(number=reports + 1, first_fact=known + 1)
            await self._append(remembered)
        _log.info(
            "remembered %s and %d facts",
            *(format_episode(reports + 1), len(facts)),
            extra={"session": summary.session},
        )
        return remembered

    async def order(self, session: str, kind: OrderKind, item: str = "") -> None:
        """Record an order about an item of a session, or about all of its memory.

        Raises NotFound for an item that was never made, BadRequest for one that is no report and no fact, and
        StoreUnavailable if the log does not take it in time.
        """
        async with self._lock(session):
            if item:
                _expect_item(await self.load(session), item)
            await self._append(MemoryOrder(session, kind, item, self.clock.now_ms()))
        if kind == "request":
            self.asked.add(session)
        elif kind in ("clear", "reset"):
            self.asked.discard(session)

    async def is_requested(self, session: str) -> bool:
        """Return whether memory is to be made of the turns of a session behind its next response."""
        return find_request(await self.load(session))

    async def load_requests(self) -> None:
        """Load the sessions of which memory is to be made, as the log has them."""
        try:
            self.asked.update(await self.archive.list_memory_requests())
        except StoreUnavailable as error:
            _log.error("which sessions were asked to make memory is unknown (%s); ask again", error)

    async def _learn(self, job: SummaryJob, summary: Summary) -> tuple[tuple[LearnedFact, ...], list[int]]:
        """Return the facts of a report, and the numbers of the turns that it covers, at least in part."""
        said = (list(job.request.nodes), summary.facts, summary.text, job.foreign)
        facts = await self.texts.run(learn_facts, job.index, job.span, *said)
        turns = await asyncio.to_thread(list_turns, job.index.messages)
        return facts, [each.number for each in turns if each.start < job.span.stop and job.span.start < each.stop]

    async def _append(self, record: Remembered | MemoryOrder) -> None:
        is_stored = await self.gate.confirm(self.archive.append(record), _COMMIT_SECONDS)
        self._cache.clear()  # sessions that continue this one have its memory, too
        if not is_stored:
            raise StoreUnavailable("the log did not take what was to be remembered in time")
        for listener in self.listeners:
            listener(record.session)

    def _lock(self, session: str) -> asyncio.Lock:
        """Return the lock under which items of a session are numbered."""
        lock = self._locks.get(session)
        if lock is None:
            lock = asyncio.Lock()
            self._locks.put(session, lock)
        return lock


def _expect_item(stored: StoredMemory, item: str) -> None:
    """Raise NotFound unless a report or a fact with this id was made."""
    if not item.startswith(("ep_", "sem_")):
        raise BadRequest(f"reports (ep_0001) and facts (sem_0001) can be pinned and retracted, not {item[:40]!r}")
    for _, entry in stored.entries:
        facts = map(format_fact, range(entry.first_fact, entry.first_fact + len(entry.facts)))
        if item == format_episode(entry.number) or item in facts:
            return
    raise NotFound(f"this session has no item {item[:40]!r} in its memory")
