import random
from math import exp, inf, isfinite, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.cache_misses import CacheUse
from proxy.context.pricing import (
    MIN_SESSIONS,
    MINUS,
    Cost,
    RequestSizes,
    RevertPrice,
    compare,
    estimate_client_read,
    estimate_saving,
    format_money,
    make_tariff,
    price_missed,
    price_usage,
    quote_revert,
)
from proxy.context.provider_cache import UNKNOWN, CacheModel, Calibration
from proxy.model.card import UNPRICED, Card, Prices, Rates, Tier
from proxy.model.exchange import Usage
from tests.support.caches import choose_cache

PLAIN = make_tariff(UNPRICED, UNKNOWN)
# Dollars per million tokens, long prompts at twice the price.
SONNET = Prices(Rates(3.0, 15.0, 0.3, 3.75), (Tier(200_000, Rates(6.0, 22.5, 0.6, 7.5)),))
MARKED = choose_cache("breakpoints", "", "", ["5m"])

rates = st.floats(allow_nan=True, allow_infinity=True)


def test_a_price_counts_tokens_of_uncached_input() -> None:
    tariff = make_tariff(SONNET, MARKED)
    assert tariff.price(10_000, 0) == pytest.approx(1000)
    assert tariff.price(10_000, 1000) == pytest.approx(2250)


def test_above_a_tier_the_whole_request_costs_its_price() -> None:
    tariff = make_tariff(SONNET, MARKED)
    assert tariff.price(199_000, 1000) == pytest.approx(19_900 + 1250)
    assert tariff.price(199_000, 1001) == pytest.approx(2 * (19_900 + 1251.25))


def test_a_bust_costs_what_writing_costs_more_than_reading() -> None:
    assert PLAIN.price_cache_bust(10_000) == pytest.approx(9000)
    assert make_tariff(SONNET, MARKED).price_cache_bust(10_000) == pytest.approx(11_500)


def test_only_a_marker_makes_sure_that_the_head_survives() -> None:
    assert make_tariff(SONNET, MARKED).price_cache_bust(10_000, stable=4000) == pytest.approx(6000 * 1.15)
    assert PLAIN.price_cache_bust(10_000, stable=4000) == pytest.approx(9000)


def test_what_survived_before_is_expected_to() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(survival=0.5))
    assert learned.price_cache_bust(10_000, stable=4000) == pytest.approx(0.9 * 8000)
    assert learned.price_rewritten(1000, stable=4000) == pytest.approx(100)  # no more than there is


def test_a_cache_that_seldom_works_makes_a_bust_cheaper() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(read=0.25))
    assert learned.estimate_cached(10_000) == 2500
    assert learned.price_cache_bust(10_000) == pytest.approx(0.9 * 2500)


def test_keeping_for_an_hour_costs_twice_the_input() -> None:
    hour = choose_cache("breakpoints", "", "", ["1h"])
    assert make_tariff(SONNET, hour).price(0, 1000) == pytest.approx(2000)
    assert make_tariff(SONNET, hour).price(0, 300_000) == pytest.approx(4 * 300_000)


def test_what_no_cache_takes_is_neither_read_nor_written() -> None:
    tariff = make_tariff(SONNET, choose_cache("breakpoints", "", ""))
    assert tariff.price(1000, 1000) == pytest.approx(2000)
    assert tariff.price_cache_bust(10_000) == 0


def test_at_home_the_price_is_time() -> None:
    local = CacheModel("local")
    assert make_tariff(SONNET, local).prices == Prices(Rates(1.0, 5.0, 0.0, 1.0))
    assert make_tariff(SONNET, local).price(10_000, 100) == 100
    measured = make_tariff(SONNET, local, Calibration(fresh_seconds=0.001, cached_seconds=0.0002))
    assert measured.price(10_000, 100) == pytest.approx(2100)
    assert measured.price_cache_bust(10_000, stable=1000) == pytest.approx(0.8 * 9000)


@pytest.mark.parametrize("unit", [0.0, -1.0, nan, inf])
def test_a_model_without_a_price_is_priced_as_the_unpriced(unit: float) -> None:
    free = Prices(Rates(unit, 0.0, 0.0, 0.0))
    assert make_tariff(free, UNKNOWN) == PLAIN


def test_prices_that_nobody_can_mean_stay_numbers() -> None:
    odd = Prices(Rates(1e-300, 1e300, nan, 1e-200))
    assert make_tariff(odd, UNKNOWN).prices.rates == Rates(1.0, 1.0, 1.0, 1e6)
    tiered = Prices(UNPRICED.rates, (Tier(1000, Rates(nan, nan, 0.1, nan)),))
    assert make_tariff(tiered, UNKNOWN).prices.tiers == (Tier(1000, Rates(1.0, 1.0, 0.1, 1.0)),)


def test_reading_that_costs_more_than_writing_makes_no_bust_negative() -> None:
    odd = Prices(Rates(1.0, 1.0, 2.0, 1.0))
    assert make_tariff(odd, UNKNOWN).price_cache_bust(1000) == 0


