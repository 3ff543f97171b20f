from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.epoch_decision import (
    IN_LOOP,
    INEFFECTIVE,
    LATE,
    MUST_STAY,
    NO_ROOM,
    NOTHING_TO_GAIN,
    OUT_OF_REACH,
    REFUSED,
    REVERTED,
    SENT_BEFORE,
    SIDE,
    UNREAD,
    CacheCostAccount,
    Decision,
    Holdout,
    RequestFacts,
    SentTokens,
    decide,
    price_opening,
    record_epoch,
    record_request,
    record_revert,
    record_use,
    restore_account,
)
from proxy.context.pricing import Tariff, make_tariff
from proxy.context.provider_cache import UNKNOWN, CacheModel, Calibration
from proxy.model.card import UNPRICED, Prices, Rates, Tier
from proxy.model.epoch import Epoch, EpochReason
from tests.support.caches import choose_cache

TARIFF = make_tariff(UNPRICED, UNKNOWN)
BUDGET = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=32_000))
LOW_MARK = 9000
# Twice the price above 20,000 tokens.
TIERED = make_tariff(Prices(Rates(1, 5, 0.1, 1), (Tier(20_000, Rates(2, 10, 0.2, 2)),)), UNKNOWN)

sizes = st.lists(st.integers(0, 300_000), max_size=30)


def make_epoch(after: int, why: EpochReason = "soft") -> Epoch:
    return Epoch("e", "s", "m", "", b"", 1, why, "", 0, 30_000, after, b"", ())


def test_the_first_request_owes_nothing() -> None:
    account = record_request(CacheCostAccount(), SentTokens(20_000, at=5.0), TARIFF, LOW_MARK)
    assert account == CacheCostAccount(sent=20_000, sent_at=5.0)


def test_what_was_sent_before_above_the_target_is_owed_at_the_price_of_reading() -> None:
    account = record_request(CacheCostAccount(sent=20_000), SentTokens(21_000), TARIFF, LOW_MARK)
    assert account.owed == pytest.approx(0.1 * 11_000)
    assert account.sent == 21_000
    assert record_request(account, SentTokens(22_000), TARIFF, LOW_MARK).owed == pytest.approx(0.1 * (11_000 + 12_000))


def test_the_target_is_what_the_last_epoch_reached_where_that_is_more() -> None:
    account = record_request(CacheCostAccount(base=15_000, sent=20_000), SentTokens(21_000), TARIFF, LOW_MARK)
    assert account.owed == pytest.approx(0.1 * 5000)


def test_below_the_target_nothing_is_owed() -> None:
    assert record_request(CacheCostAccount(sent=8000), SentTokens(40_000), TARIFF, LOW_MARK).owed == 0


def test_a_miss_is_owed_at_the_price_of_writing_but_for_what_an_epoch_would_have_missed_too() -> None:
    miss = record_request(CacheCostAccount(sent=20_000), SentTokens(21_000, cached=0), TARIFF, LOW_MARK)
    assert miss.owed == pytest.approx(11_000)
    half = record_request(CacheCostAccount(sent=20_000), SentTokens(21_000, cached=12_000), TARIFF, LOW_MARK)
    assert half.owed == pytest.approx(0.1 * 3000 + 8000)


def test_what_the_upstream_did_not_say_is_taken_as_it_usually_is() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(read=0.5))
    account = record_request(CacheCostAccount(sent=20_000), SentTokens(21_000), learned, LOW_MARK)
    assert account.owed == pytest.approx(0.1 * 1000 + 10_000)


def test_what_is_read_was_sent_before_whoever_sent_it() -> None:
    assert record_request(
        CacheCostAccount(), SentTokens(21_000, cached=20_000), TARIFF, LOW_MARK
    ).owed == pytest.approx(0.1 * 11_000)
    assert record_request(
        CacheCostAccount(), SentTokens(21_000, cached=90_000), TARIFF, LOW_MARK
    ).owed == pytest.approx(0.1 * 12_000)
    none, odd = (
        record_request(CacheCostAccount(sent=20_000), SentTokens(21_000, cached=cached), TARIFF, LOW_MARK)
        for cached in (0, -50)
    )
    assert odd == none


def test_what_the_client_changed_was_not_sent_before() -> None:
    account = record_request(CacheCostAccount(sent=20_000), SentTokens(21_000, kept=10_000), TARIFF, LOW_MARK)
    assert account.owed == pytest.approx(0.1 * 1000)


