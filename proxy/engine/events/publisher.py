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
from proxy.engine.runtime import EngineBus, attempt
from proxy.model.epoch import Epoch, Replaced
from proxy.model.events import (
    TOLD,
    AnswerRead,
    CacheMissedEvent,
    CallEvent,
    CallStartedEvent,
    CallUnreadableEvent,
    EpochOpened,
    EpochOpenedEvent,
    EpochRevertedEvent,
    Event,
    ExchangeRecorded,
    MessageCreatedEvent,
    PartCreatedEvent,
    PartUpdatedEvent,
    PruneCompletedEvent,
    RequestRecorded,
    SessionCreatedEvent,
    StreamedEvent,
)
from proxy.model.exchange import SUCCESS
from proxy.model.lru import LruCache
from proxy.wire import FORMATS

GATHER_SECONDS = 0.05
# The most messages of one request that are told: a session that continues another one brings them all at once.
MOST_MESSAGES = 64
_MOST_PENDING = 16_384
_MOST_EPOCHS = 1024
_LONGEST = 1000  # characters of what is told of an error, or by a model
_CUT = ("error", "reason", "tool")

NumberCalls = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]
"""Returns the numbers of calls in their sessions, by the ids of their exchanges, as far as the log has them.

It waits, for a bounded time, until the log has what was appended to it before.
"""

Make = Callable[[int | None], Iterable[StreamedEvent]]
"""Makes the events to tell, given the number of their call."""

_log = logging.getLogger("palimpsest.events")


class EventPublisher:
    """Tells the readers of its stream what happens. `run` names this run of the server."""

    def __init__(
        self,
        run: str,
        bus: EngineBus,
        prices: PriceList,
        *,
        number: NumberCalls,
        call_later: CallLater,
        now_ms: Callable[[], int],
    ) -> None:
        self._bus = bus
        self._number = number
        self._tasks = bus.tasks
        self._call_later = call_later
        self._now_ms = now_ms
        self._calls = OpenCalls(prices)
        self._pruned = LruCache[str, frozenset[int]](_MOST_EPOCHS)  # the places that an epoch has in short, by its id
        self._pending: list[tuple[str, Make]] = []
        self._is_due = False
        self._settled = asyncio.Event()
        self._heard: Mapping[type[Event], Callable[[Any], None]] = dict.fromkeys(TOLD, self._note) | {
            RequestRecorded: self._note_request,
            ExchangeRecorded: self._note_exchange,
            AnswerRead: self._note_answer,
            CallUnreadableEvent: self._note_unread,
            EpochOpened: self._note_epoch,
        }
        self.stream = EventStream(
            run, call_later, now_ms, on_listen=self._subscribe, on_idle=self._unsubscribe, settle=self._settle
        )

    def _subscribe(self) -> None:
        for kind, note in self._heard.items():
            self._bus.subscribe(kind, note)

    def _unsubscribe(self) -> None:
        for note in {*self._heard.values()}:
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

    def _note(self, event: StreamedEvent) -> None:
        """Have an event told as it is, with its time; one of a call with the number of that."""
        told = {name: getattr(event, name)[:_LONGEST] for name in _CUT if name in event.__struct_fields__}
        timed = msgspec.structs.replace(event, at_ms=self._now_ms(), **told)
        if isinstance(timed, CallEvent):
            self._put(timed.exchange, partial(_number_event, timed))
        else:
            self._put("", lambda n: (timed,))

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

    def _note_request(self, event: RequestRecorded) -> None:
        self._calls.open(event)
        self._put(event.exchange, partial(self._tell_request, event, self._now_ms()))

    def _tell_request(self, event: RequestRecorded, at_ms: int, n: int | None) -> Iterator[StreamedEvent]:
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

    def _note_exchange(self, event: ExchangeRecorded) -> None:
        call = self._calls.add_round(event)
        if not event.is_final:
            return
        if call.request is not None and not call.request.is_accepted and event.status in SUCCESS:
            self._put(event.exchange, partial(_tell_messages, call.request, self._now_ms()))
        if not event.is_readable:
            self._complete(event.exchange)

    def _note_answer(self, event: AnswerRead) -> None:
        call = self._calls.find(event.exchange)
        if call is not None and event.reply is not None:
            self._put(event.exchange, partial(_tell_reply, event, call.session, self._now_ms()))
        if event.cause and event.round is not None:
            self._note(
                CacheMissedEvent(
                    session=event.round.session,
                    exchange=event.exchange,
                    cause=event.cause,
                    tokens=event.missed,
                    cost=event.missed_cost,
                    money=event.missed_money,
                )
            )
        if self._calls.add_answer(event):
            self._complete(event.exchange)

    def _note_unread(self, event: CallUnreadableEvent) -> None:
        call = self._calls.find(event.exchange)
        if call is None or not call.session:
            return  # it was recorded by an earlier process
        self._note(msgspec.structs.replace(event, session=call.session))
        self._complete(event.exchange)

    def _complete(self, exchange: str) -> None:
        call = self._calls.close(exchange)
        if call is not None:
            self._put(exchange, partial(call.describe, self._now_ms()))

    def _note_epoch(self, event: EpochOpened) -> None:
        epoch = event.epoch
        self._put(epoch.exchange, partial(_tell_epoch, epoch, self._now_ms()))
        if event.load is None:
            return
        before, now = self._pruned.get(epoch.parent) or frozenset(), find_pruned(epoch.edits)
        self._pruned.put(epoch.id, now)
        if now - before:
            self._put(epoch.exchange, partial(_tell_pruned, event, before, self._now_ms()))


