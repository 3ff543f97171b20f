"""Prices of requests in tokens of uncached input: the figures here are worked out by hand."""

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.cache import UNKNOWN, CacheModel, find_cache_model
from proxy.context.calibration import Calibration
from proxy.context.tariff import make_tariff
from proxy.model.card import UNPRICED, Prices, Rates, Tier

PLAIN = make_tariff(UNPRICED, UNKNOWN)
# Dollars per million tokens, long prompts at twice the price.
SONNET = Prices(Rates(3.0, 15.0, 0.3, 3.75), (Tier(200_000, Rates(6.0, 22.5, 0.6, 7.5)),))
MARKED = find_cache_model("breakpoints", "", "", ["5m"])

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
    assert PLAIN.price_bust(10_000) == pytest.approx(9000)
    assert make_tariff(SONNET, MARKED).price_bust(10_000) == pytest.approx(11_500)


def test_only_a_marker_makes_sure_that_the_head_survives() -> None:
    assert make_tariff(SONNET, MARKED).price_bust(10_000, stable=4000) == pytest.approx(6000 * 1.15)
    assert PLAIN.price_bust(10_000, stable=4000) == pytest.approx(9000)


def test_what_survived_before_is_expected_to() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(survival=0.5))
    assert learned.price_bust(10_000, stable=4000) == pytest.approx(0.9 * 8000)
    assert learned.price_rewritten(1000, stable=4000) == pytest.approx(100)  # no more than there is


def test_a_cache_that_seldom_works_makes_a_bust_cheaper() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(read=0.25))
    assert learned.expect_read(10_000) == 2500
    assert learned.price_bust(10_000) == pytest.approx(0.9 * 2500)


def test_keeping_for_an_hour_costs_twice_the_input() -> None:
    hour = find_cache_model("breakpoints", "", "", ["1h"])
    assert make_tariff(SONNET, hour).price(0, 1000) == pytest.approx(2000)
    assert make_tariff(SONNET, hour).price(0, 300_000) == pytest.approx(4 * 300_000)


def test_what_no_cache_takes_is_neither_read_nor_written() -> None:
    tariff = make_tariff(SONNET, find_cache_model("breakpoints", "", ""))
    assert tariff.price(1000, 1000) == pytest.approx(2000)
    assert tariff.price_bust(10_000) == 0


def test_at_home_the_price_is_time() -> None:
    local = CacheModel("local")
    assert make_tariff(SONNET, local).prices == Prices(Rates(1.0, 5.0, 0.0, 1.0))
    assert make_tariff(SONNET, local).price(10_000, 100) == 100
    measured = make_tariff(SONNET, local, Calibration(fresh_seconds=0.001, cached_seconds=0.0002))
    assert measured.price(10_000, 100) == pytest.approx(2100)
    assert measured.price_bust(10_000, stable=1000) == pytest.approx(0.8 * 9000)


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
    assert make_tariff(odd, UNKNOWN).price_bust(1000) == 0


@given(rates, rates, rates, rates, st.floats(-1, 2), st.integers(0, 10**7), st.integers(0, 10**7))
def test_every_price_is_a_number_that_is_not_negative(
    unit: float, output: float, cached: float, written: float, tier: float, read: int, new: int
) -> None:
    prices = Prices(Rates(unit, output, cached, written), (Tier(1000, Rates(tier, output, written, cached)),))
    for cache in (UNKNOWN, MARKED, CacheModel("local"), CacheModel("breakpoints", is_used=False)):
        tariff = make_tariff(prices, cache)
        for price in (tariff.price(read, new), tariff.price_bust(read, new), tariff.price_size(read)):
            assert isfinite(price)
            assert price >= 0