def test_a_tier_that_an_epoch_would_have_stayed_below_is_owed_whole() -> None:
    account = record_request(CacheCostAccount(sent=21_000), SentTokens(22_000), TIERED, LOW_MARK)
    assert account.owed == pytest.approx((0.2 * 21_000 + 2 * 1000) - (0.1 * LOW_MARK + 1000))


def test_at_home_reading_costs_no_time_and_nothing_is_owed() -> None:
    local = make_tariff(UNPRICED, CacheModel("local"))
    assert record_request(CacheCostAccount(sent=20_000), SentTokens(21_000), local, LOW_MARK).owed == 0


def test_a_request_that_was_not_counted_keeps_the_cache_warm() -> None:
    account = CacheCostAccount(base=1, owed=2.0, sent=3, sent_at=4.0)
    assert record_use(account, 9.0) == CacheCostAccount(base=1, owed=2.0, sent=3, sent_at=9.0)
    assert record_request(account, SentTokens(3), TARIFF, LOW_MARK).sent_at == 4.0


def test_idle_is_since_the_last_request_and_never_negative() -> None:
    assert CacheCostAccount().compute_idle(100.0) is None
    assert [CacheCostAccount(sent_at=40.0).compute_idle(now) for now in (100.0, 30.0)] == [60.0, 0.0]


def test_an_epoch_will_leave_as_much_as_the_last_one() -> None:
    assert [CacheCostAccount(base).find_target(9000) for base in (0, 8000, 12_000)] == [9000, 8000, 12_000]


def test_an_epoch_settles_the_account() -> None:
    account = CacheCostAccount(
        base=5, owed=99.0, ineffective=1, missed_mark=9312, is_reverted=True, sent=30_000, sent_at=7.0
    )
    assert record_epoch(account, 30_000, 8000, 0, BUDGET) == CacheCostAccount(base=8000, sent_at=7.0)


# 0.85 of what is usable is 26,384; a margin of 3 % more is forgiven. The low mark is 9312.
@pytest.mark.parametrize(("after", "ineffective", "missed_mark"), [(9313, 0, 0), (27_175, 0, 0), (27_176, 2, 9312)])
def test_an_epoch_is_futile_that_leaves_no_room_to_go_on(after: int, ineffective: int, missed_mark: int) -> None:
    account = record_epoch(CacheCostAccount(ineffective=1), 40_000, after, 0, BUDGET)
    assert (account.ineffective, account.missed_mark) == (ineffective, missed_mark)


def test_an_epoch_under_a_ceiling_out_of_reach_is_remembered_as_such() -> None:
    assert record_epoch(CacheCostAccount(), 31_000, 26_000, 21_727, BUDGET) == CacheCostAccount(26_000)
    assert record_epoch(CacheCostAccount(), 31_000, 26_000, 21_729, BUDGET) == CacheCostAccount(
        26_000, missed_mark=26_384
    )


def test_a_revert_holds_and_begins_anew() -> None:
    account = record_revert(CacheCostAccount(base=8000, owed=50.0, ineffective=2, sent=9000, sent_at=7.0), 25_000)
    assert account == CacheCostAccount(base=25_000, is_reverted=True, sent_at=7.0)


def test_an_account_is_restored_from_its_epochs() -> None:
    assert restore_account([], 7.0, BUDGET) == CacheCostAccount(owed=7.0)
    found = restore_account([make_epoch(8000), make_epoch(12_000)], 7.0, BUDGET)
    assert found == CacheCostAccount(base=12_000, owed=7.0, sent=12_000)
    held = restore_account([make_epoch(8000), make_epoch(25_000, "revert")], 0.0, BUDGET)
    assert held == CacheCostAccount(base=25_000, is_reverted=True, sent=25_000)
    assert not restore_account([make_epoch(25_000, "revert"), make_epoch(8000, "hard")], 0.0, BUDGET).is_reverted


def test_an_epoch_that_only_takes_reasoning_changes_no_account() -> None:
    epochs = [make_epoch(8000), make_epoch(25_000, "unsigned")]
    assert restore_account(epochs, 7.0, BUDGET) == restore_account(epochs[:1], 7.0, BUDGET)


def test_of_restored_epochs_those_are_futile_that_are_above_any_low_mark() -> None:
    highest = BUDGET.compute_low_mark(BUDGET.usable)
    epochs = [make_epoch(highest + 2000), make_epoch(highest + 2000)]
    assert restore_account(epochs, 0.0, BUDGET).ineffective == 2
    assert restore_account([*epochs, make_epoch(highest)], 0.0, BUDGET).ineffective == 0


