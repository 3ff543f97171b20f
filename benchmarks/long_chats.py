"""A chat of 10,000 messages: `python -m benchmarks.long_chats`, some minutes.

One session grows by a question and an answer with each call. What is measured is what a call costs the proxy at some
lengths: processor time (user and system, of the serving process and of its worker), and latency beside that of a call
without a proxy. The same without a session id.
"""

import argparse
import http.client
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.picture import LoopbackServer, respond, run_proxy
from benchmarks.processes import list_family, read_cpu_seconds

_BYTES_PER_TOKEN = 6  # of these messages as JSON
_CALLS = 100  # measured at each length
_SIZES = (200, 1_000, 4_000, 8_000, 10_000)
_FIELDS = {"authorization": "Bearer sk-bench", "content-type": "application/json"}


class Called(NamedTuple):
    """What was measured of one call: seconds of it, of processor time, and of one without a proxy."""

    seconds: float
    processor: float
    direct: float


class _Upstream(LoopbackServer):
    """Says one word, and reports what a provider would count, nearly all of it read from its cache."""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers["content-length"])
        handler.rfile.read(size)
        tokens = size // _BYTES_PER_TOKEN
        cached = {"cached_tokens": max(0, tokens - 64) // 128 * 128}
        usage = {"prompt_tokens": tokens, "completion_tokens": 2, "prompt_tokens_details": cached}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "well"}}
        respond(handler, 200, {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


def chat(sizes: Sequence[int], words: int, *, is_named: bool, options: Sequence[str]) -> dict[int, list[Called]]:
    """Grow a chat to the largest of these numbers of messages. Return what was measured at each of them."""
    called: dict[int, list[Called]] = {size: [] for size in sizes}
    body = b'{"model":"gpt-5-mini","messages":[{"role":"system","content":"You help."}'
    headers = {**_FIELDS, **({"x-palimpsest-session": "chat"} if is_named else {})}
    with (
        tempfile.TemporaryDirectory() as folder,
        _Upstream() as upstream,
        run_proxy(upstream.port, Path(folder), *options) as port,
    ):
        pid = list_family(os.getpid())[1]
        own, direct = (http.client.HTTPConnection("127.0.0.1", each, timeout=60) for each in (port, upstream.port))
        with closing(own), closing(direct):
            for count in range(1, max(sizes) + 2 * _CALLS, 2):
                body += _write(count, words)
                size = next((each for each in sizes if 0 <= count - each < 2 * _CALLS), None)
                before = read_cpu_seconds(pid)
                seconds = _ask(own, body + b"]}", headers)
                if size is not None:
                    added = _ask(direct, body + b"]}", headers)
                    called[size].append(Called(seconds, read_cpu_seconds(pid) - before, added))
                body += b',{"role":"assistant","content":"well"}'
    return called


def _ask(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> float:
    """Make a call. Return how long it took."""
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status} {content.decode()}")
    return time.perf_counter() - begun


def _write(number: int, words: int) -> bytes:
    """Return the question of this number, as JSON behind other messages."""
    text = f"{number} " + " ".join(f"word{(number * 7919 + n * 104729) % 997}" for n in range(words))
    return b"," + json.dumps({"role": "user", "content": text}).encode()


def summarise(called: dict[int, list[Called]]) -> str:
    """Return a table with a row for each length."""
    names = ("messages", "added p50, ms", "p90", "most", "processor, ms")
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for size, calls in called.items():
        direct = median(each.direct for each in calls)
        added = sorted(1000 * (each.seconds - direct) for each in calls)
        processor = 1000 * sum(each.processor for each in calls) / len(calls)
        figures = median(added), added[int(0.9 * (len(added) - 1))], added[-1], processor
        rows.append(f"| {size:,} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="numbers of messages")
    parser.add_argument("--words", type=int, default=8, help="of a question")
    parser.add_argument("options", nargs="*", help="of `palimpsest serve`, behind --")
    asked = parser.parse_args()
    for is_named in (True, False):
        print(f"\n### {'With' if is_named else 'Without'} a session id\n")
        print(summarise(chat(asked.sizes, asked.words, is_named=is_named, options=asked.options)))


if __name__ == "__main__":
    main()
