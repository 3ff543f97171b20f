"""The picture of the README: `python -m benchmarks.picture` runs one session through the proxy and draws its requests.

A scripted agent works through a proxy with default settings, but for summaries, which a mock upstream cannot write. The
mock upstream on the loopback counts the tokens of each request that arrives; the same is counted of what the agent
sends. The figures go to docs/session-tokens.json, the picture to docs/session-tokens.svg. Texts and tools are the same
in every run. References are random, so that each is counted as one fixed reference.
"""

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from proxy.upstream.tokenizer import Encoder, load_encoder

DOCS = Path(__file__).parents[1] / "docs"
CALLS = 240
MODEL = "gpt-5-mini"
READ = 0.1  # price of a cached input token, as a share of the price of an uncached one
_REFERENCE = re.compile(r"ref:[a-z0-9]{10}")
_SECONDS = 60.0
_ADDRESS = re.compile(r"base URL\s+http://127\.0\.0\.1:(\d+)/v1")
_TEXT = (
    "account adapter array batch branch buffer cache call channel client code commit config context cursor data decode "
    "digest driver edge encode engine entry error event export field file filter flag format frame group handle header "
    "index input item kernel label layer length level limit line list local lock match message method module name node "
    "number offset order packet page parse patch path plan policy prefix query queue range reader record result retry "
    "the a of to and in is that it for with as on was be this which have from not after before only when"
)
_WORDS = _TEXT.split()

Message = dict[str, Any]


def load_counting_encoder() -> Encoder:
    """Return the encoder by which the benchmarks count tokens. Exits without one."""
    encoder = load_encoder("o200k_base")
    if encoder is None:
        raise SystemExit("no tokenizer is installed for this machine")
    return encoder


