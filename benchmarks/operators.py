"""Operators in this process: `python -m benchmarks.operators` maps 1,000 items, then 20,000, then runs 100 agents.

The upstream is a process of its own that answers each request after a delay. Measured are:

* LLMMap over 1,000 items at concurrency 16 with a delay of 20 ms: the time beside the ideal, which is the delay times
  the items, divided by the concurrency, and beside that of plain calls; the processor time of this process for an item;
* LLMMap over many more items without a delay: resident memory after each fifth of them;
* AgenticMap, 100 sessions at once on one log, three answers each: errors, and events that are of another session.

The ideal is out of reach where other programs take the processor: the load of the machine is printed.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proxy import AgenticMap, EventBus, LLMMap, close_all, make_tool
from proxy.config import Settings, load_settings
from proxy.sdk.engines import ENGINES

_SCHEMA = {"type": "object", "properties": {"words": {"type": "integer"}}, "required": ["words"]}
_TEXT = "the quick brown fox jumps over the lazy dog " * 10
_AGENTS, _ANSWERS = 100, 3


class Answerer(asyncio.Protocol):
    """One connection to the upstream: answers each request after a delay, with a call of a tool until it has two."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._held = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._held[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._held) < end + 4 + length:
            return
        body, self._held = self._held[end + 4 : end + 4 + length], self._held[end + 4 + length :]
        answer = _answer(body)
        asyncio.get_running_loop().call_later(self._delay, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(answer) + answer)


def _answer(body: bytes) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": '{"words": 90}'}
    results = body.count(b'"role":"tool"')
    if b'"tools"' in body and results < _ANSWERS - 1:
        function = {"name": "look", "arguments": json.dumps({"place": f"shelf {results}"})}
        message |= {
            "content": None,
            "tool_calls": [{"id": f"call_{results}", "type": "function", "function": function}],
        }
    finish = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 200, "completion_tokens": 8, "total_tokens": 208}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


async def serve(delay: float) -> None:
    """Serve until standard input ends. Print the port first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answerer(delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


@asynccontextmanager
async def upstream(folder: Path, delay: float) -> AsyncIterator[Settings]:
    """Run an upstream with a delay in seconds. Yield settings for it."""
    command = [sys.executable, "-m", "benchmarks.operators", "--serve", str(delay)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    port = int(await process.stdout.readline())
    given = [{"name": "bench", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "k"}]
    try:
        yield load_settings(None, {"data": str(folder / f"log-{port}"), "upstreams": given})
    finally:
        await close_all()
        process.stdin.close()
        await process.wait()


async def measure_time(folder: Path, items: int, concurrency: int, rounds: int) -> None:
    """Measure how long a map takes beside the ideal, and beside plain calls on as many connections."""
    async with upstream(folder, 0.02) as config:
        mapper = LLMMap(config)
        engine = await ENGINES.acquire(config, None)  # as a program that has a session open
        await mapper.run_batch([_TEXT] * 100, "Count: {{ item }}", _SCHEMA, "m", concurrency=concurrency)
        ideal = items * 0.02 / concurrency
        for _ in range(rounds):
            plain, _ = await _take_time(_call_plainly(config.upstreams[0].base_url, items, concurrency))
            inputs = (f"{n} {_TEXT}" for n in range(items))
            mapping = mapper.run_batch(inputs, "Count: {{ item }}", _SCHEMA, "m", concurrency=concurrency)
            seconds, spent = await _take_time(mapping)
            assert mapper.totals.succeeded == items
            print(
                f"LLMMap, {items:,} items at {concurrency}: {seconds:.2f} s, {seconds / ideal:.2f} x the ideal; plain"
                f" calls {plain:.2f} s, {plain / ideal:.2f} x; processor time {1000 * spent / items:.2f} ms an item;"
                f" load {os.getloadavg()[0]:.1f}"
            )
        await ENGINES.release(engine)


async def _take_time(work: Awaitable[object]) -> tuple[float, float]:
    """Return the seconds that work takes, and those of this process's processor time."""
    began, before = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - began, time.process_time() - before


async def _call_plainly(base_url: str, items: int, concurrency: int) -> None:
    """Make as many calls on as many connections, with nothing around them."""
    port, left = int(base_url.rsplit(":")[-1].split("/")[0]), iter(range(items))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": _TEXT}]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def connect() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
        writer.close()

    await asyncio.gather(*[connect() for _ in range(concurrency)])


async def measure_memory(folder: Path, items: int) -> None:
    """Measure resident memory while many items are mapped."""
    async with upstream(folder, 0.0) as config:
        inputs = (f"{n} {_TEXT}" for n in range(items))
        done, told = 0, items // 5
        async for _ in LLMMap(config).run(inputs, "Count: {{ item }}", _SCHEMA, "m"):
            done += 1
            if not done % told:
                print(f"LLMMap, after {done:,} items: {_read_resident(os.getpid()):.0f} MB resident")


def _read_resident(pid: int) -> float:
    """Return the resident memory of one process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


async def measure_agents(folder: Path) -> None:
    """Run many agents at once on one log, with a handler on the bus of each of them."""
    async with upstream(folder, 0.02) as config:
        shared = await ENGINES.acquire(config, None)
        bus, told = EventBus(), list[Any]()
        bus.subscribe_all(lambda name, payload: told.append(payload))
        began, before = time.perf_counter(), time.process_time()
        agents = AgenticMap(config, bus)
        tools = [make_tool(look, is_read_only=True)]
        inputs = (f"item {n}" for n in range(_AGENTS))
        results = await agents.run_batch(inputs, "Work on {{ item }}", "m", tools=tools, concurrency=_AGENTS)
        seconds, spent = time.perf_counter() - began, time.process_time() - before
        failed = [each.error for each in results if not each.success]
        sessions = {each.session_id for each in results}
        foreign = [each for each in told if getattr(each, "item_session", "") not in {"", *sessions}]
        others = [each for each in told if not hasattr(each, "run")]
        health = shared.engine.archive.health
        print(
            f"AgenticMap, {_AGENTS} sessions at once: {seconds:.2f} s, processor time {1000 * spent / _AGENTS:.1f} ms a"
            f" session; {len(failed)} failed {failed[:1]}, {len(sessions)} sessions, {len(told)} events of the run,"
            f" {len(foreign) + len(others)} of another's; log: {health.problem or 'no error'};"
            f" load {os.getloadavg()[0]:.1f}"
        )
        await ENGINES.release(shared)


async def measure(arguments: argparse.Namespace) -> None:
    """Measure all, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        await measure_time(Path(folder), arguments.items, 16, arguments.rounds)
        await measure_agents(Path(folder))
        await measure_memory(Path(folder), arguments.many)


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmark of operators")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--many", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments) if arguments.serve is None else serve(arguments.serve))


if __name__ == "__main__":
    main()
