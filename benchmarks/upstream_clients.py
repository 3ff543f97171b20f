"""HTTP clients compared as a proxy's upstream leg, against the same mock, in one run and one process.

The rule: the clients take turns within a round; *added* is the difference to the raw floor in the same round.  This
process is pinned to the measured core, the mock to the other.
"""

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import uvloop

from benchmarks.forwarder_adapter import ForwarderClient
from benchmarks.jobs import Job, measure_spread
from benchmarks.processes import Nursery
from benchmarks.report import render_number, render_table
from benchmarks.run import write_report
from benchmarks.sessions import open_source
from benchmarks.targets import HARNESS_CORE, MEASURED_CORE, start_mock
from benchmarks.upstream_adapters import AiohttpClient, HttpxAiohttpClient, HttpxClient, RawClient, UpstreamClient

_SIZES = (("1 KB", 1_000), ("100 KB", 100_000), ("800 KB", 800_000))
_MANY = 64
_STREAMS = 16
_CHUNKS = 30
_PACE_MS = 15


class Round(msgspec.Struct):
    """One client in one round: seconds per call by size, calls per second, CPU seconds per chunk."""

    calls: dict[str, float]
    rate: float
    cpu_per_call: float
    cpu_per_chunk: float


def make_body(size: int, chunks: int = 0) -> bytes:
    """A realistic body, without the head the load generator would send."""
    request = open_source(Job(port=0, size=size, chunks=chunks)).render()
    return request.split(b"\r\n\r\n", 1)[1]


def make_headers(chunks: int = 0) -> dict[str, str]:
    headers = {
        "authorization": "Bearer bench",
        "content-type": "application/json",
        "accept": "text/event-stream" if chunks else "application/json",
        "user-agent": "palimpsest-bench/1",
    }
    return headers | ({"x-bench-chunks": str(chunks), "x-bench-delay-ms": str(_PACE_MS)} if chunks else {})


async def call_in_turn(client: UpstreamClient, body: bytes, seconds: float) -> float:
    """Median seconds of one call after the other."""
    headers = make_headers()
    durations: list[float] = []
    deadline = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < deadline:
        reply = await client.call(body, headers)
        durations.append(time.perf_counter() - begun)
        if reply.status != 200:
            raise RuntimeError(f"{client.name}: status {reply.status}")
    return measure_spread(durations).p50


async def call_at_once(client: UpstreamClient, body: bytes, seconds: float) -> tuple[float, float]:
    """Calls per second and CPU seconds per call with many callers."""
    headers = make_headers()
    deadline = time.perf_counter() + seconds

    async def call_often() -> int:
        calls = 0
        while time.perf_counter() < deadline:
            await client.call(body, headers)
            calls += 1
        return calls

    begun, cpu = time.perf_counter(), time.process_time()
    calls = sum(await asyncio.gather(*(call_often() for _ in range(_MANY))))
    return calls / (time.perf_counter() - begun), (time.process_time() - cpu) / calls


async def stream_at_once(client: UpstreamClient, body: bytes, headers: Mapping[str, str]) -> float:
    """CPU seconds per chunk of paced streams; they begin spread over one interval, so that chunks come one by one."""

    async def stream(number: int) -> None:
        await asyncio.sleep(number * _PACE_MS / 1000 / _STREAMS)
        await client.call(body, headers)

    cpu = time.process_time()
    await asyncio.gather(*(stream(number) for number in range(_STREAMS)))
    return (time.process_time() - cpu) / (_STREAMS * _CHUNKS)


async def measure_client(client: UpstreamClient, origin: str, seconds: float) -> Round:
    """One round of one client, with connections of its own."""
    await client.open(origin)
    gc.collect()
    try:
        calls: dict[str, float] = {}
        for label, size in _SIZES:
            body = make_body(size)
            await call_in_turn(client, body, seconds / 4)
            calls[label] = await call_in_turn(client, body, seconds)
        await call_at_once(client, make_body(1_000), seconds / 4)
        rate, cpu_per_call = await call_at_once(client, make_body(1_000), seconds)
        chunk = await stream_at_once(client, make_body(1_000, _CHUNKS), make_headers(_CHUNKS))
        return Round(calls, rate, cpu_per_call, chunk)
    finally:
        await client.close()


async def measure_rounds(origin: str, rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Every client in every round; the first one changes."""
    clients: list[UpstreamClient] = [
        RawClient(),
        ForwarderClient(),
        AiohttpClient(),
        HttpxAiohttpClient(),
        HttpxClient(),
    ]
    results: dict[str, list[Round]] = {client.name: [] for client in clients}
    for number in range(rounds):
        first = number % len(clients)
        for client in clients[first:] + clients[:first]:
            results[client.name].append(await measure_client(client, origin, seconds))
    return results


def render_results(results: dict[str, list[Round]]) -> str:
    """The table: the floor's own times, then what each client adds to them."""
    floor = results[RawClient.name]
    head = ["client", *(f"{label}, ms" for label, _ in _SIZES), f"requests/s at {_MANY}", "CPU per call, µs"]
    rows = []
    for name, rounds in results.items():
        row = [name]
        for label, _ in _SIZES:
            pairs = zip(rounds, floor, strict=True)
            added = statistics.median(one.calls[label] - base.calls[label] for one, base in pairs)
            own = statistics.median(one.calls[label] for one in rounds)
            row.append(f"{render_number(own * 1e3)}" if rounds is floor else f"+{render_number(added * 1e3)}")
        row.append(render_number(statistics.median(one.rate for one in rounds)))
        row.append(render_number(statistics.median(one.cpu_per_call for one in rounds) * 1e6))
        row.append(render_number(statistics.median(one.cpu_per_chunk for one in rounds) * 1e6))
        rows.append(row)
    return (
        "# HTTP clients as the upstream leg\n\nMedian of one call at a time; the first line is the floor, the others "
        f"what they add to it. CPU per chunk: {_STREAMS} streams, a chunk every {_PACE_MS} ms, calls included.\n\n"
        + render_table([*head, "CPU per chunk, µs"], rows)
        + "\n"
    )


def main() -> None:
    """Compare the clients from the command line."""
    parser = argparse.ArgumentParser(description="HTTP clients compared as a proxy's upstream leg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="per measurement")
    parser.add_argument("--out", default="upstream_clients", help="name of the files in benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder, Nursery(Path(folder)) as nursery:
        _, port = start_mock(nursery, HARNESS_CORE)
        os.sched_setaffinity(0, {MEASURED_CORE})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            origin = f"http://127.0.0.1:{port}"
            results = runner.run(measure_rounds(origin, arguments.rounds, arguments.seconds))
    write_report(arguments.out, render_results(results), msgspec.json.format(msgspec.json.encode(results), indent=1))


if __name__ == "__main__":
    main()
