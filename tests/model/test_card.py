"""Prices by the size of a request."""

from proxy.model.card import UNPRICED, Card, Prices, Rates, Tier

LOW, MIDDLE, HIGH = (Rates(n, n, n, n) for n in (1.0, 2.0, 3.0))


def test_a_request_pays_the_rates_of_the_highest_tier_it_is_above() -> None:
    prices = Prices(LOW, (Tier(128_000, MIDDLE), Tier(200_000, HIGH)))
    found = [prices.find_rates(tokens) for tokens in (0, 128_000, 128_001, 200_000, 200_001)]
    assert found == [LOW, LOW, MIDDLE, MIDDLE, HIGH]


def test_what_nobody_priced_reads_its_cache_at_a_tenth_and_writes_it_for_nothing_more() -> None:
    rates = Card().prices.find_rates(1)
    assert Card().prices is UNPRICED
    assert (rates.input, rates.cached, rates.written) == (1.0, 0.1, 1.0)


def test_what_is_unknown_is_none_and_has_no_source() -> None:
    card = Card()
    assert (card.window, card.output) == (None, None)
    assert (card.window_source, card.output_source, card.prices_source) == ("", "", "")
