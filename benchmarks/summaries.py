"""What summaries are made of, and what they cost: `python -m benchmarks.summaries --ceilings 16000,32000`.

Plays recorded sessions (`benchmarks/playback`), or synthetic ones without a file, through a proxy on the loopback. A
stand-in answers the requests for summaries with words of the prompt, as long as it is asked to. Then the log says which
messages each summary covers: counted is how many of them stood in its prompt, word for word. Prices are those of the
model map; a cached input token costs a tenth, an output token eight (gpt-5-mini).
"""

import argparse
import json
import re
import statistics
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gallery import parse_numbers
from benchmarks.picture import MODEL, READ, make_answer, make_result, make_task, make_text, run_proxy
from benchmarks.playback import (
    OwnRequest,
    RawMessage,
    Recorded,
    ScriptedUpstream,
    Summariser,
    TokenCounter,
    get_text,
    play,
    read_sessions,
)
from proxy.context.compaction.summary_text import SUMMARY_HEAD, neutralize

CEILINGS = (8_000, 16_000, 32_000, 64_000, 128_000)
OUTPUT = 8.0
_TOKEN = "summaries"
_ASKED = re.compile(r"The report has at most ([\d,]+) tokens")
_SERIAL = re.compile(r"stand-in report number (\d+)\b")
_MERGING = "one report in place of several"
_LINE = 90
_FILLED = 0.8
_FIXED_TOKENS = 60


class StandIn:
    """Writes a report that quotes the beginnings of the prompt's messages, in the form and length asked for."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.asked: list[int] = []

    def __call__(self, messages: Sequence[RawMessage]) -> str:
        text = "\n".join(map(get_text, messages))
        most = int(_ASKED.findall(text)[-1].replace(",", ""))
        self.asked.append(most)
        lines, left = [], _FILLED * most - _FIXED_TOKENS
        for line in dict.fromkeys(" ".join(line.split())[:_LINE] for line in text.splitlines()):
            words = re.sub(r"[^\w ./-]", "", line)
            tokens = self._counter.count_text(words) + 2
            if len(words) > _LINE // 2 and tokens <= left:
                lines.append(f"- {words}")
                left -= tokens
        number = f"- This is the stand-in report number {len(self.asked)}."
        return "\n".join(("## Goal", "- The work goes on.", "## Completed", *lines, "## Remaining", number))


@dataclass
class Figures:
    """The figures of sessions at one ceiling."""

    calls: int = 0
    epochs: int = 0
    leaves: int = 0
    merged: int = 0
    without_model: int = 0
    covered: int = 0
    standing: int = 0
    parents: int = 0
    parents_standing: int = 0
    shares: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    own: float = 0.0
    auxiliary: float = 0.0


def run(sessions: Sequence[Recorded], ceiling: int, *options: str, has_answers: bool = True) -> Figures:
    """Play sessions, each through a proxy of its own, and return what their summaries were made of."""
    figures, counter = Figures(), TokenCounter()
    for recorded in sessions:
        stand_in = StandIn(counter)
        summarise: Summariser | None = stand_in if has_answers else None
        with _serve(counter, summarise, "--ceiling", str(ceiling), *options) as (upstream, port):
            name, client, epochs = "", list[RawMessage](), set[str]()
            for step in play(recorded, port, upstream):
                name, client = step.labels.get("x-palimpsest-session", name), step.client
                epochs.add(step.labels.get("x-palimpsest-epoch", ""))
                shown = [m for m in step.arrived if get_text(m).startswith(f"[{SUMMARY_HEAD}")]
                figures.shown.append(sum(map(counter.count, shown)))
            documents = load_summaries(port, name) if name else []
        figures.calls += upstream.main.calls
        figures.epochs += len(epochs - {""})
        figures.asked += stand_in.asked
        figures.own += upstream.main.price(READ, OUTPUT)
        figures.auxiliary += upstream.own.price(READ, OUTPUT)
        judge(documents, client, upstream.own_requests, figures)
    return figures


@contextmanager
def _serve(
    counter: TokenCounter, summarise: Summariser | None, *options: str
) -> Iterator[tuple[ScriptedUpstream, int]]:
    with (
        tempfile.TemporaryDirectory() as data,
        ScriptedUpstream(counter, summarise) as upstream,
        run_proxy(upstream.port, Path(data), "--admin-token", _TOKEN, *options, has_summaries=True) as port,
    ):
        yield upstream, port


def load_summaries(port: int, session: str) -> list[dict[str, Any]]:
    """Return the summaries of a session, from the proxy's API."""
    url = f"http://127.0.0.1:{port}/-/api/sessions/{session}/summaries?limit=1000"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {_TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        documents: list[dict[str, Any]] = json.load(response)["items"]
    return documents


def judge(
    documents: Sequence[dict[str, Any]], client: Sequence[RawMessage], prompts: Sequence[OwnRequest], figures: Figures
) -> None:
    """Count which covered messages, and which parents, stood in the prompts of summaries."""
    answered = {number: prompt for prompt in prompts if (number := find_serial(prompt.answer or ""))}
    head = next((i for i, message in enumerate(client) if message["role"] != "system"), len(client))
    texts = {each["id"]: each["text"] for each in documents}
    for each in documents:
        prompt = answered.get(find_serial(each["text"].rpartition("## Remaining")[2]))
        if each["level"] == 3 or prompt is None:
            figures.without_model += 1
            continue
        figures.written.append(each["tokens"])
        said = normalise("\n".join(_list_said(prompt.messages)))
        if each["kind"] == "condensed":
            figures.merged += 1
            figures.parents += len(each["parents"])
            figures.parents_standing += sum(normalise(texts[id]) in said for id in each["parents"])
            continue
        messages = client[head + each["start"] : head + each["stop"]]
        standing = sum(stands(message, said) for message in messages)
        figures.leaves += 1
        figures.covered += len(messages)
        figures.standing += standing
        figures.shares.append(standing / len(messages))


def find_serial(text: str) -> int:
    """Return the number of the stand-in's report, 0 where there is none."""
    found = _SERIAL.findall(text)
    return int(found[-1]) if found else 0


def stands(message: RawMessage, said: str) -> bool:
    """Return whether all that a message says and asks for stands in a prompt, whose words are `said`."""
    return all(normalise(text) in said for text in _list_said([message]))


def _list_said(messages: Sequence[RawMessage]) -> Iterator[str]:
    """Yield the texts of messages, and the values in the arguments of their calls."""
    for message in messages:
        yield get_text(message)
        for call in message.get("tool_calls") or ():
            try:
                values = json.loads(call["function"]["arguments"] or "{}")
            except ValueError:
                values = call["function"]["arguments"]
            yield from _list_strings(values)


def _list_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _list_strings(each)


def normalise(text: str) -> str:
    """Return the words of a text as they stand in a transcript, which takes the effect of markers from them."""
    return " ".join(neutralize(text).split())


def make_session(calls: int, number: int = 0) -> Recorded:
    """Return a synthetic session: a task every forty calls, short and long outputs."""
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    steps, delta = [], [{"role": "system", "content": make_text(f"system {number}", 600)}]
    for n in range(calls):
        place = n + 10_000 * number
        delta += [make_task(place)] if n % 40 == 0 else []
        steps.append({"delta": delta, "response_message": make_answer(place)})
        delta = [make_result(place)]
    return {"id": f"synthetic-{number}", "tools": tools, "steps": steps}


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,} / {statistics.median(values):,.0f} / {max(values):,}" if values else "-"


