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


def test_a_bust_costs_what_writing_costs_more_than_reading() -> None:
    assert PLAIN.price_cache_bust(10_000) == pytest.approx(9000)
    assert make_tariff(SONNET, MARKED).price_cache_bust(10_000) == pytest.approx(11_500)


def test_only_a_marker_makes_sure_that_the_head_survives() -> None:
    assert make_tariff(SONNET, MARKED).price_cache_bust(10_000, stable=4000) == pytest.approx(6000 * 1.15)
    assert PLAIN.price_cache_bust(10_000, stable=4000) == pytest.approx(9000)


@pytest.mark.parametrize("unit", [0.0, -1.0, nan, inf])
def test_a_model_without_a_price_is_priced_as_the_unpriced(unit: float) -> None:
    free = Prices(Rates(unit, 0.0, 0.0, 0.0))
    assert make_tariff(free, UNKNOWN) == PLAIN


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
