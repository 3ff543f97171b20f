"""What shortened tools save, and whether calls stay right: `python -m benchmarks.tool_diet --kit REPLAY`.

Plays recorded sessions of the replay kit through a proxy on the loopback, with the tools of the recording and as many
others, written here, as make 14, 30 or 60; once with whole tools and once with `recall.shorten_tools_after`. The
upstream counts tools by OpenAI's published rule, keeps a prompt cache that begins with the tools, and is strict: it
obeys the schema that it is shown. Where the recorded arguments are not valid by that schema, it asks for the whole one
first (`tool_details`), and then makes the recorded call. Counted as wrong is a call whose arguments, cut to what the
shown schema allows, are not valid by the client's whole schema while the recorded ones are.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from jsonschema.validators import Draft202012Validator

from benchmarks.picture import run_proxy
from benchmarks.playback import (
    RawMessage,
    Recorded,
    ScriptedUpstream,
    TokenCounter,
    is_same_end,
    play,
    read_sessions,
    send,
)
from proxy.wire.messages import read_counted_tools

COUNTS = (14, 30, 60)
_BLOCK, _LEAST_CACHED = 128, 1024
_READ, _WRITE = 0.1, 1.25
_SERVICES = {
    "github": ("issue", "pull_request", "branch", "release", "workflow_run"),
    "tracker": ("ticket", "sprint", "board", "comment", "worklog"),
    "wiki": ("page", "space", "attachment", "label", "template"),
}
_VERBS = {
    "create": "Creates {a} in {service} and returns its id and address.",
    "list": "Lists entries of the kind {a} in {service}, newest first, a page at a time.",
    "update": "Changes fields of {a} in {service}; what is not named stays as it is.",
    "get": "Returns {a} of {service} with all its fields.",
}
_REST = (
    " Use it only when the user has asked for {service}, never to look for code in the working copy, for which there"
    " are faster tools. The caller needs the right to read the project; without it the answer is an error of the kind"
    " `forbidden`, which must not be tried again. Names are case-sensitive. Text is Markdown unless `format` says"
    " otherwise. An answer has at most 100 entries; for more of them pass `cursor` from the one before."
)
_PARAMETERS: dict[str, Any] = {
    "project": {
        "type": "string",
        "description": "Name of the project, as `owner/name`, without the address of the server.",
    },
    "id": {"type": "string", "description": "Id of the entry, as an earlier answer names it; not its title."},
    "title": {"type": "string", "description": "One line in plain text, at most 120 characters, without a full stop."},
    "body": {"type": "string", "description": "What it says, as Markdown; images are links. May be empty."},
    "labels": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Labels that it gets, in place of those that it has. Unknown ones are made.",
    },
    "assignee": {"type": "string", "description": "Login of the person that it is given to, or `none`."},
    "state": {
        "type": "string",
        "enum": ["open", "closed", "all"],
        "description": "Only those in this state.",
        "default": "open",
    },
    "cursor": {
        "type": "string",
        "description": "Where the page begins: `next` of the answer before. Empty: the first page.",
    },
    "format": {
        "type": "string",
        "enum": ["markdown", "plain", "html"],
        "description": "Form of the text in the answer.",
        "default": "markdown",
    },
}
_REQUIRED = {"create": ["project", "title"], "list": ["project"], "update": ["project", "id"], "get": ["project", "id"]}


def write_others() -> Iterator[RawMessage]:
    """Write tools such as servers of the MCP bring: four verbs for each kind of thing."""
    for service, things in _SERVICES.items():
        for thing in things:
            for verb, said in _VERBS.items():
                shown = [name for name in _PARAMETERS if verb in ("create", "update") or name not in ("body", "labels")]
                schema = {
                    "type": "object",
                    "properties": {name: _PARAMETERS[name] for name in shown},
                    "required": _REQUIRED[verb],
                }
                words = {"a": thing.replace("_", " "), "service": service}
                function = {
                    "name": f"{service}_{verb}_{thing}",
                    "description": said.format(**words) + _REST.format(**words),
                    "parameters": schema,
                }
                yield {"type": "function", "function": function}


def add_tools(session: Recorded, count: int) -> Recorded:
    """Return a session in which the client has so many tools."""
    own = session["tools"] or []
    return {**session, "tools": [*own, *list(write_others())[: count - len(own)]]}


@dataclass
class Figures:
    """What arrived upstream, and the calls of shortened tools."""

    calls: int = 0
    tokens: int = 0
    read: int = 0
    epochs: int = 0
    shortened: int = 0
    asked: int = 0
    wrong: int = 0
    heads: int = 0

    def list_spent(self) -> tuple[float, ...]:
        """Return the tokens, and their price at both prices of writing a cache."""
        return self.tokens, self.price(1.0), self.price(_WRITE)

    def price(self, write: float) -> float:
        return _READ * self.read + write * (self.tokens - self.read)


class StrictUpstream(ScriptedUpstream):
    """Answers with the recorded calls, and asks for the whole of a shortened tool where it cannot make one."""

    def __init__(self, counter: TokenCounter, figures: Figures) -> None:
        self.figures = figures
        self._schemas: dict[str, Any] = {}
        self._prefixes: set[int] = set()
        self._is_asked = False
        super().__init__(counter)

    def begin(self, tools: Sequence[Any]) -> None:
        super().begin(tools)
        self._schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
        self._prefixes.clear()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        messages, script = body["messages"], self._script
        is_first = script.arrived is None and is_same_end(messages, script.messages)
        if is_first:
            script.arrived, self._is_asked = messages, False
        message = dict(script.response)
        if is_first and (names := self._judge(body, message)):
            self._is_asked = True
            self.figures.asked += 1
            call = {"name": "context_recall", "arguments": json.dumps({"action": "tool_details", "tool": names[0]})}
            message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"own_{script.step}", "type": "function", "function": call}],
            }
        elif not is_first and not self._is_asked:
            raise RuntimeError(f"step {script.step}: a request that nobody expected")
        read, whole = self._count(body)
        figures = self.figures
        figures.calls, figures.read, figures.tokens = figures.calls + 1, figures.read + read, figures.tokens + whole
        said = self.counter.count(message)
        usage = {
            "prompt_tokens": whole,
            "completion_tokens": said,
            "total_tokens": whole + said,
            "prompt_tokens_details": {"cached_tokens": read},
        }
        send(handler, body, message, usage)

    def _judge(self, body: RawMessage, message: RawMessage) -> list[str]:
        """Return the shortened tools that the recorded calls need whole, and count calls that are wrong."""
        shown = {each["function"]["name"]: each["function"]["parameters"] for each in body["tools"]}
        needed = []
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            if name not in self._schemas or shown.get(name) == self._schemas[name]:
                continue
            self.figures.shortened += 1
            whole, short = Draft202012Validator(self._schemas[name]), Draft202012Validator(shown[name])
            arguments = json.loads(call["function"]["arguments"] or "{}")
            if not whole.is_valid(arguments):
                continue  # the recorded model was wrong itself
            cut = {key: value for key, value in arguments.items() if key in shown[name].get("properties", {})}
            self.figures.wrong += short.is_valid(cut) and not whole.is_valid(cut)
            if not short.is_valid(arguments):
                needed.append(name)
        return needed

    def _count(self, body: RawMessage) -> tuple[int, int]:
        """Return the tokens that the cache has of a request, in blocks, and all of them."""
        tools = json.dumps(body["tools"], ensure_ascii=False)
        counted = read_counted_tools(tools.encode())
        prefix, is_cached, same, whole = 0, True, 0, 0
        pieces = [(tools, self.counter.count_text(counted.text) + counted.frame)]
        pieces += [(json.dumps(each, sort_keys=True), self.counter.count(each)) for each in body["messages"]]
        self.figures.heads += pieces[0][1]
        for text, tokens in pieces:
            prefix = hash((prefix, text))
            is_cached = is_cached and prefix in self._prefixes
            same += tokens if is_cached else 0
            whole += tokens
            self._prefixes.add(prefix)
        return (same // _BLOCK * _BLOCK if same >= _LEAST_CACHED else 0), whole


@contextmanager
def _set(after: int) -> Iterator[None]:
    name = "PALIMPSEST_RECALL__SHORTEN_TOOLS_AFTER"
    os.environ[name] = str(after)
    try:
        yield
    finally:
        del os.environ[name]


def run(sessions: Sequence[Recorded], ceiling: int, after: int) -> Figures:
    """Play sessions through a proxy, and return what arrived."""
    figures, counter = Figures(), TokenCounter()
    with (
        _set(after),
        tempfile.TemporaryDirectory() as data,
        StrictUpstream(counter, figures) as upstream,
        run_proxy(upstream.port, Path(data), "--ceiling", str(ceiling)) as port,
    ):
        for session in sessions:
            epochs = {step.labels.get("x-palimpsest-epoch", "") for step in play(session, port, upstream)}
            figures.epochs += len(epochs - {""})
    return figures


def main() -> None:
    """Play and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.tool_diet")
    parser.add_argument("--kit", type=Path, required=True, help="the folder of the replay kit")
    parser.add_argument("--corpus", action="append", help="repeatedly; swe_day and tau_shift without it")
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--ceiling", type=int, default=32_000)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="how many tools the client has")
    parser.add_argument("--after", default="20", help="values of recall.shorten_tools_after, with commas")
    options = parser.parse_args()
    print(
        "| corpus | tools | after | tools, tokens a call | tokens | cost 0.1 | cost 1.25w | epochs"
        " | of shortened | asked | wrong |"
    )
    print("|---" * 11 + "|")
    for corpus in options.corpus or ("swe_day", "tau_shift"):
        recorded = read_sessions(options.kit / "data" / f"{corpus}.jsonl.gz", range(options.sessions))
        for count in map(int, options.counts.split(",")):
            sessions = [add_tools(each, count) for each in recorded]
            whole: Figures | None = None
            for after in (0, *map(int, options.after.split(","))):
                found = run(sessions, options.ceiling, after)
                whole = whole or found
                cells = [f"{found.heads / found.calls:,.0f}"]
                for spent, before in zip(found.list_spent(), whole.list_spent(), strict=True):
                    cells.append(f"{spent:,.0f} ({100 * (spent / before - 1):+.1f} %)")
                faults = found.epochs, found.shortened, found.asked, found.wrong
                print(" | ".join([f"| {corpus}", str(count), str(after), *cells, *map(str, faults)]) + " |", flush=True)


if __name__ == "__main__":
    main()
