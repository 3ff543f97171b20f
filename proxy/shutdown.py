"""What happens on SIGTERM and SIGINT.

1. Before the server listens, SIGTERM cancels the start; the exit code is 0.
2. The first signal begins the drain. `/-/ready` responds 503, no connection is accepted, idle connections are closed,
   and those with a request under way are closed when it has its response.
3. Shortly before `server.drain_seconds` are over, calls that are left are cancelled: each is recorded as aborted, and
   its client gets 503 `shutting_down` where nothing was sent, else a broken connection.
4. At the limit, connections whose clients take nothing of what they are still to get are aborted.
5. Then the engine finishes its own tasks, writes everything down and closes the log (`Engine.close`). The exit code is
   0, or 1 if records were lost.

A second signal goes to step 3 at once.
"""

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Iterator

import uvicorn

from proxy.engine.runtime import TaskRunner
from proxy.server.health import Health

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What it takes to end a call that is left, to record it and to close its connections: 0.6 ms on a busy machine.
_CUT_SECONDS_PER_CALL = 0.0015
_CUT_SECONDS = 0.25
_CUT_FRACTION = 2 / 3


def cancel_start_on_sigterm() -> None:
    """Cancel the task at hand on SIGTERM, until a `DrainingServer` takes the signals itself.

    In a container a signal that nobody handles does nothing. SIGINT is asyncio's to handle until then.
    """
    starting = asyncio.current_task()
    assert starting is not None, "the start is a coroutine"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, starting.cancel)


def compute_cut_seconds(calls: int, drain_seconds: float) -> float:
    """Return how long before the limit so many calls that are left must be cancelled, to be done with at the limit."""
    return min(_CUT_SECONDS + calls * _CUT_SECONDS_PER_CALL, drain_seconds * _CUT_FRACTION)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains as this module says; uvicorn's own limit is later, and is never reached."""

    def __init__(self, config: uvicorn.Config, health: Health, tasks: TaskRunner, drain_seconds: float) -> None:
        super().__init__(config)
        self._health = health
        self._tasks = tasks
        self._drain_seconds = drain_seconds
        self._ends_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_told_to_stop = asyncio.Event()

    @property
    def seconds_left(self) -> float:
        """Return what is left of the time that stopping may take."""
        return self._ends_at - asyncio.get_running_loop().time()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have the event loop handle signals; uvicorn would raise them again at the end, for another exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._handle_signal)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _handle_signal(self) -> None:
        if self.should_exit:
            self.force_exit = True
            self._cancel_calls()
        self.should_exit = self._health.is_draining = True
        self._is_told_to_stop.set()

    async def main_loop(self) -> None:
        """Wait for a signal; uvicorn's wakes up ten times a second, for a date header that we do not send."""
        await self._is_told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: uvicorn closes the listener and idle connections, and waits for the others, which `_cut` bounds."""
        self._ends_at = asyncio.get_running_loop().time() + self._drain_seconds
        self._cut()
        try:
            await super().shutdown(sockets)
        finally:
            assert self._timer is not None, "_cut has set it"
            self._timer.cancel()

    def _cut(self) -> None:
        """Cancel what is left, as late as the limit allows. No call comes meanwhile, so that it never gets earlier."""
        wait = self.seconds_left - compute_cut_seconds(len(self.server_state.tasks), self._drain_seconds)
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._cut)
            return
        self._cancel_calls()
        self._timer = asyncio.get_running_loop().call_later(max(self.seconds_left, _CUT_SECONDS), self._abort_all)

    def _cancel_calls(self) -> None:
        self._tasks.cancel()
        for task in self.server_state.tasks:
            if task not in self._tasks:  # its request is not whole yet
                task.cancel()

    def _abort_all(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
