"""Makes the events of the stream from those of the engine.

While nobody reads the stream it subscribes to nothing, so that calls cost what they would without it. Else an event of
the engine is only put into a list. A moment later, or at once if somebody in this process listens, all of the list are
told together, in their order, once the log has what was queued for it before: so an event is durable before it is told,
and calls have their numbers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from proxy.engine.events.calls import OpenCalls
from proxy.engine.events.parts import find_pruned, group_items, list_completed, list_created, list_pruned
from proxy.engine.events.stream import CallLater, EventStream
from proxy.engine.models import PriceList
from proxy.engine.runtime import EngineBus, TaskRunner, attempt
from proxy.model.epoch import Edit, Replaced
from proxy.model.events import (
    AnswerRead,
    AnswerUninformative,
    CacheUsed,
    CeilingExceeded,
    CompactionEnded,
    CompactionStarted,
    DoomLoopDetected,
    EpochOpened,
    EpochRefused,
    Event,
    ExchangeRecorded,
    Nudged,
    OutputsShortened,
    ReadingFailed,
    ReplyRecorded,
    RequestRecorded,
    RungFailed,
    SessionClosed,
    SessionWentIdle,
    SummaryAdded,
)
from proxy.model.exchange import SUCCESS
from proxy.model.lru import LruCache
from proxy.model.stream_events import (
    AgentNudgedEvent,
    CacheMissedEvent,
    CallEvent,
    CallStartedEvent,
    CallUnreadableEvent,
    CeilingExceededEvent,
    CompactionCompletedEvent,
    CompactionFailedEvent,
    CompactionTriggeredEvent,
    DoomLoopDetectedEvent,
    EpochOpenedEvent,
    EpochRevertedEvent,
    MessageCreatedEvent,
    PartCreatedEvent,
    PartUpdatedEvent,
    PruneCompletedEvent,
    RungFailedEvent,
    SessionClosedEvent,
    SessionCreatedEvent,
    SessionIdleEvent,
    StreamEvent,
    SummaryAddedEvent,
)
from proxy.wire import FORMATS

GATHER_SECONDS = 0.05
# The most messages of one request that are told: a session that continues another one brings them all at once.
MOST_MESSAGES = 64
_MOST_PENDING = 16_384
_MOST_EPOCHS = 1024
_LONGEST = 1000  # characters of an error

NumberCalls = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]
"""Returns the numbers of calls in their sessions, by the ids of their exchanges, as far as the log has them.

