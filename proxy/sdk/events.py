"""Events for Python programs: what happens in a session, passed to the handlers of a program.

A handler is called with the name of an event and its payload: the object that `/-/api/events` sends for it
(`model/events`), and of a compaction its result. Handlers are called in the order in which they were registered;
what an asynchronous one returns runs as a task. A handler that raises is logged: neither the others nor the publisher
learn of it. Of the tasks of a handler at most `MOST_WAITING` are under way; what happens meanwhile it is not told.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from proxy.engine.events.stream import EventStream
from proxy.model.events import BUS_EVENTS, StreamedEvent, name_type


class Event(StrEnum):
    """The names of events (`docs/events.md`), and what stands for all of them. Each equals its text."""

    EVERY = "*"
    SESSION_CREATED = "SESSION_CREATED"
    SESSION_CLOSED = "SESSION_CLOSED"
    MESSAGE_CREATED = "MESSAGE_CREATED"
    PART_CREATED = "PART_CREATED"
    PART_UPDATED = "PART_UPDATED"
    CALL_STARTED = "CALL_STARTED"
    CALL_COMPLETED = "CALL_COMPLETED"
    CALL_UNREADABLE = "CALL_UNREADABLE"
    CACHE_MISSED = "CACHE_MISSED"
    RUNG_FAILED = "RUNG_FAILED"
    CEILING_EXCEEDED = "CEILING_EXCEEDED"
    EPOCH_OPENED = "EPOCH_OPENED"
    EPOCH_REVERTED = "EPOCH_REVERTED"
    PRUNE_COMPLETED = "PRUNE_COMPLETED"
    COMPACTION_TRIGGERED = "COMPACTION_TRIGGERED"
    COMPACTION_COMPLETED = "COMPACTION_COMPLETED"
    COMPACTION_FAILED = "COMPACTION_FAILED"
    SUMMARY_ADDED = "SUMMARY_ADDED"
    DOOM_LOOP_DETECTED = "DOOM_LOOP_DETECTED"
    AGENT_NUDGED = "AGENT_NUDGED"
    SESSION_IDLE = "SESSION_IDLE"
    MAP_STARTED = "MAP_STARTED"
    MAP_ITEM_COMPLETED = "MAP_ITEM_COMPLETED"
    MAP_COMPLETED = "MAP_COMPLETED"


Handler = Callable[[str, Any], Awaitable[object] | object]
"""Is called with the name of an event and its payload."""

MOST_WAITING = 1000
"""How many tasks of one asynchronous handler are under way at most."""

_FAILED = "a handler of the event %s failed; the other handlers and the session go on"

_SLOW = "a handler of the event %s is slower than its events: %d of its tasks are under way, and it misses what comes"
_CANCELLED_SECONDS = 1.0  # that a task which was cancelled has to clean up

_log = logging.getLogger("palimpsest.sdk.events")


_HANDLING: ContextVar[tuple["EventBus", ...]] = ContextVar("palimpsest_handling", default=())


@dataclass(slots=True, eq=False)
class _Subscription:
    """A handler and its event. `waiting` are its tasks under way, `dropped` the events that it was not told of."""

    event: str
    handler: Handler
    waiting: int = 0
    dropped: int = 0


class EventBus:
    """Passes events to handlers. Each session has one; operators publish on one that they are given.

    It is to be used in the thread of its event loop.
    """

    def __init__(self) -> None:
        self._handlers: tuple[_Subscription, ...] = ()
        self._dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream: EventStream | None = None
        self._session = ""
        self._is_listening = False

    @property
    def dropped(self) -> int:
        """How many events handlers were not told of, because they were too slow."""
        return self._dropped

    def subscribe(self, event: str, handler: Handler) -> None:
        """Call `handler(event, payload)` with every event of this name. Raises ValueError if there is none."""
        if event not in tuple(Event):
            raise ValueError(f"{event!r} is no event; there are {', '.join(BUS_EVENTS)}")
        if not callable(handler):
            raise TypeError(f"a handler is a function of an event and its payload, not {handler!r:.100}")
        self._handlers = (*self._handlers, _Subscription(event, handler))
        self._listen()

    def subscribe_all(self, handler: Handler) -> None:
        """Call `handler(event, payload)` with every event."""
        self.subscribe(Event.EVERY, handler)

    def unsubscribe(self, event: str, handler: Handler) -> None:
        """Do not call a handler any more with this event. `"*"` ends what `subscribe_all` began."""
        self._handlers = tuple([each for each in self._handlers if (each.event, each.handler) != (event, handler)])
        if not self._handlers:
            self._stop_listening()

    def publish(self, event: StreamedEvent) -> None:
        """Call the handlers of an event."""
        name = name_type(type(event))
        for each in self._handlers:
            if each.event not in (name, Event.EVERY) or self._drops(each, name):
                continue
            try:
                waiting = each.handler(name, event.payload)
                if isinstance(waiting, Awaitable):
                    self._spawn(name, waiting, each)
            except Exception:  # noqa: BLE001 - a boundary: a handler must not reach the publisher
                _log.exception(_FAILED, name)

    def follow(self, stream: EventStream, session: str) -> None:
        """Publish what an engine tells of a session, as long as there are handlers."""
        self.leave()
        self._stream, self._session = stream, session
        self._listen()

    def leave(self) -> None:
        """Publish nothing more of an engine."""
        self._stop_listening()
        self._stream = None

    async def settle(self) -> None:
        """Wait until all that has happened was told, and until the tasks of handlers have ended.

        Called within the task of a handler, it waits for no task: two would wait for each other.
        """
        if self._stream is not None and self._is_listening:
            await self._stream.settle()
        while self._tasks and self not in _HANDLING.get():
            await asyncio.wait(self._tasks)

    async def end(self, seconds: float) -> None:
        """Settle, for so long at most; then cancel what handlers still do."""
        try:
            async with asyncio.timeout(seconds):
                await self.settle()
        except TimeoutError:
            left = tuple(self._tasks)
            _log.warning("%d tasks of handlers have not ended after %g s, and were cancelled", len(left), seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_CANCELLED_SECONDS)

    def _listen(self) -> None:
        if self._handlers and self._stream is not None and not self._is_listening:
            self._is_listening = True
            self._stream.listen(self.publish, self._session)

    def _stop_listening(self) -> None:
        if self._is_listening and self._stream is not None:
            self._stream.stop_listening(self.publish, self._session)
        self._is_listening = False

    def _drops(self, subscription: _Subscription, name: str) -> bool:
        """Return whether a handler is too slow to be told of one more event, and say so the first time."""
        if subscription.waiting < MOST_WAITING:
            return False
        if not subscription.dropped:
            _log.warning(_SLOW, name, subscription.waiting)
        subscription.dropped += 1
        self._dropped += 1
        return True

    def _spawn(self, name: str, waiting: Awaitable[object], subscription: _Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self._wait_for(waiting), name=name)
        subscription.waiting += 1
        self._tasks.add(task)
        task.add_done_callback(partial(self._let_go, subscription))

    async def _wait_for(self, waiting: Awaitable[object]) -> None:
        _HANDLING.set((*_HANDLING.get(), self))
        await waiting

    def _let_go(self, subscription: _Subscription, task: "asyncio.Task[None]") -> None:
        subscription.waiting -= 1
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(_FAILED, task.get_name(), exc_info=error)
