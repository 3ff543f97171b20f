"""What managing saved, and what going back would cost: worked out by hand."""

import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.cache import UNKNOWN, CacheModel
from proxy.context.calibration import Calibration
from proxy.context.savings import RevertPrice, Trip, estimate_client_read, estimate_saving, quote_revert
from proxy.context.tariff import make_tariff
from proxy.model.card import UNPRICED

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
    trip = Trip(client=100_000, sent=20_000, client_read=90_000, sent_read=18_000)
    # 9,000 + 10,000 against 1,800 + 2,000
    assert estimate_saving(trip, TARIFF) == pytest.approx(15_200)
    opened = Trip(client=100_000, sent=20_000, client_read=99_000, sent_read=0)
    assert estimate_saving(opened, TARIFF) == pytest.approx(10_900 - 20_000)


@pytest.mark.parametrize(("client_read", "sent_read"), [(None, 1), (1, None)])
def test_without_what_was_read_there_is_no_estimate(client_read: int | None, sent_read: int | None) -> None:
    assert estimate_saving(Trip(10, 10, client_read, sent_read), TARIFF) is None