def test_an_epoch_is_futile_that_frees_hardly_anything() -> None:
    """Of 31,040 usable tokens a tenth; a margin of 3 % of what is left is forgiven."""
    tenth = BUDGET.usable // 10
    assert record_epoch(CacheCostAccount(), 20_000 + tenth, 20_000, 0, BUDGET).ineffective == 0
    assert record_epoch(CacheCostAccount(), 20_000 + tenth, 20_602, 0, BUDGET).ineffective == 1
    epochs = [msgspec.structs.replace(make_epoch(20_000), tokens_before=before) for before in (23_000, 22_000)]
    assert restore_account(epochs, 0.0, BUDGET).ineffective == 1
    assert restore_account(epochs[:1], 0.0, BUDGET).ineffective == 0


def test_two_futile_epochs_make_the_next_go_deeper() -> None:
    assert [CacheCostAccount(ineffective=ineffective).depth for ineffective in range(6)] == [0, 0, 1, 1, 2, 2]


@given(sizes, st.integers(0, 50_000))
def test_what_is_owed_only_grows(seen: list[int], low: int) -> None:
    account = CacheCostAccount()
    for size in seen:
        after = record_request(account, SentTokens(size), TIERED, low)
        assert after.owed >= account.owed
        account = after


SOFT, HIGH, LOW = BUDGET.soft, BUDGET.high, BUDGET.compute_low_mark(0)
SHORT_LIVED = make_tariff(UNPRICED, CacheModel(retention=300.0))
PRICE = 0.9 * LOW
RICH = CacheCostAccount(owed=1e9)
POOR = CacheCostAccount(sent=20_000)

sessions = st.lists(st.integers(SOFT, HIGH - 1), min_size=1, max_size=60)
accounts = st.builds(
    CacheCostAccount,
    st.integers(0, 50_000),
    st.floats(0, 1e9),
    st.integers(0, 3),
    st.just(LOW),
    st.booleans(),
    st.integers(0),
)


def see(tokens: int, tariff: Tariff = TARIFF) -> RequestFacts:
    return RequestFacts(tokens, BUDGET, tariff)


def price_reading(cached: float) -> Tariff:
    return make_tariff(Prices(Rates(1, 5, cached, 1), (Tier(25_000, Rates(2, 10, 2 * cached, 2)),)), UNKNOWN)


def play(sizes: list[int], tariff: Tariff) -> int | None:
    """The place of the request before which an epoch opens."""
    account = CacheCostAccount()
    for place, size in enumerate(sizes):
        if decide(account, see(size, tariff)).why:
            return place
        account = record_request(account, SentTokens(size), tariff, LOW)
    return None


@given(st.lists(st.integers(0, HIGH - 1), max_size=60).map(sorted))
@example([20_000] * 30)
def test_as_many_calls_again_as_there_were_pay_for_an_epoch_of_a_session_that_grows(sizes: list[int]) -> None:
    """So a forecast by Lindy's law delays none."""
    place = play(sizes, TARIFF)
    if place is not None:
        assert place * 0.1 * (sizes[place - 1] - LOW) >= PRICE * (1 - 1e-9)


def test_below_the_soft_mark_none_opens() -> None:
    assert decide(RICH, see(SOFT - 1)) == Decision(None, "none", f"{SOFT - 1} tokens are below the soft mark of {SOFT}")
    assert decide(RICH, see(SOFT)) == Decision("soft", "soft")


def test_at_the_high_mark_one_opens_whatever_it_costs() -> None:
    assert decide(POOR, see(HIGH - 1)).why is None
    assert decide(POOR, see(HIGH)) == Decision("hard", "hard")
    assert decide(CacheCostAccount(base=HIGH), see(HIGH)).why == "hard"


def test_between_the_marks_one_opens_once_it_pays() -> None:
    assert price_opening(POOR, see(20_000)) == pytest.approx(PRICE)
    short = decide(replace(POOR, owed=PRICE - 1), see(20_000))
    assert short == Decision(None, "soft", "not rewritten yet: 8,380 of 8,381 tokens' worth")
    assert decide(replace(POOR, owed=PRICE + 1), see(20_000)).why == "soft"


def test_a_rewrite_is_priced_at_what_the_last_one_reached() -> None:
    account = CacheCostAccount(base=18_000, owed=PRICE + 1)
    assert price_opening(account, see(20_000)) == pytest.approx(0.9 * 18_000)
    assert decide(account, see(20_000)).why is None


