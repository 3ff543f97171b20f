"""The kit's recorded sessions on other wires: `python -m benchmarks.replay_wires --kit REPLAY --wire messages`.

The kit (`README.md` there) has its sessions as chat messages, and scores chat messages. Here each recorded request is
written as a client of the wire sends it (`chat_wires`), the scripted upstream answers in the wire's own events, and
what reached it is read back into chat messages, so that the kit's own measures judge it. Usage counts the tools, on all
wires alike. One row of the table is one proxy, one corpus, one ceiling, one wire. `--clears` has the client clear old
tool outputs itself (`clearing`); what it would cost without a proxy then has them cleared, too.
"""

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from benchmarks.chat_wires import MODEL, WIRES, Body, ChatMessage, Spelling, Wire, strip
from benchmarks.clearing import CLIENTS, Clear, clear_nothing
from benchmarks.economy import Replay
from benchmarks.picture import LoopbackServer, respond, run_proxy

TOKEN = "replay"
_SECONDS = 120.0


@dataclass
class Script:
    """What the client sent last, what the upstream has to answer, and what arrived."""

    messages: Sequence[ChatMessage] = ()
    response: ChatMessage = field(default_factory=dict)
    is_answered: bool = True
    arrived: list[ChatMessage] | None = None
    own: list[tuple[list[Any], list[ChatMessage]]] = field(default_factory=list)


class ReplayUpstream(LoopbackServer):
    """Answers the client's calls with the recorded responses, and every other one as the kit's `--aux` says."""

    def __init__(self, kit: Replay, aux: str) -> None:
        self.kit, self.aux = kit, aux
        self.script, self.spelling, self.lock = Script(), Spelling(), threading.Lock()
        self.rounds: list[tuple[list[Any], list[ChatMessage]]] = []  # further ones of the call, which it pays for
        super().__init__()

    def begin(self, session: Body) -> None:
        self.spelling = Spelling()
        self.spelling.note_tools(session["tools"] or ())

    def begin_call(self, script: Script) -> None:
        self.script, self.rounds = script, []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a POST request."""
        c = self.kit.ctx
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length") or 0)))
        wire = next(wire for wire in WIRES.values() if handler.path.split("?")[0].endswith(wire.path))
        messages, tools = wire.read(body, self.spelling), list(map(self.spelling.spell_tool, wire.read_tools(body)))
        with self.lock:
            script, is_main = self.script, self.is_main(messages)
            if is_main:
                answer = self.answer_client(messages, tools)
            else:
                script.own.append((tools, messages))
                answer = {"role": "assistant", "content": self.kit.live.extract(messages)}
        if not is_main and self.aux == "fail":
            respond(
                handler, 500, {"type": "error", "error": {"type": "server_error", "message": "the summariser is down"}}
            )
            return
        head = len(c.tok.ids(json.dumps(tools, ensure_ascii=False))) if tools else 0
        usage = head + sum(c.n(dict(message)) for message in messages), c.n(dict(answer))
        self._stream(handler, wire.list_events(answer, usage))

    def answer_client(self, messages: list[ChatMessage], tools: list[Any]) -> ChatMessage:
        """Return the answer to a request of the client."""
        self.script.arrived, self.script.is_answered = messages, True
        return strip(self.script.response)

    def is_main(self, messages: Sequence[ChatMessage]) -> bool:
        """Return whether a request is the client's."""
        script, text_of = self.script, self.kit.ctx.text_of
        if script.is_answered or not messages:
            return False
        last, sent = script.messages[-1], messages[-1]
        return bool(sent["role"] == last["role"] and text_of(last) in text_of(sent))

    def _stream(self, handler: BaseHTTPRequestHandler, events: Iterator[Body]) -> None:
        lines = []
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            lines.append(f"{name}data: {json.dumps(event)}\n\n")
        end = "" if lines[0].startswith("event") else "data: [DONE]\n\n"
        content = ("".join(lines) + end).encode()
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@dataclass
class Totals:
    """What is counted beside the kit's measures."""

    first_byte: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    altered: int = 0
    not_recognised: int = 0


