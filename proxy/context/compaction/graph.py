"""Summaries as a graph: which of them stand for a conversation now, and what each of them is made of.

Rule: a path through the log decides which summaries there are at all (BEHAVIOUR B32a); among these a wider one, or a
later one of the same span, stands in place of others. Any of them expands to leaves that cover its messages exactly.
"""

from collections.abc import Iterable, Mapping, Sequence

from proxy.model.summary import Summary

_DETERMINISTIC = 3


def find_live(summaries: Sequence[Summary]) -> list[Summary]:
    """Those that stand for messages now, in their order; `summaries` are all that hold on a path, oldest first."""
    replaced = {id for each in summaries for id in (*each.supersedes, *each.parents)}
    standing = [(i, each) for i, each in enumerate(summaries) if each.id not in replaced]
    by_width = sorted(standing, key=lambda found: (found[1].start - found[1].stop, -found[0]))
    live: list[Summary] = []
    for _, each in by_width:
        if all(each.stop <= other.start or other.stop <= each.start for other in live):
            live.append(each)
    return sorted(live, key=lambda each: each.start)


def says_more(summary: Summary) -> bool:
    """Whether it says more than a ledger does, so that it may be shown: not what was made of messages by no model."""
    return summary.level < _DETERMINISTIC or bool(summary.parents)


def expand(summary: Summary, known: Mapping[str, Summary]) -> list[Summary]:
    """The leaves that a summary is made of, in order. Raises KeyError where one is not known."""
    leaves: list[Summary] = []
    left = [summary]
    while left:
        each = left.pop()
        if each.parents:
            left.extend(known[id] for id in reversed(each.parents))
        else:
            leaves.append(each)
    return leaves


def measure_ranks(summaries: Iterable[Summary]) -> dict[str, int]:
    """How many rounds of condensation lie beneath each, 0 for leaves; parents come before their children."""
    ranks: dict[str, int] = {}
    for each in summaries:
        ranks[each.id] = 1 + max((ranks.get(id, 0) for id in each.parents), default=-1)
    return ranks