def test_an_epoch_whose_plan_is_known_is_priced_by_what_it_leaves() -> None:
    facts = replace(see(20_000), planned=16_000)
    price = 0.9 * 16_000
    assert price_opening(POOR, facts) == pytest.approx(price)
    # The excess reads were counted above LOW; of this request's the plan saves the part above what it leaves.
    saved = (20_000 - 16_000) / (20_000 - LOW)
    assert decide(replace(POOR, owed=price / saved - 1), facts).why is None
    assert decide(replace(POOR, owed=price / saved + 1), facts).why == "soft"
    shorter = replace(see(20_000), planned=LOW - 1000)
    assert decide(replace(POOR, owed=0.9 * (LOW - 1000) + 1), shorter).why == "soft"


def test_a_plan_that_leaves_no_less_opens_no_epoch() -> None:
    """A call was folded into a ledger of its size: 10,159 tokens became 10,051, at a price of 778 saved by nothing."""
    rich = replace(POOR, owed=1e9)
    for tokens, planned, why in ((20_000, 20_000, None), (20_000, 19_999, "soft"), (HIGH, HIGH, "hard")):
        assert decide(rich, replace(see(tokens), planned=planned)).why == why
    assert decide(rich, replace(see(20_000), planned=20_000)).reason == NOTHING_TO_GAIN
    small = replace(see(20_159), planned=20_051)
    assert decide(replace(POOR, owed=2 * PRICE), small).why is None


def test_a_broken_prefix_is_no_reason_for_a_plan_that_does_not_pay() -> None:
    broken = replace(see(20_000), kept=9_000)
    account = replace(POOR, sent=19_500)
    assert decide(account, broken).why == "client"
    assert decide(account, replace(broken, planned=19_000)).why is None


def test_writing_at_a_higher_price_waits_longer_and_a_marker_that_survives_less_long() -> None:
    prices = Prices(Rates(1, 5, 0.1, 1.25))
    marked = make_tariff(prices, choose_cache("breakpoints", "", "", ["5m"]))
    assert price_opening(POOR, see(20_000, marked)) == pytest.approx(1.15 * LOW)
    facts = replace(see(20_000, marked), stable=4000)
    assert price_opening(POOR, facts) == pytest.approx(1.15 * (LOW - 4000))


def test_without_a_cache_a_rewrite_pays_at_once() -> None:
    uncached = make_tariff(UNPRICED, choose_cache("breakpoints", "", ""))
    assert decide(POOR, see(SOFT, uncached)).why == "soft"


@pytest.mark.parametrize("owed", [0.0, 1e9])
def test_where_an_epoch_would_leave_no_less_none_opens(owed: float) -> None:
    account = CacheCostAccount(base=20_000, owed=owed)
    assert decide(account, see(20_000)).reason == NOTHING_TO_GAIN
    assert decide(account, replace(see(20_001, SHORT_LIVED), idle=1e6)).why == "cold"


def test_what_an_epoch_loses_of_bound_reasoning_is_part_of_its_price() -> None:
    facts = replace(see(20_000), lost=500.0)
    assert price_opening(POOR, facts) == pytest.approx(PRICE + 500)
    assert decide(replace(POOR, owed=PRICE + 499), facts).why is None
    assert decide(replace(POOR, owed=PRICE + 501), facts).why == "soft"
    assert decide(POOR, replace(facts, tokens=HIGH)).why == "hard"


def test_where_the_rest_is_free_only_the_reasoning_has_a_price() -> None:
    # The request costs 20,000, an epoch the low mark: 9312.
    for free in (replace(see(20_000, SHORT_LIVED), idle=1e6), replace(see(20_000), kept=0)):
        assert [decide(POOR, replace(free, lost=lost)).why for lost in (10_688.0, 10_689.0)] == [
            "cold" if free.idle else "client",
            None,
        ]
        assert decide(replace(POOR, owed=1.0), replace(free, lost=10_689.0)).why is not None


def test_within_a_turn_one_that_loses_reasoning_waits_for_the_high_mark() -> None:
    facts = replace(see(20_000), is_in_loop=True)
    assert decide(RICH, facts) == Decision(None, "soft", IN_LOOP)
    assert decide(RICH, replace(facts, idle=1e6, kept=0)).reason == IN_LOOP
    assert decide(POOR, replace(facts, tokens=HIGH)).why == "hard"
    assert decide(RICH, replace(facts, is_side=True)).reason == SIDE


