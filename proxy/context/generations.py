"""Ledgers that an epoch takes over from the one before, so that the provider's cache still holds them.

Rule: a ledger that is taken over keeps its bytes, its span and its references. There are a few at most; then one new
ledger is written in place of all, small enough that others find room behind it.
"""

import re
from collections.abc import Callable

import msgspec

from proxy.context.survey import Survey
from proxy.model.plan import ContextPlan, Reference, Written

MOST = 4
_FIRST_SHARE = 0.55
_NEXT_SHARE, _NEXT_RATIO = 0.2, 0.143
# What summaries tell in words a ledger need not tell in lines; but names and quotes that steps need are in it alone.
_LEFT_TO_REPORTS = 0.5
_FRAME = 4
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10})\b")


class Heritage(msgspec.Struct, frozen=True, gc=False):
    """What of ours stays, its tokens and references; steps that it tells of; and tokens for a new ledger behind it.

    `reported` are the tokens of the summaries in it.
    """

    written: tuple[Written, ...]
    tokens: int
    references: tuple[Reference, ...]
    told: frozenset[int]
    room: float
    reported: int = 0

    @property
    def ledgers(self) -> tuple[Written, ...]:
        """The ledgers that stay."""
        return tuple(each for each in self.written if not each.report)


NOTHING = Heritage((), 0, (), frozenset(), 0.0)


def inherit(
    survey: Survey, frozen: ContextPlan | None, tail: int, room: float, count: Callable[[str], int]
) -> Heritage:
    """What the plan in force leaves to the next one, whose ledgers may have `room` tokens together.

    A ledger behind others gets room by what it tells of, so that it is no larger where epochs follow soon. Summaries
    beside the ledgers count as such: they tell of the same steps.
    """
    written = tuple(edit for edit in (frozen.edits if frozen else ()) if isinstance(edit, Written))
    ledgers = [each for each in written if not each.report]
    stop = max((each.stop for each in ledgers), default=0)
    tokens = sum(count(each.text) + _FRAME for each in ledgers)
    end = survey.steps[tail].start if tail < len(survey.steps) else len(survey.messages)
    fresh = sum(step.tokens for step in survey.steps[:tail] if step.stop > stop and step.kind == "step")
    next_room = min(_NEXT_SHARE * room, _NEXT_RATIO * fresh)
    reported = sum(count(each.text) + _FRAME for each in written if each.report)
    if frozen is None or not 0 < len(ledgers) < MOST or stop > end or tokens + reported + next_room > room:
        return Heritage((), 0, (), frozenset(), _FIRST_SHARE * room)
    named = {id for each in ledgers for id in _REFERENCE.findall(each.text)}
    references = tuple(each for each in frozen.references if each.id in named)
    return Heritage(written, tokens + reported, references, _find_told(survey, frozen, stop), next_room, reported)


def leave_room(heritage: Heritage, reported: int) -> Heritage:
    """The same with less room where the first ledger is written anew, beside new summaries of so many tokens."""
    if heritage.ledgers:
        return heritage
    return msgspec.structs.replace(heritage, room=max(0.0, heritage.room - _LEFT_TO_REPORTS * reported))


def _find_told(survey: Survey, frozen: ContextPlan, stop: int) -> frozenset[int]:
    """Steps of which the ledgers up to `stop` tell: all that were not kept beside them."""
    kept = {edit.place for edit in frozen.edits if not isinstance(edit, Written)}
    return frozenset(
        i for i, step in enumerate(survey.steps) if step.stop <= stop and kept.isdisjoint(range(step.start, step.stop))
    )
