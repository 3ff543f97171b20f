"""What the log has as text: plans, costs, trees of calls and sessions; tables of fixed columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import typer

from proxy.cli.services import Invocation
from proxy.cli.terminal import WIDTH as WIDTH
from proxy.cli.terminal import Screen, find_screen, format_money, format_tokens, measure, write
from proxy.cli.terminal import make_plain as make_plain
from proxy.cli.terminal import shorten as shorten
from proxy.engine.recorded.documents import write_json
from proxy.model.epoch import EpochReason, Plan, Pressure, Rung
from proxy.read.context import PlanDocument
from proxy.read.sessions import BranchDocument

MARK, SIDE_MARK = "●", "○"


class _ListedSession(Protocol):
    """What may have been started by another one."""

    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str: ...


Child = TypeVar("Child", bound=_ListedSession)

WAYS: Mapping[Rung, str] = {
    "original": "as its client sent it",
    "epoch": "under the open epoch",
    "plan": "under a new epoch",
    "minimal": "under a minimal epoch",
}
"""How a request was sent, in words."""
CAUSES: Mapping[EpochReason, str] = {
    "soft": "it pays",
    "hard": "high mark",
    "cold": "cold cache",
    "client": "history changed",
    "turn": "new turn",
    "memory": "new memory",
    "overflow": "refused as too long",
    "manual": "by hand",
    "unsigned": "without signed reasoning",
    "uncompacted": "without the provider's compaction",
    "alternating": "with roles that alternate",
    "untooled": "without our tool",
    "revert": "after a revert",
    "refused": "after a refusal",
}
"""Why an epoch was opened, in a few words; `timeline.explain_reason` says it in a sentence."""
_SIZES: Mapping[Pressure, str] = {"none": "", "soft": "; above the soft mark", "hard": "; above the high mark"}
_GAP = "  "
_MAX_INDENT = 8  # levels; deeper ones are drawn at this one
_TIP_DIGITS = 10


def format_count(count: int, one: str, more: str = "") -> str:
    """Format a count with its noun, in singular or plural."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def format_cost(tokens: float, money: float | None, unit: str = "tokens of uncached input") -> str:
    """Format a cost in money, or in tokens where its price is not known."""
    return f"{format_tokens(tokens)} {unit}" if money is None else format_money(money)


def format_amount(tokens: float, money: float | None, unit: str = "tokens of uncached input") -> str:
    """Format a gain or a loss without its sign."""
    return format_cost(abs(tokens), money and abs(money), unit)


def format_saving(saving: float) -> str:
    """Format a saving with its sign and unit."""
    return f"{saving:+,.0f} tokens of uncached input"


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object] | str]) -> str:
    """Format a table: columns as wide as needed, numbers aligned right. A row that is a string is a line of its own."""
    lines: list[list[str] | str] = [list(headings)]
    for row in rows:
        lines.append(_make_cell(row) if isinstance(row, str) else [_make_cell(str(cell)) for cell in row])
    widths = [max(measure(line[i]) for line in lines if not isinstance(line, str)) for i in range(len(headings))]
    return "\n".join(line if isinstance(line, str) else _format_row(line, widths) for line in lines)


def _make_cell(text: str) -> str:
    return make_plain(text).replace("\n", " ").replace("\t", " ")


def _format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for cell, width in zip(row, widths, strict=True):
        space = " " * (width - measure(cell))
        cells.append(space + cell if cell.replace(".", "", 1).isdigit() else cell + space)
    return _GAP.join(cells).rstrip()


T = TypeVar("T")


def show(called: Invocation, found: T, tell: Callable[[T, Screen], str]) -> None:
    """Write what a command has found: as JSON, or as text for the screen."""
    screen = find_screen()
    if called.as_json:
        typer.echo(write_json(found), nl=False)
    else:
        write(tell(found, screen), screen)


def format_plan(plan: Plan | PlanDocument) -> Iterator[str]:
    """Yield lines that describe the plan of a round. An unknown count has no line."""
    yield f"sent      {WAYS[plan.rung]}{', ' * bool(plan.epoch)}{plan.epoch}{_SIZES[plan.pressure]}"
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        sizes = f"client {plan.tokens_client:,}, upstream {plan.tokens_upstream:,}"
        yield f"context   {sizes}, usable {plan.usable:,} tokens"
    if plan.saving is not None:
        yield f"saved     {format_saving(plan.saving)} (estimated when it was sent)"
    if plan.reason:
        yield f"because   {plan.reason}"


def draw_branches(branches: Sequence[BranchDocument], side: frozenset[int]) -> Iterator[tuple[str, int]]:
    """Yield the lines of a tree of branches, each with the number of the exchange it stands for; 0 for an end.

    A line per exchange, two columns per fork:

    ● 1       an exchange of the conversation
    ├─● 3     a branch that continues from the exchange above it, in place of the one below
    │ └ end   where the branch ended, with its id
    ○ 2       a side call
    """
    after: dict[int, list[BranchDocument]] = {}
    for branch in branches:
        after.setdefault(branch.after, []).append(branch)
    # A stack in place of recursion: a session may have thousands of levels.
    pending: list[tuple[BranchDocument, int, int]] = [(branch, 0, 0) for branch in reversed(after.get(0, []))]
    while pending:
        branch, depth, done = pending.pop()
        indent = "│ " * min(depth, _MAX_INDENT)
        if done == len(branch.own):
            yield f"{indent}└ end {branch.tip[:_TIP_DIGITS]}, {format_count(branch.depth, 'message')}", 0
            continue
        if depth and not done:  # its first exchange shows where the branch begins
            indent = "│ " * min(depth - 1, _MAX_INDENT) + "├─"
        n = branch.own[done]
        yield f"{indent}{SIDE_MARK if n in side else MARK} {n}", n
        pending.append((branch, depth, done + 1))
        pending += [(child, depth + 1, 0) for child in reversed(after.get(n, []))]


def order_children(rows: Sequence[Child]) -> Iterator[tuple[Child, int]]:
    """Yield sessions in their order, but each after the one that started it, with its depth in that tree."""
    listed = {row.id for row in rows}
    children: dict[str, list[Child]] = {}
    for row in rows:
        children.setdefault(row.parent if row.parent in listed else "", []).append(row)
    seen: set[str] = set()
    # All rows follow the roots: sessions that name each other as parents are below no root.
    for root in (*children.get("", []), *rows):
        yield from _descend(root, children, seen)


def _descend(root: Child, children: Mapping[str, Sequence[Child]], seen: set[str]) -> Iterator[tuple[Child, int]]:
    pending = [(root, 0)]
    while pending:
        row, depth = pending.pop()
        if row.id not in seen:
            seen.add(row.id)
            yield row, min(depth, _MAX_INDENT)
            pending += [(child, depth + 1) for child in reversed(children.get(row.id, []))]
