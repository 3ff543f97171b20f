"""Rewritten requests as a person can read them: `python -m benchmarks.gallery FILE --ceiling 32000 --out DIR`.

Plays recorded sessions (`benchmarks/playback`) through a proxy of its own on the loopback, and writes a Markdown file
for each of the steps: every message as the model gets it, marked as the client's own, shortened, or written by the
proxy; its tokens; and what of the client's history is not sent there.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.picture import MODEL, run_proxy
from benchmarks.playback import (
    PlayedStep,
    RawMessage,
    Recorded,
    ScriptedUpstream,
    TokenCounter,
    get_text,
    play,
    read_sessions,
)
from proxy.context.compaction.summary_text import SUMMARY_HEAD
from proxy.model.messages import LEDGER_HEAD

_STEPS = (100, 200, 300)
_PREAMBLE = 300
_SAME = 60
_UNSAFE = re.compile(r"[^\w.-]+")
_OWN, _SHORTENED, _LEDGER, _SUMMARY, _OTHER = "client's own", "shortened", "ledger", "summary", "other text of ours"


@dataclass
class ShownMessage:
    """A message as it was sent: its kind, and the place in the client's history that it stands at or for."""

    message: RawMessage
    kind: str
    place: int | None


def classify(client: Sequence[RawMessage], arrived: Sequence[RawMessage]) -> list[ShownMessage]:
    """Return what each message that arrived is: the client's own, a shortened one of it, or the proxy's."""
    places: dict[str, list[int]] = {}
    for place, message in enumerate(client):
        places.setdefault(_key(message), []).append(place)
    shown: list[ShownMessage] = []
    after = -1
    for message in arrived:
        found: int | None = next((each for each in places.get(_key(message), ()) if each > after), None)
        kind = _OWN
        if found is None:
            kind = _name_kind(message)
            if kind == _OTHER and (found := _find_original(client, message, after)) is not None:
                kind = _SHORTENED
        after = after if found is None else found
        shown.append(ShownMessage(message, kind, found))
    return shown


def _key(message: RawMessage) -> str:
    kept = {name: value for name, value in message.items() if value not in (None, [], "")}
    return json.dumps(kept, sort_keys=True)


def _name_kind(message: RawMessage) -> str:
    line = get_text(message).partition("\n")[0]
    if LEDGER_HEAD in line:
        return _LEDGER
    return _SUMMARY if SUMMARY_HEAD in line else _OTHER


def _find_original(client: Sequence[RawMessage], message: RawMessage, after: int) -> int | None:
    """Return the place of the client's message that one stands for: by its call ids, or by how it begins."""
    for place in range(after + 1, len(client)):
        each = client[place]
        if each["role"] != message["role"]:
            continue
        if message.get("tool_call_id") or message.get("tool_calls"):
            if _list_ids(each) == _list_ids(message):
                return place
        elif get_text(each)[:_SAME] == get_text(message)[:_SAME]:
            return place
    return None


def _list_ids(message: RawMessage) -> list[str]:
    return [message.get("tool_call_id") or "", *(call["id"] for call in message.get("tool_calls") or ())]


def render(step: PlayedStep, counter: TokenCounter, title: str) -> str:
    """Render a step as Markdown."""
    shown = classify(step.client, step.arrived)
    parts = [f"# {title}, step {step.number}", "", *_list_totals(step, shown, counter), ""]
    for i, each in enumerate(shown):
        parts += _render_message(i, each, step.client, counter)
        first = -1 if each.place is None else each.place
        gone = _list_gone(shown, i, first, len(step.client))
        if gone:
            roles = Counter(step.client[place]["role"] for place in gone)
            tokens = sum(counter.count(step.client[place]) for place in gone)
            names = ", ".join(f"{n} {role}" for role, n in sorted(roles.items()))
            span = f"#{gone[0]} to #{gone[-1]}"
            parts += [
                f"*Not sent from here on: {len(gone)} messages of the client, {span} ({names}), {tokens:,} tokens.*",
                "",
            ]
    return "\n".join(parts) + "\n"


def _list_gone(shown: Sequence[ShownMessage], i: int, first: int, end: int) -> range:
    """Return the places between a client's message in the request and the next one, which are not sent."""
    if first < 0:
        return range(0)
    following = next((each.place for each in shown[i + 1 :] if each.place is not None), end)
    return range(first + 1, following)


