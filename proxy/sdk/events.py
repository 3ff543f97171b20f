"""Events for Python programs: what happens in a session, passed to the handlers of a program.

A handler is called with the name of an event and its payload: the object that `/-/api/events` sends for it
(`model/stream_events`), and of a compaction its result. Handlers are called in the order in which they were registered;
what an asynchronous one returns runs as a task. A handler that raises is logged: neither the others nor the publisher
learn of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from proxy.engine.events.stream import EventStream
from proxy.model.stream_events import BUS_EVENTS, StreamedEvent, name_type

EVERY = "*"
"""In place of the name of an event: all of them."""

Handler = Callable[[str, Any], Awaitable[object] | object]
"""Is called with the name of an event and its payload."""

_FAILED = "a handler of the event %s failed; the other handlers and the session go on"

_log = logging.getLogger("palimpsest.sdk.events")


class EventBus:
    """Passes events to handlers. Each session has one; operators publish on one that they are given.

    It is to be used in the thread of its event loop.
    """

    def __init__(self) -> None:
        self._handlers: tuple[tuple[str, Handler], ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream: EventStream | None = None
        self._session = ""
        self._is_listening = False

    def subscribe(self, event: str, handler: Handler) -> None:
        """Call `handler(event, payload)` with every event of this name. Raises ValueError if there is none."""
        if event != EVERY and event not in BUS_EVENTS:
            raise ValueError(f"{event!r} is no event; there are {', '.join(BUS_EVENTS)}")
        if not callable(handler):
            raise TypeError(f"a handler is a function of an event and its payload, not {handler!r:.100}")
        self._handlers = (*self._handlers, (event, handler))
        self._listen()

    def subscribe_all(self, handler: Handler) -> None:
        """Call `handler(event, payload)` with every event."""
        self.subscribe(EVERY, handler)

    def unsubscribe(self, event: str, handler: Handler) -> None:
        """Do not call a handler any more with this event. `"*"` ends what `subscribe_all` began."""
        self._handlers = tuple([each for each in self._handlers if each != (event, handler)])
        if not self._handlers:
            self._stop_listening()

    def publish(self, event: StreamedEvent) -> None:
        """Call the handlers of an event."""
        name = name_type(type(event))
        for wanted, handler in self._handlers:
            if wanted not in (name, EVERY):
                continue
            try:
                waiting = handler(name, event.payload)
                if isinstance(waiting, Awaitable):
                    self._spawn(name, waiting)
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

        Called from the task of a handler, it waits for no task: two would wait for each other.
        """
        if self._stream is not None and self._is_listening:
            await self._stream.settle()
        while self._tasks and asyncio.current_task() not in self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        if self._handlers and self._stream is not None and not self._is_listening:
            self._is_listening = True
            self._stream.listen(self.publish, self._session)

    def _stop_listening(self) -> None:
        if self._is_listening and self._stream is not None:
            self._stream.stop_listening(self.publish, self._session)
        self._is_listening = False

    def _spawn(self, name: str, waiting: Awaitable[object]) -> None:
        task = asyncio.get_running_loop().create_task(_wait_for(waiting), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(_FAILED, task.get_name(), exc_info=error)


async def _wait_for(waiting: Awaitable[object]) -> None:
    await waiting
