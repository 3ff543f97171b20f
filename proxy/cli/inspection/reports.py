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
from proxy.cli.services import MAX_NUMBER, READS, BranchOption, Invocation, SessionArgument, offers
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import find_exchange
from proxy.read.context import SummaryDocument, SummaryStatus, load_summaries, order_summaries
from proxy.read.diff import ChangeDocument, DifferenceDocument, SideDocument, load_difference
from proxy.read.export import write_handoff
from proxy.read.search import load_found_page

_MAX_SHOWN = 12  # messages of a change; the JSON form has all
_SUMMARY_HEADINGS = ("SUMMARY", "LEVEL", "MESSAGES", "COVERED", "TOKENS", "MODEL")
_SUMMARY_MARKS: dict[SummaryStatus, str] = {"live": MARK, "parent": "└", "superseded": SIDE_MARK}
_MODEL_WIDTH = 20
_MAX_INDENT = 8


@offers(*READS)
def expand(
    called: Invocation,
    reference: Annotated[str, typer.Argument(metavar="REF", help="A reference, with or without `ref:`.")],
    page: Annotated[int, typer.Option(min=1, help="Which page, of 12,000 characters each.")] = 1,
    is_whole: Annotated[bool, typer.Option("--all", help="Write all pages.")] = False,
) -> None:
    """Write what a reference names."""
    number = None if is_whole else page
    found = called.search(lambda log, index: load_found_page(log, index, reference, number))
    typer.echo(make_plain(found.content.decode()), nl=False)


@offers("as_json", *READS)
def diff(
    called: Invocation,
    session: SessionArgument,
    n: Annotated[int, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="An exchange, counted from 1.")],
    k: Annotated[
        int | None, typer.Option("--round", metavar="K", min=1, help="Which round, from 1. [default: the last]")
    ] = None,
) -> None:
    """Compare what was sent upstream with what the client sent."""

    async def query(log: LogReader, settings: Settings, session: str) -> bytes | str:
        row = await find_exchange(log, session, n)
        found = await load_difference(log, row, called.services.build_tally(settings), k and k - 1)
        return write_json(found) if called.as_json else format_difference(found, len(row.rounds))

    typer.echo(read_session(called, session, query), nl=False)


@offers(*READS)
def handoff(
    called: Invocation,
    session: SessionArgument,
    branch: BranchOption = "",
) -> None:
    """Write a conversation for another client to continue."""
    found = read_session(called, session, lambda log, _, id: write_handoff(log, id, branch))
    typer.echo(make_plain(found).encode("utf-8", "replace"), nl=False)


@offers("as_json", *READS)
def summaries(
    called: Invocation,
    session: SessionArgument,
) -> None:
    """List a session's summaries as a tree."""
    found = read_session(called, session, lambda log, _, id: load_summaries(log, id))
    typer.echo(write_json(found) if called.as_json else format_summaries(found), nl=not called.as_json)


def format_difference(found: DifferenceDocument, rounds: int = 1) -> str:
    """Format a difference: `-` marks the client's messages, `+` ours; messages that were sent unchanged are counted.

    The client's messages are cut to 80 columns, ours are whole. The exchange has so many rounds.
    """
    head = f"exchange {found.n} of session {found.session}"
    if rounds > 1:
        head += f", round {found.k + 1} of {rounds}"
    if not found.is_modified:
        return make_plain(f"{head}: sent as the client sent it, byte for byte\n")
    lines = [f"{head}: {found.kept} of {found.messages} messages sent unchanged"]
    if found.plan is not None:
        lines += format_plan(found.plan)
    for each in found.members:
        lines += ("", f"@@ {each.name}", f"- {_format_member(each.client)}", f"+ {_format_member(each.sent)}")
    for change in found.changes:
        lines += _format_change(change)
    return make_plain("\n".join(lines)) + "\n"


def _format_change(change: ChangeDocument) -> Iterator[str]:
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


def _format_side(side: SideDocument) -> str:
    calls = f", calls {', '.join(side.calls)}" if side.calls else ""
    return f"{side.role} ({side.tokens} tokens{calls})"


def _format_member(text: str | None) -> str:
    return "(absent)" if text is None else shorten(text, WIDTH - 2)


def format_summaries(found: Sequence[SummaryDocument]) -> str:
    """Format summaries as a tree, two lines each: what the summary covers, and the beginning of its text.

    ● both        a live summary
      └ one       one that it was made of
        ○ poor    one that `one` supersedes
    """
    if not found:
        return "This session has no summaries."
    lines: list[Sequence[object] | str] = []
    for summary, depth, status in order_summaries(found):
        indent = "  " * min(depth, _MAX_INDENT)
        name, span = f"{indent}{_SUMMARY_MARKS[status]} {summary.id}", f"{summary.start} to {summary.stop - 1}"
        model = shorten(summary.model or "-", _MODEL_WIDTH)
        text = summary.text or "(its text was erased)"
        if summary.is_provisional:
            text = f"provisional{f' ({summary.reason})' if summary.reason else ''}: {text}"
        lines.append((name, summary.level, span, summary.covered, summary.tokens, model))
        lines.append(f"{indent}  {shorten(text, WIDTH - len(indent) - 2)}")
    return format_table(_SUMMARY_HEADINGS, lines)