def _list_totals(step: PlayedStep, shown: Sequence[ShownMessage], counter: TokenCounter) -> Iterator[str]:
    whole = sum(map(counter.count, step.client))
    sent = sum(counter.count(each.message) for each in shown)
    present = {each.place for each in shown if each.place is not None}
    gone = [place for place in range(len(step.client)) if place not in present]
    yield "| | messages | tokens |"
    yield "|---|---|---|"
    yield f"| the client's request | {len(step.client)} | {whole:,} |"
    yield f"| what the model gets | {len(shown)} | {sent:,} |"
    for kind in (_OWN, _SHORTENED, _LEDGER, _SUMMARY, _OTHER):
        found = [each for each in shown if each.kind == kind]
        if found:
            yield f"| - {kind} | {len(found)} | {sum(counter.count(each.message) for each in found):,} |"
    shortened = [step.client[each.place] for each in shown if each.kind == _SHORTENED and each.place is not None]
    if shortened:
        yield f"| originals of the shortened | {len(shortened)} | {sum(map(counter.count, shortened)):,} |"
    missing = sum(counter.count(step.client[place]) for place in gone)
    yield f"| client's messages that are not sent | {len(gone)} | {missing:,} |"
    if step.labels:
        yield ""
        yield " · ".join(f"`{name}: {value}`" for name, value in sorted(step.labels.items()))


def _render_message(i: int, shown: ShownMessage, client: Sequence[RawMessage], counter: TokenCounter) -> Iterator[str]:
    message, tokens = shown.message, counter.count(shown.message)
    text = get_text(message)
    if message["role"] == "system" and shown.kind == _OWN and len(text) > _PREAMBLE:
        text = f"{text[:_PREAMBLE]}\n[… {len(text) - _PREAMBLE:,} more characters of the preamble …]"
    lines = [*([text] if text else ()), *map(_render_call, message.get("tool_calls") or ())]
    number = "" if shown.place is None else f" · client's #{shown.place}"
    size = f"{tokens:,} tokens"
    if shown.kind == _SHORTENED and shown.place is not None:
        size += f" for {counter.count(client[shown.place]):,}"
    kind = "" if shown.kind == _OWN else f" · **OURS: {shown.kind}**"
    yield f"### {i} · {message['role']}{number} · {size}{kind}"
    yield ""
    fence = "~" * (2 + max((len(run) for run in re.findall("~+", "\n".join(lines))), default=1))
    yield "\n".join((fence, *lines, fence))
    yield ""


def _render_call(call: RawMessage) -> str:
    return f"→ {call['function']['name']} {call['function']['arguments']}"


def write(recorded: Recorded, steps: Sequence[int], folder: Path, *options: str, model: str = MODEL) -> list[Path]:
    """Play a session through a proxy with these options; write a file for each of the steps that it has."""
    wanted = sorted({step for step in steps if step < len(recorded["steps"])})
    if not wanted:
        return []
    counter, written = TokenCounter(), []
    with (
        tempfile.TemporaryDirectory() as data,
        ScriptedUpstream(counter) as upstream,
        run_proxy(upstream.port, Path(data), *options) as port,
    ):
        for step in play(recorded, port, upstream, stop=wanted[-1] + 1, model=model):
            if step.number in wanted:
                name = _UNSAFE.sub("_", recorded["id"])
                file = folder / f"{name}-{step.number}.md"
                file.write_text(render(step, counter, recorded["id"]), encoding="utf-8")
                written.append(file)
    return written


def parse_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def main() -> None:
    """Write the gallery."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON lines, each a session; may be gzipped")
    parser.add_argument("--sessions", type=parse_numbers, default=[0], help="numbers from 0, as in 0,1")
    parser.add_argument("--steps", type=parse_numbers, default=list(_STEPS), help="numbers from 0, as in 100,200")
    parser.add_argument("--ceiling", type=int, default=32_000)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, required=True, help="folder for the Markdown files")
    parser.add_argument("options", nargs="*", help="options of `palimpsest serve`, after `--`")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for recorded in read_sessions(arguments.file, arguments.sessions):
        options = ("--ceiling", str(arguments.ceiling), *arguments.options)
        written = write(recorded, arguments.steps, arguments.out, *options, model=arguments.model)
        for file in written:
            print(file)
        if not written:
            print(f"{recorded['id']}: has {len(recorded['steps'])} steps, none of those asked for")


if __name__ == "__main__":
    main()
