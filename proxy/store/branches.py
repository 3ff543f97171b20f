"""The branches of a session, found in its tree. Rule: the same answer for every store, in steps as many as it is large.

A tip is a node at which a request ended. A branch is a tip with no other tip behind it. Its path is the nodes from the
start of the chain to that tip; its exchanges are those whose requests ended on the path, a retry included.
Where a path forks, the branch goes on to the side where a request went first; every other side begins a branch there,
which is younger, and has only what is behind the fork as its own: a history edited over and over is not copied.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
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


class _Place(NamedTuple):
    """Where a node is: on which branch, and how many of the branch's own exchanges ended there or before."""

    branch: BranchRow | None
    shared: int


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
    places: dict[bytes, _Place] = {b"": _Place(None, 0)}
    found = []
    for start in sorted((node for node in first if heirs.get(parents[node]) != node), key=first.__getitem__):
        path = _follow(heirs, start)
        own = [ended.get(node, []) for node in path]
        branch = _make_branch(path[-1], parents[start], own, places[parents[start]])
        places.update(zip(path, (_Place(branch, count) for count in accumulate(map(len, own))), strict=True))
        found.append(branch)
    return found


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


def _follow(heirs: Mapping[bytes, bytes], start: bytes) -> list[bytes]:
    """The nodes from the start of a branch to its tip."""
    path = [start]
    while path[-1] in heirs:
        path.append(heirs[path[-1]])
    return path


def _make_branch(tip: bytes, left: bytes, own: Sequence[Sequence[Stand]], fork: _Place) -> BranchRow:
    """`own`: what ended at each of its nodes, the tip's last."""
    stands = [stand for ended in own for stand in ended]
    return BranchRow(
        tip=tip,
        depth=own[-1][0].depth,
        own=tuple(Call(stand.n, stand.exchange, stand.depth) for stand in stands),
        relation=min(stands).relation,
        left=left,
        is_side=all(stand.is_side for stand in stands),
        trunk=fork.branch,
        shared=fork.shared,
    )
