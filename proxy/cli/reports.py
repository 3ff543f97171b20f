"""`palimpsest expand`, `diff`, `handoff`, `summaries` and `savings`: read the log, also beside a running server."""

from collections.abc import Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import MARK, SIDE_MARK, cut, lay_out, make_plain, tell_difference, write_time
from proxy.cli.services import MOST, ConfigOption, DataOption, Doors, JsonOption, SessionArgument
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.context import (
    SummaryNode,
    SummaryStatus,
    describe_summaries,
    load_page,
    load_summaries,
    order_nodes,
)
from proxy.engine.reports.diff import describe_difference, load_difference
from proxy.engine.reports.export import load_handoff, write_handoff
from proxy.engine.reports.savings import Arm, Savings, Unit, describe_savings, load_savings
from proxy.engine.reports.sessions import write_json
from proxy.model.summary import Summary


def expand(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="REF", help="A reference, with or without `ref:`.")],
    page: Annotated[int, typer.Option(min=1, help="Which page, of 12,000 characters each.")] = 1,
    is_whole: Annotated[bool, typer.Option("--all", help="All pages as one.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the original of what a reference stands for."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_page(log, reference, None if is_whole else page))
    typer.echo(make_plain(found.content.decode()), nl=False)


def diff(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[int, typer.Argument(metavar="N", min=1, max=MOST, help="An exchange of it, counted from 1.")],
    k: Annotated[int | None, typer.Option("--round", metavar="K", help="Which round. [default: the last]")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what was sent upstream in place of what the client sent."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_difference(log, session, n, doors.tally, k))
    if as_json:
        typer.echo(write_json(describe_difference(found)), nl=False)
    else:
        typer.echo(tell_difference(found), nl=False)


def handoff(
    context: typer.Context,
    session: SessionArgument,
    branch: Annotated[
        str, typer.Option(metavar="TIP", help="Only this branch: its tip, as show writes it, or how that begins.")
    ] = "",
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a conversation for another client to go on from."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_handoff(log, session, branch))
    typer.echo(make_plain(write_handoff(found)).encode("utf-8", "replace"), nl=False)


_SUMMARY_HEADINGS = ("SUMMARY", "LEVEL", "MESSAGES", "COVERED", "TOKENS", "MODEL")
_MARKS: dict[SummaryStatus, str] = {"live": MARK, "parent": "└", "superseded": SIDE_MARK}
_WIDTH = 80
_MODEL_WIDTH = 20
_DEEPEST = 8


def summaries(
    context: typer.Context,
    session: SessionArgument,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List a session's summaries as a tree."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_summaries(log, session))
    if as_json:
        typer.echo(write_json(describe_summaries(found)), nl=False)
    else:
        typer.echo(tell_summaries(found))


def tell_summaries(found: Sequence[Summary]) -> str:
    """A tree of summaries, two lines each: what it stands for, and how its text begins."""
    if not found:
        return "This session has no summaries: none was made of it."
    lines: list[Sequence[object] | str] = []
    for node in order_nodes(found):
        indent = "  " * min(node.depth, _DEEPEST)
        text = _flag(node.summary) + (node.summary.text or "(its text was erased)")
        lines += (_place(node, indent), f"{indent}  {cut(text, _WIDTH - len(indent) - 2)}")
    return lay_out(_SUMMARY_HEADINGS, lines)


def _place(node: SummaryNode, indent: str) -> tuple[object, ...]:
    summary = node.summary
    name = f"{indent}{_MARKS[node.status]} {summary.id}"
    span = f"{summary.start} to {summary.stop - 1}"
    return name, summary.level, span, summary.covered, summary.tokens, cut(summary.model or "-", _MODEL_WIDTH)


def _flag(summary: Summary) -> str:
    """That it is to be made again, and why."""
    if not summary.is_provisional:
        return ""
    return f"provisional ({summary.reason}): " if summary.reason else "provisional: "


_SAVINGS_HEADINGS = ("", "SESSIONS", "COST")
_UNITS: dict[Unit, str] = {
    "money": "money for a million tokens of the client's requests",
    "tokens": "tokens of uncached input for a token of the client's requests",
}


def savings(
    context: typer.Context, as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None
) -> None:
    """Compare sessions that are managed with those only observed."""
    doors: Doors = context.obj

    async def ask(log: LogReader, settings: Settings) -> Savings:
        return await load_savings(log, await doors.measure(settings))

    found = doors.read_by(data, config, ask)
    if as_json:
        typer.echo(write_json(describe_savings(found)), nl=False)
    else:
        typer.echo(tell_savings(found))


def tell_savings(found: Savings) -> str:
    """What is saved and how sure that is, both arms, and what was not counted."""
    rows = [_describe_arm(name, arm, found.unit) for name, arm in _list_arms(found)]
    lines = [_conclude(found)]
    if found.since_ms is not None:
        lines += ["", lay_out(_SAVINGS_HEADINGS, rows), f"Cost is in {_UNITS[found.unit]}.", *_list_remarks(found)]
    return "\n".join(lines)


def _list_arms(found: Savings) -> tuple[tuple[str, Arm], ...]:
    return ("managed", found.managed), ("only observed", found.held_out)


def _describe_arm(name: str, arm: Arm, unit: Unit) -> tuple[object, ...]:
    scale = 1e6 if unit == "money" else 1.0
    return name, arm.sessions, "-" if arm.cost is None else f"{scale * arm.cost:.4f}"


def _conclude(found: Savings) -> str:
    known = found.comparison
    if known is None:
        return f"{found.reason[0].upper()}{found.reason[1:]}."
    return (
        f"Managing saves {known.saving:.1%} of what long sessions cost; with a chance of 95 % it is between"
        f" {known.low:.1%} and {known.high:.1%}."
    )


def _list_remarks(found: Savings) -> list[str]:
    since = write_time(found.since_ms or 0)
    remarks = [f"Sessions since {since}, without {found.short} that did not come up to the soft mark."]
    if found.mixed:
        remarks.append(f"{found.mixed} were first the one, then the other: they are not counted.")
    if blind := found.managed.blind + found.held_out.blind:
        remarks.append(f"Of {blind} nobody told what was read from a cache: all of it counts as new.")
    return remarks