@given(rates, rates, rates, rates, st.floats(-1, 2), st.integers(0, 10**7), st.integers(0, 10**7))
def test_every_price_is_a_number_that_is_not_negative(
    unit: float, output: float, cached: float, written: float, tier: float, read: int, new: int
) -> None:
    prices = Prices(Rates(unit, output, cached, written), (Tier(1000, Rates(tier, output, written, cached)),))
    for cache in (UNKNOWN, MARKED, CacheModel("local"), CacheModel("breakpoints", is_used=False)):
        tariff = make_tariff(prices, cache)
        for price in (tariff.price(read, new), tariff.price_cache_bust(read, new), tariff.price_repeated(read)):
            assert isfinite(price)
            assert price >= 0


RATES = Rates(input=2.0, output=10.0, cached=0.5, written=3.0)


PRICED = Card(prices=Prices(RATES), prices_source="settings")


def test_each_kind_of_token_has_its_price() -> None:
    cost = price_usage(Usage(input=100, output=10, cached=60, written=20), PRICED)
    assert cost == Cost(tokens=20 + 60 * 0.25 + 20 * 1.5 + 10 * 5, money=20 * 2.0 + 60 * 0.5 + 20 * 3.0 + 10 * 10.0)


def test_without_prices_there_is_no_money() -> None:
    assert price_usage(Usage(100, 10, 50), Card()) == Cost(50 + 5 + 50, None)


def test_what_is_free_costs_tokens_all_the_same() -> None:
    free = Card(prices=Prices(Rates(0.0, 0.0, 0.0, 0.0)), prices_source="settings")
    assert price_usage(Usage(100, 10), free) == Cost(150.0, 0.0)


def test_large_requests_have_prices_of_their_own() -> None:
    tiered = Card(prices=Prices(RATES, (Tier(99, Rates(4.0, 20.0, 1.0, 6.0)),)), prices_source="bundled")
    assert price_usage(Usage(100), tiered) == Cost(200.0, 400.0)
    assert price_usage(Usage(99), tiered) == Cost(99.0, 198.0)


def test_what_was_not_counted_costs_nothing() -> None:
    assert price_usage(Usage(), PRICED) == Cost(0.0, 0.0)
    assert price_usage(Usage(input=5, cached=9), PRICED).tokens == 9 * 0.25


@pytest.mark.parametrize("other", [Cost(1.0, None), Cost(1.0, 2.0)])
def test_money_is_known_of_a_sum_where_it_is_of_all(other: Cost) -> None:
    whole = Cost(2.0, 3.0)
    assert whole + other == Cost(3.0, None if other.money is None else 5.0)
    assert whole - other == Cost(1.0, None if other.money is None else 1.0)


@pytest.mark.parametrize(
    ("part", "whole", "is_more"),
    [
        (Cost(5.0, 9.0), Cost(100.0, 100.0), False),
        (Cost(50.0, 10.0), Cost(100.0, 100.0), False),
        (Cost(5.0, 10.1), Cost(100.0, 100.0), True),
        (Cost(10.0, None), Cost(100.0, 1.0), False),
        (Cost(10.1, 0.0), Cost(100.0, None), True),
        (Cost(10.1, 0.0), Cost(100.0, 0.0), True),
        (Cost(), Cost(), False),
        (Cost(1.0), Cost(), True),
    ],
)
def test_shares_are_compared_in_money_where_that_is_known(part: Cost, whole: Cost, is_more: bool) -> None:
    assert part.exceeds(0.1, whole) is is_more


TARIFF = make_tariff(UNPRICED, UNKNOWN)
BUDGET = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=32_000))


def test_the_clients_own_request_reads_what_it_sent_before_unless_the_cache_is_cold() -> None:
    tariff = make_tariff(UNPRICED, CacheModel(retention=300.0), Calibration(read=0.5))
    assert [estimate_client_read(tariff, 10_000, idle) for idle in (None, 10.0, 1000.0)] == [5000, 5000, 0]


def test_a_revert_is_quoted_as_a_whole_rewrite_and_the_reads_from_then_on() -> None:
    quote = quote_revert(10_000, 25_000, BUDGET, TARIFF)
    assert (quote.tokens, quote.is_lasting) == (25_000, True)
    assert quote.once == pytest.approx(25_000 - 1000)
    assert quote.each == pytest.approx(2500 - 1000)


def test_a_revert_to_the_high_mark_does_not_last() -> None:
    lasting = [quote_revert(10_000, tokens, BUDGET, TARIFF).is_lasting for tokens in (BUDGET.high - 1, BUDGET.high)]
    assert lasting == [True, False]


def test_a_revert_at_home_is_quoted_in_prefill() -> None:
    local = make_tariff(UNPRICED, CacheModel("local"))
    assert quote_revert(10_000, 25_000, BUDGET, local) == RevertPrice(25_000, 0, 25_000, is_lasting=True)


