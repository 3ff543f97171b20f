"""kill -9 under load, again and again: what a client saw complete is in the log, byte for byte, and it verifies.

With full durability this fails where an answer does not wait for its commit, with normal durability where it goes out
before its record is in the journal: a client that reads the last byte kills the proxy before the writer can catch up.
"""

import asyncio
import json
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from proxy.assembly import open_log
from proxy.config import load_settings
from tests.journeys.provider import run_provider
from tests.journeys.running import Running, start_proxy

ROUNDS = 6
CLIENTS = 8


class Complete:
    """The calls whose answers came whole, by conversation: what was asked and what came.

    Kills the proxy in the very moment in which a client has read the last byte of the call agreed on: whatever is
    released before it is safe would be missing from the log.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[bytes, bytes]]] = {}
        self._left = 0
        self._process: subprocess.Popen[str] | None = None

    def kill_after(self, calls: int, process: "subprocess.Popen[str]") -> None:
        self._left, self._process = calls, process

    def add(self, name: str, asked: bytes, came: bytes) -> None:
        self._left -= 1
        if not self._left and self._process is not None:
            self._process.send_signal(signal.SIGKILL)
        self.calls.setdefault(name, []).append((asked, came))


async def _talk(port: int, name: str, complete: Complete) -> None:
    """Take turns of a growing conversation until the proxy is gone; note every call whose answer came whole."""
    messages = [{"role": "user", "content": f"Hello from {name}."}]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            body = json.dumps({"model": "m", "stream": len(messages) % 4 == 1, "messages": messages}).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"x-palimpsest-session: %s\r\ncontent-length: %d\r\n\r\n%s" % (name.encode(), len(body), body)
            )
            complete.add(name, body, await _read_answer(reader))
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {len(messages)}?"}]
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


def _start(data: Path, upstream: str, durability: str) -> Running:
    """Start a proxy whose responses wait for the log however slow the disk is."""
    return start_proxy(data, upstream, "--durability", durability, STORE__COMMIT_WAIT_MS="60000")


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer, once its last byte is there."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    if length := re.search(rb"content-length: (\d+)", head):
        return await reader.readexactly(int(length.group(1)))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_nothing_that_a_client_saw_complete_is_lost(tmp_path: Path, durability: str) -> None:
    chance = random.Random(20261121)
    complete = Complete()
    with run_provider() as provider:
        for n in range(ROUNDS):
            running = await asyncio.to_thread(_start, tmp_path, provider.base_url, durability)
            complete.kill_after(chance.randint(10, 60), running.process)
            async with asyncio.timeout(60), asyncio.TaskGroup() as talks:
                for client in range(CLIENTS):
                    talks.create_task(_talk(running.port, f"r{n}-{client}", complete))
            await asyncio.to_thread(running.kill)
    await _check(tmp_path, complete)


async def _check(data: Path, complete: Complete) -> None:
    log = open_log(load_settings(None, {"data": data}))
    try:
        sessions = {row.family: row.id for row in await log.list_sessions(10_000)}
        for name, calls in complete.calls.items():
            rows = await log.list_exchanges(sessions[name])
            for (body, received), row in zip(calls, rows, strict=False):
                assert await log.load_request(row.id) == body
                assert row.rounds[0].completeness == "complete"
                assert await log.load_received(row.id, 0) == received
            assert len(rows) - len(calls) in (0, 1), "at most the call that was under way is there besides"
        assert len(complete.calls) > ROUNDS
        assert (await log.verify()).faults == ()
    finally:
        await log.close()
