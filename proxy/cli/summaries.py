"""`palimpsest summaries`. Rule: read the log beside a running server; `--json` says all the text does.

● both        a summary that may stand for its messages
  └ one       one that it was made of
    ○ poor    one that it stands in place of
"""

from collections.abc import Sequence

import typer

from proxy.cli.doors import Doors
from proxy.cli.drawing import MARK, SIDE_MARK
from proxy.cli.options import ConfigOption, DataOption, JsonOption, SessionArgument
from proxy.cli.text import cut, lay_out
from proxy.engine.reports.documents import write_json
from proxy.engine.reports.summaries import Standing, SummaryNode, describe_summaries, load_summaries, order_nodes
from proxy.model.summary import Summary

_HEADINGS = ("SUMMARY", "LEVEL", "MESSAGES", "COVERED", "TOKENS", "MODEL")
_MARKS: dict[Standing, str] = {"live": MARK, "parent": "└", "superseded": SIDE_MARK}
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
    return lay_out(_HEADINGS, lines)


def _place(node: SummaryNode, indent: str) -> tuple[object, ...]:
    summary = node.summary
    name = f"{indent}{_MARKS[node.standing]} {summary.id}"
    span = f"{summary.start} to {summary.stop - 1}"
    return name, summary.level, span, summary.covered, summary.tokens, cut(summary.model or "-", _MODEL_WIDTH)


def _flag(summary: Summary) -> str:
    """That it is to be made again, and why."""
    if not summary.is_provisional:
        return ""
    return f"provisional ({summary.reason}): " if summary.reason else "provisional: "
