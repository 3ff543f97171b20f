"""The load generator: a closed loop over keep-alive connections, driven by jobs on stdin, one JSON line each.

The rule: the clock starts when a rendered request is handed to the socket and stops at the answer's last byte; whatever
is not a complete 200 is an error, and errors are reported, never averaged in.

For each job it warms up, prints `{"ready": true}`, waits for a line, measures, and prints a `Result`.  It ends when
stdin closes or its lifetime is over.
"""

import argparse
import asyncio
import gc
import signal
import sys
import time
from typing import cast

import msgspec
import uvloop

from benchmarks.jobs import Job, Result, measure_spread
from benchmarks.sessions import Source, open_source

_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_EVENT = b"data: "
_EVENTS_AROUND = 4  # role, finish, usage and [DONE] beside the pieces of content
_PHASE_LIMIT = 60.0
_PART = 100


class Record:
    """What the connections of one phase measured together."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.first_bytes: list[float] = []
        self.gaps: list[float] = []
        self.chunks = 0
        self.errors = 0
        self.sent_bytes = 0
        self.received_bytes = 0


class Caller(asyncio.Protocol):
    """One connection: sends its source's next request as soon as the last answer is complete."""

    def __init__(self, job: Job, source: Source) -> None:
        self.source = source
        self.interval = 0.0 if job.hold else max(job.delay_ms, job.pause_ms) / 1000
        self._job = job
        self._transport: asyncio.Transport | None = None
        self._record = Record()
        self._done: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._turns_left = 0
        self._begun = self._arrived = 0.0
        self._head = b""
        self._is_ok = self._has_head = False
        self._missing = -1  # bytes of the body still to come; -1: chunked
        self._tail = b""
        self._events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._record.errors += 1
            self._done.set_result(None)

    def begin(self, record: Record, *, turns: int, deadline: float, wait: float) -> "asyncio.Future[None]":
        """After `wait`, call until `turns` are done (0: no limit) or the deadline passed; then the future is done."""
        self._record = record
        self._turns_left = turns or sys.maxsize
        self._deadline = deadline
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        if wait:
            loop.call_later(wait, self._call)
        else:
            self._call()
        return self._done

    def hang_up(self) -> None:
        self._done = None
        if self._transport is not None:
            self._transport.abort()

    def _call(self) -> None:
        request = self.source.render()
        self._has_head = False
        self._head = self._tail = b""
        self._events = 0
        self._record.sent_bytes += len(request)
        if self._transport is None:
            self._stop(is_error=True)
            return
        self._begun = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._has_head:
            data = self._take_head(data)
            if not self._has_head or not data:
                return
        self._record.received_bytes += len(data)
        if self._missing >= 0:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(now)
            return
        self._take_chunks(data, now)

    def _take_head(self, data: bytes) -> bytes:
        """Read the head once it is complete; the bytes behind it."""
        data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return b""
        self._has_head = True
        self._is_ok = data.startswith(b"HTTP/1.1 200")
        head = data[:end].lower()
        start = head.find(b"\r\ncontent-length:")
        self._missing = int(head[start + 17 :].split(b"\r\n", 1)[0]) if start >= 0 else -1
        return data[end + 4 :]

    def _take_chunks(self, data: bytes, now: float) -> None:
        if not self._tail:
            self._record.first_bytes.append(now - self._begun)
            if self._job.hold:
                self._stop(is_error=not self._is_ok)
        elif self._job.delay_ms:
            self._record.gaps.append(now - self._arrived)
        self._arrived = now
        self._events += (self._tail[1 - len(_EVENT) :] + data).count(_EVENT)
        self._tail = data[-7:] if len(data) >= 7 else (self._tail + data)[-7:]
        if self._tail == _END_OF_CHUNKS:
            self._is_ok = self._is_ok and self._events == self._job.chunks + _EVENTS_AROUND
            self._finish(now)

    def _finish(self, now: float) -> None:
        if self._is_ok:
            self._record.latencies.append(now - self._begun)
            self._record.chunks += self._job.chunks
        else:
            self._record.errors += 1
        self._turns_left -= 1
        if not self._turns_left or now >= self._deadline:
            self._stop()
        elif self._job.pause_ms:
            asyncio.get_running_loop().call_later(self._job.pause_ms / 1000, self._call)
        else:
            self._call()

    def _stop(self, *, is_error: bool = False) -> None:
        self._record.errors += is_error
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


async def connect_all(job: Job) -> list[Caller]:
    """Open the job's connections."""
    loop = asyncio.get_running_loop()
    callers = [Caller(job, open_source(job)) for _ in range(job.connections)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", job.port)  # type: ignore[misc]
    return callers


async def run_phase(callers: list[Caller], *, turns: int, seconds: float) -> tuple[Record, float]:
    """Let every connection call until its turns or the time are over; what was measured and how long it took.

    Paced streams and agents that pause begin one after the other, spread over one interval: what ticks together would
    be batched, or queue.
    """
    record = Record()
    begun = time.perf_counter()
    deadline = begun + (seconds or _PHASE_LIMIT)
    ends = [
        caller.begin(record, turns=turns, deadline=deadline, wait=caller.interval * number / len(callers))
        for number, caller in enumerate(callers)
    ]
    _, unfinished = await asyncio.wait(ends, timeout=(seconds or 0.0) + _PHASE_LIMIT)
    record.errors += len(unfinished)
    return record, time.perf_counter() - begun


async def hang_up_all(callers: list[Caller]) -> None:
    """Close every connection, and let the loop do it."""
    for caller in callers:
        caller.hang_up()
    await asyncio.sleep(0.01)


def summarise(record: Record, seconds: float, new_bytes: int) -> Result:
    return Result(
        requests=len(record.latencies),
        errors=record.errors,
        seconds=seconds,
        chunks=record.chunks,
        latency=measure_spread(record.latencies),
        first=measure_spread(record.latencies[:_PART]),
        last=measure_spread(record.latencies[-_PART:]),
        first_byte=measure_spread(record.first_bytes),
        gap=measure_spread(record.gaps),
        new_bytes=new_bytes,
        sent_bytes=record.sent_bytes,
        received_bytes=record.received_bytes,
    )


def run_job(runner: asyncio.Runner, job: Job) -> None:
    """Warm up, wait for the word, measure, report."""
    callers = runner.run(connect_all(job))
    turns = 1 if job.hold else job.turns
    warm = Record()
    if job.warm_turns and not job.hold:
        warm, _ = runner.run(run_phase(callers, turns=job.warm_turns, seconds=0.0))
    print('{"ready": true}', flush=True)
    sys.stdin.readline()
    known = sum(caller.source.new_bytes for caller in callers)
    gc.disable()  # a collection here would look like a slow target
    record, seconds = runner.run(run_phase(callers, turns=turns, seconds=job.seconds))
    gc.enable()
    record.errors += warm.errors
    if job.hold:
        print('{"ready": true}', flush=True)
        sys.stdin.readline()
    runner.run(hang_up_all(callers))
    new_bytes = sum(caller.source.new_bytes for caller in callers) - known
    print(msgspec.json.encode(summarise(record, seconds, new_bytes)).decode(), flush=True)


def main() -> None:
    """Serve jobs from stdin."""
    parser = argparse.ArgumentParser(description="load generator; takes jobs as JSON lines on stdin")
    parser.add_argument("--lifetime", type=int, default=1800, help="seconds after which it ends by itself")
    signal.alarm(parser.parse_args().lifetime)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while line := sys.stdin.readline():
            run_job(runner, msgspec.json.decode(line, type=Job))


if __name__ == "__main__":
    main()
