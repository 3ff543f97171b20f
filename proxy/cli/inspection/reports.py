"""`palimpsest expand`, `diff`, `handoff` and `summaries`: read the log, also beside a server."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import (
    MARK,
    SIDE_MARK,
    WIDTH,
    format_plan,
    format_table,
    make_plain,
    shorten,
)
from proxy.cli.inspection.naming import read_session
from proxy.cli.services import MAX_NUMBER, BranchOption, ConfigOption, DataOption, JsonOption, Services, SessionArgument
from proxy.engine.recorded.documents import write_json
from proxy.model.epoch import Summary
from proxy.read.context import SummaryStatus, describe_summaries, load_summaries, order_nodes
from proxy.read.diff import Change, Difference, Side, describe_difference, load_difference
from proxy.read.export import load_handoff, write_handoff
from proxy.read.search import load_found_page

_MAX_SHOWN = 12  # messages of a change; the JSON form has all
_SUMMARY_HEADINGS = ("SUMMARY", "LEVEL", "MESSAGES", "COVERED", "TOKENS", "MODEL")
_SUMMARY_MARKS: dict[SummaryStatus, str] = {"live": MARK, "parent": "└", "superseded": SIDE_MARK}
_MODEL_WIDTH = 20
_MAX_INDENT = 8


def expand(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="REF", help="A reference, with or without `ref:`.")],
    page: Annotated[int, typer.Option(min=1, help="Which page, of 12,000 characters each.")] = 1,
    is_whole: Annotated[bool, typer.Option("--all", help="Write all pages.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write what a reference names."""
    services: Services = context.obj
    number = None if is_whole else page
    found = services.search(data, config, lambda log, index: load_found_page(log, index, reference, number))
    typer.echo(make_plain(found.content.decode()), nl=False)


def diff(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[int, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="An exchange, counted from 1.")],
    k: Annotated[
        int | None, typer.Option("--round", metavar="K", min=1, help="Which round, from 1. [default: the last]")
    ] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Compare what was sent upstream with what the client sent."""
    services: Services = context.obj
    found = read_session(
        *(services, data, config, session),
        lambda log, settings, id: load_difference(log, id, n, services.build_tally(settings), k and k - 1),
    )
    typer.echo(write_json(describe_difference(found)) if as_json else format_difference(found), nl=False)


def handoff(
    context: typer.Context,
    session: SessionArgument,
    branch: BranchOption = "",
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a conversation for another client to continue."""
    services: Services = context.obj
    found = read_session(services, data, config, session, lambda log, _, id: load_handoff(log, id, branch))
    typer.echo(make_plain(write_handoff(found)).encode("utf-8", "replace"), nl=False)


def summaries(
    context: typer.Context,
    session: SessionArgument,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List a session's summaries as a tree."""
    services: Services = context.obj
    found = read_session(services, data, config, session, lambda log, _, id: load_summaries(log, id))
    typer.echo(write_json(describe_summaries(found)) if as_json else format_summaries(found), nl=not as_json)


def format_difference(found: Difference) -> str:
    """Format a difference: `-` marks the client's messages, `+` ours; messages that were sent unchanged are counted.

    The client's messages are cut to 80 columns, ours are whole.
    """
    head = f"exchange {found.row.n} of session {found.row.session}"
    if len(found.row.rounds) > 1:
        head += f", round {found.round.k + 1} of {len(found.row.rounds)}"
    if found.is_equal:
        return make_plain(f"{head}: sent as the client sent it, byte for byte\n")
    lines = [f"{head}: {found.kept} of {found.messages} messages sent unchanged"]
    if found.round.plan is not None:
        lines += format_plan(found.round.plan)
    for name, client, sent in found.members:
        lines += ("", f"@@ {name}", f"- {_format_member(client)}", f"+ {_format_member(sent)}")
    for change in found.changes:
        lines += _format_change(change)
    return make_plain("\n".join(lines)) + "\n"


def _format_change(change: Change) -> Iterator[str]:
    last = change.stop - 1
    if not change.client:
        where = f"before message {change.start}"
    else:
        where = f"messages {change.start} to {last}" if last > change.start else f"message {change.start}"
    before, after = (sum(side.tokens for side in sides) for sides in (change.client, change.sent))
    yield ""
    yield f"@@ {where}: {before} -> {after} tokens"
    for place, side in list(enumerate(change.client, change.start))[:_MAX_SHOWN]:
        yield shorten(f"- {place} {_format_side(side)}: {side.text}", WIDTH)
    if len(change.client) > _MAX_SHOWN:
        yield f"- ... and {len(change.client) - _MAX_SHOWN} more; --json has them all"
    for side in change.sent:
        yield f"+ {_format_side(side)}:"
        yield from (f"+   {line}" for line in side.text.splitlines())


def _format_side(side: Side) -> str:
    calls = f", calls {', '.join(side.calls)}" if side.calls else ""
    return f"{side.role} ({side.tokens} tokens{calls})"


def _format_member(raw: bytes) -> str:
    return shorten(raw.decode("utf-8", "replace"), WIDTH - 2) if raw else "(absent)"


def format_summaries(found: Sequence[Summary]) -> str:
    """Format summaries as a tree, two lines each: what the summary covers, and the beginning of its text.

    ● both        a live summary
      └ one       one that it was made of
        ○ poor    one that `one` supersedes
    """
    if not found:
        return "This session has no summaries."
    lines: list[Sequence[object] | str] = []
    for summary, depth, status in order_nodes(found):
        indent = "  " * min(depth, _MAX_INDENT)
        name, span = f"{indent}{_SUMMARY_MARKS[status]} {summary.id}", f"{summary.start} to {summary.stop - 1}"
        model = shorten(summary.model or "-", _MODEL_WIDTH)
        text = summary.text or "(its text was erased)"
        if summary.is_provisional:
            text = f"provisional{f' ({summary.reason})' if summary.reason else ''}: {text}"
        lines.append((name, summary.level, span, summary.covered, summary.tokens, model))
        lines.append(f"{indent}  {shorten(text, WIDTH - len(indent) - 2)}")
    return format_table(_SUMMARY_HEADINGS, lines)