class Client:
    """One session of a client of a wire: sends its requests, and has the kit judge what reached the upstream."""

    def __init__(
        self,
        kit: Replay,
        upstream: ReplayUpstream,
        port: int,
        wire: Wire,
        totals: Totals,
        *,
        clear: Clear = clear_nothing,
    ) -> None:
        self._kit, self._upstream, self._wire, self._totals, self._clear = kit, upstream, wire, totals, clear
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)

    def play(self, session: Body, common: frozenset[str], budget: int, resolver: Any) -> Any:
        """Play a session; returns its figures, those of its full history, and the stricter measures."""
        c, upstream = self._kit.ctx, self._upstream
        meter, full = c.Meter(session, common=common, budget=budget), c.Meter(session, common=common)
        strict, story, messages = c.Strict(common), c.Story(), list[ChatMessage]()
        upstream.begin(session)
        for number, step in enumerate(session["steps"]):
            messages += step["delta"]
            self._clear(messages, c.n)
            response = step["response_message"]
            full.step(messages, messages, response, number)
            with upstream.lock:
                upstream.begin_call(script := Script(messages, response, is_answered=False))
            upstream.spelling.note_message(response)
            problem = self._call(session, messages, response)
            with upstream.lock:
                script.is_answered = True
            for tools, prompt in script.own:
                meter.auxiliary(tools, [dict(message) for message in prompt])
            if problem:
                self._totals.errors.append(f"{session['id']} step {number}: {problem}")
            elif script.arrived is None:
                self._totals.not_recognised += 1
            else:
                copies = [dict(message) for message in script.arrived]
                meter.step(messages, copies, response, number, resolver)
                strict.step(messages, copies, response, resolver)
                story.step(messages, copies, response)
                for tools, further in upstream.rounds:
                    meter.auxiliary(tools, [dict(message) for message in further])
            messages.append(response)
        return meter.result(), full.result(), strict, story

    def _call(self, session: Body, messages: Sequence[ChatMessage], response: ChatMessage) -> str:
        """Send a request; returns what went wrong."""
        body = {"model": MODEL, "stream": True, **self._wire.write(messages, session["tools"] or ())}
        headers = {"content-type": "application/json", "x-session-id": session["id"]}
        headers |= (
            {"anthropic-version": "2023-06-01", "x-api-key": "k"} if "system" in body else {"authorization": "Bearer k"}
        )
        began = time.perf_counter()
        self._connection.request("POST", self._wire.path, json.dumps(body).encode(), headers)
        reply = self._connection.getresponse()
        self._totals.first_byte.append(time.perf_counter() - began)
        content = reply.read().decode()
        if reply.status != 200:
            return f"status {reply.status}: {content[:300]}"
        data = [line[6:] for line in content.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
        got = self._wire.read_events([json.loads(line) for line in data])
        for call in got.get("tool_calls") or ():
            call["function"]["arguments"] = self._upstream.spelling.spell(call["id"], call["function"]["arguments"])
        self._totals.altered += not self._kit.live.same(got, response)
        return ""


def measure(
    kit: Replay, corpus: str, wire: str, *, sessions: int, ceiling: int, aux: str, clear: Clear = clear_nothing
) -> Body:
    """Play the first sessions of a corpus on a wire through a proxy of their own; returns the kit's figures."""
    everything = kit.load(corpus)
    common, totals = kit.base.common_ids(everything), Totals()
    options = ("--ceiling", str(ceiling), "--admin-token", TOKEN)
    with (
        tempfile.TemporaryDirectory() as data,
        ReplayUpstream(kit, aux) as upstream,
        run_proxy(upstream.port, Path(data), *options, has_summaries=aux != "fail") as port,
    ):
        resolver = kit.live.Resolver(f"http://127.0.0.1:{port}/-/api/refs/{{ref}}", f"authorization: Bearer {TOKEN}")
        played = [
            Client(kit, upstream, port, WIRES[wire], totals, clear=clear).play(session, common, ceiling, resolver)
            for session in everything[:sessions]
        ]
    result, full = (kit.base.agg([each[place] for each in played]) for place in (0, 1))
    stories = [each[3].figures() for each in played]
    figures: Body = kit.live.summary(result, full, [each[2] for each in played]) | kit.ctx.story_summary(stories)
    first = sorted(totals.first_byte)
    return figures | {
        "over": result["over"],
        "violations": result["viol"],
        "auxiliary calls": result["aux_calls"],
        "http errors": totals.errors,
        "responses altered": totals.altered,
        "not recognised": totals.not_recognised,
        "first byte ms p50 / p99": [
            round(1000 * statistics.median(first), 1),
            round(1000 * first[int(0.99 * len(first))], 1),
        ],
    }


COLUMNS = {
    "cost 0.1": "cost_oai_0.1 %",
    "1.25w": "cost_ant %",
    "tokens": "tokens %",
    "hits": "cache hits %",
    "refs": "refs in context %",
    "near": "refs 8k-32k in context %",
    "far": "refs ge32k in context %",
    "attr. near": "refs 8k-32k attributed %",
    "far ": "refs ge32k attributed %",
    "reach": "refs ge32k reachable %",
    "lines": "lines 8k-32k copied %",
    "told": "told: task %",
    "acts": "told: acts %",
    "task acts": "told: task acts %",
    "own words": "agent's own rare words >= 8K back in view %",
    "text": "our own text, tokens, median",
    "groups": "real call groups in view, least / median",
    "over": "over",
}


def render_row(named: str, figures: Body) -> str:
    faults = [len(figures["http errors"]), figures["responses altered"], figures["not recognised"]]
    cells = [str(figures[name]) for name in COLUMNS.values()]
    return " | ".join(
        ["", named, *cells, "/".join(map(str, [*faults, sum(figures["violations"].values())])), ""]
    ).strip()


def main() -> None:
    """Play and print one row for each wire."""
    parser = argparse.ArgumentParser(prog="benchmarks.replay_wires")
    parser.add_argument("--kit", type=Path, required=True, help="the folder of the replay kit")
    parser.add_argument("--wire", choices=WIRES, action="append", help="repeatedly; all of them without it")
    parser.add_argument("--corpus", default="swe_day")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--ceiling", type=int, default=32_000)
    parser.add_argument(
        "--aux", choices=["extract", "fail"], default="fail", help="how calls for summaries are answered"
    )
    parser.add_argument("--clears", choices=CLIENTS, default="none", help="outputs that the client clears itself")
    parser.add_argument("--out", type=Path, help="a file for all figures, as JSON lines")
    parser.add_argument("--head", action="store_true", help="print the head of the table")
    options = parser.parse_args()
    kit = Replay(options.kit)
    if options.head:
        print(" | ".join(["", "corpus", "ceiling", "wire", *COLUMNS, "faults", ""]).strip())
        print("|---" * (len(COLUMNS) + 4) + "|")
    for wire in options.wire or WIRES:
        figures = measure(
            kit,
            options.corpus,
            wire,
            sessions=options.sessions,
            ceiling=options.ceiling,
            aux=options.aux,
            clear=CLIENTS[options.clears],
        )
        print(render_row(f"{options.corpus} | {options.ceiling:,} | {wire}", figures), flush=True)
        if options.out:
            row = {"corpus": options.corpus, "ceiling": options.ceiling, "wire": wire, "aux": options.aux, **figures}
            with options.out.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
        for error in figures["http errors"][:3]:
            print(error)


if __name__ == "__main__":
    main()
