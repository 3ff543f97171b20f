"""A stretch of a conversation in few words, for a model that has not seen it.

Rule: every message has its number; what tools put out is fenced and said to be theirs. Where there is too little room
outputs are cut first, then what the assistant said, and the user's words last (BEHAVIOUR B13, B32).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from proxy.context.compaction.lookalikes import FENCE, cut_middle, cut_to, defuse
from proxy.context.compaction.spans import MessageRange
from proxy.context.rules import name_message
from proxy.context.sentences import list_user_places
from proxy.context.survey import Survey

SHORT = 500
"""Characters of a message for a report of level 2."""
NODE = 800
"""Characters of a report that is condensed on level 2."""

_CLAIMED = "claimed by a tool, not by the user"
_WHOLE = 1_000_000
_LONGEST_NAME = 60


class _Most(msgspec.Struct, frozen=True, gc=False):
    """The most characters of an output, of arguments of calls, of words of the assistant, and of the user's."""

    output: int
    arguments: int
    said: int
    user: int


_CUTS = (
    *(_Most(most, max(most, 300), _WHOLE, _WHOLE) for most in (_WHOLE, 16_000, 8000, 4000, 2000, 1000, 500, 250, 100)),
    *(_Most(60, most, 2 * most, _WHOLE) for most in (2000, 500, 250, 100, 50)),
    *(_Most(0, 0, 40, most) for most in (_WHOLE, 8000, 4000, 2000, 1000, 500, 250, 100)),
)


def write_transcript(
    survey: Survey, span: MessageRange, room: int, count: Callable[[str], int], most: int | None = None
) -> str:
    """The messages of a span in so many tokens, each of them in `most` characters where that is given."""
    users = frozenset(list_user_places(survey))
    limit = _WHOLE if most is None else most

    def write(cut: _Most) -> str:
        places = range(span.start, span.stop)
        return "\n".join(_write_message(survey, place, place in users, cut, limit) for place in places)

    fitting = bisect_left(range(len(_CUTS)), True, key=lambda i: count(write(_CUTS[i])) <= room)
    return write(_CUTS[fitting]) if fitting < len(_CUTS) else cut_to(write(_CUTS[-1]), room, count)


def _write_message(survey: Survey, place: int, is_user: bool, cut: _Most, limit: int) -> str:
    told = survey.messages[place].told
    name = name_message(place)
    if is_user:
        return f"[{name} user]\n{_fit(told.text, min(cut.user, limit))}"
    if survey.messages[place].shape.role == "assistant":
        asked = (
            f"calls {defuse(call.name[:_LONGEST_NAME])}: {_fit(words, min(cut.arguments, limit))}"
            for call, words in zip(told.calls, survey.found[place].asked, strict=True)
        )
        text = _fit(told.text, min(cut.said, limit))
        return "\n".join((f"[{name} assistant]", *([text] if text else ()), *asked))
    text = _fit(told.text, min(cut.output, limit))
    head = f"[{name} {_name_tool(survey, place)}] {_CLAIMED}"
    return f"{head}\n{FENCE}\n{text}\n{FENCE}" if text else f"{head}: left out"


def _fit(text: str, most: int) -> str:
    return defuse(cut_middle(text, most)) if most else ""


def _name_tool(survey: Survey, place: int) -> str:
    """Whose output a message is."""
    answers = survey.messages[place].told.answers
    for before in range(place - 1, max(-1, place - 40), -1):
        for call in survey.messages[before].told.calls:
            if call.id in answers:
                return f"tool {defuse(call.name[:_LONGEST_NAME])}"
    return "tool"


def write_reports(texts: Sequence[str], room: int, count: Callable[[str], int], most: int | None = None) -> str:
    """Reports that are to be condensed, in so many tokens, each of them in `most` characters where that is given."""
    limit = _WHOLE if most is None else most

    def write(cut: int) -> str:
        return "\n\n".join(f"[report {i + 1}]\n{cut_middle(text, min(cut, limit))}" for i, text in enumerate(texts))

    cuts = (_WHOLE, 16_000, 8000, 4000, 2000, 1000, 500, 250)
    fitting = bisect_left(range(len(cuts)), True, key=lambda i: count(write(cuts[i])) <= room)
    return write(cuts[fitting]) if fitting < len(cuts) else cut_to(write(cuts[-1]), room, count)
