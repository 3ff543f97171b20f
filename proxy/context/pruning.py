"""Outputs that would stay in view though something newer has overtaken them (BEHAVIOUR B16, FEATURES M11).

Rule: the newest copy stays, and so does the newest of what tools put out, up to a measure. Nothing goes unless enough
goes together: a marker has its own price, and small gains are none.
"""

from collections.abc import Callable, Mapping

from proxy.context.eviction import LEAST, Marked, bury, find_overtaken
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import Survey
from proxy.context.view import Seen, View

_PROTECTED_SHARE, _MINIMUM_SHARE = 0.25, 0.05
_FRAME = 4


def prune(
    view: View, survey: Survey, policy: BuilderPolicy, steps: range, count: Callable[[str], int]
) -> dict[int, Marked]:
    """Tombstones for overtaken outputs of these steps, by their places; none where too little would go."""
    if not policy.is_pruning or not steps:
        return {}
    usable = view.budget.usable
    protected = min(policy.protect_tokens, _PROTECTED_SHARE * usable)
    marked = {place: bury(view, survey, place) for place in _list_overtaken(survey, steps, protected)}
    marked = {place: made for place, made in marked.items() if measure_gain(survey, {place: made}, count) > 0}
    return marked if measure_gain(survey, marked, count) >= min(policy.minimum_tokens, _MINIMUM_SHARE * usable) else {}


def measure_gain(survey: Survey, marked: Mapping[int, Marked], count: Callable[[str], int]) -> int:
    """The tokens that markers save."""
    return sum(_measure_saved(survey.messages[place], made, count) for place, made in marked.items())


def _measure_saved(seen: Seen, made: Marked, count: Callable[[str], int]) -> int:
    edit = made.edit
    if edit.arguments:
        known = {call.id: call.arguments for call in seen.told.calls}
        cut = sum(count(known[id]) - count(arguments) for id, arguments in edit.arguments)
        return cut + (count(seen.told.text) - count(edit.text) if edit.text else 0)
    if edit.kind != "shortened":
        return seen.tokens - count(edit.text) - _FRAME
    # Where words are shortened, pictures and calls beside them stay.
    said = min(seen.tokens, count(seen.told.text) + _FRAME)
    return said - count(edit.text) - _FRAME if edit.text else 0


def _list_overtaken(survey: Survey, steps: range, protected: float) -> list[int]:
    newest = _find_newest(survey, protected)
    places = [
        place
        for i in steps
        if i not in survey.fixed
        for place in range(survey.steps[i].start, min(survey.steps[i].stop, newest))
        if survey.messages[place].shape.role == "tool" and survey.messages[place].tokens > LEAST
    ]
    overtaken = find_overtaken(survey) if places else {}
    return [place for place in places if place in overtaken]


def _find_newest(survey: Survey, tokens: float) -> int:
    """The place from which on the outputs have so many tokens together, the one they begin in included."""
    for place in reversed(range(len(survey.messages))):
        if tokens <= 0:
            return place + 1
        if survey.messages[place].shape.role == "tool":
            tokens -= survey.messages[place].tokens
    return 0
