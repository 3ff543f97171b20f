"""Runtime services of one process: its tasks, events, clock, ids and file descriptors."""

import asyncio
import logging
import os
import random
import resource
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from proxy.model.events import Event

_log = logging.getLogger("palimpsest.tasks")

E = TypeVar("E", bound=Event)
T = TypeVar("T")
Subscriber = Callable[[E], Awaitable[None] | None]

_bus_log = logging.getLogger("palimpsest.bus")

_RESERVE = 64
_RESERVE_FRACTION = 8

_descriptor_log = logging.getLogger("palimpsest.descriptors")


class TaskRunner:
    """Owns tasks: starts them, keeps them alive, reports what they raise, ends them.

    `running` are the running tasks. A call that already runs in a task adds that task, which saves one task per call.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self.running)

    def __contains__(self, task: object) -> bool:
        return task in self.running

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task and keep it until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self._let_go)
        return task

    def cancel(self) -> None:
        """Cancel every task."""
        for task in tuple(self.running):
            task.cancel()

    async def finish(self, seconds: float) -> bool:
        """Wait for all tasks, then cancel the rest and wait for those. Return True if none had to be cancelled."""
        await asyncio.sleep(0)  # a task that was cancelled before its first step could not clean up
        deadline = asyncio.get_running_loop().time() + seconds
        while self.running and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tuple(self.running), timeout=left_s)  # also waits for tasks that these start meanwhile
        left = tuple(self.running)
        self.cancel()
        if left:
            await asyncio.wait(left, timeout=5.0)
        return not left

    def _let_go(self, task: "asyncio.Task[None]") -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a background task failed inside the proxy; calls go on. Please report this line", exc_info=error
            )


class EngineBus:
    """Passes each event to the subscribers of its type, in order of subscription.

    What a subscriber publishes itself waits until all have heard what it was called with: all hear of everything in the
    same order. `subscribers` has the types that anybody subscribes to: an event that is costly to make need not be made
    for nobody.
    """

    def __init__(self, tasks: TaskRunner) -> None:
        self.tasks = tasks
        self._published: deque[Event] = deque()  # what is being passed on, and what waits for that
        self.subscribers: dict[type[object], tuple[Subscriber[Any], ...]] = {}

    def subscribe(self, kind: type[E], subscriber: Subscriber[E]) -> None:
        """Call `subscriber` with every event of exactly this type."""
        self.subscribers[kind] = (*self.subscribers.get(kind, ()), subscriber)

    def unsubscribe(self, subscriber: Subscriber[Any]) -> None:
        """Forget a subscriber, wherever it subscribed."""
        for kind, subscribers in tuple(self.subscribers.items()):
            if left := tuple([each for each in subscribers if each != subscriber]):
                self.subscribers[kind] = left
            else:
                del self.subscribers[kind]

    def publish(self, event: Event) -> None:
        """Call the subscribers. An asynchronous one runs in its own task."""
        self._published.append(event)
        if len(self._published) > 1:
            return
        try:
            while self._published:
                event = self._published[0]
                for subscriber in self.subscribers.get(type(event), ()):
                    try:
                        waiting = subscriber(event)
                    except Exception:  # noqa: BLE001 - a boundary: a subscriber must not reach the publisher
                        _bus_log.exception(
                            "handling the event %s failed; the call goes on. Please report this line",
                            type(event).__name__,
                        )
                        continue
                    if waiting is not None:
                        self.tasks.spawn(_wait_for(waiting))
                self._published.popleft()
        finally:
            self._published.clear()  # else nothing would be passed on any more after an interrupt


async def _wait_for(waiting: Awaitable[None]) -> None:
    await waiting


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch. The value may jump."""
        return time.time_ns() // 1_000_000

    # Seconds, never decreasing. The function itself without a wrapper, since each call uses it seven times.
    monotonic = staticmethod(time.monotonic)


class SystemIds:
    """Exchange ids: 48 bits of wall time in milliseconds, then 48 random bits, in hexadecimal.

    Ids are names, not secrets: the random bits come from a generator that the system seeds once.
    """

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(32))

    def next_exchange(self) -> str:
        """Return a new id. Ids of later milliseconds sort after earlier ones."""
        return f"{time.time_ns() // 1_000_000:012x}{self._random.getrandbits(48):012x}"


def read_descriptor_limit() -> int:
    """Return how many file descriptors the process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Descriptors:
    """The file descriptors of the process: when they are scarce, and who can close some. `shortages` is a counter."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most = limit - min(_RESERVE, limit // _RESERVE_FRACTION)
        self._releasers: list[Callable[[], int]] = []
        self.shortages = 0

    def add_releaser(self, let_go: Callable[[], int]) -> None:
        """Register a function to call when descriptors are scarce. It returns how many connections it closed."""
        self._releasers.append(let_go)

    def is_scarce(self, newest: int) -> bool:
        """Return whether only the reserve is left, now that descriptor `newest` was opened."""
        return newest >= self._most

    def relieve(self) -> int:
        """Close idle connections. Return how many there were."""
        self.shortages += 1
        count = sum([let_go() for let_go in self._releasers])
        _descriptor_log.warning(
            "nearly all of the %d file descriptors are taken; raise the limit (ulimit -n, LimitNOFILE): %s",
            self._limit,
            "idle connections are closed" if count else "no connection is idle, so new ones are refused",
        )
        return count


async def attempt(work: Awaitable[T], note: Callable[[Exception], None]) -> T | None:
    """Return the result of `work`, or None if it raised an exception, which is passed to `note`.

    For background work, whose errors must not fail a call.
    """
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the boundary
        note(error)
        return None
