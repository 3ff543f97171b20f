"""What calls cost."""

import pytest

from proxy.context.cost import Cost, price_usage
from proxy.model.card import Card, Prices, Rates, Tier
from proxy.model.exchange import Usage

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
