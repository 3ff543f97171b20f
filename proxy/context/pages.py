"""Archived steps in pages: stretches whose original fits on the first page of one reference.

Rule: every character of every archived step is on the first page of some reference, save where there are so many pages
that the oldest share one. Pages begin at the first step, so that they stay the same while a conversation grows.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from proxy.context.original import PAGE
from proxy.context.survey import AgentStep

_OVERLAP = 200
_SMALL = 1000


class Page(msgspec.Struct, frozen=True, gc=False):
    """The steps from `first` to `last`, both included, from a character of their text on."""

    first: int
    last: int
    start: int
    stop: int
    offset: int = 0


def cut_pages(
    steps: Sequence[AgentStep], is_archived: Callable[[int], bool], stop: int, most: int = PAGE
) -> list[Page]:
    """The pages of the archived ones among the first `stop` steps."""
    stretches = _find_stretches(steps, is_archived, stop, most)
    return [page for first, last in stretches for page in _cut(steps, first, last)]


def _find_stretches(
    steps: Sequence[AgentStep], is_archived: Callable[[int], bool], stop: int, most: int
) -> Iterator[tuple[int, int]]:
    """Steps of a page: the first and the last; small ones that are kept may stand between."""
    first = last = -1
    size = 0
    for i in range(stop):
        if first >= 0 and (size + steps[i].characters > most or (not is_archived(i) and steps[i].characters > _SMALL)):
            yield first, last
            first = -1
        if is_archived(i):
            first, size = (first, size) if first >= 0 else (i, 0)
            last = i
        size += steps[i].characters
    if first >= 0:
        yield first, last


def _cut(steps: Sequence[AgentStep], first: int, last: int) -> Iterator[Page]:
    start, stop = steps[first].start, steps[last].stop
    size = sum(step.characters for step in steps[first : last + 1])
    yield Page(first, last, start, stop)
    for offset in range(PAGE - _OVERLAP, size - _OVERLAP, PAGE - _OVERLAP):
        yield Page(first, last, start, stop, offset)


def merge_oldest(pages: Sequence[Page], most: int) -> list[Page]:
    """At most so many pages: the oldest become one, whose reader must turn its pages."""
    surplus = len(pages) - max(most, 1)
    if surplus <= 0:
        return list(pages)
    old = pages[: surplus + 1]
    return [Page(old[0].first, old[-1].last, old[0].start, old[-1].stop), *pages[surplus + 1 :]]
