"""A model that asks for what it misses: `python -m benchmarks.recalling --kit REPLAY --corpus swe_day --ceiling 32000`.

The recorded sessions of `replay_wires`, with an upstream that stands in for such a model. Where an identifier, or a
line of at least 20 characters, of its next recorded call stood in an output of a tool and is in nothing that it is
sent, it calls `context_recall` to search with its recorded thought, from which these identifiers and lines are
removed, and pays for the round. What it was sent then, once, counts as in view; the recorded answer follows.

Cost is the kit's, with the further rounds. *Missed* counts all identifiers and lines that stood in an earlier output,
before a round and after it. Measures of the kit are those of the first round of each call.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chat_wires import WIRES, Body, ChatMessage, make_call, strip
from benchmarks.economy import Replay
from benchmarks.picture import run_proxy
from benchmarks.replay_wires import COLUMNS, TOKEN, Client, ReplayUpstream, Script, Totals, render_row

TOOL = "context_recall"
_LONGEST_QUERY = 2_000
_LEAST_LINE = 20


@dataclass
class Needs:
    """What a recorded call has of earlier outputs: identifiers and lines."""

    identifiers: set[str] = field(default_factory=set)
    lines: set[str] = field(default_factory=set)

    def without(self, identifiers: set[str], lines: set[str]) -> "Needs":
        return Needs(self.identifiers - identifiers, self.lines - lines)

    def __bool__(self) -> bool:
        return bool(self.identifiers or self.lines)


@dataclass
class Misses:
    """Counts over all calls: what was needed, what was missed at first, and after one round."""

    identifiers: list[int] = field(default_factory=lambda: [0, 0, 0])
    lines: list[int] = field(default_factory=lambda: [0, 0, 0])
    calls: int = 0
    rounds: int = 0
    without_tool: int = 0  # calls that missed something and were not offered the tool
    found: int = 0  # rounds after which nothing was missed

    def add(self, at: int, needs: Needs) -> None:
        self.identifiers[at] += len(needs.identifiers)
        self.lines[at] += len(needs.lines)


class RecallingUpstream(ReplayUpstream):
    """Answers a call of the client with a call of our tool first, where something is missing."""

    def __init__(self, kit: Replay, aux: str) -> None:
        super().__init__(kit, aux)
        self.common: frozenset[str] = frozenset()
        self.misses = Misses()
        self.first: dict[str, str] = {}  # the role in which an identifier, or a line, was first said
        self.read = 0
        self.missing, self.asked = Needs(), ""

    def begin(self, session: Body) -> None:
        super().begin(session)
        self.first, self.read, self.asked = {}, 0, ""

    def begin_call(self, script: Script) -> None:
        """Take note of what the client says that is new."""
        super().begin_call(script)
        self.asked = ""
        lineset, idset = self.kit.ctx.lineset, self.kit.ctx.idset
        for message in self.script.messages[self.read :]:
            for said in (*idset(dict(message)), *lineset(dict(message))):
                self.first.setdefault(said, message["role"])
        self.read = len(self.script.messages)

    def is_main(self, messages: Sequence[ChatMessage]) -> bool:
        if self.asked:
            return any(message.get("tool_call_id") == self.asked for message in messages)
        return super().is_main(messages)

    def answer_client(self, messages: list[ChatMessage], tools: list[Any]) -> ChatMessage:
        if self.asked:
            self.rounds.append((tools, messages))
            self.script.is_answered, self.asked = True, ""
            left = self._list_unseen(self.missing, messages)
            self.misses.add(2, left)
            self.misses.found += not left
            return strip(self.script.response)
        answer = super().answer_client(messages, tools)
        needs = self._list_needs()
        self.missing = self._list_unseen(needs, messages)
        self.misses.calls += 1
        self.misses.add(0, needs)
        self.misses.add(1, self.missing)
        is_offered = any(tool["function"]["name"] == TOOL for tool in tools)
        if not self.missing or not is_offered:
            self.misses.add(2, self.missing)
            self.misses.without_tool += bool(self.missing)
            return answer
        self.misses.rounds += 1
        self.asked, self.script.is_answered = f"recall_{self.misses.rounds}", False
        asked = json.dumps({"action": "search", "query": self._write_query()})
        return {"role": "assistant", "content": None, "tool_calls": [make_call(self.asked, TOOL, asked)]}

    def _list_needs(self) -> Needs:
        c = self.kit.ctx
        arguments = list(map(c.decode_args, c.args_of(self.script.response)))
        words = {word for each in arguments for word in c.idents(each)} - self.common
        lines = {line.strip() for each in arguments for line in each.split("\n") if len(line.strip()) >= _LEAST_LINE}
        return Needs(*({said for said in each if self.first.get(said) == "tool"} for each in (words, lines)))

    def _list_unseen(self, needs: Needs, messages: Sequence[ChatMessage]) -> Needs:
        c, copies = self.kit.ctx, [dict(message) for message in messages]
        words = {word for each in copies for word in c.idset(each)} if needs.identifiers else set()
        lines = {line for each in copies for line in c.lineset(each)} if needs.lines else set()
        return needs.without(words, lines)

    def _write_query(self) -> str:
        """Return the recorded thought without what is missing."""
        thought: str = self.kit.ctx.text_of(self.script.response)
        for line in self.missing.lines:
            thought = thought.replace(line, " ")
        for word in sorted(self.missing.identifiers, key=len, reverse=True):
            thought = re.sub(rf"(?<![\w/.-]){re.escape(word)}(?![\w/-])", " ", thought)
        return thought[:_LONGEST_QUERY]


def measure(kit: Replay, corpus: str, wire: str, options: argparse.Namespace) -> tuple[Body, Misses]:
    """Play the sessions through a proxy of their own; returns the kit's figures, and what was missed."""
    everything = kit.load(corpus)
    common, totals = kit.base.common_ids(everything), Totals()
    serve = ("--ceiling", str(options.ceiling), "--admin-token", TOKEN, *options.serve)
    with (
        tempfile.TemporaryDirectory() as data,
        RecallingUpstream(kit, options.aux) as upstream,
        run_proxy(upstream.port, Path(data), *serve, has_summaries=options.aux != "fail") as port,
    ):
        upstream.common = common
        resolver = kit.live.Resolver(f"http://127.0.0.1:{port}/-/api/refs/{{ref}}", f"authorization: Bearer {TOKEN}")
        played = [
            Client(kit, upstream, port, WIRES[wire], totals).play(session, common, options.ceiling, resolver)
            for session in everything[options.first : options.first + options.sessions]
        ]
        misses = upstream.misses
    result, full = (kit.base.agg([each[place] for each in played]) for place in (0, 1))
    figures: Body = kit.live.summary(result, full, [each[2] for each in played])
    figures |= kit.ctx.story_summary([each[3].figures() for each in played])
    figures |= {"over": result["over"], "violations": result["viol"], "http errors": totals.errors}
    return figures | {"responses altered": totals.altered, "not recognised": totals.not_recognised}, misses