def test_one_after_which_the_turn_would_be_refused_waits_for_its_end() -> None:
    facts = replace(see(20_000), is_in_loop=True, needs_thinking=True)
    assert decide(POOR, replace(facts, tokens=HIGH)) == Decision(None, "hard", IN_LOOP)
    assert decide(POOR, replace(facts, tokens=HIGH, is_in_loop=False)).why == "hard"
    assert decide(POOR, replace(facts, is_overflowed=True)).why == "overflow"


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
    assert decide(CacheCostAccount(), replace(see(20_000), kept=0)).why is None  # nothing had been sent


def test_a_side_request_opens_none() -> None:
    for tokens in (20_000, HIGH):
        decision = decide(RICH, replace(see(tokens), is_side=True))
        assert (decision.why, decision.reason) == (None, SIDE)


def test_a_revert_holds_until_the_high_mark() -> None:
    held = replace(RICH, is_reverted=True)
    for facts in (see(HIGH - 1), replace(see(20_000, SHORT_LIVED), idle=1e6), replace(see(20_000), kept=0)):
        assert decide(held, facts).reason == REVERTED
    assert decide(held, see(HIGH)).why == "hard"


def test_two_futile_epochs_stop_it_below_the_ceiling_until_less_must_stay() -> None:
    once = record_epoch(RICH, HIGH, HIGH, 20_000, BUDGET)
    account = record_epoch(once, HIGH, HIGH, 20_000, BUDGET)
    missed_mark = replace(account, owed=1e9, base=9000)
    assert decide(missed_mark, replace(see(HIGH - 1), protected=20_000)).reason == INEFFECTIVE
    fallen = int(20_000 - 0.1 * BUDGET.usable)
    assert decide(missed_mark, replace(see(HIGH - 1), protected=fallen + 2)).reason == INEFFECTIVE
    assert decide(missed_mark, replace(see(HIGH - 1), protected=fallen - 2)).why == "soft"
    assert decide(replace(once, owed=1e9, base=9000), replace(see(HIGH - 1), protected=20_000)).why == "soft"


def test_under_a_ceiling_out_of_reach_none_opens_below_it_until_that_changes() -> None:
    facts = replace(see(HIGH - 1), protected=22_000)
    tried = replace(record_epoch(POOR, HIGH, 22_000, 22_000, BUDGET), owed=1e9, base=9000)
    assert decide(tried, facts).reason == OUT_OF_REACH
    assert decide(tried, replace(facts, protected=21_000)).why == "soft"
    assert decide(replace(tried, missed_mark=0), facts).why == "soft"


@given(accounts, st.integers(0, 100_000), st.integers(HIGH, 10**6))
def test_at_the_high_mark_one_opens_whatever_was_in_vain(
    account: CacheCostAccount, protected: int, tokens: int
) -> None:
    assert decide(account, replace(see(tokens), protected=protected)) == Decision("hard", "hard")


def test_a_request_whose_answer_fills_the_window_has_nothing_to_manage() -> None:
    full = make_budget(32_768, 32_768, 32_768, BudgetPolicy())
    assert decide(RICH, RequestFacts(100_000, full, TARIFF)) == Decision(None, "none", NO_ROOM)


@given(accounts, st.integers(0, SOFT - 1), st.none() | st.floats(0, 1e9), st.none() | st.integers(0, 10**6))
def test_never_one_below_the_soft_mark(
    account: CacheCostAccount, tokens: int, idle: float | None, kept: int | None
) -> None:
    for tariff in (TARIFF, SHORT_LIVED, price_reading(1.0)):
        assert decide(account, RequestFacts(tokens, BUDGET, tariff, idle=idle, kept=kept)).why is None


@given(accounts, st.integers(0, 100_000), st.integers(0, 100_000), st.booleans())
def test_either_one_opens_or_there_is_a_reason(
    account: CacheCostAccount, tokens: int, protected: int, is_side: bool
) -> None:
    decision = decide(account, RequestFacts(tokens, BUDGET, TARIFF, protected=protected, is_side=is_side))
    assert bool(decision.why) != bool(decision.reason)


