"""kill -9 under load, again and again: what a client saw complete is in the log, byte for byte, and it verifies."""

import asyncio
import json
import random
from pathlib import Path

import httpx

from proxy.assembly import open_log
from proxy.config import load_settings
from tests.journeys.provider import run_provider
from tests.journeys.running import start_proxy

ROUNDS = 6
CLIENTS = 8


class Complete:
    """The calls whose answers came whole, by conversation: what was asked and what came."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[bytes, bytes]]] = {}
        self.count = 0
        self._grown = asyncio.Event()

    def add(self, name: str, asked: bytes, came: bytes) -> None:
        self.calls.setdefault(name, []).append((asked, came))
        self.count += 1
        self._grown.set()

    async def wait_for(self, count: int) -> None:
        while self.count < count:
            self._grown.clear()
            await self._grown.wait()


async def _talk(base_url: str, name: str, complete: Complete) -> None:
    """Take turns of a growing conversation until the proxy is gone; note every call whose answer came whole."""
    messages = [{"role": "user", "content": f"Hello from {name}."}]
    async with httpx.AsyncClient(base_url=base_url, timeout=20) as client:
        while True:
            body = json.dumps({"model": "m", "stream": len(messages) % 4 == 1, "messages": messages}).encode()
            headers = {"x-palimpsest-session": name, "content-type": "application/json"}
            try:
                answer = await client.post("/chat/completions", content=body, headers=headers)
            except httpx.HTTPError:
                return
            assert answer.status_code == 200
            complete.add(name, body, answer.content)
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {len(messages)}?"}]


async def test_nothing_that_a_client_saw_complete_is_lost(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    complete = Complete()
    with run_provider() as provider:
        for round_number in range(ROUNDS):
            running = await asyncio.to_thread(start_proxy, tmp_path, provider.base_url)
            talks = [
                asyncio.ensure_future(_talk(running.base_url, f"r{round_number}-{n}", complete)) for n in range(CLIENTS)
            ]
            enough = chance.randint(20, 120)
            async with asyncio.timeout(60):
                await complete.wait_for(complete.count + enough)
            await asyncio.to_thread(running.kill)
            await asyncio.gather(*talks)
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
        assert len(complete.calls) == ROUNDS * CLIENTS
        assert (await log.verify()).faults == ()
    finally:
        await log.close()
