"""What a session of a Python program costs beside its provider: `python -m benchmarks.programs`, a quarter of a minute.

In one process, in turn: a message by `Session.send`, the same messages over a bare connection, by httpx and by the
openai SDK, all to an upstream in another process that answers at once. Figures: wall time of a call, p50, and
processor time of this process a call (user and system; the engine's worker process is not in it, for it does nothing
while contexts are short). Calls are made one at a time, 20 ms apart as agents pause, in blocks of which each kind has
one in each round.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import openai

from proxy import Session, Settings

_BLOCK, _TURNS_KEPT = 25, 20
_UPSTREAM = """
import asyncio, json, sys
BODY = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,
    "message": {"role": "assistant", "content": "A short answer. " * 8}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}}).encode()
REPLY = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY) + BODY
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\\r\\n")[0]))
            writer.write(REPLY)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""

Say = Callable[[str], Awaitable[object]]


async def measure(say: Say, calls: int, pause: float) -> tuple[list[float], float]:
    """Return the seconds of each call, and the processor seconds of them all without the pauses' own."""
    seconds, spent = [], 0.0
    for number in range(calls):
        await asyncio.sleep(pause)
        before, began = time.process_time(), time.perf_counter()
        await say(f"message {number}: what stands in the next chapter?")
        seconds.append(time.perf_counter() - began)
        spent += time.process_time() - before
    return seconds, spent


class Plain:
    """A conversation that its program keeps itself: the newest messages, sent by httpx or the openai SDK."""

    def __init__(self, base_url: str, client: httpx.AsyncClient, sdk: openai.AsyncOpenAI | None = None) -> None:
        self._url = f"{base_url}/chat/completions"
        self._client = client
        self._sdk = sdk
        self._messages: list[Any] = [{"role": "system", "content": "You are a helpful assistant."}]

    async def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        if self._sdk is not None:
            done = await self._sdk.chat.completions.create(model="m", messages=self._messages)
            answer = done.choices[0].message.content
        else:
            response = await self._client.post(self._url, json={"model": "m", "messages": self._messages})
            answer = json.loads(response.content)["choices"][0]["message"]["content"]
        self._messages.append({"role": "assistant", "content": answer})


class Bare:
    """The upstream's own time: the same messages over a connection of asyncio, with nothing read but the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._messages: list[Any] = []

    async def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "m", "messages": self._messages}).encode()
        self._writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        await self._reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        self._messages.append({"role": "assistant", "content": "A short answer. " * 8})


async def run(port: int, rounds: int, pause: float) -> dict[str, dict[str, float]]:
    """Return for each kind of client the p50 of a call and its processor time, in milliseconds."""
    base_url = f"http://127.0.0.1:{port}/v1"
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as data:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        settings = Settings(upstreams=[{"base_url": base_url}])
        async with httpx.AsyncClient() as client, openai.AsyncOpenAI(base_url=base_url, api_key="x") as sdk:
            for _ in range(rounds):
                async with await Session.create(model="m", config=settings, db_path=Path(data)) as session:
                    says: dict[str, Say] = {
                        "the upstream alone": Bare(reader, writer).say,
                        "session": session.send,
                        "httpx": Plain(base_url, client).say,
                        "openai": Plain(base_url, client, sdk).say,
                    }
                    for name, say in says.items():
                        await measure(say, _TURNS_KEPT, 0)  # warms up, and makes all conversations as long
                        seconds, spent = await measure(say, _BLOCK, pause)
                        kept = found.setdefault(name, ([], []))
                        kept[0].append(median(seconds))
                        kept[1].append(spent / _BLOCK)
    return {
        name: {"p50 ms": 1000 * median(walls), "processor ms": 1000 * median(spent)}
        for name, (walls, spent) in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.02)
    options = parser.parse_args()
    command = [sys.executable, "-c", _UPSTREAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as upstream:
        assert upstream.stdout is not None and upstream.stdin is not None
        found = asyncio.run(run(int(upstream.stdout.readline()), options.rounds, options.pause))
        upstream.stdin.close()
    print("| | p50 of a call, ms | processor time of a call, ms |\n|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} | {figures['p50 ms']:.2f} | {figures['processor ms']:.2f} |")
    alone, session = found["the upstream alone"], found["session"]
    added = [f"{session[name] - alone[name]:.2f} ms ({name.removesuffix(' ms')})" for name in session]
    print(f"\nA session adds to the upstream's time: {', '.join(added)}.")


if __name__ == "__main__":
    main()
