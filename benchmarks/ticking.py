"""An agent that ticks on a history that the proxy holds: `python -m benchmarks.ticking` makes 1,000 calls.

Each call brings one message: a prompt, or the result of a tool. The history grows with every call; what is measured is
what that costs the proxy: processor time of a call (user and system, the worker included), latency, memory, the log,
and what is sent. Figures are medians over blocks of calls, so that growth shows from the first block to the last.
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
from typing import Any, NamedTuple

from benchmarks.picture import LoopbackServer, respond, run_proxy
from benchmarks.processes import list_family, measure_files, read_cpu_seconds, read_memory

_EVERY = 10  # calls between two prompts
_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
_MODEL = "gpt-5-mini"


class Ticked(NamedTuple):
    """What was measured of one call."""

    seconds: float
    processor: float
    resident: tuple[int, int]  # of the serving process, and of its worker
    log: int
    sent: int


class _Upstream(LoopbackServer):
    """Calls a tool each time, but says a word every tenth time. Keeps the size of the last request."""

    def __init__(self) -> None:
        self.calls = 0
        self.sent = 0
        super().__init__()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.sent = int(handler.headers["content-length"])
        handler.rfile.read(self.sent)
        self.calls += 1
        n = self.calls
        message: dict[str, Any] = {"role": "assistant", "content": f"step {n}: I look at what the watch has found"}
        if n % _EVERY:
            called = {"name": "look", "arguments": json.dumps({"at": f"host-{n}"})}
            message["tool_calls"] = [{"id": f"call_{n:06}", "type": "function", "function": called}]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": self.sent // 4, "completion_tokens": 40, "total_tokens": self.sent // 4 + 40}
        respond(handler, 200, {"id": f"c{n}", "object": "chat.completion", "choices": [choice], "usage": usage})


def tick(
    calls: int, size: int, headers: dict[str, str], options: Sequence[str], *, is_held: bool = True
) -> list[Ticked]:
    """Make the calls. Return what was measured of each. Unless the history `is_held`, the client sends all of it."""
    ticked: list[Ticked] = []
    history: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, _Upstream() as upstream:
        data = Path(folder)
        with run_proxy(upstream.port, data, *options) as port:
            pid = list_family(os.getpid())[1]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with closing(connection):
                for n in range(calls):
                    history = [*history, _write(n, size)]
                    body = json.dumps({"model": _MODEL, "messages": history, "tools": _TOOLS})
                    own = {"x-palimpsest-session": "tick"}
                    if is_held:
                        own["x-palimpsest-history"] = "server" if n else "new"
                    before, begun = read_cpu_seconds(pid), time.perf_counter()
                    connection.request("POST", "/v1/chat/completions", body, {**headers, **own})
                    response = connection.getresponse()
                    content = response.read()
                    seconds = time.perf_counter() - begun
                    if response.status != 200:
                        raise SystemExit(f"call {n + 1}: {response.status} {content.decode()}")
                    history = [] if is_held else [*history, json.loads(content)["choices"][0]["message"]]
                    log = sum(measure_files(data).values())
                    used = read_cpu_seconds(pid) - before
                    resident = _read_resident(pid)
                    ticked.append(Ticked(seconds, used, resident, log, upstream.sent))
    return ticked


def _read_resident(pid: int) -> tuple[int, int]:
    """Return the resident bytes of a process, and of those that it has started."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    own = int(pages) * os.sysconf("SC_PAGE_SIZE")
    return own, read_memory(pid)[0] - own


def _write(n: int, size: int) -> dict[str, Any]:
    """Return the message that the n-th call brings, from 0 on: results have `size` characters."""
    if n % _EVERY == 0:
        return {"role": "user", "content": f"tick {n}: watch the hosts, and say what has changed since the last tick"}
    lines = [f"host-{n} line {i}: load {(n * 7 + i * 13) % 97} state {(n + i) % 5}" for i in range(size // 32)]
    return {"role": "tool", "tool_call_id": f"call_{n:06}", "content": "\n".join(lines)}


def summarise(ticked: Sequence[Ticked], blocks: int) -> str:
    """Return a table of the calls in blocks of equal size."""
    names = ("calls", "processor, ms", "latency, ms", "p90", "resident, MB", "worker, MB", "log, MB", "sent, KB")
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    step = max(1, len(ticked) // blocks)
    for start in range(0, len(ticked) - step + 1, step):
        block = ticked[start : start + step]
        latencies = sorted(1000 * each.seconds for each in block)
        figures = [
            f"{1000 * sum(each.processor for each in block) / step:.1f}",
            f"{median(latencies):.1f}",
            f"{latencies[int(0.9 * (step - 1))]:.1f}",
            *[f"{size / 1e6:.0f}" for size in block[-1].resident],
            f"{block[-1].log / 1e6:.2f}",
            f"{median(each.sent for each in block) / 1e3:.0f}",
        ]
        rows.append(f"| {start + 1}-{start + step} | " + " | ".join(figures) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1500, help="characters of a tool's result")
    parser.add_argument("--strategy", default="", help="the value of x-palimpsest-strategy")
    parser.add_argument("--client", action="store_true", help="the client holds the history, for comparison")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("options", nargs="*", help="of `palimpsest serve`, behind --")
    asked = parser.parse_args()
    headers = {"authorization": "Bearer sk-bench", "content-type": "application/json"}
    if asked.strategy:
        headers["x-palimpsest-strategy"] = asked.strategy
    ticked = tick(asked.calls, asked.size, headers, asked.options, is_held=not asked.client)
    print(summarise(ticked, asked.blocks))


if __name__ == "__main__":
    main()
