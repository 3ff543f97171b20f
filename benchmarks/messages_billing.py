"""What markers of ours are worth on `/v1/messages`: `python -m benchmarks.messages_billing`, five minutes.

The scripted session of `benchmarks.picture` (240 calls, 15 simulated seconds apart) on Anthropic's wire, through a
proxy to a mock that bills each request block by block: writes at 1.25, reads at 0.1 of the price of input. `look-back`:
Anthropic's rules (20 blocks, 5 minutes). `exact`: a read ends at a marker, or where the provider sets one itself, as
OpenAI does: at the end of each message of a user or a tool, of which the newest is written; 30 minutes. The client
marks its system prompt and its last two messages, or nothing. Cost is in tokens of uncached input.
"""

import argparse
import hashlib
import http.client
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cache_billing import SECONDS_BETWEEN, PromptBlock, SimulatedCache, SimulatedPrompt
from benchmarks.chat_wires import Body, ChatMessage, list_messages_events, read_messages_events, write_messages
from benchmarks.picture import (
    LoopbackServer,
    load_counting_encoder,
    make_answer,
    make_result,
    make_task,
    make_text,
    run_proxy,
)
from proxy.context.provider_cache import CacheModel

MODEL = "claude-sonnet-4-6"
READ, WRITE = 0.1, 1.25
LOOK_BACK = CacheModel("breakpoints", minimum=1024, retention=300.0, lookback=20, most_marks=4)
EXACT = CacheModel("openai-breakpoints", minimum=1024, retention=1800.0, lookback=80, most_marks=4)
RULES = {"look-back": LOOK_BACK, "exact": EXACT}
TOOL: Any = {
    "type": "function",
    "function": {"name": "bash", "description": "Run a command.", "parameters": {"type": "object"}},
}
MARKER = "cache_control"
_SECONDS = 60.0


class Row(NamedTuple):
    """One session."""

    rules: str
    is_marked: bool  # whether the client sets markers
    has_ours: bool  # whether the proxy adds its own

    @property
    def name(self) -> str:
        return f"{self.rules} | {'three' if self.is_marked else 'none'} | {'on' if self.has_ours else 'off'}"


class Bill:
    """The cost of requests, block by block.

    `count` returns the tokens of a block, `list_blocks` the blocks of a request. Requests with one `cache` share it.
    """

    def __init__(
        self,
        rules: CacheModel,
        *,
        count: Callable[[str], int] | None = None,
        list_blocks: Callable[[Body], Iterator[Body]] | None = None,
        cache: SimulatedCache | None = None,
    ) -> None:
        self.cache, self._count = cache or SimulatedCache(rules), count or load_counting_encoder().count
        self._list_blocks = list_blocks or list_message_blocks
        self._known: dict[str, int] = {}
        self.calls = self.tokens = self.read = 0
        self.cost = 0.0

    def add(self, body: Body, at: float | None = None) -> tuple[int, int, int]:
        """Bill a request; returns what is neither read nor written, what is read, and what is written."""
        blocks, key, end = list[PromptBlock](), b"", 0
        is_exact = self.cache.model.kind == EXACT.kind
        listed = list(self._list_blocks(body))
        for place, block in enumerate(listed):
            plain = json.dumps({name: value for name, value in block.items() if name != MARKER}, sort_keys=True)
            if plain not in self._known:
                self._known[plain] = self._count(plain)
            key, end = hashlib.sha256(key + plain.encode()).digest(), end + self._known[plain]
            is_last = place + 1 == len(listed)
            is_end = is_last or (block.get("role") == "user" and listed[place + 1].get("role") == "assistant")
            is_mark, is_own = MARKER in block, is_exact and is_end
            blocks.append(PromptBlock(key, end, is_mark or is_own, is_mark or (is_own and is_last)))
        found = self.cache.send(SimulatedPrompt(blocks, SECONDS_BETWEEN * self.calls if at is None else at))
        self.calls, self.tokens, self.read = self.calls + 1, self.tokens + end, self.read + found.read
        fresh = end - found.read - found.written
        self.cost += fresh + READ * found.read + WRITE * found.written
        return fresh, found.read, found.written


def list_message_blocks(body: Body) -> Iterator[Body]:
    """Yield the tools, the blocks of the system prompt and those of the messages, these with their roles."""
    yield from body.get("tools") or ()
    system = body.get("system") or ()
    yield from [{"type": "text", "text": system}] if isinstance(system, str) else system
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from ({"role": message["role"], **block} for block in blocks)


class Provider(LoopbackServer):
    """A mock of the provider: answers each request with the next call of the script, and bills it."""

    def __init__(self, bill: Bill) -> None:
        self.bill = bill
        super().__init__()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a POST request."""
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        number = self.bill.calls
        fresh, read, written = self.bill.add(body)
        events = list(list_messages_events(make_answer(number), (fresh, 90)))
        events[0]["message"]["usage"] |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        content = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def unmark(body: Body) -> Body:
    """Return a request without markers."""
    decoded: Body = json.loads(
        json.dumps(body), object_hook=lambda value: {name: each for name, each in value.items() if name != MARKER}
    )
    return decoded


def play(port: int, calls: int, direct: Bill, *, is_marked: bool) -> None:
    """Work as an agent does, and bill what the client sends."""
    history: list[ChatMessage] = [{"role": "system", "content": make_text("system", 600)}]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    for number in range(calls):
        if number % 40 == 0:
            history.append(make_task(number))
        body = {"model": MODEL, "stream": True, **write_messages(history, [TOOL])}
        body = body if is_marked else unmark(body)
        headers = {"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}
        connection.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
        reply = connection.getresponse()
        content = reply.read().decode()
        if reply.status != 200:
            raise RuntimeError(f"call {number}: status {reply.status}: {content}")
        direct.add(body)
        data = [json.loads(line[6:]) for line in content.split("\n") if line.startswith("data: ")]
        history += [read_messages_events(data), make_result(number)]
    connection.close()


def measure(row: Row, calls: int, ceiling: int) -> tuple[Bill, Bill]:
    """Return the bills of a session without and with the proxy."""
    direct, managed = Bill(RULES[row.rules]), Bill(RULES[row.rules])
    with (
        tempfile.TemporaryDirectory() as data,
        Provider(managed) as provider,
        run_proxy(
            provider.port, Path(data), "--ceiling", str(ceiling), cache="breakpoints" if row.has_ours else "auto"
        ) as port,
    ):
        play(port, calls, direct, is_marked=row.is_marked)
    return direct, managed


def main() -> None:
    """Measure all rows and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.messages_billing")
    parser.add_argument("--ceiling", type=int, default=32_000)
    parser.add_argument("--calls", type=int, default=240)
    options = parser.parse_args()
    print("| rules | client's markers | ours | direct, k tokens | managed | managed / direct | read, managed |")
    print("|---|---|---|---|---|---|---|")
    for row in [Row(rules, marked, ours) for rules in RULES for marked in (True, False) for ours in (False, True)]:
        direct, managed = measure(row, options.calls, options.ceiling)
        costs = f"{direct.cost / 1000:.0f} | {managed.cost / 1000:.0f} | {managed.cost / direct.cost:.1%}"
        print(f"| {row.name} | {costs} | {managed.read / managed.tokens:.0%} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
