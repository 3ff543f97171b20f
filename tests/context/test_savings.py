"""What managing saved, and what going back would cost: worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.cache import UNKNOWN, CacheModel, find_cache_model
from proxy.context.calibration import Calibration
from proxy.context.savings import Quote, Trip, estimate_client_read, estimate_saving, price_saving, quote_revert
from proxy.context.tariff import make_tariff
from proxy.model.card import UNPRICED, Prices, Rates, Tier
from proxy.model.exchange import Usage

TARIFF = make_tariff(UNPRICED, UNKNOWN)
BUDGET = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=32_000))
MARKED = make_tariff(Prices(Rates(3, 15, 0.3, 3.75)), find_cache_model("breakpoints", "", "", ["5m"]))


def test_within_an_epoch_the_reads_of_what_is_gone_are_saved() -> None:
    trip = Trip(client=100_000, sent=20_000, client_read=99_000)
    assert price_saving(trip, Usage(input=20_000, cached=19_000), TARIFF) == pytest.approx(8000)


def test_the_request_that_opens_an_epoch_may_cost_more_than_the_clients_own() -> None:
    trip = Trip(client=30_000, sent=10_000, client_read=29_000)
    assert price_saving(trip, Usage(input=10_000, cached=0), TARIFF) == pytest.approx(3900 - 10_000)


def test_a_tier_that_was_not_reached_is_saved() -> None:
    tiered = make_tariff(Prices(Rates(1, 5, 0.1, 1), (Tier(50_000, Rates(2, 10, 0.2, 2)),)), UNKNOWN)
    trip = Trip(client=100_000, sent=20_000, client_read=100_000)
    assert price_saving(trip, Usage(input=20_000, cached=20_000), tiered) == pytest.approx(20_000 - 2000)
    above = Trip(client=100_000, sent=60_000, client_read=100_000)
    usage = Usage(input=60_000, cached=50_000, written=0)
    assert price_saving(above, usage, tiered) == pytest.approx(20_000 - 10_000 - 20_000)


def test_counts_of_ours_are_put_into_the_upstreams_tokens() -> None:
    trip = Trip(client=100_000, sent=20_000, client_read=99_000)
    assert price_saving(trip, Usage(input=22_000, cached=20_900), TARIFF) == pytest.approx(8800)


def test_what_was_written_is_billed_as_the_upstream_says() -> None:
    trip = Trip(client=100_000, sent=20_000, client_read=99_000)
    client = 9900 + 1250
    for written, billed in ((None, 1250), (1000, 1250), (400, 500 + 600), (0, 1000), (90_000, 1250)):
        usage = Usage(input=20_000, cached=19_000, written=written)
        assert price_saving(trip, usage, MARKED) == pytest.approx(client - 1900 - billed)


def test_reads_below_zero_are_none() -> None:
    usage = Usage(input=20_000, cached=0)
    none, odd = (price_saving(Trip(20_000, 20_000, read), usage, TARIFF) for read in (0, -50))
    assert none == odd == 0


def test_a_count_of_reads_above_the_whole_is_the_whole() -> None:
    trip = Trip(client=20_000, sent=20_000, client_read=30_000)
    assert price_saving(trip, Usage(input=20_000, cached=50_000), TARIFF) == pytest.approx(0)


@pytest.mark.parametrize(
    "usage", [None, Usage(), Usage(input=0, cached=0), Usage(input=-5, cached=0), Usage(input=20_000)]
)
def test_what_the_upstream_did_not_count_has_no_price(usage: Usage | None) -> None:
    assert price_saving(Trip(100_000, 20_000, 99_000), usage, TARIFF) is None


def test_what_nobody_counted_here_has_no_price() -> None:
    usage = Usage(input=20_000, cached=0)
    assert price_saving(Trip(100_000, 20_000, None), usage, TARIFF) is None
    assert price_saving(Trip(100_000, 0, 99_000), usage, TARIFF) is None


def test_reads_that_are_not_reported_may_be_assumed_by_whoever_knows_better() -> None:
    trip = Trip(client=100_000, sent=20_000, client_read=99_000, sent_read=19_000)
    assert price_saving(trip, Usage(input=20_000), TARIFF) == pytest.approx(8000)
    assert price_saving(trip, Usage(input=22_000), TARIFF) == pytest.approx(8800)
    assert price_saving(trip, Usage(input=20_000, cached=0), TARIFF) == pytest.approx(9900 + 1000 - 20_000)


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
    assert quote_revert(10_000, 25_000, BUDGET, local) == Quote(25_000, 0, 25_000, is_lasting=True)


counts = st.integers(-5, 10**7)
maybe = st.none() | counts


@given(st.builds(Trip, st.integers(0, 10**7), counts, maybe, maybe), st.builds(Usage, maybe, maybe, maybe, maybe))
def test_no_count_makes_a_saving_larger_than_the_clients_own_price(trip: Trip, usage: Usage) -> None:
    saving = price_saving(trip, usage, TARIFF)
    assert saving is None or saving <= trip.client * (usage.input or 0) / trip.sent + 1


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_more_the_client_would_have_sent_the_more_is_saved(client: int, sent: int, read: int, more: int) -> None:
    usage = Usage(input=sent, cached=0)
    less = price_saving(Trip(client, sent, min(read, client)), usage, TARIFF)
    greater = price_saving(Trip(client + more, sent, min(read, client)), usage, TARIFF)
    assert less is not None
    assert greater is not None
    assert greater >= less


def test_a_saving_is_estimated_before_anything_was_billed() -> None:
    trip = Trip(client=100_000, sent=20_000, client_read=90_000, sent_read=18_000)
    # 9,000 + 10,000 against 1,800 + 2,000
    assert estimate_saving(trip, TARIFF) == pytest.approx(15_200)
    opened = Trip(client=100_000, sent=20_000, client_read=99_000, sent_read=0)
    assert estimate_saving(opened, TARIFF) == pytest.approx(10_900 - 20_000)


@pytest.mark.parametrize(("client_read", "sent_read"), [(None, 1), (1, None)])
def test_without_what_was_read_there_is_no_estimate(client_read: int | None, sent_read: int | None) -> None:
    assert estimate_saving(Trip(10, 10, client_read, sent_read), TARIFF) is None
