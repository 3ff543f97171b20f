"""What users notice and a closed loop does not show: `python -m benchmarks.as_used [equal] [cold]`.

`equal`: one history without a session id, sent again and again (retries, best-of-n, evaluations); CPU of each hundred
calls against the first hundred. `cold`: the longest time for which `/-/live`, asked every 5 ms, has no answer beside
the first call of a long session to a process that was just started, once on an idle core and once beside a busy loop.

The rule: default settings but for what stands after `--`, what is measured has a core to itself (and the busy loop).
What answers `control` is the mock upstream on the same core at the same moments: what the machine itself takes.
"""

import argparse
import contextlib
import http.client
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.jobs import Job
from benchmarks.processes import Child, Nursery, read_cpu_seconds, wait_until_quiet
from benchmarks.sessions import build_body, name_session
from benchmarks.targets import HARNESS_CORE, MEASURED_CORE, Setting, find_command, start_mock, start_palimpsest

EQUAL_BYTES, EQUAL_CALLS, EQUAL_WARM, EQUAL_PART = 100_000, 400, 20, 100
COLD_BYTES, COLD_SECONDS, COLD_ROUNDS = 800_000, 4.0, 3
POLL_SECONDS = 0.005
_BUSY = "while True: pass"


def measure_equal(setting: Setting, *, differs: bool) -> None:
    """CPU per call of a history that is sent again; `differs`: each answer is another one."""
    target = start_palimpsest(setting, "palimpsest")
    assert target.child is not None
    body = build_body(Job(port=0, size=EQUAL_BYTES), name_session())
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=30)
    parts: list[tuple[float, float]] = []

    def call(number: int) -> None:
        nonce = f"{number:012d}" if differs else "0" * 12
        fields = {"authorization": "Bearer bench", "content-type": "application/json", "x-bench-answer": nonce}
        connection.request("POST", "/v1/chat/completions", body, fields)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"call {number}: status {answer.status}")

    for number in range(EQUAL_WARM):
        call(number)
    for first in range(0, EQUAL_CALLS, EQUAL_PART):
        wait_until_quiet(target.child.pid, 3)
        before, begun = read_cpu_seconds(target.child.pid), time.perf_counter()
        for number in range(first, first + EQUAL_PART):
            call(EQUAL_WARM + number)
        seconds = time.perf_counter() - begun
        wait_until_quiet(target.child.pid, 3)
        parts.append(((read_cpu_seconds(target.child.pid) - before) / EQUAL_PART, seconds / EQUAL_PART))
    connection.close()
    setting.nursery.end(target.child)
    cpu = "  ".join(f"{used * 1000:6.2f}" for used, _ in parts)
    wall = "  ".join(f"{taken * 1000:6.2f}" for _, taken in parts)
    answers = "other answers" if differs else "equal answers"
    print(f"equal, {answers}: CPU per call, ms: {cpu}   last/first {parts[-1][0] / parts[0][0]:.2f}   (wall: {wall})")


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


def measure_cold(setting: Setting, *, is_busy: bool) -> None:
    """The longest gap of `/-/live` beside the first call of a long session after a start."""
    body = build_body(Job(port=0, size=COLD_BYTES), name_session())
    gaps: list[float] = []
    controls: list[float] = []
    starts: list[float] = []
    calls: list[float] = []
    for _ in range(COLD_ROUNDS):
        with _busy_core(setting.nursery, is_busy):
            control = start_mock(setting.nursery, MEASURED_CORE)
            target = start_palimpsest(setting, "palimpsest")
            assert target.child is not None
            polls = Poll(target.port, "/-/live"), Poll(control[1], "/v1/models")
            for poll in polls:
                poll.start()
            begun = time.perf_counter()
            fields = {"authorization": "Bearer bench", "content-type": "application/json"}
            connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
            connection.request("POST", "/v1/chat/completions", body, fields)
            connection.getresponse().read()
            calls.append(time.perf_counter() - begun)
            time.sleep(max(0.0, COLD_SECONDS - calls[-1]))  # what is loaded behind the answer holds others up, too
            connection.close()
            gaps.append(polls[0].end())
            controls.append(polls[1].end())
            starts.append(target.start_seconds)
            setting.nursery.end(target.child)
            setting.nursery.end(control[0])
    core = "one busy loop" if is_busy else "idle core"
    print(
        f"cold, {core}: longest gap of /-/live, ms: {_list_ms(gaps)} (control {_list_ms(controls)}); "
        f"start {statistics.median(starts):.2f} s, first call {statistics.median(calls) * 1000:.0f} ms"
    )


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


def _list_ms(seconds: list[float]) -> str:
    return "/".join(f"{each * 1000:.0f}" for each in seconds)


def main() -> None:
    """Run what is named, or both."""
    parser = argparse.ArgumentParser(description="equal histories without an id, and /-/live beside a cold start")
    parser.add_argument("--command", default=find_command(), help="the palimpsest to measure")
    parser.add_argument("--only", choices=("equal", "cold"), help="one of the two")
    parser.add_argument("serve_options", nargs="*", help="after --: options of `palimpsest serve`")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-bench-"))
    try:
        with Nursery(folder) as nursery:
            os.sched_setaffinity(0, {HARNESS_CORE})
            mock, port = start_mock(nursery, HARNESS_CORE)
            setting = replace(
                Setting(nursery, folder, mock, port, arguments.command), serve_options=tuple(arguments.serve_options)
            )
            if arguments.only != "cold":
                measure_equal(setting, differs=False)
                measure_equal(setting, differs=True)
            if arguments.only != "equal":
                measure_cold(setting, is_busy=False)
                measure_cold(setting, is_busy=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