It waits, for a bounded time, until the log has what was appended to it before.
"""

Make = Callable[[int | None], Iterable[StreamEvent]]
"""Makes the events to tell, given the number of their call."""

_edits = msgspec.json.Decoder(tuple[Edit, ...])
_log = logging.getLogger("palimpsest.events")


class EventPublisher:
    """Tells the readers of a stream what happens."""

    def __init__(
        self,
        bus: EngineBus,
        stream: EventStream,
        prices: PriceList,
        *,
        number: NumberCalls,
        tasks: TaskRunner,
        call_later: CallLater,
        now_ms: Callable[[], int],
    ) -> None:
        self.stream = stream
        self._bus = bus
        self._number = number
        self._tasks = tasks
        self._call_later = call_later
        self._now_ms = now_ms
        self._calls = OpenCalls(prices)
        self._pruned = LruCache[str, frozenset[int]](_MOST_EPOCHS)  # the places that an epoch has in short, by its id
        self._pending: list[tuple[str, Make]] = []
        self._is_due = False
        self._settled = asyncio.Event()
        self._heard: Mapping[type[Event], Callable[[Any], None]] = {
            RequestRecorded: self._note_request,
            ReplyRecorded: self._note_reply,
            ExchangeRecorded: self._note_exchange,
            AnswerRead: self._note_answer,
            AnswerUninformative: self._note_answer,
            ReadingFailed: self._note_unread,
            CacheUsed: self._note_cache,
            EpochOpened: self._note_epoch,
            OutputsShortened: self._note_shortened,
            EpochRefused: self._note_refused,
            RungFailed: self._note_rung,
            CeilingExceeded: self._note_excess,
            CompactionStarted: self._note_compaction,
            CompactionEnded: self._note_compacted,
            SummaryAdded: self._note_summary,
            DoomLoopDetected: self._note_loop,
            Nudged: self._note_nudge,
            SessionWentIdle: self._note_idle,
            SessionClosed: self._note_closed,
        }
        stream.on_listen, stream.on_idle, stream.settle = self._subscribe, self._unsubscribe, self._settle

    def _subscribe(self) -> None:
        for kind, note in self._heard.items():
            self._bus.subscribe(kind, note)

    def _unsubscribe(self) -> None:
        for note in self._heard.values():
            self._bus.unsubscribe(note)
        self._calls.clear()
        self._pending.clear()

    def _put(self, exchange: str, make: Make) -> None:
        """Have events told soon. Above a limit, which only a log that stands still reaches, nothing more is taken."""
        if len(self._pending) < _MOST_PENDING:
            self._pending.append((exchange, make))
        if not self._is_due:
            self._order()

    def _order(self) -> None:
        self._is_due = True
        self._settled.clear()
        self._call_later(0.0 if self.stream.is_heard else GATHER_SECONDS, self._start)

    async def _settle(self) -> None:
        """Wait until all that has happened before was told."""
        while self._is_due:
            await self._settled.wait()

    def _tell(self, exchange: str, event: CallEvent) -> None:
        self._put(exchange, partial(_number_event, event))

    def _start(self) -> None:
        self._tasks.spawn(self._tell_pending())

    async def _tell_pending(self) -> None:
        """Tell what is pending, and go on later with what comes meanwhile."""
        pending, self._pending = self._pending, []
        named = tuple(dict.fromkeys(exchange for exchange, _ in pending if exchange))
        numbers = await attempt(self._number(named), _note_unnumbered) if named else {}
        try:
            for exchange, make in pending:
                self.stream.publish(make((numbers or {}).get(exchange)))
        finally:
            self._is_due = False
            self._settled.set()
            if self._pending:
                self._order()

    # --- calls -------------------------------------------------------------------------------------------------------

    def _note_request(self, event: RequestRecorded) -> None:
        self._calls.open(event)
        self._put(event.exchange, partial(self._tell_request, event, self._now_ms()))

    def _tell_request(self, event: RequestRecorded, at_ms: int, n: int | None) -> Iterator[StreamEvent]:
        session = event.session
        common: dict[str, Any] = {"at_ms": at_ms, "session": session.id}
        if n == 1:
            told: dict[str, Any] = {"name": session.family, "parent": session.parent, "upstream": session.upstream}
            yield SessionCreatedEvent(**common, **told, model=event.model)
        if not event.wire:  # a session was begun, without a call
            return
        common |= {"model": event.model, "upstream": event.upstream, "wire": event.wire}
        yield CallStartedEvent(**common, exchange=event.exchange, n=n, is_side=event.is_side)
        if event.is_accepted:
            yield from _tell_messages(event, at_ms, n)

    def _note_reply(self, event: ReplyRecorded) -> None:
        call = self._calls.find(event.exchange)
        if call is not None:
            self._put(event.exchange, partial(_tell_reply, event, call.session, self._now_ms()))

    def _note_exchange(self, event: ExchangeRecorded) -> None:
        call = self._calls.add_round(event)
        if not event.is_final:
            return
        if call.request is not None and not call.request.is_accepted and event.status in SUCCESS:
            self._put(event.exchange, partial(_tell_messages, call.request, self._now_ms()))
        if not event.is_readable:
            self._complete(event.exchange)

    def _note_answer(self, event: AnswerRead | AnswerUninformative) -> None:
        if self._calls.add_answer(event):
            self._complete(event.exchange)

    def _note_unread(self, event: ReadingFailed) -> None:
        call = self._calls.find(event.exchange)
        if call is None or not call.session:
            return  # it was recorded by an earlier process
        error = event.error[:_LONGEST]
        told = CallUnreadableEvent(at_ms=self._now_ms(), session=call.session, exchange=event.exchange, error=error)
        self._tell(event.exchange, told)
        self._complete(event.exchange)

    def _complete(self, exchange: str) -> None:
        call = self._calls.close(exchange)
        if call is not None:
            self._put(exchange, partial(call.describe, self._now_ms()))

    def _note_cache(self, event: CacheUsed) -> None:
        if event.cause:
            told = (event.cause, event.missed, event.cost, event.money)
            names = ("cause", "tokens", "cost", "money")
            self._tell(event.exchange, self._make(CacheMissedEvent, event, **dict(zip(names, told, strict=True))))

    # --- what is managed ---------------------------------------------------------------------------------------------

    def _note_rung(self, event: RungFailed) -> None:
        error = event.problem[:_LONGEST]
        self._tell(event.exchange, self._make(RungFailedEvent, event, rung=event.rung, error=error))

    def _note_excess(self, event: CeilingExceeded) -> None:
        told = {"tokens": event.tokens, "usable": event.usable, "error": event.reason[:_LONGEST]}
        self._tell(event.exchange, self._make(CeilingExceededEvent, event, **told))

    def _note_epoch(self, event: EpochOpened) -> None:
        self._put(event.exchange, partial(_tell_epoch, event, self._now_ms()))

    def _note_shortened(self, event: OutputsShortened) -> None:
        before, now = self._pruned.get(event.parent) or frozenset(), find_pruned(event.edits)
        self._pruned.put(event.epoch, now)
        if now - before:
            self._put(event.exchange, partial(_tell_shortened, event, before, self._now_ms()))

    def _note_refused(self, event: EpochRefused) -> None:
        self._tell(event.exchange, self._make(EpochRevertedEvent, event, reverted=event.epoch, why="refused"))

    def _note_compaction(self, event: CompactionStarted) -> None:
        told = CompactionTriggeredEvent(
            at_ms=self._now_ms(),
            session=event.session,
            exchange=event.exchange,
            messages=event.messages,
            tokens=event.tokens,
            is_manual=event.is_manual,
        )
        self._put("", lambda n: (told,))

    def _note_compacted(self, event: CompactionEnded) -> None:
        common: dict[str, Any] = {"at_ms": self._now_ms(), "session": event.session, "exchange": event.exchange}
        common |= {"elapsed_ms": round(1000 * event.seconds), "is_manual": event.is_manual}
        if event.error:
            failed = CompactionFailedEvent(**common, error=event.error[:_LONGEST])
            self._put("", lambda n: (failed,))
            return
        told = CompactionCompletedEvent(
            **common,
            summary=event.summary,
            level=event.level,
            messages=event.messages,
            tokens_before=event.covered,
            tokens_after=event.tokens,
            reason=event.reason[:_LONGEST],
        )
        self._put("", lambda n: (told,))

    def _note_summary(self, event: SummaryAdded) -> None:
        told = SummaryAddedEvent(
            at_ms=self._now_ms(),
            session=event.session,
            exchange=event.exchange,
            summary=event.summary,
            kind=event.kind,
            level=event.level,
            covered=event.covered,
            tokens=event.tokens,
        )
        self._put("", lambda n: (told,))

    def _note_loop(self, event: DoomLoopDetected) -> None:
        told = {"tool": event.tool[:_LONGEST], "count": event.count, "has_same_output": event.has_same_output}
        self._tell(event.exchange, self._make(DoomLoopDetectedEvent, event, **told))

    def _note_nudge(self, event: Nudged) -> None:
        self._tell(event.exchange, self._make(AgentNudgedEvent, event, attempt=event.attempt))

    def _note_idle(self, event: SessionWentIdle) -> None:
        self._tell(event.exchange, self._make(SessionIdleEvent, event, attempts=event.attempts))

    def _note_closed(self, event: SessionClosed) -> None:
        closed = SessionClosedEvent(at_ms=self._now_ms(), session=event.session)
        self._put("", lambda n: (closed,))

    def _make(self, kind: Callable[..., CallEvent], event: Any, **fields: object) -> CallEvent:
        return kind(at_ms=self._now_ms(), session=event.session, exchange=event.exchange, **fields)


def _number_event(event: CallEvent, n: int | None) -> Iterable[StreamEvent]:
    return (msgspec.structs.replace(event, n=n),)  # type: ignore[return-value]


def _tell_messages(event: RequestRecorded, at_ms: int, n: int | None) -> Iterator[StreamEvent]:
    """Yield the messages that a request brought. Those of a call that the log does not have are not told."""
    if n is None:
        return
    nodes = event.nodes[-MOST_MESSAGES:]
    first = event.place + len(event.nodes) - len(nodes)
    common: dict[str, Any] = {"at_ms": at_ms, "session": event.session.id, "exchange": event.exchange, "n": n}
    for i, (node, role) in enumerate(zip(nodes, event.list_roles(MOST_MESSAGES), strict=False)):
        yield MessageCreatedEvent(**common, message=node.hex(), role=role, place=first + i)
        if event.load is None:
            continue
        form = FORMATS[event.wire]
        for each in list_created(form, node, (event.load(first + i)[1],), at_ms):
            yield PartCreatedEvent(**common, message=each.node.hex(), part=each.part)
        for each in list_completed(form, event.load, first + i, at_ms):
            yield PartUpdatedEvent(**common, message=each.node.hex(), part=each.part, why="completed")


def _tell_reply(event: ReplyRecorded, session: str, at_ms: int, n: int | None) -> Iterator[StreamEvent]:
    if n is None:
        return
    common: dict[str, Any] = {"at_ms": at_ms, "session": session, "exchange": event.exchange, "n": n}
    for node in event.nodes:
        yield MessageCreatedEvent(**common, message=node.hex(), role="assistant")
    if event.list_raws is None:
        return
    form = FORMATS[event.wire]
    for node, raws in group_items(form, event.nodes, event.list_raws()):
        for each in list_created(form, node, raws, at_ms):
            yield PartCreatedEvent(**common, message=node.hex(), part=each.part)


def _tell_epoch(event: EpochOpened, at_ms: int, n: int | None) -> Iterator[StreamEvent]:
    """Yield that an epoch was opened, or reverted, and what it has in short."""
    common: dict[str, Any] = {"at_ms": at_ms, "session": event.session, "exchange": event.exchange, "n": n}
    sizes: dict[str, Any] = {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after}
    if event.why == "revert":
        yield EpochRevertedEvent(**common, reverted=event.parent, why="revert", **sizes)
        return
    yield EpochOpenedEvent(**common, epoch=event.epoch, why=event.why, **sizes)
    kinds = [edit.kind for edit in _edits.decode(event.edits or b"[]") if isinstance(edit, Replaced)]
    counts: dict[str, Any] = {"tombstones": kinds.count("tombstone"), "files": kinds.count("file")}
    counts["shortened"] = kinds.count("shortened")
    if any(counts.values()):
        yield PruneCompletedEvent(**common, epoch=event.epoch, **counts)


def _tell_shortened(
    event: OutputsShortened, before: frozenset[int], at_ms: int, n: int | None
) -> Iterator[StreamEvent]:
    """Yield the parts that an epoch has in short, and the one before it had not."""
    common: dict[str, Any] = {"at_ms": at_ms, "session": event.session, "exchange": event.exchange, "n": n}
    for each in list_pruned(FORMATS[event.wire], event.load, event.edits, before, at_ms):
        yield PartUpdatedEvent(**common, message=each.node.hex(), part=each.part, why="pruned")


def _note_unnumbered(error: Exception) -> None:
    _log.warning("events are told without the numbers of their calls, since the log cannot be read: %s", error)
