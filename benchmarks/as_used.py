"""What users notice and a closed loop does not show, at default settings.

`measure_cold`: the longest time for which `/-/live`, asked every 5 ms, has no
answer beside the first call of a long session to a process that was just started. What is measured has a core to
itself (and the busy loop, where there is one). The control is the mock upstream on the same core at the same moments:
what the machine itself takes.
"""

import contextlib
import http.client
import statistics
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from benchmarks.jobs import Job
from benchmarks.processes import Child, Nursery
from benchmarks.sessions import build_body, name_session
from benchmarks.targets import MEASURED_CORE, Setting, start_mock, start_palimpsest

# 269,000 tokens: above the default ceiling of 128,000, also once the mock's usage has taught that they are fewer.
COLD_BYTES, COLD_SECONDS, COLD_ROUNDS = 1_000_000, 4.0, 3
POLL_SECONDS = 0.005
_BUSY = "while True: pass"


class ColdStart(msgspec.Struct, kw_only=True):
    """What a long session's first call met in each round, in seconds.

    The longest gaps of `/-/live` and of the control; the start; the call, and that of a second session thereafter.
    """

    is_busy: bool
    gaps: list[float]
    controls: list[float]
    starts: list[float]
    calls: list[float]
    next_calls: list[float]

    @property
    def gap(self) -> float:
        """The longest gap, median over the rounds."""
        return statistics.median(self.gaps)

    @property
    def first_call(self) -> float:
        """The first call of a session to a process that was just started, median."""
        return statistics.median(self.calls)

    @property
    def next_call(self) -> float:
        """The first call of another session to the same process, median."""
        return statistics.median(self.next_calls)


class Poll:
    """Asks one address again and again on one connection, and keeps when each answer was there."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered: list[float] = []

    def start(self) -> None:
        self._thread.start()

    def end(self) -> float:
        """Stop; the longest time between two answers, in seconds."""
        self._is_over.set()
        self._thread.join()
        self._connection.close()
        return max(after - before for before, after in zip(self.answered, self.answered[1:], strict=False))

    def _run(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            self._connection.request("GET", self._path)
            self._connection.getresponse().read()
            self.answered.append(time.perf_counter())


def measure_cold(setting: Setting, name: str, *, is_busy: bool) -> ColdStart:
    """The first call of a long session after a start, and `/-/live` beside it."""
    found = ColdStart(is_busy=is_busy, gaps=[], controls=[], starts=[], calls=[], next_calls=[])
    for _ in range(COLD_ROUNDS):
        with _busy_core(setting.nursery, is_busy):
            control = start_mock(setting.nursery, MEASURED_CORE)
            target = start_palimpsest(setting, name)
            assert target.child is not None
            polls = Poll(target.port, "/-/live"), Poll(control[1], "/v1/models")
            for poll in polls:
                poll.start()
            found.calls.append(call_long_session(target.port))
            time.sleep(max(0.0, COLD_SECONDS - found.calls[-1]))  # what is loaded behind the answer counts, too
            found.gaps.append(polls[0].end())
            found.controls.append(polls[1].end())
            found.starts.append(target.start_seconds)
            found.next_calls.append(call_long_session(target.port))
            setting.nursery.end(target.child)
            setting.nursery.end(control[0])
    return found


def call_long_session(port: int) -> float:
    """Send a long history that nobody has seen, above its ceiling; the seconds until the answer is there."""
    body = build_body(Job(port=0, size=COLD_BYTES), name_session())
    fields = {"authorization": "Bearer bench", "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, fields)
    answer = connection.getresponse()
    answer.read()
    seconds = time.perf_counter() - begun
    connection.close()
    if answer.status != 200 or not answer.getheader("x-palimpsest-epoch"):
        raise RuntimeError(f"status {answer.status}; the call opened no epoch")
    return seconds


@contextlib.contextmanager
def _busy_core(nursery: Nursery, is_busy: bool) -> Iterator[None]:
    """A loop that shares the measured core."""
    if not is_busy:
        yield
        return
    child: Child = nursery.start([sys.executable, "-c", _BUSY], MEASURED_CORE)
    try:
        yield
    finally:
        nursery.end(child)
