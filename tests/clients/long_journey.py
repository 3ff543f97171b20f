"""The long task of a client: direct, through a proxy that runs already, and by `palimpsest run`, with a small ceiling.

Of a client that can be resumed the task has trials too. In each way the model recalls. In `rescue` the proxy knows no
ceiling, and the provider has a small window: the first epoch is opened by a refusal. In `killed` both the
client and the proxy are killed, and the provider's window becomes smaller on the way.

Rule: what the client did has to be the same each time. What it was sent is not: that is what the proxy is for.
"""

import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxy.model.messages import RECALL_TOOL
from tests.clients.client import Client, Expected, Long
from tests.clients.comparing import Run, compare_log, drop_cut, drop_listings
from tests.clients.counting import Meter
from tests.clients.journey import Way, travel
from tests.clients.logs import Log, read_log
from tests.clients.recalls import ends_with_result, read_recalls
from tests.clients.script import Json
from tests.clients.task import ORDER, PARTS, name_part, write_part
from tests.clients.trees import check_sessions
from tests.clients.upstream import Exchange
from tests.journeys.running import run_command

_MOST_SHOWN = 3
_KILLS_CLIENT, _NARROWS, _KILLS_PROXY = 14, 33, 48
_PAGE = 3_000  # tokens of a page at most
_WINDOW, _NARROW = 1.5, 0.85  # of the ceiling, and of the window before
_LAGS = "cannot be searched yet"  # the index follows the log
# What our tool and the texts of our plans are called by.
_OURS = (RECALL_TOOL.encode(), b"output pruned; completed", b"palimpsest ledger")


@dataclass(frozen=True, slots=True)
class Trip:
    """One way of the long task: `ceiling` is what no request may be above, `refusals` are how many it has to meet, at
    least and at most, `has_recalls` says whether the model recalls.
    """

    name: str
    way: Way
    client: Client
    expected: Expected
    ceiling: int
    refusals: tuple[int, int] = (0, 0)
    has_recalls: bool = False


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
    recalls: int = 0
    refused: int = 0
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
        return (
            f"{text}; {self.managed} managed, {self.epochs} epochs, {self.recalls} recalls, {self.refused} refused,"
            f" client {self.client:,}, sent {self.sent:,}"
        )


def run_long_journey(
    client: Client, long: Long, programs: Sequence[Path], root: Path
) -> tuple[list[str], list[Figures]]:
    """Everything that is wrong with a client's long task, and its figures; `root` is scratch."""
    began = time.monotonic()
    direct = travel(_equip(client, long), programs, root, "direct", _make_way(long, root))
    figures = [_count("direct", time.monotonic() - began, direct)]
    faults = [f"direct: {fault}" for fault in check_long_run(long, direct, may_compact=long.alone)]
    for trip in list_trips(client, long, root):
        began = time.monotonic()
        through = drop_listings(direct, travel(trip.client, programs, root, trip.name, trip.way))
        seconds = time.monotonic() - began
        data = root / trip.name
        counted = _add_documents(_count(trip.name, seconds, through), _read_documents(data))
        figures.append(counted)
        faults += [f"{trip.name}: {fault}" for fault in _check_trip(long, trip, direct, through, counted, data)]
    return faults, figures


def list_trips(client: Client, long: Long, root: Path) -> Iterator[Trip]:
    """The ways through the proxy."""
    traveller, way = _equip(client, long), _make_way(long, root)
    under_ceiling, recalls = (f"--ceiling={long.ceiling}",), bool(long.task.recalls)
    for name, by_run in (("hand", False), ("run", True)):
        through = replace(way, data=root / name, by_run=by_run, options=under_ceiling)
        yield Trip(name, through, traveller, long.expected, long.ceiling, has_recalls=recalls)
    if long.killed is None:
        return
    # A window has room for an answer, too.
    window = int(_WINDOW * long.ceiling)
    small = replace(way, data=root / "rescue", meter=Meter(window))
    # A window that no refusal names is not learned, one that was learned is not known after a crash, and what is
    # recalled may be refused, too.
    most = 3 if long.tells_window else PARTS
    yield Trip("rescue", small, traveller, long.expected, window, refusals=(1, most - 1), has_recalls=recalls)
    killed = replace(
        way,
        data=root / "killed",
        options=(f"--ceiling={window}",),
        kills_client=_KILLS_CLIENT,
        kills_proxy=_KILLS_PROXY,
        narrows=(_NARROWS, int(_NARROW * window)),
    )
    first, *others = long.commands
    resumed = replace(traveller, commands=(first, long.resume, *others))
    yield Trip("killed", killed, resumed, long.killed, window, refusals=(1, most), has_recalls=recalls)


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
    task = replace(long.task, script=replace(long.task.script, folder=str(root / "work")))
    return Way(model=task, meter=Meter(long.window), rescued=task.answer_rescued)


def _check_trip(long: Long, trip: Trip, direct: Run, through: Run, counted: Figures, data: Path) -> Iterator[str]:
    long = replace(long, expected=trip.expected, ceiling=trip.ceiling)
    is_killed = bool(trip.way.kills_client)
    if is_killed:
        through = replace(through, codes=through.codes[1:] if through.codes[0] == -signal.SIGKILL else through.codes)
    yield from check_long_run(long, through, may_compact=False, refusals=trip.refusals)
    yield from compare_work(long, direct, through, may_repeat=is_killed)
    yield from check_log(long, through, read_log(data), counted)
    yield from check_traces(through, is_kept=trip.has_recalls)
    if trip.has_recalls:
        yield from check_recalls(through)
    verified = run_command("verify", "--data", str(data))
    if verified.returncode:
        yield f"palimpsest verify: {verified.stdout.decode()}"


