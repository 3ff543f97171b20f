"""What managing saves, told from a log: sessions of two arms, whose costs are worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.model.card import Card, Prices, Rates
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.figures import RoundFigures, Tally
from proxy.read.savings import Arm, SavingsInputs, SavingsReport, SavingsTotal, load_saving, load_savings, read_calls
from tests.support.figures import Bill, tally_bills, work_out_bills
from tests.support.unmanaged import UnmanagedLog

# A fresh token costs 1, one from the cache 0.1, one of the answer 5; below 60,000 the soft mark is at 0.6.
USABLE = 10_000
PRICED = Card(prices=Prices(Rates(2e-6, 1e-5, 2e-7, 2e-6)), prices_source="settings")


class Book(UnmanagedLog):
    """Bills, but for those of sessions that are erased."""

    def __init__(self) -> None:
        self.bills: list[Bill] = []
        self.erased: set[str] = set()

    def add(self, session: str, input: int | None, cached: int | None = 0, **changes: Any) -> None:
        """A call of one round; more of them are added by `again`."""
        seq = self.bills[-1].seq + 1 if self.bills else 1
        bill = Bill(seq, session, "managed", 1000 + seq, "openai", "m", Usage(input=input, output=0, cached=cached))
        self.bills.append(replace(bill, **changes))

    def again(self, input: int | None, **changes: Any) -> None:
        """Another round of the last call."""
        usage = Usage(input=input, output=0, cached=0)
        self.bills.append(replace(self.bills[-1], usage=usage, **changes))

    async def load_rounds(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[RoundFigures]:
        if session in self.erased:
            raise NotFound(f"there is no session {session}")
        return work_out_bills(self.bills, session, after, limit)

    async def load_tallies(self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = ()) -> Sequence[Tally]:
        return tally_bills(self.bills, sessions)

    async def count_later(self, session: str) -> int:
        rows = [bill for bill in self.bills if bill.session == session]
        return len(rows) - 1 - max(i for i, bill in enumerate(rows) if bill.rung == "plan")


def hold(book: Book, session: str, input: int = 8000, cached: int | None = 0) -> None:
    """A call of a session that is only observed."""
    book.add(session, input, cached, rung="original", reason="holdout", usable=USABLE)


def manage(book: Book, session: str, input: int = 2000, client: int | None = 8000, **changes: Any) -> None:
    """A call of which less was sent than the client did."""
    book.add(session, input, **{"rung": "plan", "tokens_client": client, "usable": USABLE} | changes)


async def judge(book: Book, card: Card | None = None, policy: BudgetPolicy | None = None) -> SavingsReport:
    known = card or Card()
    log: Any = book
    return await load_savings(log, SavingsInputs(PriceList(lambda upstream, model: known), policy or BudgetPolicy()))


def fill(count: int = 20) -> Book:
    """Two arms of which one costs a quarter of the other: 0.25, and 1, for each token."""
    book = Book()
    for number in range(count):
        hold(book, f"h{number}")
        manage(book, f"m{number}")
    return book


async def test_managing_saves_what_a_managed_session_costs_less() -> None:
    found = await judge(fill())
    assert found.saving == pytest.approx(0.75)
    assert (found.unit, found.reason, found.short, found.mixed, found.since_ms) == ("tokens", "", 0, 0, 1001)
    assert (found.managed, found.held_out) == (Arm(20, 0.25, 0), Arm(20, 1.0, 0))
    log: Any = fill()
    report = await load_savings(log, SavingsInputs(PriceList(lambda upstream, model: Card()), BudgetPolicy()))
    assert (report.saving, report.low, report.high, report.unit) == (
        pytest.approx(0.75),
        *[pytest.approx(0.75)] * 2,
        "tokens",
    )
    assert (report.managed, report.held_out, report.estimate) == (found.managed, found.held_out, None)
    assert [(each.model, each.tokens, each.share, each.rounds) for each in report.models] == [("m", None, None, 40)]
    assert [(each.date, each.spent_tokens) for each in report.days] == [("1970-01-01", 200_000.0)]


async def test_a_long_session_is_read_a_page_at_a_time() -> None:
    book = Book()
    for _ in range(600):
        book.add("s", 10)
    book.again(20)
    log: Any = book
    calls = [rounds async for rounds in read_calls(log, "s")]
    assert [rounds[0].n for rounds in calls] == [*range(1, 601)]
    assert [row.input for row in calls[-1]] == [10, 20]


async def test_a_session_that_is_erased_meanwhile_is_not_compared() -> None:
    book = fill(21)
    book.erased = {"m3", "h4"}
    found = await judge(book)
    assert found.saving == pytest.approx(0.75)
    assert (found.managed.sessions, found.held_out.sessions) == (20, 20)


async def test_of_too_few_sessions_nothing_is_told() -> None:
    found = await judge(fill(19))
    assert (found.saving, found.managed.sessions, found.held_out.sessions) == (None, 19, 19)
    assert "too few sessions to tell: it takes 20" in found.reason


async def test_where_nobody_is_observed_there_is_nothing_to_compare_with() -> None:
    book = Book()
    manage(book, "m", reason="the account is not full yet")
    for found in (await judge(book), await judge(Book())):
        assert "compaction.holdout_fraction" in found.reason
        assert (found.managed, found.since_ms) == (Arm(0, None, 0), None)


async def test_what_was_before_is_not_compared_with() -> None:
    book = Book()
    manage(book, "before")
    hold(book, "h")
    manage(book, "before")
    manage(book, "after")
    found = await judge(book)
    assert (found.managed.sessions, found.held_out.sessions, found.since_ms) == (1, 1, 1002)


async def test_sessions_below_the_soft_mark_are_left_out_of_both_arms() -> None:
    book = Book()
    for session, input in (("h1", 5999), ("h2", 6000)):
        hold(book, session, input)
    for session, client in (("m1", 5999), ("m2", 6000)):
        manage(book, session, client=client)
    manage(book, "m3", 9000, client=None, rung="original", usable=0, reason="the request has transforms")
    book.add("m4", 9000)
    found = await judge(book)
    assert (found.managed.sessions, found.held_out.sessions, found.short) == (1, 1, 4)
    lower = await judge(book, policy=BudgetPolicy(soft_fraction=0.1))
    assert (lower.managed.sessions, lower.held_out.sessions, lower.short) == (2, 2, 2)


async def test_what_was_sent_as_it_came_is_as_long_as_its_provider_says() -> None:
    book = Book()
    hold(book, "h")
    manage(book, "m", 5000, client=7000, rung="original")
    assert (await judge(book)).managed.sessions == 0


async def test_a_session_that_was_in_both_arms_is_in_neither() -> None:
    book = Book()
    hold(book, "h")
    hold(book, "both")
    manage(book, "both")
    found = await judge(book)
    assert (found.managed.sessions, found.held_out.sessions, found.mixed, found.short) == (0, 1, 1, 0)


async def test_the_bill_is_the_whole_one() -> None:
    book = Book()
    hold(book, "h", 8000, 6000)  # 2000 + 600
    book.add("m", 4000, 3000)  # 1000 + 300, before the mark
    manage(book, "m", 2000)
    book.add("m", 900, kind="auxiliary")
    found = await judge(book)
    assert found.managed.cost == pytest.approx((1300 + 2000 + 900) / 12_000)
    assert found.held_out.cost == pytest.approx(2600 / 8000)


async def test_a_call_of_two_rounds_is_one_request_of_the_client() -> None:
    book = Book()
    hold(book, "h")
    book.add("m", None, None, rung="original", usable=USABLE)  # refused as too long
    book.again(2000, rung="minimal", tokens_client=8000, usable=3000)
    assert (await judge(book)).managed == Arm(1, 0.25, 0)


async def test_every_round_that_was_billed_counts() -> None:
    book = Book()
    hold(book, "h")
    manage(book, "m", 2000)
    book.again(3000, tokens_client=None, usable=0)
    assert (await judge(book)).managed == Arm(1, 0.625, 0)


async def test_what_nobody_counted_is_left_out() -> None:
    book = Book()
    hold(book, "h")
    manage(book, "m")
    manage(book, "m", client=None)  # billed, and nobody knows what the client's own was
    book.add("m", None, rung="plan", tokens_client=90_000, usable=USABLE)  # it failed
    assert (await judge(book)).managed == Arm(1, 0.25, 0)


async def test_where_no_answer_tells_of_a_cache_that_is_said() -> None:
    book = Book()
    hold(book, "h", cached=None)
    manage(book, "m", cached=None)
    manage(book, "m", cached=0)
    found = await judge(book)
    assert (found.held_out.blind, found.managed.blind) == (1, 0)


async def test_costs_are_in_money_where_all_prices_are_known() -> None:
    found = await judge(fill(), PRICED)
    assert found.unit == "money"
    assert found.saving == pytest.approx(0.75)
    assert found.held_out.cost == pytest.approx(2e-6)


async def test_what_costs_nothing_is_not_compared() -> None:
    book = Book()
    for number in range(20):
        hold(book, f"h{number}")
        manage(book, f"m{number}", 0)
    found = await judge(book)
    assert (found.saving, found.reason) == (None, "what these sessions cost is not known")


async def test_a_model_is_looked_up_once() -> None:
    asked = []

    def find_card(upstream: str, model: str) -> Card:
        asked.append((upstream, model))
        return Card()

    log: Any = fill(3)
    await load_savings(log, SavingsInputs(PriceList(find_card), BudgetPolicy()))
    assert asked == [("openai", "m")]


def plan_call(book: Book, session: str, saving: float, **changes: Any) -> None:
    """A call that is sent under an epoch, with what it saved as it was estimated."""
    book.add(session, 1000, 1000, **{"rung": "epoch", "saving": saving, "usable": USABLE} | changes)


async def test_what_managing_saved_is_estimated_without_anybody_observed() -> None:
    book = Book()
    plan_call(book, "gain", 400.0)
    plan_call(book, "gain", -100.0, rung="plan")
    book.add("unknown", 500)
    plan_call(book, "loss", -50.0, rung="plan")
    found = await judge(book)
    assert found.estimate == SavingsTotal(2, 250.0, None, 250 / 550, 1, -50.0, None)
    log: Any = book
    report = await load_savings(log, SavingsInputs(PriceList(lambda upstream, model: PRICED), BudgetPolicy()))
    assert report.estimate is not None
    assert report.estimate.money == pytest.approx(250 * 2e-6)
    assert [(each.session, each.tokens) for each in report.losses] == [("loss", -50.0)]
    assert report.losses[0].reason.startswith("no call came after its last epoch")
    assert report.models[0].money == report.days[0].money == pytest.approx(250 * 2e-6)
    priced = await judge(book, PRICED)
    assert priced.estimate is not None
    assert priced.estimate.money == pytest.approx(250 * 2e-6)
    assert priced.estimate.share == pytest.approx(250 / 550)


async def test_of_sessions_that_cost_nothing_there_is_no_share() -> None:
    book = Book()
    book.add("s", 0, 0, rung="epoch", saving=0.0)
    found = await judge(book)
    assert found.estimate is not None
    assert found.estimate.share is None


async def test_our_auxiliary_calls_count_against_a_session() -> None:
    book = Book()
    plan_call(book, "s", 90.0)
    book.add("s", 30, kind="auxiliary")
    book.add("s", None, kind="auxiliary")
    log: Any = book
    inputs = SavingsInputs(PriceList(lambda upstream, model: PRICED), BudgetPolicy())
    saving = await load_saving(log, "s", inputs)
    assert saving is not None
    assert (saving.tokens, saving.is_loss, saving.reason) == (60.0, False, "")
    assert saving.money == pytest.approx(60 * 2e-6)
    book.add("s", 70, kind="auxiliary")
    saving = await load_saving(log, "s", inputs)
    assert saving is not None
    assert (saving.is_loss, saving.reason) == (True, "our own calls for it cost more than was saved")
    assert await load_saving(log, "unknown", inputs) is None


async def test_the_total_and_its_parts_agree_where_our_calls_belong_to_a_session_of_which_no_saving_is_known() -> None:
    book = Book()
    plan_call(book, "s", 90.0)
    book.add("other", 30, kind="auxiliary")
    log: Any = book
    report = await load_savings(log, SavingsInputs(PriceList(lambda upstream, model: PRICED), BudgetPolicy()))
    assert report.estimate is not None
    assert report.estimate.tokens == sum(part.tokens or 0 for part in report.models) == 60.0
    assert sum(part.tokens or 0 for part in report.days) == 60.0
    assert (report.estimate.losing, report.estimate.lost_tokens) == (1, -30.0)


@pytest.mark.parametrize(
    ("rungs", "reason"),
    [
        (["plan"], "no call came after its last epoch, too few to pay for writing the cache anew"),
        (["plan", "epoch", "plan", "epoch"], "1 call came after its last epoch, too few"),
        (["plan", "epoch", "epoch"], "2 calls came after its last epoch, too few"),
        (["minimal"], "what was sent had to be written to the cache anew"),
    ],
)
async def test_a_loss_has_a_reason(rungs: list[str], reason: str) -> None:
    book = Book()
    for rung in rungs:
        plan_call(book, "s", -10.0, rung=rung)
    log: Any = book
    saving = await load_saving(log, "s", SavingsInputs(PriceList(lambda upstream, model: Card()), BudgetPolicy()))
    assert saving is not None
    assert saving.is_loss
    assert saving.reason.startswith(reason)


async def test_sessions_of_which_nothing_is_known_have_no_estimate() -> None:
    book = Book()
    plan_call(book, "known", 5.0)
    book.add("unknown", 500)
    log: Any = book
    inputs = SavingsInputs(PriceList(lambda upstream, model: Card()), BudgetPolicy())
    assert await load_saving(log, "unknown", inputs) is None
    assert await load_saving(log, "known", inputs) is not None