def test_a_saving_is_estimated_before_anything_was_billed() -> None:
    trip = RequestSizes(client=100_000, sent=20_000, client_read=90_000, sent_read=18_000)
    # 9,000 + 10,000 against 1,800 + 2,000
    assert estimate_saving(trip, TARIFF) == pytest.approx(15_200)
    opened = RequestSizes(client=100_000, sent=20_000, client_read=99_000, sent_read=0)
    assert estimate_saving(opened, TARIFF) == pytest.approx(10_900 - 20_000)


@pytest.mark.parametrize(("client_read", "sent_read"), [(None, 1), (1, None)])
def test_without_what_was_read_there_is_no_estimate(client_read: int | None, sent_read: int | None) -> None:
    assert estimate_saving(RequestSizes(10, 10, client_read, sent_read), TARIFF) is None


costs = st.lists(st.floats(0.01, 100), min_size=MIN_SESSIONS, max_size=60)


def spread(mean: float, count: int = MIN_SESSIONS, by: float = 0.5) -> list[float]:
    """As many below the mean as above it."""
    return [mean * (1 + by * (-1) ** number) for number in range(count)]


def test_a_saving_has_its_interval() -> None:
    found = compare(spread(0.6), spread(1.0))
    assert found is not None
    assert found.saving == pytest.approx(0.4)
    # each arm: s² = 0.25·m²·20/19, so s²/(n·m²) = 0.25/19; both together 0.5/19, with 38 degrees of freedom
    half = 2.0244 * (0.5 / 19) ** 0.5
    assert found.low == pytest.approx(1 - 0.6 * exp(half), abs=1e-4)
    assert found.high == pytest.approx(1 - 0.6 * exp(-half), abs=1e-4)


def test_what_costs_more_is_told_as_such() -> None:
    found = compare(spread(1.5), spread(1.0))
    assert found is not None
    assert found.saving == pytest.approx(-0.5)


def test_sessions_that_are_all_alike_leave_no_doubt() -> None:
    found = compare([0.5] * 30, [1.0] * 20)
    assert found is not None
    assert (found.saving, found.low, found.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("treated", "untreated"), [(19, 500), (500, 19), (0, 0)])
def test_of_too_few_nothing_is_told(treated: int, untreated: int) -> None:
    assert compare(spread(0.6, treated), spread(1.0, untreated)) is None


@pytest.mark.parametrize(("treated", "untreated"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_what_costs_nothing_has_no_ratio(treated: float, untreated: float) -> None:
    assert compare([treated] * 30, [untreated] * 30) is None


def test_the_smaller_arm_says_how_sure_it_is() -> None:
    widths = []
    for treated, untreated in ((2000, 20), (20, 20), (2000, 2000)):
        found = compare(spread(0.6, treated), spread(1.0, untreated))
        assert found is not None
        widths.append(log((1 - found.low) / (1 - found.high)))
    assert widths[1] > widths[0] > widths[2]
    # one arm of 19 degrees alone: Student's quantile is 2.093
    assert widths[0] == pytest.approx(2 * 2.093 * (0.25 / 19 + 0.25 / 1999) ** 0.5, rel=0.003)


@given(costs, costs)
def test_the_saving_is_within_its_interval_and_never_all(treated: list[float], untreated: list[float]) -> None:
    found = compare(treated, untreated)
    assert found is not None
    assert found.low <= found.saving <= found.high < 1


def test_about_as_many_intervals_hold_as_are_said_to() -> None:
    chance = random.Random(5)
    held = 0
    for _ in range(600):
        treated, untreated = ([chance.lognormvariate(0, 0.6) for _ in range(count)] for count in (100, 20))
        found = compare([0.7 * cost for cost in treated], untreated)
        assert found is not None
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 600 <= 0.97


def test_where_no_price_is_stated_a_call_costs_what_the_tariff_of_its_cache_says() -> None:
    """The generation's own read and write prices count for the report as they do for the decision."""
    cache = CacheModel(kind="openai-breakpoints", read=0.1, write=1.25)
    tariff = make_tariff(UNPRICED, cache)
    usage = Usage(1000, 0, 600, 400)
    assert price_usage(usage, Card(), cache).tokens == pytest.approx(tariff.price(600, 400)) == pytest.approx(560)
    assert price_usage(usage, Card()).tokens != pytest.approx(560)
    missed = price_missed(CacheUse("read", missed=600), Usage(1000, 0, 0, 1000), Card(), cache)
    assert missed.tokens == pytest.approx(tariff.price(0, 1000) - tariff.price(600, 400))


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "no price"),
        (0.0, "$0.00"),
        (1.234, "$1.23"),
        (1234.5, "$1,234.50"),
        (-0.04, f"{MINUS}$0.04"),
        (0.0031, "$0.0031"),
        (-0.00001, f"{MINUS}<$0.0001"),
    ],
)
def test_money(amount: float | None, text: str) -> None:
    assert format_money(amount) == text