def check_long_run(long: Long, run: Run, *, may_compact: bool, refusals: tuple[int, int] = (0, 0)) -> Iterator[str]:
    """Whether a client came to the end of its task by itself."""
    if any(run.codes):
        yield f"exit codes {run.codes}: {run.output[-300:]!r}"
    refused = sum(1 for call in run.recording if call.is_refused)
    least, most = refusals
    if not least <= refused <= most:
        yield f"{refused} calls were refused as too long" + (f", expected {least} to {most}" if most else "")
    calls = sum(1 for call in run.recording if _is_of_client(call))
    if abs(calls - long.expected.calls) > long.expected.spare and not may_compact:
        yield f"{calls} calls, expected {long.expected.calls}"


def _is_of_client(call: Exchange) -> bool:
    """Whether a call of the upstream is what a client waits for, and not one that was refused or only recalls."""
    if call.turn is None or call.is_refused:
        return False
    return not call.turn.calls or any(each.name != RECALL_TOOL for each in call.turn.calls)


def list_tool_calls(run: Run) -> list[str]:
    """The tool calls that the upstream answered, in order, but those of the proxy's own tool."""
    turns = [each.turn for each in run.recording if each.turn and not each.is_refused]
    calls = [call for turn in turns for call in turn.calls if call.name != RECALL_TOOL]
    return [json.dumps([call.name, call.arguments]) for call in calls]


def compare_work(long: Long, direct: Run, through: Run, *, may_repeat: bool = False) -> Iterator[str]:
    """What the client did otherwise through the proxy. A client that compacts may forget its newest step, and take it
    again, as one that was killed may: of a direct run that compacted, or where it `may_repeat`, steps count once.
    """
    one, other = list_tool_calls(direct), list_tool_calls(through)
    files = [dict(direct.files), dict(through.files)]
    for calls, kept in ((one, files[0]), (other, files[1])):
        if may_repeat or (long.alone and calls is one):
            calls[:] = dict.fromkeys(calls)
            kept[ORDER] = b"".join(dict.fromkeys(kept.get(ORDER, b"").splitlines(keepends=True)))
    if direct.codes != through.codes:
        yield f"exit codes {through.codes}, direct {direct.codes}"
    if names := [name for name in sorted({**files[0], **files[1]}) if files[0].get(name) != files[1].get(name)]:
        yield f"files that differ: {', '.join(names[:_MOST_SHOWN])}"
    if one != other:
        at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        yield f"tool call {at + 1}: {other[at : at + 1]}, direct {one[at : at + 1]}"


def check_log(long: Long, run: Run, log: Log, counted: Figures) -> Iterator[str]:
    """Whether the log holds what was sent, its sessions are those expected, and requests were shortened."""
    yield from compare_log(*drop_cut(run.recording, log.exchanges), parts=("sent",))
    yield from check_sessions(long.expected, log)
    if not counted.managed:
        yield "no call was shortened"
    for call in run.recording:
        tokens = 0 if call.tokens is None or call.is_refused else call.tokens.prompt
        # A page that the model recalls is sent though it takes a request above the ceiling.
        if tokens > long.ceiling and tokens > long.ceiling + _PAGE * ends_with_result(json.loads(call.body)):
            yield f"{tokens} tokens were sent, above the ceiling of {long.ceiling}"


def check_traces(run: Run, *, is_kept: bool) -> Iterator[str]:
    """Whether the client keeps or says anything of ours; if the conversation `is_kept`, that has to be found."""
    for name, content in (*run.kept, ("output", run.output)):
        if found := [mark.decode() for mark in _OURS if mark in content]:
            yield f"{name} names {', '.join(found)}"
    if is_kept and not any(
        b"end of part-07" in content for name, content in run.kept if not name.endswith(name_part(7))
    ):
        yield "the client keeps nothing of its conversation"


def check_recalls(run: Run) -> Iterator[str]:
    """Whether the model recalled, and each time was shown next what it had asked for."""
    lines = {line for n in range(1, PARTS + 1) for line in write_part(n).splitlines()}
    calls = [call for call in run.recording if call.turn is not None and not call.is_cut]
    recalled = [list_recalls(call) for call in calls]
    for n, (wanted, following) in enumerate(zip(recalled, calls[1:], strict=False), 1):
        shown = list(read_recalls(json.loads(following.body)).values()) if wanted else []
        for arguments in wanted:
            results = [each.result or "" for each in shown if json.loads(each.arguments) == arguments]
            if not any(_LAGS in result or any(line in result for line in lines) for result in results):
                yield f"call {n} recalls {arguments}, and the next one shows {[each[:80] for each in results]}"
    if not any(recalled):
        yield "the model did not recall"


def list_recalls(call: Exchange) -> list[Json]:
    """The arguments of the calls of the proxy's own tool in an answer."""
    turn = None if call.is_refused else call.turn
    return [each.arguments for each in turn.calls if each.name == RECALL_TOOL] if turn else []


def _count(way: str, seconds: float, run: Run) -> Figures:
    counted = [call.tokens for call in run.recording if call.tokens is not None and not call.is_refused]
    prompts = [tokens.prompt for tokens in counted]
    cached = sum(tokens.cached for tokens in counted)
    steps = len(list_tool_calls(run))
    return Figures(
        *(way, seconds, run.codes, len(prompts), steps, sum(prompts), max(prompts, default=0), cached),
        recalls=sum(len(list_recalls(call)) for call in run.recording),
        refused=sum(1 for call in run.recording if call.is_refused),
    )


def _read_documents(data: Path) -> list[Any]:
    """What `palimpsest show --json` writes of each session that `palimpsest sessions --json` lists."""

    def read(*words: str) -> Any:
        return json.loads(run_command(*words, "--json", "--data", str(data)).stdout)

    return [read("show", row["id"]) for row in read("sessions")]


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
