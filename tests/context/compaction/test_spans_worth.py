"""How long a summary may be, of how much it is made, and when it is asked for."""

from math import inf

import pytest
from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.compaction.spans import (
    LEAST_TARGET,
    compute_least_span,
    compute_room,
    compute_target,
    should_start_summary,
)
from proxy.context.epoch_decision import CacheCostAccount, RequestFacts, forecast_calls
from proxy.context.pricing import make_tariff
from proxy.context.provider_cache import UNKNOWN
from proxy.model.card import UNPRICED

TARIFF = make_tariff(UNPRICED, UNKNOWN)
BUDGET = Budget(100_000, 8000, 20_000, 12_000, 0.3)
FACTS = RequestFacts(13_000, BUDGET, TARIFF)
ACCOUNT = CacheCostAccount(base=7000)


@pytest.mark.parametrize(
    ("covered", "room", "level", "most", "target"),
    [
        (21_000, 8000, 1, 8192, 3000),  # a seventh of the messages
        (21_000, 2000, 1, 8192, 2000),  # the room
        (21_000, 8000, 1, 700, 700),  # the money
        (210_000, 80_000, 1, 8192, 8192),
        (21_000, 8000, 2, 4000, 1500),
        (1000, 8000, 1, 8192, LEAST_TARGET),
        (21_000, 10, 1, 8192, LEAST_TARGET),
        (200, 8000, 1, 8192, 199),
        (1, 8000, 1, 8192, 1),
    ],
)
def test_a_summary_has_a_seventh_of_its_messages_within_its_room_and_what_may_be_spent(
    covered: int, room: float, level: int, most: int, target: int
) -> None:
    assert compute_target(covered, room, level, most) == target


def test_what_is_merged_has_half() -> None:
    assert compute_target(2000, 8000, 1, 8192, is_merged=True) == 1000


def test_others_leave_at_least_a_quarter_of_the_room() -> None:
    assert [compute_room(4000, shown) for shown in (0, 1000, 3500, 9000)] == [4000, 3000, 1000, 1000]


def test_a_span_is_worth_a_call_from_a_tenth_of_the_budget_on() -> None:
    assert [compute_least_span(usable) for usable in (1000, 21_000, 31_040, 124_160)] == [2100, 2100, 3104, 12_416]


def test_the_epoch_opens_when_the_excess_reads_reach_its_price() -> None:
    price = TARIFF.price_cache_bust(7000)
    excess = TARIFF.price_repeated(13_100) - TARIFF.price_repeated(7000)
    near = replace(ACCOUNT, owed=price - 1.5 * excess)
    assert forecast_calls(near, FACTS, 100) == 2
    assert forecast_calls(replace(ACCOUNT, owed=price), FACTS, 100) == 0


def test_it_opens_at_the_high_mark_and_not_below_the_soft_mark() -> None:
    due = replace(ACCOUNT, owed=10**6)
    assert forecast_calls(ACCOUNT, replace(FACTS, tokens=19_000), 600) == 1
    assert forecast_calls(due, replace(FACTS, tokens=11_000), 400) == 2
    assert forecast_calls(due, replace(FACTS, tokens=11_000), 1000) == 0


def test_what_is_far_is_not_foreseen() -> None:
    assert forecast_calls(ACCOUNT, replace(FACTS, tokens=7000), 0) == inf


@pytest.mark.parametrize(
    ("calls", "seconds", "expected"),
    [(2, inf, True), (3, inf, False), (inf, 40.1, False), (inf, 39.9, True), (inf, 0.0, True)],
)
def test_it_is_begun_two_calls_ahead_or_where_twice_its_time_is_left_before_the_high_mark(
    calls: float, seconds: float, expected: bool
) -> None:
    assert should_start_summary(calls, seconds, 20.0) is expected
