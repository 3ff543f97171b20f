"""Accounts: what is owed for sending more than an epoch would have left."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.account import (
    Account,
    Sent,
    note_epoch,
    note_revert,
    note_sent,
    note_use,
    restore_account,
)
from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.cache import UNKNOWN, CacheModel
from proxy.context.calibration import Calibration
from proxy.context.tariff import make_tariff
from proxy.context.view import Seen
from proxy.model.card import UNPRICED, Prices, Rates, Tier
from proxy.model.epoch import Epoch, Why
from proxy.model.shapes import Shape
from proxy.model.told import Told

TARIFF = make_tariff(UNPRICED, UNKNOWN)
BUDGET = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=32_000))
LOW = 9000
# Twice the price above 20,000 tokens.
TIERED = make_tariff(Prices(Rates(1, 5, 0.1, 1), (Tier(20_000, Rates(2, 10, 0.2, 2)),)), UNKNOWN)

sizes = st.lists(st.integers(0, 300_000), max_size=30)


def make_epoch(after: int, why: Why = "soft") -> Epoch:
    return Epoch("e", "s", "m", "", b"", 1, why, "", 0, 30_000, after, b"", ())


def say(role: str, tokens: int) -> Seen:
    return Seen(Told(role, ""), Shape(role), tokens)


def test_the_first_request_owes_nothing() -> None:
    account = note_sent(Account(), Sent(20_000, at=5.0), TARIFF, LOW)
    assert account == Account(sent=20_000, sent_at=5.0)


def test_what_was_sent_before_above_the_target_is_owed_at_the_price_of_reading() -> None:
    account = note_sent(Account(sent=20_000), Sent(21_000), TARIFF, LOW)
    assert account.owed == pytest.approx(0.1 * 11_000)
    assert account.sent == 21_000
    assert note_sent(account, Sent(22_000), TARIFF, LOW).owed == pytest.approx(0.1 * (11_000 + 12_000))


def test_the_target_is_what_the_last_epoch_reached_where_that_is_more() -> None:
    account = note_sent(Account(base=15_000, sent=20_000), Sent(21_000), TARIFF, LOW)
    assert account.owed == pytest.approx(0.1 * 5000)


def test_below_the_target_nothing_is_owed() -> None:
    assert note_sent(Account(sent=8000), Sent(40_000), TARIFF, LOW).owed == 0


def test_a_miss_is_owed_at_the_price_of_writing_but_for_what_an_epoch_would_have_missed_too() -> None:
    miss = note_sent(Account(sent=20_000), Sent(21_000, cached=0), TARIFF, LOW)
    assert miss.owed == pytest.approx(11_000)
    half = note_sent(Account(sent=20_000), Sent(21_000, cached=12_000), TARIFF, LOW)
    assert half.owed == pytest.approx(0.1 * 3000 + 8000)


def test_what_the_upstream_did_not_say_is_taken_as_it_usually_is() -> None:
    learned = make_tariff(UNPRICED, UNKNOWN, Calibration(read=0.5))
    account = note_sent(Account(sent=20_000), Sent(21_000), learned, LOW)
    assert account.owed == pytest.approx(0.1 * 1000 + 10_000)


def test_what_is_read_was_sent_before_whoever_sent_it() -> None:
    assert note_sent(Account(), Sent(21_000, cached=20_000), TARIFF, LOW).owed == pytest.approx(0.1 * 11_000)
    assert note_sent(Account(), Sent(21_000, cached=90_000), TARIFF, LOW).owed == pytest.approx(0.1 * 12_000)
    none, odd = (note_sent(Account(sent=20_000), Sent(21_000, cached=cached), TARIFF, LOW) for cached in (0, -50))
    assert odd == none


def test_what_the_client_changed_was_not_sent_before() -> None:
    account = note_sent(Account(sent=20_000), Sent(21_000, kept=10_000), TARIFF, LOW)
    assert account.owed == pytest.approx(0.1 * 1000)


def test_a_tier_that_an_epoch_would_have_stayed_below_is_owed_whole() -> None:
    account = note_sent(Account(sent=21_000), Sent(22_000), TIERED, LOW)
    assert account.owed == pytest.approx((0.2 * 21_000 + 2 * 1000) - (0.1 * LOW + 1000))


def test_at_home_reading_costs_no_time_and_nothing_is_owed() -> None:
    local = make_tariff(UNPRICED, CacheModel("local"))
    assert note_sent(Account(sent=20_000), Sent(21_000), local, LOW).owed == 0


def test_a_request_that_was_not_counted_keeps_the_cache_warm() -> None:
    account = Account(base=1, owed=2.0, sent=3, sent_at=4.0)
    assert note_use(account, 9.0) == Account(base=1, owed=2.0, sent=3, sent_at=9.0)
    assert note_sent(account, Sent(3), TARIFF, LOW).sent_at == 4.0


def test_idle_is_since_the_last_request_and_never_negative() -> None:
    assert Account().find_idle(100.0) is None
    assert [Account(sent_at=40.0).find_idle(now) for now in (100.0, 30.0)] == [60.0, 0.0]


def test_an_epoch_will_leave_as_much_as_the_last_one() -> None:
    assert [Account(base).find_target(9000) for base in (0, 8000, 12_000)] == [9000, 8000, 12_000]


def test_an_epoch_settles_the_account() -> None:
    account = Account(base=5, owed=99.0, futile=1, stuck=9312, is_held=True, sent=30_000, sent_at=7.0)
    assert note_epoch(account, 30_000, 8000, 0, BUDGET) == Account(base=8000, sent_at=7.0)


# 0.85 of what is usable is 26,384; a margin of 3 % more is forgiven. The low mark is 9312.
@pytest.mark.parametrize(("after", "futile", "stuck"), [(9313, 0, 0), (27_175, 0, 0), (27_176, 2, 9312)])
def test_an_epoch_is_futile_that_leaves_no_room_to_go_on(after: int, futile: int, stuck: int) -> None:
    account = note_epoch(Account(futile=1), 40_000, after, 0, BUDGET)
    assert (account.futile, account.stuck) == (futile, stuck)


def test_an_epoch_under_a_ceiling_out_of_reach_is_remembered_as_such() -> None:
    assert note_epoch(Account(), 31_000, 26_000, 21_727, BUDGET) == Account(26_000)
    assert note_epoch(Account(), 31_000, 26_000, 21_729, BUDGET) == Account(26_000, stuck=26_384)


def test_a_revert_holds_and_begins_anew() -> None:
    account = note_revert(Account(base=8000, owed=50.0, futile=2, sent=9000, sent_at=7.0), 25_000)
    assert account == Account(base=25_000, is_held=True, sent_at=7.0)


def test_an_account_is_restored_from_its_epochs() -> None:
    assert restore_account([], 7.0, BUDGET) == Account(owed=7.0)
    found = restore_account([make_epoch(8000), make_epoch(12_000)], 7.0, BUDGET)
    assert found == Account(base=12_000, owed=7.0, sent=12_000)
    held = restore_account([make_epoch(8000), make_epoch(25_000, "revert")], 0.0, BUDGET)
    assert held == Account(base=25_000, is_held=True, sent=25_000)
    assert not restore_account([make_epoch(25_000, "revert"), make_epoch(8000, "hard")], 0.0, BUDGET).is_held


def test_of_restored_epochs_those_are_futile_that_are_above_any_low_mark() -> None:
    highest = BUDGET.find_low(BUDGET.usable)
    epochs = [make_epoch(highest + 2000), make_epoch(highest + 2000)]
    assert restore_account(epochs, 0.0, BUDGET).futile == 2
    assert restore_account([*epochs, make_epoch(highest)], 0.0, BUDGET).futile == 0


def test_an_epoch_is_futile_that_frees_hardly_anything() -> None:
    """Of 31,040 usable tokens a tenth; a margin of 3 % of what is left is forgiven."""
    tenth = BUDGET.usable // 10
    assert note_epoch(Account(), 20_000 + tenth, 20_000, 0, BUDGET).futile == 0
    assert note_epoch(Account(), 20_000 + tenth, 20_602, 0, BUDGET).futile == 1
    epochs = [msgspec.structs.replace(make_epoch(20_000), tokens_before=before) for before in (23_000, 22_000)]
    assert restore_account(epochs, 0.0, BUDGET).futile == 1
    assert restore_account(epochs[:1], 0.0, BUDGET).futile == 0


def test_two_futile_epochs_make_the_next_go_deeper() -> None:
    assert [Account(futile=futile).depth for futile in range(6)] == [0, 0, 1, 1, 2, 2]


@given(sizes, st.integers(0, 50_000))
def test_what_is_owed_only_grows(seen: list[int], low: int) -> None:
    account = Account()
    for size in seen:
        after = note_sent(account, Sent(size), TIERED, low)
        assert after.owed >= account.owed
        account = after