def render_misses(misses: Misses) -> str:
    def share(counts: list[int], at: int) -> str:
        return f"{100 * counts[at] / max(1, counts[0]):.1f} %"

    return (
        f"calls {misses.calls}, rounds {misses.rounds} (nothing missed after {misses.found}),"
        f" missed without the tool {misses.without_tool};"
        f" identifiers {misses.identifiers[0]}: missed {share(misses.identifiers, 1)}, after one round"
        f" {share(misses.identifiers, 2)}; lines {misses.lines[0]}: missed {share(misses.lines, 1)}, after one round"
        f" {share(misses.lines, 2)}"
    )


def main() -> None:
    """Play and print one row, and what was missed, for each wire."""
    parser = argparse.ArgumentParser(prog="benchmarks.recalling")
    parser.add_argument("--kit", type=Path, required=True, help="the folder of the replay kit")
    parser.add_argument("--wire", choices=WIRES, action="append", help="repeatedly; chat without it")
    parser.add_argument("--corpus", default="swe_day")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="the first session to play")
    parser.add_argument("--ceiling", type=int, default=32_000)
    parser.add_argument("--aux", choices=["extract", "fail"], default="fail", help="how summaries are answered")
    parser.add_argument("serve", nargs="*", help="options of `palimpsest serve`, after `--`")
    options = parser.parse_args()
    kit = Replay(options.kit)
    print(" | ".join(["", "corpus", "ceiling", "wire", *COLUMNS, "faults", ""]).strip())
    print("|---" * (len(COLUMNS) + 4) + "|")
    for wire in options.wire or ("chat",):
        figures, misses = measure(kit, options.corpus, wire, options)
        print(render_row(f"{options.corpus} | {options.ceiling:,} | {wire}", figures), flush=True)
        print(render_misses(misses), flush=True)
        for error in figures["http errors"][:3]:
            print(error)


if __name__ == "__main__":
    main()
