"""The long task of a client: direct, through a proxy that runs already, and by `palimpsest run`, with a small ceiling.

Rule: what the client did has to be the same each time. What it was sent is not: that is what the proxy is for.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.clients.client import Client, Long
from tests.clients.comparing import Run, compare_log, drop_listings
from tests.clients.counting import Meter
from tests.clients.journey import Way, travel
from tests.clients.logs import Log, read_log
from tests.clients.task import ORDER, PARTS, name_part, write_part
from tests.clients.trees import check_sessions
from tests.journeys.running import run_command

_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Figures:
    """What one way of the long task came to. Of the proxy's log, `client` and `sent` are tokens of the requests as the
    client made them and as they were sent, where both were counted.
    """

    way: str
    seconds: float
    codes: tuple[int, ...]
    calls: int
    steps: int
    prompt: int
    largest: int
    cached: int
    managed: int = 0
    epochs: int = 0
    client: int = 0
    sent: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.way:<6} {self.seconds:4.0f} s, exit {self.codes}, {self.steps} tool calls in {self.calls} calls,"
            f" {self.prompt:,} tokens received, {self.cached / max(1, self.prompt):.0%} from its cache,"
            f" {self.largest:,} at most"
        )
        if self.way == "direct":
            return text
        return f"{text}; {self.managed} managed, {self.epochs} epochs, client {self.client:,}, sent {self.sent:,}"


def run_long_journey(
    client: Client, long: Long, programs: Sequence[Path], root: Path
) -> tuple[list[str], list[Figures]]:
    """Everything that is wrong with a client's long task, and its figures; `root` is scratch."""
    traveller = _equip(client, long)
    began = time.monotonic()
    direct = travel(traveller, programs, root, "direct", _make_way(long, root))
    figures = [_count("direct", time.monotonic() - began, direct)]
    faults = [f"direct: {fault}" for fault in check_long_run(long, direct, may_compact=long.alone)]
    for name, by_run in (("hand", False), ("run", True)):
        began = time.monotonic()
        way = replace(_make_way(long, root), data=root / name, by_run=by_run, options=(f"--ceiling={long.ceiling}",))
        through = drop_listings(direct, travel(traveller, programs, root, name, way))
        seconds = time.monotonic() - began
        log = read_log(root / name)
        documents = _read_documents(root / name)
        counted = _count(name, seconds, through)
        counted = _add_documents(counted, documents)
        figures.append(counted)
        found = [*check_long_run(long, through, may_compact=False), *compare_work(long, direct, through)]
        found += check_log(long, through, log, counted)
        faults += [f"{name}: {fault}" for fault in found]
    return faults, figures


def _equip(client: Client, long: Long) -> Client:
    """The client with the commands and settings of its long task, in a folder that holds the parts."""
    parts = {f"$work/{name_part(n)}": write_part(n) for n in range(1, PARTS + 1)}
    return replace(
        client,
        commands=long.commands,
        inputs=long.inputs,
        settings={**client.settings, **long.settings},
        files={**client.files, **long.files, **parts},
        seconds=long.seconds,
    )


def _make_way(long: Long, root: Path) -> Way:
    script = replace(long.task.script, folder=str(root / "work"))
    return Way(model=replace(long.task, script=script), meter=Meter(long.window))


def check_long_run(long: Long, run: Run, *, may_compact: bool) -> Iterator[str]:
    """Whether a client came to the end of its task by itself."""
    if any(run.codes):
        yield f"exit codes {run.codes}: {run.output[-300:]!r}"
    refused = sum(1 for call in run.recording if call.is_refused)
    if refused:
        yield f"{refused} calls were refused as too long"
    calls = sum(1 for call in run.recording if call.turn is not None)
    if calls != long.expected.calls and not may_compact:
        yield f"{calls} calls, expected {long.expected.calls}"


def list_tool_calls(run: Run) -> list[str]:
    """The tool calls that the upstream answered, in order."""
    turns = [each.turn for each in run.recording if each.turn and not each.is_refused]
    return [json.dumps([call.name, call.arguments]) for turn in turns for call in turn.calls]


def compare_work(long: Long, direct: Run, through: Run) -> Iterator[str]:
    """What the client did otherwise through the proxy. A client that compacts may forget its newest step, and take it
    again: of a direct run that compacted, steps count once.
    """
    one, other = list_tool_calls(direct), list_tool_calls(through)
    files = [dict(direct.files), dict(through.files)]
    if long.alone:
        one = list(dict.fromkeys(one))
        files[0][ORDER] = b"".join(dict.fromkeys(files[0].get(ORDER, b"").splitlines(keepends=True)))
    if direct.codes != through.codes:
        yield f"exit codes {through.codes}, direct {direct.codes}"
    if names := [name for name in sorted({**files[0], **files[1]}) if files[0].get(name) != files[1].get(name)]:
        yield f"files that differ: {', '.join(names[:_MOST_SHOWN])}"
    if one != other:
        at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        yield f"tool call {at + 1}: {other[at : at + 1]}, direct {one[at : at + 1]}"


def check_log(long: Long, run: Run, log: Log, counted: Figures) -> Iterator[str]:
    """Whether the log holds what was sent, its sessions are those expected, and requests were shortened."""
    yield from compare_log(run.recording, log.exchanges, parts=("sent",))
    yield from check_sessions(long.expected, log)
    if not counted.managed:
        yield "no call was shortened"
    if counted.largest > long.ceiling:
        yield f"{counted.largest} tokens were sent, above the ceiling of {long.ceiling}"


def _count(way: str, seconds: float, run: Run) -> Figures:
    counted = [call.tokens for call in run.recording if call.tokens is not None]
    prompts = [tokens.prompt for tokens in counted]
    cached = sum(tokens.cached for tokens in counted)
    steps = len(list_tool_calls(run))
    return Figures(way, seconds, run.codes, len(prompts), steps, sum(prompts), max(prompts, default=0), cached)


def _read_documents(data: Path) -> list[Any]:
    """What `palimpsest show --json` writes of each session that `palimpsest sessions --json` lists."""
    listed = json.loads(run_command("sessions", "--json", "--data", str(data)).stdout)
    shown = [run_command("show", row["id"], "--json", "--data", str(data)).stdout for row in listed]
    return [json.loads(text) for text in shown]


def _add_documents(figures: Figures, documents: Sequence[Any]) -> Figures:
    rounds = [each for document in documents for call in document["exchanges"] for each in call["rounds"]]
    plans = [each["plan"] for each in rounds if each["plan"] is not None]
    epochs = {plan["epoch"] for plan in plans if plan["epoch"]}
    return replace(
        figures,
        managed=sum(1 for plan in plans if plan["epoch"]),
        epochs=len(epochs),
        client=sum(document["session"]["client_tokens"] or 0 for document in documents),
        sent=sum(document["session"]["sent_tokens"] or 0 for document in documents),
    )
