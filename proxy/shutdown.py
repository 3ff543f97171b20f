"""What happens on SIGTERM and SIGINT.

1. Before the server listens, SIGTERM cancels the start; the exit code is 0.
2. The first signal begins the drain. `/-/ready` responds 503, no connection is accepted, idle connections are closed,
   and a connection with a request under way is closed after its response. Streams of events end at once.
3. Shortly before `server.drain_seconds` are over, the remaining calls are cancelled. Each is recorded as aborted. Its
   client gets 503 `shutting_down` if nothing has been sent to it, else its connection is broken off.
4. At the limit, connections whose clients do not read the rest of their responses are aborted.
5. Then the engine finishes its own tasks, writes everything that is pending and closes the log (`Engine.close`). The
   exit code is 0, or 1 if records were lost.

A second signal goes to step 3 at once.

A server that `palimpsest run` started begins the drain by itself as soon as no `run` uses its data directory. Each
`run` holds a shared lock on the directory, and the server waits for an exclusive one, which it keeps to its end. The
system releases the lock of a killed process, and no file is left.
"""

import asyncio
import contextlib
import fcntl
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from proxy.engine.runtime import TaskRunner
from proxy.model.errors import Conflict
from proxy.server.health import Health

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The time to cancel one call, to record it and to close its connections. Measured: 0.6 ms on a busy machine.
_CUT_SECONDS_PER_CALL = 0.0015
_CUT_SECONDS = 0.25
_CUT_FRACTION = 2 / 3


_PAUSE_SECONDS = 0.05


@contextlib.contextmanager
def use_data(folder: Path, seconds: float) -> Iterator[None]:
    """Use a data directory, so that a server of `palimpsest run` stays.

    Waits up to `seconds` for one that is ending. Raises Conflict after that, and OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while not _try_to_share(descriptor):
            if time.monotonic() > until:
                raise Conflict(f"the proxy on {folder} is ending, and has not ended in {seconds:.0f} s")
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_to_share(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def call_when_unused(folder: Path, call: Callable[[], object]) -> None:
    """Call `call` in a thread once nobody uses the data directory. Until this process ends nobody else can use it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended by itself
            call()

    threading.Thread(target=wait, name="use of the data directory", daemon=True).start()


def cancel_start_on_sigterm() -> None:
    """Cancel the current task on SIGTERM, until a `DrainingServer` handles the signals itself.

    As process 1 of a container, a process ignores signals that it has no handler for. asyncio handles SIGINT.
    """
    starting = asyncio.current_task()
    assert starting is not None, "the start is a coroutine"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, starting.cancel)


def compute_cut_seconds(calls: int, drain_seconds: float) -> float:
    """Return how many seconds before the limit `calls` must be cancelled, so that all have ended at the limit."""
    return min(_CUT_SECONDS + calls * _CUT_SECONDS_PER_CALL, drain_seconds * _CUT_FRACTION)


class DrainingServer(uvicorn.Server):
    """uvicorn's server with the drain that this module describes. uvicorn's own limit is later and never reached."""

    def __init__(self, config: uvicorn.Config, health: Health, tasks: TaskRunner, drain_seconds: float) -> None:
        super().__init__(config)
        self._health = health
        self._tasks = tasks
        self._drain_seconds = drain_seconds
        self._ends_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_told_to_stop = asyncio.Event()
        self.ended_with_drain: list[Callable[[], object]] = []  # ends what would go on as long as its client reads it

    @property
    def seconds_left(self) -> float:
        """Return how many seconds of the drain are left; infinite before it begins."""
        return self._ends_at - asyncio.get_running_loop().time()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the event loop. uvicorn would raise them again at the end, which changes the exit code."""
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
        self.stop()

    def stop(self) -> None:
        """Begin the drain."""
        self.should_exit = self._health.is_draining = True
        self._is_told_to_stop.set()
        for end in self.ended_with_drain:
            end()

    async def main_loop(self) -> None:
        """Wait for a signal. uvicorn's loop wakes up ten times a second for a date header that we do not send."""
        await self._is_told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: uvicorn closes the listener and idle connections; it waits for the others as long as `_cut` allows."""
        self._ends_at = asyncio.get_running_loop().time() + self._drain_seconds
        self._cut()
        try:
            await super().shutdown(sockets)
        finally:
            assert self._timer is not None, "_cut has set it"
            self._timer.cancel()

    def _cut(self) -> None:
        """Cancel the remaining calls as late as the limit allows. No new call comes, so this never gets earlier."""
        wait = self.seconds_left - compute_cut_seconds(len(self.server_state.tasks), self._drain_seconds)
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._cut)
            return
        self._cancel_calls()
        self._timer = asyncio.get_running_loop().call_later(max(self.seconds_left, _CUT_SECONDS), self._abort_all)

    def _cancel_calls(self) -> None:
        self._tasks.cancel()
        for task in self.server_state.tasks:
            if task not in self._tasks:  # its request has not arrived completely
                task.cancel()

    def _abort_all(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
