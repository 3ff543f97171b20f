"""Plain text for people: tables, trees, times, plans. No colour; control characters are replaced."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from proxy.engine.reports.diff import Change, Difference, Side
from proxy.engine.reports.sessions import Fork
from proxy.model.log import SessionRow
from proxy.model.plan import Plan

_GAP = "  "


def make_plain(text: str) -> str:
    """The text with control characters replaced, line breaks and tabs kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def write_time(ms: int) -> str:
    """A time of the log, in UTC to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def cut(text: str, width: int) -> str:
    """The text on one line, at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def lay_out(headings: Sequence[str], rows: Iterable[Sequence[object] | str]) -> str:
    """A table: columns as wide as they need, numbers to the right. A row that is a string is a line as it stands."""
    lines = [list(headings), *(_flatten_row(row) for row in rows)]
    cells = [line for line in lines if not isinstance(line, str)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    return "\n".join(line if isinstance(line, str) else _join(line, widths) for line in lines)


def _flatten_row(row: Sequence[object] | str) -> list[str] | str:
    return _flatten(row) if isinstance(row, str) else [_flatten(str(cell)) for cell in row]


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _flatten(text: str) -> str:
    return make_plain(text).replace("\n", " ").replace("\t", " ")


def _pad(cell: str, width: int) -> str:
    return cell.rjust(width) if cell.replace(".", "", 1).isdigit() else cell.ljust(width)


MARK, SIDE_MARK = "●", "○"
_DEEPEST = 8
_TIP_DIGITS = 10


def draw_forks(forks: Sequence[Fork], side: frozenset[int]) -> Iterator[tuple[str, int]]:
    """Lines from the top, with the number of the call that each stands for: 0 for a tip."""
    after: dict[int, list[Fork]] = {}
    for fork in forks:
        after.setdefault(fork.after, []).append(fork)
    waiting: list[tuple[Fork, int, int]] = [(fork, 0, 0) for fork in reversed(after.get(0, []))]
    while waiting:
        fork, level, done = waiting.pop()
        if done == len(fork.own):
            tip = fork.branch.tip.hex()[:_TIP_DIGITS]
            yield f"{_indent(level)}└ tip {tip}, {fork.branch.depth} message{'s' * (fork.branch.depth != 1)}", 0
            continue
        n = fork.own[done]
        yield f"{_lead(level, is_first=not done)}{SIDE_MARK if n in side else MARK} {n}", n
        waiting.append((fork, level, done + 1))
        waiting += [(child, level + 1, 0) for child in reversed(after.get(n, []))]


def order_children(rows: Sequence[SessionRow]) -> Iterator[tuple[SessionRow, int]]:
    """Sessions in their order, but each behind the one that started it, with how many are above it."""
    listed = {row.id for row in rows}
    children: dict[str, list[SessionRow]] = {}
    for row in rows:
        children.setdefault(row.parent if row.parent in listed else "", []).append(row)
    seen: set[str] = set()
    for root in (*children.get("", []), *rows):  # those that come second are in a ring of parents
        yield from _descend(root, children, seen)


def _descend(
    root: SessionRow, children: Mapping[str, Sequence[SessionRow]], seen: set[str]
) -> Iterator[tuple[SessionRow, int]]:
    waiting = [(root, 0)]
    while waiting:
        row, level = waiting.pop()
        if row.id not in seen:
            seen.add(row.id)
            yield row, min(level, _DEEPEST)
            waiting += [(child, level + 1) for child in reversed(children.get(row.id, []))]


def _lead(level: int, *, is_first: bool) -> str:
    """What stands before a call; the first one of a branch shows that it begins here."""
    return f"{_indent(level - 1)}├─" if level and is_first else _indent(level)


def _indent(level: int) -> str:
    return "│ " * min(level, _DEEPEST)


_WIDTH = 80
_MOST_SHOWN = 12


def tell_plan(plan: Plan) -> Iterator[str]:
    """What was decided for a round."""
    under = f", epoch {plan.epoch}" if plan.epoch else ""
    yield f"sent as   {plan.rung}{under}; pressure {plan.pressure}"
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        yield f"context   client {plan.tokens_client}, upstream {plan.tokens_upstream}, usable {plan.usable} tokens"
    if plan.saving is not None:
        yield f"saved     {write_saving(plan.saving)} (estimated when it was sent)"
    if plan.reason:
        yield f"because   {plan.reason}"


def write_saving(saving: float) -> str:
    """A saving with its sign and unit."""
    return f"{saving:+.0f} tokens of uncached input"


def tell_difference(found: Difference) -> str:
    """What was sent in place of what: `-` is the client's, `+` ours; what was sent as it came is only counted."""
    head = f"exchange {found.row.n} of session {found.row.session}, round {found.round.k}"
    if found.is_equal:
        return make_plain(f"{head}: sent as the client sent it, byte for byte\n")
    lines = [f"{head}: {found.kept} of {found.messages} messages sent as they came"]
    if found.round.plan is not None:
        lines += tell_plan(found.round.plan)
    for name, client, sent in found.members:
        lines += ("", f"@@ {name}", f"- {_shorten(client)}", f"+ {_shorten(sent)}")
    for change in found.changes:
        lines += _tell_change(change)
    return make_plain("\n".join(lines)) + "\n"


def _tell_change(change: Change) -> Iterator[str]:
    last = change.stop - 1
    where = f"messages {change.start} to {last}" if last > change.start else f"message {change.start}"
    before, after = (sum(side.tokens for side in sides) for sides in (change.client, change.sent))
    yield ""
    yield f"@@ {where if change.client else f'before message {change.start}'}: {before} -> {after} tokens"
    for place, side in list(enumerate(change.client, change.start))[:_MOST_SHOWN]:
        yield cut(f"- {place} {_name(side)}: {side.text}", _WIDTH)
    if len(change.client) > _MOST_SHOWN:
        yield f"- ... and {len(change.client) - _MOST_SHOWN} more; --json has them all"
    for side in change.sent:
        yield f"+ {_name(side)}:"
        yield from (f"+   {line}" for line in side.text.splitlines())


def _name(side: Side) -> str:
    calls = f", calls {', '.join(side.calls)}" if side.calls else ""
    return f"{side.role} ({side.tokens} tokens{calls})"


def _shorten(raw: bytes) -> str:
    return cut(raw.decode("utf-8", "replace"), _WIDTH - 2) if raw else "(absent)"
