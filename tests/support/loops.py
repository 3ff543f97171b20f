"""Event loops whose time a test can put forward: it waits for no time limit, and meets none by accident.

A time limit in a test is then as long as in production: a busy machine never reaches it, and the test that wants to see
it reached calls `put_forward`.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import uvloop

from tests.support.scripted import LIMIT


class MovableLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, which looks at its clock whenever it asks which timers are due."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += seconds


class Timer:
    """A call at a time, in place of uvloop's own handle."""

    def __init__(self, loop: "MovableUvloop", when: float, context: Context, call: Callable[[], object]) -> None:
        self.delay = when - loop.time()
        self._loop = loop
        self._when = when
        self._context = context
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self._is_cancelled = False

    def when(self) -> float:
        return self._when

    def cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        self._is_cancelled = True
        self.disarm()

    def arm(self) -> None:
        """Have the call made when its time has come."""
        self._loop.timers.add(self)
        delay = max(0.0, self._when - self._loop.time())
        self._handle = self._loop.call_after(delay, self._run, self._context)

    def disarm(self) -> None:
        self._loop.timers.discard(self)
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> None:
        self._loop.timers.discard(self)
        self._call()


class MovableUvloop(uvloop.Loop):
    """The loop that production runs on. Its timers are libuv's, which has a clock of its own: they are set anew."""

    ahead = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.timers: set[Timer] = set()

    def time(self) -> float:
        now: float = super().time()
        return now + self.ahead

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        timer = Timer(self, when, context or copy_context(), lambda: callback(*args))
        timer.arm()
        return timer

    def call_after(self, delay: float, call: Callable[[], object], context: Context) -> asyncio.TimerHandle:
        """What `call_later` does in uvloop, in seconds of the real clock."""
        handle: asyncio.TimerHandle = super().call_later(delay, call, context=context)
        return handle

    def advance(self, seconds: float) -> None:
        self.ahead += seconds
        for timer in sorted(self.timers, key=Timer.when):
            timer.disarm()
            timer.arm()


async def put_forward(seconds: float) -> None:
    """Let so much time pass for everything on the running loop, what bounds the test itself included.

    What was due runs before this returns, but for what that has the loop do later.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableLoop | MovableUvloop), "name one of these in pytest_asyncio_loop_factories"
    loop.advance(seconds)
    for _ in range(3):
        await asyncio.sleep(0)


async def wait_for_timer(seconds: float) -> None:
    """Return when something waits for about so long: what a test is to put forward has begun."""
    loop, short = asyncio.get_running_loop(), max(1, seconds / 8)
    assert isinstance(loop, MovableUvloop)
    async with asyncio.timeout(LIMIT):
        # A machine that stands still for seconds takes them from what is left.
        while not any(-short < timer.delay - seconds < 1 for timer in loop.timers):  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