def render(ceiling: int, figures: Figures) -> str:
    """Render the figures of a ceiling as a row of a table."""
    cells = (
        f"{ceiling:,}",
        figures.calls,
        figures.epochs,
        f"{figures.leaves} + {figures.merged} + {figures.without_model}",
        f"{figures.standing} of {figures.covered}: {_share(figures.standing, figures.covered)}",
        f"{figures.parents_standing} of {figures.parents}",
        _range(figures.asked),
        _range(figures.written),
        _range([each for each in figures.shown if each]),
        _share(figures.auxiliary, figures.own),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEADER = (
    "| ceiling | calls | epochs | leaves + merged + without a model"
    " | covered messages whose original stood in the prompt | parents that did"
    " | tokens asked for: least / median / most | written | shown in a request | spent on summaries |"
    "\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summaries", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="JSON lines, each a session; synthetic ones without it")
    parser.add_argument("--sessions", type=parse_numbers, default=[0, 1], help="numbers from 0, as in 0,1")
    parser.add_argument("--ceilings", type=parse_numbers, default=list(CEILINGS))
    parser.add_argument("--calls", type=int, default=300, help="of a synthetic session")
    parser.add_argument("--fail", action="store_true", help="answer no request for a summary")
    parser.add_argument("--option", action="append", default=[], help="an option of `palimpsest serve`, repeatedly")
    arguments = parser.parse_args()
    if arguments.file is None:
        sessions = [make_session(arguments.calls, number) for number in arguments.sessions]
    else:
        sessions = read_sessions(arguments.file, arguments.sessions)
    print(f"{MODEL}, {len(sessions)} sessions\n\n{HEADER}", flush=True)
    for ceiling in arguments.ceilings:
        figures = run(sessions, ceiling, *arguments.option, has_answers=not arguments.fail)
        print(render(ceiling, figures), flush=True)


if __name__ == "__main__":
    main()
