"""What the log made of a journey held against what it has to make of it.

Rule: pure; every difference is one line. Nothing is forgiven but the order of branches, which is one of chance where a
client calls at the same time.
"""

from collections.abc import Iterator, Sequence

from tests.clients.client import Expected, Tree
from tests.clients.logs import Found, Log


def check_sessions(expected: Expected, log: Log, runs: int = 1) -> Iterator[str]:
    """What is wrong with the sessions of so many runs of the same journey: each has to have its own."""
    calls = sum(1 for row in log.exchanges if row.wire and not row.hidden)
    if abs(calls - expected.calls * runs) > expected.spare:
        yield f"{calls} calls in formats we read, expected {expected.calls * runs}"
    if strangers := {found.name for found in log.sessions if not _is_named(expected, found)}:
        yield f"sessions are named {sorted(strangers)}, expected {expected.names}..."
    trees = read_trees(log.sessions)
    count = len(expected.sessions)
    if expected.spare:
        if len(trees) > count + 1:
            yield f"{len(trees)} sessions, expected at most {count + 1}: {_spell(trees)}"
        return
    wanted = [_move(tree, count * run) for run in range(runs) for tree in expected.sessions]
    if len(trees) != len(wanted):
        yield f"{len(trees)} sessions, expected {len(wanted)}: {_spell(trees)}"
        return
    for n, (tree, other) in enumerate(zip(trees, wanted, strict=True), 1):
        if tree != _settle(other, tree):
            yield f"session {n}: {_spell([tree])}, expected {_spell([other])}"


def read_trees(sessions: Sequence[Found]) -> list[Tree]:
    """Sessions as trees."""
    places = {found.id: place for place, found in enumerate(sessions)}
    # One that is started by a session that is not there is started by none of these: -1, which nobody expects.
    parents = [places.get(found.parent, -1) if found.parent else None for found in sessions]
    return [Tree(tuple(sorted(f.branches)), parent) for f, parent in zip(sessions, parents, strict=True)]


def _move(tree: Tree, by: int) -> Tree:
    return Tree(tuple(sorted(tree.branches)), tree.parent if tree.parent is None else tree.parent + by)


def _settle(expected: Tree, found: Tree) -> Tree:
    """What is expected, where it leaves open which branches there are, or whether a call stands beside them."""
    if not expected.branches:
        return Tree(found.branches, expected.parent)

    def settle(branch: str) -> str:
        told = branch.removesuffix("?")
        return told if told == branch or told in found.branches else told.strip("()")

    return Tree(tuple(sorted(map(settle, expected.branches))), expected.parent)


def _is_named(expected: Expected, found: Found) -> bool:
    return found.name.startswith(expected.names) if expected.names else not found.name


def _spell(trees: Sequence[Tree]) -> str:
    return "; ".join(
        " | ".join(tree.branches) + (f" under {tree.parent + 1}" if tree.parent is not None else "") for tree in trees
    )
