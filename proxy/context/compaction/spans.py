"""Which messages a report is made of.

Rule: a span is a run of whole steps without a gap to the span before it, and the newest three call groups and whatever
is fresh are never in it. Finished turns are taken whole; only where those older than the newest are worth little,
groups behind the user's newest words are taken. Those words may lie within such a span: it covers them, so that spans
have no gaps and a report can speak of them, but the builder keeps them in view word for word (BEHAVIOUR B13).
"""

from collections.abc import Iterator

import msgspec

from proxy.context.survey import Survey, find_tail

GROUPS = 3
LEAST = 3
SHARE = 0.75
_WORTH = 0.2


class MessageRange(msgspec.Struct, frozen=True, gc=False):
    """The messages from place `start` up to `stop`, and their tokens."""

    start: int
    stop: int
    tokens: int


def find_most(window: int, output: int) -> int:
    """The most tokens of a span for a model with this window, which is to give so many."""
    return max(0, int(SHARE * (window - output)))


def choose_span(survey: Survey, begin: int, most: int) -> MessageRange | None:
    """The span that begins at a place and has at most so many tokens, None where there is too little.

    It has more only where its first three messages have: a transcript cuts what is too large.
    """
    first = next((i for i, step in enumerate(survey.steps) if step.start >= begin), len(survey.steps))
    reach = _reach(survey, first, _find_limit(survey), most)
    groups = _make(survey, first, reach)
    turns = max((_make(survey, first, i) for i in _list_turns(survey, first, reach)), key=_size, default=None)
    if turns and _is_enough(turns) and turns.tokens >= _WORTH * groups.tokens:
        return turns
    return groups if _is_enough(groups) else None


def _find_limit(survey: Survey) -> int:
    """The step at which spans end: where the newest turns begin, or behind groups of calls that are in these."""
    tail = find_tail(survey, GROUPS)
    newest = _find_newest(survey)
    is_acting = any(step.has_calls for step in survey.steps[newest:tail])
    return tail if is_acting else min(tail, newest)


def _find_newest(survey: Survey) -> int:
    return min(survey.newest, default=len(survey.steps))


def _reach(survey: Survey, first: int, limit: int, most: int) -> int:
    """The step up to which there is room."""
    tokens = messages = 0
    for i in range(first, limit):
        tokens += survey.steps[i].tokens
        if tokens > most and messages >= LEAST:
            return i
        messages += survey.steps[i].stop - survey.steps[i].start
    return max(first, limit)


def _list_turns(survey: Survey, first: int, reach: int) -> Iterator[int]:
    """Steps before which a turn ends that is older than the newest."""
    for i in range(first + 1, min(reach, _find_newest(survey)) + 1):
        if i < len(survey.steps) and survey.steps[i].turn > survey.steps[i - 1].turn:
            yield i


def _make(survey: Survey, first: int, stop: int) -> MessageRange:
    steps = survey.steps[first:stop]
    if not steps:
        return MessageRange(0, 0, 0)
    return MessageRange(steps[0].start, steps[-1].stop, sum(step.tokens for step in steps))


def _size(span: MessageRange) -> int:
    return span.stop


def _is_enough(span: MessageRange) -> bool:
    return span.stop - span.start >= LEAST
