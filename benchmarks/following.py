"""What following events costs: `python -m benchmarks.following`, half a minute.

A server carries short streamed calls at a fixed rate, each of which makes seven events, first with nobody who follows
`/-/api/events`, then with so many readers of everything, then with one more that reads nothing. Tells the time of a
call and the processor time of the server for one, how many events each reader got, and how late.

Then the same number of handlers of an `EventBus` get events at that rate, half of them tasks: the processor time for an
event, and how late the event loop is meanwhile for others.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.path import build_short
from benchmarks.processes import Nursery, read_cpu_seconds
from benchmarks.targets import HARNESS_CORE, Setting, find_command, start_mock, start_palimpsest
from proxy.engine.events.stream import EventStream
from proxy.model.events import SessionClosedEvent
from proxy.sdk.events import EventBus

_EVENTS_OF_A_CALL = 7
_CONNECTIONS = 32


class Reader:
    """One that follows everything, and counts."""

    def __init__(self) -> None:
        self.events = 0
        self.late: list[float] = []
        self.is_ended = False

    async def follow(self, port: int, *, is_reading: bool = True) -> None:
        """Read until the stream ends. One that is not reading asks, and takes nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(b"GET /-/api/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer bench\r\n\r\n")
        if not is_reading:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        async for line in reader:
            if line.startswith(b"data: "):
                self.events += 1
                if self.events % 97 == 1:
                    self.late.append(1000 * time.time() - json.loads(line[6:])["at_ms"])
        self.is_ended = True


async def call(port: int, calls: "asyncio.Queue[float]", took: list[float], name: str) -> None:
    """Make the calls whose times come, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body, n = build_short(), 0
    while True:
        due = await calls.get()
        n += 1
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer b\r\nx-session-id: {name}-{n}\r\n"
        )
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"0\r\n\r\n")
        took.append(1000 * (time.perf_counter() - due))


async def load(port: int, pid: int, rate: float, seconds: float) -> str:
    """Make calls at a rate; how long they took, and the server's processor time for one."""
    took: list[float] = []
    calls: asyncio.Queue[float] = asyncio.Queue()
    tag = f"{time.time_ns():x}"
    callers = [asyncio.create_task(call(port, calls, took, f"{tag}-{i}")) for i in range(_CONNECTIONS)]
    await asyncio.sleep(0.5)
    began, used = time.perf_counter(), read_cpu_seconds(pid)
    for n in range(int(rate * seconds)):
        due = began + n / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls.put_nowait(time.perf_counter())
    while len(took) < int(rate * seconds):  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.01)
    used = read_cpu_seconds(pid) - used
    for each in callers:
        each.cancel()
    ordered = sorted(took)
    p99 = ordered[int(0.99 * len(ordered))]
    return (
        f"{statistics.median(took):.2f} ms median, {p99:.2f} ms p99, {1e6 * used / len(took):.0f} us processor a call"
    )


async def measure(port: int, pid: int, readers: int, rate: float, seconds: float) -> None:
    """Measure without readers, with them, and with one more that takes nothing."""
    calls = rate / _EVENTS_OF_A_CALL
    await load(port, pid, calls, seconds / 2)
    print(f"no reader: {await load(port, pid, calls, seconds)}")
    for slow in (0, 1):
        every = [Reader() for _ in range(readers)]
        tasks = [asyncio.create_task(each.follow(port)) for each in every]
        tasks += [asyncio.create_task(Reader().follow(port, is_reading=False)) for _ in range(slow)]
        await asyncio.sleep(0.5)
        figures = await load(port, pid, calls, seconds)
        await asyncio.sleep(1.0)
        late = sorted(late for each in every for late in each.late)
        got = sorted(each.events for each in every)
        print(f"{readers} readers{' and a slow one' if slow else ''}: {figures}")
        lateness = f"late {statistics.median(late):.0f} ms, at most {late[-1]:.0f}"
        print(f"  events of a reader: {got[0]} to {got[-1]}; {lateness}")
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


async def measure_bus(handlers: int, rate: float, seconds: float) -> None:
    """Measure handlers in this process, half of them asynchronous."""
    loop, bus, late, heard = asyncio.get_running_loop(), EventBus(), list[float](), 0
    stream = EventStream("bench", loop.call_later, lambda: time.time_ns() // 1_000_000)

    def hear(event: str, payload: object) -> None:
        nonlocal heard
        heard += 1

    async def hear_later(event: str, payload: object) -> None:
        hear(event, payload)

    async def tick() -> None:
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            late.append(1000 * (loop.time() - due))

    async def run(*, is_told: bool) -> tuple[float, float]:
        """The processor time for an event, in microseconds, and the 99th percentile of the lateness of a timer."""
        late.clear()
        ticking, used = asyncio.create_task(tick()), time.process_time()
        began, count = loop.time(), int(rate * seconds)
        for n in range(count):
            await asyncio.sleep(max(0.0, began + n / rate - loop.time()))
            if is_told:
                stream.publish([SessionClosedEvent(at_ms=n, session="s")])
        await bus.settle()
        ticking.cancel()
        return 1e6 * (time.process_time() - used) / count, sorted(late)[int(0.99 * len(late))]

    bus.follow(stream, "s")
    for n in range(handlers):
        bus.subscribe("SESSION_CLOSED", hear_later if n % 2 else hear)
    for is_told in (False, True):
        used, worst = await run(is_told=is_told)
        told = f"{used:.0f} us processor an event, loop late {worst:.2f} ms p99"
        print(f"bus, {handlers if is_told else 'no'} handlers: {told}")
    print(f"  {heard} calls of handlers for {int(rate * seconds)} events")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1000.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="following-"))
    try:
        with Nursery(folder) as nursery:
            mock, port = start_mock(nursery, HARNESS_CORE)
            target = start_palimpsest(Setting(nursery, folder, mock, port, find_command()), "palimpsest")
            assert target.child is not None
            asyncio.run(measure(target.port, target.child.pid, given.readers, given.rate, given.seconds))
        asyncio.run(measure_bus(given.readers, given.rate, given.seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
