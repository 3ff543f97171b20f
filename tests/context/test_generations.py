"""Ledgers taken over from the epoch before."""

import pytest

from proxy.context.findings import study
from proxy.context.generations import NOTHING, Heritage, inherit, leave_room
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import Survey, survey
from proxy.model.plan import ContextPlan, Edit, Kept, Reference, Written
from tests.support.views import act, count, user, view

MESSAGES = [user("go"), *(message for i in range(9) for message in act(f"{i}", "ls", "x")), user("b")]
OLD = Reference("aaaaaaaaaa", 1, 5)
OTHER = Reference("bbbbbbbbbb", 5, 7)


def plan(*edits: Edit) -> ContextPlan:
    return ContextPlan(7, edits, (OLD, OTHER), 0)


def look() -> Survey:
    return survey(view(MESSAGES, 10_000), BuilderPolicy(), study)


def take(frozen: ContextPlan | None, tail: int = 8, room: float = 1000) -> Heritage:
    return inherit(look(), frozen, tail, room, count)


def test_the_ledgers_at_the_head_stay_with_their_references_and_what_they_tell() -> None:
    ledger = Written("1-2 ref:aaaaaaaaaa", 0, 7)
    heritage = take(plan(ledger, Kept(0), Kept(3), Kept(4)))
    assert heritage.ledgers == (ledger,)
    assert heritage.references == (OLD,)
    assert heritage.told == {1, 3}
    assert heritage.room == pytest.approx(0.143 * sum(step.tokens for step in look().steps[4:8]))
    assert take(plan(ledger, Kept(0)), room=30).room == pytest.approx(6)
    assert heritage.tokens > count(ledger.text)


def test_ledgers_behind_what_is_kept_are_taken_over_too() -> None:
    heritage = take(plan(Kept(0), Written("behind something", 0, 7), Kept(7), Written("and another", 7, 9)))
    assert [each.text for each in heritage.ledgers] == ["behind something", "and another"]
    assert 0 not in heritage.told and 1 in heritage.told


@pytest.mark.parametrize(
    "frozen",
    [
        None,
        plan(),
        plan(*(Written("one of many", i, i + 1) for i in range(4))),
        plan(Written("x" * 3990, 0, 7)),
        plan(Written("beyond the tail", 0, 19)),
    ],
)
def test_otherwise_one_new_ledger_is_written(frozen: ContextPlan | None) -> None:
    heritage = take(frozen)
    assert (heritage.ledgers, heritage.told) == (NOTHING.ledgers, NOTHING.told)
    assert heritage.room == pytest.approx(550)


def test_summaries_that_stand_with_the_ledgers_stay_with_them() -> None:
    report, ledger = Written("a report ref:bbbbbbbbbb", 0, 5, "r"), Written("1-2 ref:aaaaaaaaaa", 0, 7)
    heritage = take(plan(report, ledger, Kept(0)))
    assert (heritage.written, heritage.ledgers) == ((report, ledger), (ledger,))
    assert heritage.reported == count(report.text) + 4
    assert heritage.tokens == heritage.reported + count(ledger.text) + 4
    assert heritage.references == (OLD,)
    assert take(plan(*[report] * 5, ledger)).ledgers == (ledger,)
    assert take(plan(report)).written == ()


def test_summaries_count_as_ledgers_where_all_have_too_little_room() -> None:
    report, ledger = Written("a report", 0, 5, "r"), Written("1-2 ref:aaaaaaaaaa", 0, 7)
    room = 1.2 * (count(ledger.text) + 8)
    assert take(plan(ledger), room=room).ledgers == (ledger,)
    assert take(plan(report, ledger), room=room).written == ()


def test_a_first_ledger_leaves_room_to_the_summaries_beside_it() -> None:
    assert leave_room(take(None), 100).room == pytest.approx(500)
    assert leave_room(take(None), 5000).room == 0


def test_a_ledger_behind_others_keeps_its_room_beside_summaries() -> None:
    heritage = take(plan(Written("1-2 ref:aaaaaaaaaa", 0, 7)))
    assert leave_room(heritage, 100) == heritage
