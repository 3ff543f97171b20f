"""Trees as text. Rule: narrow: a line per call, two columns per level, and no level without its line.

● 1       a call of the conversation
├─● 3     a branch that goes on from the call above it, in place of the one below
│ └ tip   where it ended
○ 2       a side call
"""

from collections.abc import Iterator, Mapping, Sequence

from proxy.engine.reports.overview import Fork
from proxy.model.log import SessionRow

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
