"""Sums over the log in memory; what every store answers is in `listing_contract`."""

from proxy.model.exchange import Usage
from proxy.model.log import Bill, Spent
from proxy.store.listing import find_last, list_bills, make_session, sum_auxiliary
from proxy.store.tables import Tables
from tests.store.samples import make_key, make_opening, make_outcome, make_reading, make_round

SESSION = make_key().id


def make_tables() -> Tables:
    """A client's call, and one of our own behind it."""
    tables = Tables()
    assert tables.add((make_opening("e1"), make_round("e1")))
    assert tables.add((make_opening("a1", kind="auxiliary", model="mini"), make_round("a1"), make_outcome("a1")))
    assert tables.add((make_reading("a1", usage=Usage(input=7)),))
    return tables


def test_the_last_exchange_is_any() -> None:
    assert find_last(make_tables(), SESSION).opening.exchange == "a1"


def test_a_row_keeps_our_own_calls_apart() -> None:
    row = make_session(make_tables(), SESSION)
    assert (row.exchanges, row.input_tokens, row.auxiliary, row.auxiliary_input, row.model) == (1, 0, 1, 7, "gpt-4o")


def test_only_our_own_calls_are_spending() -> None:
    assert sum_auxiliary(make_tables(), 0) == [Spent(SESSION, "openai", "mini", 1, Usage(input=7))]


def test_every_call_has_its_bill() -> None:
    bills = list_bills(make_tables(), 0, 9)
    assert [(bill.seq, bill.kind, bill.usage) for bill in bills] == [
        (1, "managed", Usage()),
        (2, "auxiliary", Usage(input=7)),
    ]
    assert bills[0] == Bill(1, SESSION, "managed", bills[0].opened_ms, "openai", "gpt-4o", Usage())
