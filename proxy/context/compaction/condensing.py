"""Which reports become one, where there are too many of them (FEATURES M9).

Rule: neighbours only, the lowest rank first and of equal rank the oldest, four at a time, so that the graph's depth
grows with the logarithm of its leaves. Where four of a rank are not at hand others may do, but never so that a node
lies deeper than its leaves justify; then it stops, and so it does without progress.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.context.compaction.graph import measure_ranks
from proxy.model.summary import Summary

FAN_IN = 4
_SLACK = 2


class MergeCandidate(msgspec.Struct, frozen=True, gc=False):
    """A live report: its span, its tokens, its rank (0 for a leaf), and of how many leaves it is made."""

    id: str
    start: int
    stop: int
    tokens: int
    rank: int
    leaves: int


def list_nodes(live: Sequence[Summary], known: Mapping[str, Summary]) -> list[MergeCandidate]:
    """The live ones as nodes; `known` are all of a session by their ids, oldest first."""
    ranks = measure_ranks(known.values())
    return [
        MergeCandidate(each.id, each.start, each.stop, each.tokens, ranks[each.id], _count_leaves(each, known))
        for each in live
    ]


def _count_leaves(summary: Summary, known: Mapping[str, Summary]) -> int:
    """Of how many leaves it is made; one whose parents nobody knows counts as a leaf."""
    parents = [known[id] for id in summary.parents if id in known]
    return sum(_count_leaves(parent, known) for parent in parents) or 1


def choose_run(nodes: Sequence[MergeCandidate], room: int) -> Sequence[MergeCandidate]:
    """The neighbours that are merged next so that all come into so many tokens; empty where none need to, or can."""
    if sum(node.tokens for node in nodes) <= room:
        return ()
    equals = [run for run in _list_runs(nodes, FAN_IN) if len({node.rank for node in run}) == 1]
    if equals:
        return min(equals, key=lambda run: (run[0].rank, run[0].start))
    allowed = [run for size in range(FAN_IN, 1, -1) for run in _list_runs(nodes, size) if _is_shallow(run)]
    return min(allowed, key=lambda run: (_find_rank(run), run[0].start), default=())


def _list_runs(nodes: Sequence[MergeCandidate], size: int) -> Iterator[Sequence[MergeCandidate]]:
    """So many neighbours without a gap, in every place."""
    for i in range(len(nodes) - size + 1):
        run = nodes[i : i + size]
        if all(run[k].stop == run[k + 1].start for k in range(size - 1)):
            yield run


def _find_rank(run: Sequence[MergeCandidate]) -> int:
    return 1 + max(node.rank for node in run)


def _is_shallow(run: Sequence[MergeCandidate]) -> bool:
    """Whether the merged node lies no deeper than log4 of its leaves, and two."""
    least: int = FAN_IN ** max(0, _find_rank(run) - _SLACK)
    return least <= sum(node.leaves for node in run)


def is_progress(run: Sequence[MergeCandidate], tokens: int) -> bool:
    """Whether a report of so many tokens is worth having in place of these."""
    return tokens < sum(node.tokens for node in run)
