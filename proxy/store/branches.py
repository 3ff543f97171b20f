"""The branches of a session, found in its tree. Rule: the same answer for every store.

A tip is a node at which a request ended. A branch is a tip with no other tip behind it. Its path is the nodes from the
start of the chain to that tip; its exchanges are those whose requests ended on the path, a retry included.
Where a path forks, the branch goes on to the side where a request went first; every other side begins a branch there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.model.lineage import NodeRow, Relation
from proxy.model.log import BranchRow, Call


class Stand(NamedTuple):
    """Where an exchange stands; `n` is its number in the session, `tip` may be no node of the session."""

    n: int
    exchange: str
    tip: bytes
    depth: int
    relation: Relation
    is_side: bool


def name_parent(parents: Mapping[bytes, bytes], row: NodeRow) -> bytes:
    """The node before it, empty where a chain begins: a parent that comes later in the log changes nothing."""
    return row.parent if row.parent in parents else b""


def find_branches(parents: Mapping[bytes, bytes], stands: Sequence[Stand]) -> list[BranchRow]:
    """The branches in the order in which they began. `parents`: as `name_parent` has it, in order."""
    first = _find_first(parents, stands)
    heirs = _find_heirs(parents, first)
    ended: dict[bytes, list[Stand]] = {}
    for stand in stands:
        ended.setdefault(stand.tip, []).append(stand)
    found = []
    for tip in first:
        if tip not in heirs:
            start, path = _trace(parents, heirs, tip)
            found.append((first[start], _make_branch(path, path.index(start), bool(parents[start]), ended)))
    return [branch for _, branch in sorted(found, key=lambda pair: pair[0])]


def _find_first(parents: Mapping[bytes, bytes], stands: Sequence[Stand]) -> dict[bytes, int]:
    """The number of the first exchange that ended at a node or behind it; only nodes that have one."""
    first: dict[bytes, int] = {}
    for stand in stands:
        if stand.tip in parents:
            first.setdefault(stand.tip, stand.n)
    for node in reversed(list(parents)):
        parent = parents[node]
        if node in first and parent:
            first[parent] = min(first[node], first.get(parent, first[node]))
    return first


def _find_heirs(parents: Mapping[bytes, bytes], first: Mapping[bytes, int]) -> dict[bytes, bytes]:
    """The node in which the branch of a node goes on."""
    heirs: dict[bytes, bytes] = {}
    for node, number in first.items():
        parent = parents[node]
        if parent not in heirs or number < first[heirs[parent]]:
            heirs[parent] = node
    heirs.pop(b"", None)
    return heirs


def _trace(parents: Mapping[bytes, bytes], heirs: Mapping[bytes, bytes], tip: bytes) -> tuple[bytes, list[bytes]]:
    """The node at which a branch begins, and its path."""
    start = tip
    while heirs.get(parents[start]) == start:
        start = parents[start]
    path = [tip]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    return start, path[::-1]


def _make_branch(path: Sequence[bytes], at: int, has_parent: bool, ended: Mapping[bytes, Sequence[Stand]]) -> BranchRow:
    """`at` is where its own part of the path begins."""
    own = sorted(stand for node in path[at:] for stand in ended.get(node, ()))
    stands = sorted(own + [stand for node in path[:at] for stand in ended.get(node, ())])
    return BranchRow(
        tip=path[-1],
        depth=ended[path[-1]][0].depth,
        exchanges=tuple(Call(stand.n, stand.exchange, stand.depth) for stand in stands),
        relation=own[0].relation,
        left=path[at - 1] if has_parent else b"",
        is_side=all(stand.is_side for stand in own),
    )