def _number_event(event: CallEvent, n: int | None) -> Iterable[StreamedEvent]:
    return (msgspec.structs.replace(event, n=n),)


def _tell_messages(event: RequestRecorded, at_ms: int, n: int | None) -> Iterator[StreamedEvent]:
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


def _tell_reply(event: AnswerRead, session: str, at_ms: int, n: int | None) -> Iterator[StreamedEvent]:
    if n is None or event.reply is None:
        return
    common: dict[str, Any] = {"at_ms": at_ms, "session": session, "exchange": event.exchange, "n": n}
    nodes, form = [row.node for row in event.reply.nodes], FORMATS[event.wire]
    for node in nodes:
        yield MessageCreatedEvent(**common, message=node.hex(), role="assistant")
    for node, raws in group_items(form, nodes, form.list_echoes(event.content)):
        for each in list_created(form, node, raws, at_ms):
            yield PartCreatedEvent(**common, message=node.hex(), part=each.part)


def _tell_epoch(epoch: Epoch, at_ms: int, n: int | None) -> Iterator[StreamedEvent]:
    """Yield that an epoch was opened, or reverted, and what it has in short."""
    common: dict[str, Any] = {"at_ms": at_ms, "session": epoch.session, "exchange": epoch.exchange, "n": n}
    common |= {"why": epoch.why}
    sizes: dict[str, Any] = {"tokens_before": epoch.tokens_before, "tokens_after": epoch.tokens_after}
    if epoch.is_reversion:
        yield EpochRevertedEvent(**common, reverted=epoch.parent, **(sizes if epoch.why == "revert" else {}))
        return
    yield EpochOpenedEvent(**common, epoch=epoch.id, **sizes)
    del common["why"]
    kinds = [edit.kind for edit in epoch.list_edits() if isinstance(edit, Replaced)]
    counts: dict[str, Any] = {"tombstones": kinds.count("tombstone"), "files": kinds.count("file")}
    counts["shortened"] = kinds.count("shortened")
    if any(counts.values()):
        yield PruneCompletedEvent(**common, epoch=epoch.id, **counts)


def _tell_pruned(event: EpochOpened, before: frozenset[int], at_ms: int, n: int | None) -> Iterator[StreamedEvent]:
    """Yield the parts that an epoch has in short, and the one before it had not."""
    epoch = event.epoch
    common: dict[str, Any] = {"at_ms": at_ms, "session": epoch.session, "exchange": epoch.exchange, "n": n}
    assert event.load is not None, "it was opened for a request"
    for each in list_pruned(FORMATS[event.wire], event.load, epoch.edits, before, at_ms):
        yield PartUpdatedEvent(**common, message=each.node.hex(), part=each.part, why="pruned")


def _note_unnumbered(error: Exception) -> None:
    _log.warning("events are told without the numbers of their calls, since the log cannot be read: %s", error)