@pytest.mark.parametrize(
    ("change", "below", "above"),
    [
        ({"unread": UNREAD}, UNREAD, ""),
        ({"unread": LATE, "may_be_holdout": True}, LATE, LATE),
        ({"may_be_holdout": True}, "", ""),
        ({"is_repeat": True}, SENT_BEFORE, SENT_BEFORE),
        ({"is_retry": True}, SENT_BEFORE, ""),
        ({"is_refused": True}, REFUSED, REFUSED),
        ({"unshortened": SOFT}, MUST_STAY, ""),
        ({"unshortened": SOFT + 1}, "", ""),
        ({"unshortened": int(SOFT / 1.06)}, "", ""),
        ({"unshortened": HIGH, "is_unshortened": True}, "", MUST_STAY),
    ],
)
def test_obstacles_hold_below_the_ceiling_and_fewer_of_them_above_it(
    change: dict[str, Any], below: str, above: str
) -> None:
    for tokens, why, reason in ((SOFT, "soft", below), (HIGH, "hard", above)):
        decision = decide(RICH, replace(see(tokens), **change))
        assert (decision.why, decision.reason) == ((None, reason) if reason else (why, ""))
    assert decide(RICH, replace(see(SOFT - 1), **change)).pressure == "none"


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
    st.none() | st.integers(0, 2 * SOFT),
)
def test_where_none_opens_none_opens_for_less(
    account: CacheCostAccount,
    sizes: list[int],
    protected: int,
    idle: float | None,
    kept: int | None,
    planned: int | None,
) -> None:
    """Of an account in which nothing was in vain: what is decided of the most that may be sent holds for less."""
    account = replace(account, ineffective=0, base=account.base % HIGH, is_reverted=False)
    most = replace(see(max(sizes)), protected=protected, idle=idle, kept=kept, planned=planned)
    if most.budget.is_ceiling_unreachable(protected) or decide(account, most).why is not None:
        return
    assert decide(account, replace(most, tokens=min(sizes))).why is None


SESSIONS = [f"session-{number}" for number in range(4000)]
fractions = st.floats(0, 1)


def choose(fraction: float, secret: bytes = b"secret") -> set[str]:
    holdout = Holdout(fraction, secret)
    return {session for session in SESSIONS if holdout.has(session)}


def test_without_a_share_there_are_none_and_with_all_of_it_every_session_is_one() -> None:
    assert not any(map(Holdout().has, SESSIONS))
    assert choose(0.0) == set()
    assert choose(1.0) == set(SESSIONS)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_so_many_are_as_were_asked_for(fraction: float) -> None:
    assert len(choose(fraction)) / len(SESSIONS) == pytest.approx(fraction, abs=0.03)


@given(st.text(), st.binary(), fractions, fractions)
def test_who_is_one_stays_one_when_there_are_to_be_more(session: str, secret: bytes, one: float, other: float) -> None:
    few, many = sorted((one, other))
    assert Holdout(many, secret).has(session) or not Holdout(few, secret).has(session)


def test_it_is_the_same_wherever_it_is_asked_and_another_under_another_key() -> None:
    assert choose(0.2) == choose(0.2)
    odd = [name for name in map(chr, range(0xD800, 0xD840)) if Holdout(0.5, b"secret").has(name)]
    assert 0 < len(odd) < 64
    both = choose(0.2) & choose(0.2, b"other")
    assert len(both) / len(SESSIONS) == pytest.approx(0.04, abs=0.02)


def test_who_is_one_does_not_hang_on_the_release() -> None:
    found = [int(session[8:]) for session in SESSIONS[:40] if Holdout(0.1, b"secret").has(session)]
    assert found == [3, 12, 19, 27, 29]


TOO_LONG = RequestFacts(1_000, BUDGET, TARIFF, is_overflowed=True)


@pytest.mark.parametrize(
    ("changes", "why", "reason"),
    [
        ({}, "overflow", ""),  # whatever its size
        ({"tokens": 100_000}, "overflow", ""),
        ({"is_retry": True, "is_repeat": True}, "overflow", ""),  # the same history was too long before
        ({"is_unshortened": True, "unshortened": 1_000}, "overflow", ""),
        ({"unread": UNREAD}, "overflow", ""),
        ({"unread": UNREAD, "may_be_holdout": True}, None, UNREAD),
        ({"is_refused": True}, None, REFUSED),
        ({"tokens": 20_000, "is_side": True}, None, SIDE),
    ],
)
def test_after_a_request_that_was_too_long_an_epoch_opens(
    changes: dict[str, Any], why: str | None, reason: str
) -> None:
    decision = decide(CacheCostAccount(), replace(TOO_LONG, **changes))
    assert (decision.why, decision.reason) == (why, reason)
