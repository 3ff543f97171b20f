"""What the proxy adds to a call on each wire: `python -m benchmarks.wire_latency`, two minutes on an idle machine.

One client, one call at a time, streamed, direct and through one proxy, the wires in turn. `short`: another session of
two messages with each call, far below what is managed. `managed`: a session that is in an epoch from its first call on
and grows by a call and its output of 1.6 KB with each. `whole`: the same session far below its ceiling, so that nothing
is replaced. *Added* is the median to the last byte through the proxy less that of direct in the same round; the ratio
is to chat completions in the same round. Tables show medians over the rounds. Compare figures of one run only.
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chat_wires import MODEL, WIRES, ChatMessage, make_call
from benchmarks.picture import LoopbackServer, run_proxy

CEILING, WIDE_CEILING = 16_000, 200_000
_SECONDS = 60.0
_HISTORY_STEPS, _OUTPUT_LINES = 60, 40
_WARM_CALLS = 5
COMPARED = ("chat", "responses", "messages")
TOOL = {
    "type": "function",
    "function": {"name": "bash", "description": "Run a command.", "parameters": {"type": "object", "properties": {}}},
}
SYSTEM: ChatMessage = {"role": "system", "content": "You are an agent that works with a shell. " * 8}


class Cell(NamedTuple):
    """A kind of call on a wire."""

    kind: str
    wire: str


class Answerer(LoopbackServer):
    """Answers every call with what was put down for it."""

    content = b""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a POST request."""
        handler.rfile.read(int(handler.headers.get("content-length") or 0))
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(self.content)))
        handler.end_headers()
        handler.wfile.write(self.content)


def make_step(number: int) -> tuple[ChatMessage, ChatMessage]:
    """Return the call of a step, and its output."""
    call = make_call(f"call_{number}", "bash", json.dumps({"command": f"cat src/module_{number}.py"}))
    lines = [f"{number}:{line} value_{number}_{line} = compute(part_{line})" for line in range(_OUTPUT_LINES)]
    asked: ChatMessage = {"role": "assistant", "content": f"Part {number} comes next.", "tool_calls": [call]}
    return asked, {"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)}


def list_requests(kind: str) -> Iterator[tuple[list[ChatMessage], ChatMessage]]:
    """Yield the messages of calls, without end, and the answers to them."""
    if kind == "short":
        number = 0
        while True:
            number += 1
            asked: ChatMessage = {"role": "user", "content": f"Question {number}: " + "what is it? " * 40}
            yield [SYSTEM, asked], {"role": "assistant", "content": "It is a parser. " * 10}
    history: list[ChatMessage] = [SYSTEM, {"role": "user", "content": "Mend the tests of the parser."}]
    for number in range(_HISTORY_STEPS):
        history += make_step(number)
    number = _HISTORY_STEPS
    while True:
        asked, output = make_step(number)
        yield list(history), asked
        history += asked, output
        number += 1


def spell_answer(wire: str, answer: ChatMessage) -> bytes:
    """Return the stream of an answer. Its usage is nothing, so that no proxy learns from it."""
    events = list(WIRES[wire].list_events(answer, (0, 0)))
    names = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
    stream = "".join(f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True))
    return (stream + ("" if names[0] else "data: [DONE]\n\n")).encode()


def measure(server: Answerer, port: int, cell: Cell, calls: int, session: str) -> float:
    """Return the median seconds of a call to the last byte."""
    connection, wire = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS), WIRES[cell.wire]
    durations = list[float]()
    for number, (messages, answer) in enumerate(list_requests(cell.kind)):
        if number == calls + _WARM_CALLS:
            break
        server.content = spell_answer(cell.wire, answer)
        body = json.dumps({"model": MODEL, "stream": True, **wire.write(messages, [TOOL])}).encode()
        name = f"{session}-{number}" if cell.kind == "short" else session
        headers = {"content-type": "application/json", "x-session-id": name, "authorization": "Bearer k"}
        began = time.perf_counter()
        connection.request("POST", wire.path, body, headers)
        reply = connection.getresponse()
        reply.read()
        durations.append(time.perf_counter() - began)
        assert reply.status == 200, reply.status
    connection.close()
    return statistics.median(durations[_WARM_CALLS:])


def run(rounds: int, calls: int) -> dict[Cell, list[tuple[float, float]]]:
    """Return for each cell the medians of direct and of the proxy, by round."""
    cells = [Cell(kind, wire) for kind in ("short", "managed", "whole") for wire in COMPARED]
    found: dict[Cell, list[tuple[float, float]]] = {cell: [] for cell in cells}
    with (
        tempfile.TemporaryDirectory() as narrow,
        tempfile.TemporaryDirectory() as wide,
        Answerer() as server,
        run_proxy(server.port, Path(narrow), "--ceiling", str(CEILING)) as port,
        run_proxy(server.port, Path(wide), "--ceiling", str(WIDE_CEILING)) as other,
    ):
        for number in range(rounds):
            for cell in cells[number % len(cells) :] + cells[: number % len(cells)]:
                session, through = f"{cell.kind}-{cell.wire}-{number}", other if cell.kind == "whole" else port
                direct = measure(server, server.port, cell, calls, session)
                found[cell].append((direct, measure(server, through, cell, calls, session)))
    return found


def render(found: dict[Cell, list[tuple[float, float]]]) -> str:
    """Return the table."""
    lines = ["| call | wire | direct p50 ms | added p50 ms | least, most | times chat |", "|---|---|---|---|---|---|"]
    for cell, rounds in found.items():
        base = [after - before for before, after in found[Cell(cell.kind, "chat")]]
        added = [after - before for before, after in rounds]
        ratio = statistics.median(one / other for one, other in zip(added, base, strict=True))
        shown: list[Any] = [cell.kind, cell.wire, f"{1000 * statistics.median(before for before, _ in rounds):.2f}"]
        shown += [f"{1000 * statistics.median(added):.2f}", f"{1000 * min(added):.2f}, {1000 * max(added):.2f}"]
        lines.append(f"| {' | '.join([*shown, f'{ratio:.2f}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.wire_latency")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=60, help="calls of a cell in a round")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    found = run(options.rounds, options.calls)
    print(f"Load of the machine before and after: {before:.1f}, {os.getloadavg()[0]:.1f}.\n")
    print(render(found))


if __name__ == "__main__":
    main()
