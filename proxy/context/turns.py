"""The groups of a history that may only be kept or taken out whole.

Rule: a call goes with all its results, with the calls made beside it and with the reasoning that led to them. Where a
client put a result farther away, everything between belongs to the group as well.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from proxy.model.shapes import Shape, find_runs


class Group(msgspec.Struct, frozen=True, gc=False):
    """The messages from `start` up to `stop`, and whether there is a call among them."""

    start: int
    stop: int
    has_calls: bool


def split_groups(shapes: Sequence[Shape]) -> list[Group]:
    """A history's groups, in order and without gaps."""
    reach = _find_answers(shapes)
    kept: list[int] = []
    held = at = 0
    for start in find_runs(shapes):
        held = max([held, *(reach.get(place, 0) for place in range(at, start))])
        at = start
        if not start or start > held:
            kept.append(start)
    return [
        Group(start, stop, any(shape.calls or shape.results for shape in shapes[start:stop]))
        for start, stop in pairwise([*kept, len(shapes)])
    ]


def _find_answers(shapes: Sequence[Shape]) -> dict[int, int]:
    """The place of the last result by that of its call. A result is of the newest call before it that has its id."""
    made: dict[str, int] = {}
    found: dict[int, int] = {}
    for place, shape in enumerate(shapes):
        made.update(dict.fromkeys(shape.calls, place))
        found.update((made[result], place) for result in shape.results if result in made)
    return found