class TokenCount:
    """Counts the tokens of requests, and which of them a prefix cache would hold from the request before."""

    def __init__(self) -> None:
        self._encoder = load_counting_encoder()
        self._known: dict[str, int] = {}
        self._previous: list[str] = []
        self.requests: list[int] = []
        self.cached: list[int] = []

    def add(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Add a request; returns its tokens, and those of the messages it begins with like the request before."""
        texts = [_REFERENCE.sub("ref:aaaaaaaaaa", json.dumps(message, sort_keys=True)) for message in messages]
        sizes = [self._count(text) for text in texts]
        same = next((i for i, (a, b) in enumerate(zip(texts, self._previous, strict=False)) if a != b), None)
        same = min(len(texts), len(self._previous)) if same is None else same
        self._previous = texts
        self.requests.append(sum(sizes))
        self.cached.append(sum(sizes[:same]))
        return self.requests[-1], self.cached[-1]

    def _count(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = self._encoder.count(text)
        return self._known[text]


class LoopbackServer:
    """An HTTP server on a free port of the loopback, for the length of a `with` block."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 65536

            def do_POST(self) -> None:
                server.answer(self)

            def do_GET(self) -> None:
                respond(self, 404, {"error": {"message": "not found"}})

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a POST request."""
        raise NotImplementedError


class Upstream(LoopbackServer):
    """An OpenAI-compatible server that answers every request with the next tool call of the script."""

    def __init__(self, count: TokenCount) -> None:
        self.count = count
        super().__init__()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        n = len(self.count.requests)
        tokens, cached = self.count.add(body["messages"])
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": 90,
            "total_tokens": tokens + 90,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        choice = {"index": 0, "finish_reason": "tool_calls", "message": make_answer(n)}
        respond(
            handler,
            200,
            {"id": f"c{n}", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage},
        )


def respond(handler: BaseHTTPRequestHandler, status: int, document: object, kind: str = "application/json") -> None:
    """Send a whole response."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def make_text(seed: str, words: int) -> str:
    """Return lines of words that follow from the seed alone."""
    source = random.Random(seed)
    lines = []
    while words > 0:
        size = source.randint(6, 14)
        lines.append(" ".join(source.choice(_WORDS) for _ in range(size)))
        words -= size
    return "\n".join(lines)


def make_answer(n: int) -> Message:
    """Return the model's n-th message: a few words and one tool call."""
    arguments = json.dumps({"command": f"sed -n 1,200p src/module_{n % 40}.py"})
    call = {"id": f"call_{n:04}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": make_text(f"answer {n}", 40), "tool_calls": [call]}


def make_result(n: int) -> Message:
    """Return the output of the n-th tool call: most are short, some are long."""
    words = random.Random(f"size {n}").choice((60, 150, 400, 900, 2500))
    return {"role": "tool", "tool_call_id": f"call_{n:04}", "content": make_text(f"result {n}", words)}


def make_task(n: int) -> Message:
    """Return a message of the user, one for every forty calls."""
    return {"role": "user", "content": f"Task {n // 40 + 1}. {make_text(f'task {n}', 60)}"}


def run_session(
    port: int,
    calls: int,
    sent: TokenCount,
    *,
    model: str = MODEL,
    spell: Callable[[list[Message]], list[Message]] = list,
) -> None:
    """Work as an agent does: send the whole history with every call, and append the answer and the tool's output.

    `spell` returns the messages as the client sends them.
    """
    history: list[Message] = [{"role": "system", "content": make_text("system", 600)}]
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    for n in range(calls):
        if n % 40 == 0:
            history.append(make_task(n))
        spelled = spell(history)
        body = json.dumps({"model": model, "messages": spelled, "tools": tools})
        headers = {"authorization": "Bearer sk-mock", "content-type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)) as connection:
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            document = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"call {n}: status {response.status}: {document}")
        sent.add(spelled)
        history += [document["choices"][0]["message"], make_result(n)]
        time.sleep(0.02)  # the proxy reads the response, for its usage, after the call


THIS = (sys.executable, "-m", "proxy")


@contextmanager
def run_proxy(
    upstream: int,
    data: Path,
    *options: str,
    has_summaries: bool = False,
    cache: str = "auto",
    program: Sequence[str] = THIS,
) -> Iterator[int]:
    """Run the proxy for the length of a `with` block; yields its port. `cache` is the setting of its upstream."""
    command = [*program, "serve", "--port", "0", "--data", str(data), *options]
    settings = {
        "PALIMPSEST_UPSTREAMS": json.dumps(
            [{"name": "openai", "base_url": f"http://127.0.0.1:{upstream}/v1", "cache": cache}]
        ),
        "PALIMPSEST_COMPACTION__AUTO": str(has_summaries).lower(),
        "PALIMPSEST_COMPACTION__HARD_WAIT_SECONDS": "60",
    }
    with tempfile.NamedTemporaryFile() as said:
        process = subprocess.Popen(command, stderr=said, env={**os.environ, **settings})
        try:
            yield _wait_for_port(process, Path(said.name))
        finally:
            process.terminate()
            process.wait()


def _wait_for_port(process: "subprocess.Popen[bytes]", said: Path) -> int:
    """Wait until a proxy has written its address, however long a busy machine takes. Return its port."""
    while True:
        is_over = process.poll() is not None
        written = said.read_text()
        if found := _ADDRESS.search(written):
            return int(found.group(1))
        if is_over:
            raise RuntimeError(f"the proxy did not start: {written}")
        time.sleep(0.05)


def measure(calls: int, *options: str) -> dict[str, list[int]]:
    """Run a session; returns the tokens of each request and the cached ones among them, without and with the proxy."""
    without, arrived = TokenCount(), TokenCount()
    with (
        tempfile.TemporaryDirectory() as data,
        Upstream(arrived) as upstream,
        run_proxy(upstream.port, Path(data), *options) as port,
    ):
        run_session(port, calls, without)
    return {
        "without": without.requests,
        "without_cached": without.cached,
        "with": arrived.requests,
        "with_cached": arrived.cached,
    }


# The picture: a card with its own background, in light or dark by the reader's preference.
_WIDTH, _HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 836, 84, 340
_STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .note { fill: #59636e } .grid { stroke: #d8dee4 }
  .without { stroke: #bc4c00 } .with { stroke: #0969da } .without-text { fill: #bc4c00 } .with-text { fill: #0969da }
  .area { fill: #0969da; opacity: .12 }
  text { font-family: -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px }
  .title { font-size: 16px; font-weight: 600 } .label { font-size: 14px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d } .text { fill: #f0f6fc } .note { fill: #9198a1 } .grid { stroke: #2a313c }
    .without { stroke: #f0883e } .with { stroke: #58a6ff } .without-text { fill: #f0883e } .with-text { fill: #58a6ff }
    .area { fill: #58a6ff; opacity: .18 }
  }
"""


def summarise(figures: dict[str, list[int]]) -> dict[str, float]:
    """Return the sums of a session: tokens sent, and their cost in uncached tokens, without and with the proxy."""
    sums: dict[str, float] = {}
    for name in ("without", "with"):
        tokens, cached = sum(figures[name]), sum(figures[f"{name}_cached"])
        sums[name], sums[f"{name}_cost"] = tokens, tokens - cached + READ * cached
    return sums


def draw(figures: dict[str, list[int]]) -> str:
    """Draw the requests of a session as SVG."""
    calls, most = len(figures["without"]), max(figures["without"])
    step = 100_000 if most > 200_000 else 50_000 if most > 100_000 else 10_000

    def x(call: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * call / max(calls - 1, 1), 1)

    def y(tokens: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * tokens / most, 1)

    def line(name: str) -> str:
        return " ".join(f"{x(call)},{y(tokens)}" for call, tokens in enumerate(figures[name]))

    sums = summarise(figures)
    share, price = sums["with"] / sums["without"], sums["with_cost"] / sums["without_cost"]
    tokens = f"{sums['without'] / 1e6:.1f} M tokens sent without, {sums['with'] / 1e6:.1f} M with ({share:.0%})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="Tokens of each request of one session, without and with palimpsest: {tokens}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        '<text class="text title" x="24" y="34">Tokens of each request in one long session</text>',
        f'<text class="note" x="24" y="56">{tokens}; input cost {price:.0%}, with cached tokens at a tenth</text>',
    ]
    for value in range(0, most, step):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        label = f"{value // 1000}k" if value else "0"
        parts.append(f'<text class="note" x="{_LEFT - 10}" y="{y(value) + 4}" text-anchor="end">{label}</text>')
    for call in range(0, calls, max(calls // 6, 1)):
        parts.append(f'<text class="note" x="{x(call)}" y="{_BOTTOM + 20}" text-anchor="middle">{call}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts += [
        f'<text class="note" x="{middle}" y="{_BOTTOM + 42}" text-anchor="middle">call of the session</text>',
        f'<polygon class="area" points="{x(0)},{_BOTTOM} {line("with")} {x(calls - 1)},{_BOTTOM}"/>',
        f'<polyline class="without" fill="none" stroke-width="2" points="{line("without")}"/>',
        f'<polyline class="with" fill="none" stroke-width="2" points="{line("with")}"/>',
    ]
    drop = next((i for i in range(1, calls) if figures["with"][i] < figures["with"][i - 1] * 0.7), 0)
    if drop:
        place = f'x="{x(drop) + 8}" y="{y(figures["with"][drop]) + 24}"'
        parts.append(f'<text class="note" {place}>an epoch opens: a ledger in place of old steps</text>')
    at = calls * 7 // 10
    parts += [
        f'<text class="label without-text" x="{x(at) - 12}" y="{y(figures["without"][at]) - 6}"'
        ' text-anchor="end">what the client sends</text>',
        f'<text class="label with-text" x="{x(calls - 1)}" y="{y(max(figures["with"])) - 30}"'
        ' text-anchor="end">what the provider gets</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--into", type=Path, default=DOCS)
    parser.add_argument("options", nargs="*", help="options of `palimpsest serve`, after `--`")
    arguments = parser.parse_args()
    figures = measure(arguments.calls, *arguments.options)
    (arguments.into / "session-tokens.json").write_text(json.dumps(figures) + "\n")
    (arguments.into / "session-tokens.svg").write_text(draw(figures))
    print({name: round(value) for name, value in summarise(figures).items()})


if __name__ == "__main__":
    main()
