"""When an epoch opens: the rules of BEHAVIOUR B10 one by one, and what must hold of any session."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.context.account import Account, Sent, note_epoch, note_sent
from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.cache import UNKNOWN, CacheModel, find_cache_model
from proxy.context.economics import (
    FUTILE,
    HELD,
    NO_ROOM,
    NOTHING_TO_GAIN,
    OUT_OF_REACH,
    SIDE,
    Decision,
    Facts,
    decide,
    price_opening,
)
from proxy.context.tariff import Tariff, make_tariff
from proxy.model.card import UNPRICED, Prices, Rates, Tier

BUDGET = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=32_000))
SOFT, HIGH, LOW = BUDGET.soft, BUDGET.high, BUDGET.find_low(0)
TARIFF = make_tariff(UNPRICED, UNKNOWN)
SHORT_LIVED = make_tariff(UNPRICED, CacheModel(retention=300.0))
PRICE = 0.9 * LOW
RICH = Account(owed=1e9)
POOR = Account(sent=20_000)

sessions = st.lists(st.integers(SOFT, HIGH - 1), min_size=1, max_size=60)
accounts = st.builds(
    Account, st.integers(0, 50_000), st.floats(0, 1e9), st.integers(0, 3), st.just(LOW), st.booleans(), st.integers(0)
)


def see(tokens: int, tariff: Tariff = TARIFF) -> Facts:
    return Facts(tokens, BUDGET, tariff)


def price_reading(cached: float) -> Tariff:
    return make_tariff(Prices(Rates(1, 5, cached, 1), (Tier(25_000, Rates(2, 10, 2 * cached, 2)),)), UNKNOWN)


def play(sizes: list[int], tariff: Tariff) -> int | None:
    """The place of the request before which an epoch opens."""
    account = Account()
    for place, size in enumerate(sizes):
        if decide(account, see(size, tariff)).why:
            return place
        account = note_sent(account, Sent(size), tariff, LOW)
    return None


def test_below_the_soft_mark_none_opens() -> None:
    assert decide(RICH, see(SOFT - 1)) == Decision(None, "none", f"{SOFT - 1} tokens are below the soft mark of {SOFT}")
    assert decide(RICH, see(SOFT)) == Decision("soft", "soft")


def test_at_the_high_mark_one_opens_whatever_it_costs() -> None:
    assert decide(POOR, see(HIGH - 1)).why is None
    assert decide(POOR, see(HIGH)) == Decision("hard", "hard")
    assert decide(Account(base=HIGH), see(HIGH)).why == "hard"


def test_between_the_marks_one_opens_once_it_pays() -> None:
    assert price_opening(POOR, see(20_000)) == pytest.approx(PRICE)
    short = decide(replace(POOR, owed=PRICE - 1), see(20_000))
    assert short == Decision(None, "soft", "excess reads of 8380 have not reached the price of 8381")
    assert decide(replace(POOR, owed=PRICE + 1), see(20_000)).why == "soft"


def test_a_rewrite_is_priced_at_what_the_last_one_reached() -> None:
    account = Account(base=18_000, owed=PRICE + 1)
    assert price_opening(account, see(20_000)) == pytest.approx(0.9 * 18_000)
    assert decide(account, see(20_000)).why is None


def test_writing_at_a_higher_price_waits_longer_and_a_marker_that_survives_less_long() -> None:
    prices = Prices(Rates(1, 5, 0.1, 1.25))
    marked = make_tariff(prices, find_cache_model("breakpoints", "", "", ["5m"]))
    assert price_opening(POOR, see(20_000, marked)) == pytest.approx(1.15 * LOW)
    facts = replace(see(20_000, marked), stable=4000)
    assert price_opening(POOR, facts) == pytest.approx(1.15 * (LOW - 4000))


def test_without_a_cache_a_rewrite_pays_at_once() -> None:
    uncached = make_tariff(UNPRICED, find_cache_model("breakpoints", "", ""))
    assert decide(POOR, see(SOFT, uncached)).why == "soft"


@pytest.mark.parametrize("owed", [0.0, 1e9])
def test_where_an_epoch_would_leave_no_less_none_opens(owed: float) -> None:
    account = Account(base=20_000, owed=owed)
    assert decide(account, see(20_000)).reason == NOTHING_TO_GAIN
    assert decide(account, replace(see(20_001, SHORT_LIVED), idle=1e6)).why == "cold"


def test_a_cold_cache_makes_it_free() -> None:
    assert [decide(POOR, replace(see(20_000, SHORT_LIVED), idle=idle)).why for idle in (None, 300.0, 360.0, 361.0)] == [
        None,
        None,
        None,
        "cold",
    ]
    assert decide(POOR, replace(see(20_000), idle=1e9)).why is None  # nobody declared how long it is kept


def test_a_prefix_that_the_client_broke_makes_it_free() -> None:
    # Going on costs 0.1 of what is kept and 1 of the rest, an epoch the low mark: 9312.
    assert decide(POOR, replace(see(20_000), kept=11_000)).why == "client"
    assert decide(POOR, replace(see(20_000), kept=12_000)).why is None
    assert decide(POOR, replace(see(20_000), kept=20_000)).why is None
    assert decide(Account(), replace(see(20_000), kept=0)).why is None  # nothing had been sent


def test_a_side_request_opens_none() -> None:
    for tokens in (20_000, HIGH):
        decision = decide(RICH, replace(see(tokens), is_side=True))
        assert (decision.why, decision.reason) == (None, SIDE)


def test_a_revert_holds_until_the_high_mark() -> None:
    held = replace(RICH, is_held=True)
    for facts in (see(HIGH - 1), replace(see(20_000, SHORT_LIVED), idle=1e6), replace(see(20_000), kept=0)):
        assert decide(held, facts).reason == HELD
    assert decide(held, see(HIGH)).why == "hard"


def test_two_futile_epochs_stop_it_below_the_ceiling_until_less_must_stay() -> None:
    once = note_epoch(RICH, HIGH, HIGH, 20_000, BUDGET)
    account = note_epoch(once, HIGH, HIGH, 20_000, BUDGET)
    stuck = replace(account, owed=1e9, base=9000)
    assert decide(stuck, replace(see(HIGH - 1), protected=20_000)).reason == FUTILE
    fallen = int(20_000 - 0.1 * BUDGET.usable)
    assert decide(stuck, replace(see(HIGH - 1), protected=fallen + 2)).reason == FUTILE
    assert decide(stuck, replace(see(HIGH - 1), protected=fallen - 2)).why == "soft"
    assert decide(replace(once, owed=1e9, base=9000), replace(see(HIGH - 1), protected=20_000)).why == "soft"


def test_under_a_ceiling_out_of_reach_none_opens_below_it_until_that_changes() -> None:
    facts = replace(see(HIGH - 1), protected=22_000)
    tried = replace(note_epoch(POOR, HIGH, 22_000, 22_000, BUDGET), owed=1e9, base=9000)
    assert decide(tried, facts).reason == OUT_OF_REACH
    assert decide(tried, replace(facts, protected=21_000)).why == "soft"
    assert decide(replace(tried, stuck=0), facts).why == "soft"


@given(accounts, st.integers(0, 100_000), st.integers(HIGH, 10**6))
def test_at_the_high_mark_one_opens_whatever_was_in_vain(account: Account, protected: int, tokens: int) -> None:
    assert decide(account, replace(see(tokens), protected=protected)) == Decision("hard", "hard")


def test_a_request_whose_answer_fills_the_window_has_nothing_to_manage() -> None:
    full = make_budget(32_768, 32_768, 32_768, BudgetPolicy())
    assert decide(RICH, Facts(100_000, full, TARIFF)) == Decision(None, "none", NO_ROOM)


@given(accounts, st.integers(0, SOFT - 1), st.none() | st.floats(0, 1e9), st.none() | st.integers(0, 10**6))
def test_never_one_below_the_soft_mark(account: Account, tokens: int, idle: float | None, kept: int | None) -> None:
    for tariff in (TARIFF, SHORT_LIVED, price_reading(1.0)):
        assert decide(account, Facts(tokens, BUDGET, tariff, idle=idle, kept=kept)).why is None


@given(accounts, st.integers(0, 100_000), st.integers(0, 100_000), st.booleans())
def test_either_one_opens_or_there_is_a_reason(account: Account, tokens: int, protected: int, is_side: bool) -> None:
    decision = decide(account, Facts(tokens, BUDGET, TARIFF, protected=protected, is_side=is_side))
    assert bool(decision.why) != bool(decision.reason)


@given(sessions)
def test_no_more_is_paid_than_twice_the_least_and_the_read_that_went_over_it(sizes: list[int]) -> None:
    """Whatever comes, against somebody who knew it (the rents and the price by hand)."""
    rents = [0.0, *(0.1 * (min(before, size) - LOW) for before, size in pairwise(sizes))]
    opened = play(sizes, TARIFF)
    paid = sum(rents) if opened is None else sum(rents[:opened]) + PRICE
    assert paid <= 2 * min(sum(rents), PRICE) + max(rents) + 0.001


@given(sessions, st.floats(0, 1), st.floats(0, 1))
def test_the_dearer_reading_is_the_sooner_an_epoch_opens(sizes: list[int], one: float, other: float) -> None:
    cheap, dear = sorted([one, other])
    late, soon = play(sizes, price_reading(cheap)), play(sizes, price_reading(dear))
    assert late is None or (soon is not None and soon <= late)


@given(
    accounts,
    st.lists(st.integers(SOFT - 2000, 2 * SOFT), min_size=2, max_size=2),
    st.integers(0, 20_000),
    st.none() | st.floats(0, 1e9),
    st.none() | st.integers(0, 10**6),
)
def test_where_none_opens_none_opens_for_less(
    account: Account, sizes: list[int], protected: int, idle: float | None, kept: int | None
) -> None:
    """Of an account in which nothing was in vain: what is decided of the most that may be sent holds for less."""
    account = replace(account, futile=0, base=account.base % HIGH, is_held=False)
    most = replace(see(max(sizes)), protected=protected, idle=idle, kept=kept)
    if most.budget.is_out_of_reach(protected) or decide(account, most).why is not None:
        return
    assert decide(account, replace(most, tokens=min(sizes))).why is None
