"""A verdict on a rewritten history, as long as it lasts: what comes behind it is looked at alone.

Rule: it lasts where what is new has nothing to do with what was replaced (no id of a call is in both); then it is the
same in the client's own history and in the rewritten one, and so is whatever is wrong with it. Of anything else nothing
is said here: it is judged as a whole (`wire/validity`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from proxy.model.shapes import Shape
from proxy.wire.validity import MessageRuns, Rules, Run, Splice


class Verdict(msgspec.Struct, frozen=True, gc=False, eq=False):
    """That a history so rewritten has no fault that the client's own has not.

    `stop` is where its splices end. What was written, and the run that may join it, is told by the runs up to the
    `seam`, the first that begins behind that, at index `first`. `newest` is the run at index `last` up to which what
    follows was looked at, `newest_user` the place of the user's newest message. `ids` are as `list_replaced` has them.
    """

    rules: Rules
    ids: frozenset[str]
    stop: int
    first: int
    seam: Run
    last: int
    newest: Run
    newest_user: int


def list_replaced(shapes: Sequence[Shape], splices: Iterable[Splice]) -> frozenset[str]:
    """The ids of all calls and results that are replaced, or stand in place of others; `shapes` are the client's."""
    ids: set[str] = set()
    for splice in splices:
        for shape in (*splice.shapes, *shapes[splice.start : splice.stop]):
            ids.update(shape.calls, shape.results)
    return frozenset(ids)


def make_verdict(
    history: MessageRuns, splices: Sequence[Splice], rules: Rules, replaced: frozenset[str]
) -> Verdict | None:
    """The verdict on a history in which no fault was found; None where it would not last."""
    # with words of ours in it the beginning of what is sent does not hang on what follows
    if not _may_last(history, rules) or all(shape.role == "system" for each in splices for shape in each.shapes):
        return None
    stop = splices[-1].stop
    first = bisect_left(history.starts, stop)
    if first >= len(history.runs) or _has_any(history, first + 1, replaced):
        return None
    return _conclude(history, rules, replaced, stop, first)


def extend_verdict(verdict: Verdict, history: MessageRuns, rules: Rules) -> Verdict | None:
    """The verdict on another history with the same splices; None where it is not known to be the same."""
    first, stop, runs = verdict.first, verdict.stop, history.runs
    if rules != verdict.rules or not _may_last(history, rules):
        return None
    if len(runs) <= first + 1 or runs[first] is not verdict.seam:
        return None
    if history.newest_user < stop and history.newest_user != verdict.newest_user:
        return None
    # histories that have a run in common have all before it, for they are extended at their end
    is_known = verdict.last < len(runs) and runs[verdict.last] is verdict.newest
    if _has_any(history, 1 + (verdict.last if is_known else first), verdict.ids):
        return None
    return _conclude(history, rules, verdict.ids, stop, first)


def _conclude(history: MessageRuns, rules: Rules, ids: frozenset[str], stop: int, first: int) -> Verdict:
    runs = history.runs
    last = max(first, len(runs) - 2)  # results may still join the last one
    return Verdict(rules, ids, stop, first, runs[first], last, runs[last], history.newest_user)


def _may_last(history: MessageRuns, rules: Rules) -> bool:
    """Whether each run can be judged without those that are not beside it."""
    return not (history.has_markers or rules.markers or rules.needs_json or rules.is_alternating)


def _has_any(history: MessageRuns, start: int, ids: frozenset[str]) -> bool:
    """Whether one of these ids is in the runs from one on."""
    return not ids.isdisjoint([id for run in history.runs[start:] for id in (*run.calls, *run.results)])
