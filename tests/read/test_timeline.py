"""The timeline of a session, and its epochs with what they cost and paid back, worked out by hand."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.model.card import Card, Prices, Rates
from proxy.model.errors import NotFound
from proxy.model.exchange import Timings, Usage
from proxy.model.figures import RoundFigures
from proxy.model.log import ExchangeRow
from proxy.read.savings import SavingsInputs
from proxy.read.session_reports import SessionReports
from proxy.read.timeline import list_marks, price_rewrite, summarize_epochs
from tests.store.samples import make_epoch, make_plan
from tests.support.fake_log import EXCHANGE, SESSION, FakeLog, exchange, make_use, tree_log

# A fresh token costs 1, one from the cache 0.1, one of the answer 5.
PRICED = Card(prices=Prices(Rates(1.0, 5.0, 0.1, 1.0)), prices_source="settings")
PRICES = PriceList(lambda upstream, model: PRICED)
INPUTS = SavingsInputs(PRICES, BudgetPolicy(), lambda: EXCHANGE.opened_ms + 600_000)

# Of 1,000 tokens of the client's 900 would have been read; 400 were sent in their place, of which 100 were read.
OPENING = RoundFigures(
    *(3, 0, 1000, "managed", "manage", "openai", "m", "m", "plan", 1, 200, "complete", False, True, 400, 0, 100, 0),
    *(1000, 400, 5000, None, 1000, 900, 0, 100, 10.0, 20.0, 0.5),
)
# The next ones save what they do not read again.
NEXT = replace(OPENING, n=4, rung="epoch", read=390, paid_read=390, own_read=990)


def test_an_epoch_costs_what_had_to_be_written_anew_and_pays_back_what_its_calls_save() -> None:
    cost = price_rewrite(OPENING, PRICES)
    assert cost is not None
    assert cost.tokens == pytest.approx(200 * 0.9)  # 300 were not read, 100 of these are new in any case
    (epoch,) = summarize_epochs([make_epoch(view="m")], [OPENING, NEXT], PRICES)
    assert epoch.cost is not None
    assert epoch.cost.money == pytest.approx(180.0)
    saved = (100 + 90) - (300 + 10) + (10 + 99) - (10 + 39)
    assert epoch.paid_back.money == pytest.approx(saved + 180.0)
    assert (epoch.call, epoch.paid_back.calls, epoch.state, epoch.strategy) == (3, 2, "active", "epochs")
    assert epoch.explanation == (
        "The context reached the high mark, at which it is shortened whatever that costs. 90,000 tokens became 30,000."
    )


def test_an_epoch_is_past_once_another_is_sent_and_reverted_once_that_is_undone() -> None:
    first, second = make_epoch("p1", view="m"), make_epoch("p2", view="m", parent="p1")
    undone = replace(make_epoch("p3", view="m", parent="p2"), why="revert", depth=0)
    found = summarize_epochs([first, second], [OPENING, replace(NEXT, epoch=2)], PRICES)
    assert [each.state for each in found] == ["past", "active"]
    found = summarize_epochs([first, second, undone], [OPENING], PRICES)
    assert [each.state for each in found] == ["active", "reverted", "active"]
    assert found[2].explanation == "A person reverted the epoch before it."
    assert (found[1].cost, found[1].paid_back.tokens, found[1].call) == (None, 0.0, None)


def test_what_is_unknown_is_no_cost() -> None:
    assert price_rewrite(replace(OPENING, own_input=None), PRICES) is None
    unpriced = PriceList(lambda upstream, model: Card())
    (epoch,) = summarize_epochs([make_epoch(view="m")], [OPENING], unpriced)
    assert epoch.cost is not None
    assert (epoch.cost.money, epoch.cost.tokens > 0, epoch.paid_back.money) == (None, True, None)


def test_what_happened_is_marked_in_its_order_with_its_cause() -> None:
    epochs = summarize_epochs([make_epoch(view="m")], [OPENING], PRICES)
    failed = [
        replace(OPENING, n=5, epoch=0, status=529, rung=""),
        replace(OPENING, n=6, epoch=0, status=0, completeness="failed", rung=""),
        replace(OPENING, n=7, epoch=0, completeness="truncated", rung=""),
        replace(OPENING, n=8, epoch=0, status=None, rung=""),
        replace(OPENING, n=9, epoch=0, status=0, completeness="aborted", rung=""),  # the client left
    ]
    missed = make_use(4, cause="idle", read=0, missed=82_617)
    marks = list_marks([OPENING, *failed], epochs, [make_use(3), missed])
    assert [(mark.n, mark.kind) for mark in marks] == [
        (3, "epoch"),
        (4, "miss"),
        (5, "error"),
        (6, "error"),
        (7, "error"),
    ]
    assert marks[1].text.startswith("Idle for 7 s, longer than the cache is kept. 82,617 tokens")
    assert marks[2].title == "The upstream answered 529"


async def test_a_timeline_is_kept_and_extended_and_shows_what_is_open() -> None:
    log = FakeLog(exchanges=(exchange(1), exchange(2)))
    reports = SessionReports(log, INPUTS)
    line = await reports.load_timeline("abc1")
    assert (line.n, line.sent, line.output, line.status) == ([1, 2], [10, 10], [3, 3], [200, 200])
    assert line.money == [pytest.approx(25.0)] * 2
    opened = replace_rounds(exchange(3), status=0, completeness="", timings=None, usage=None)
    log.exchanges = (exchange(1), exchange(2), opened)
    line = await reports.load_timeline("abc1", 1)
    assert (line.n, line.status, line.money) == ([2, 3], [200, None], [pytest.approx(25.0), None])
    log.exchanges = (exchange(1), exchange(2), exchange(3))
    line = await reports.load_timeline("abc1", 2, 1)
    assert (line.n, line.status) == ([3], [200])
    assert {len(getattr(line, name)) for name in line.__struct_fields__[:-1]} == {1}
    assert (await reports.load_cache("abc1")).session == SESSION.id
    with pytest.raises(NotFound):
        await reports.load_timeline("x")


async def test_each_call_names_its_branch_by_its_place() -> None:
    line = await SessionReports(tree_log(), INPUTS).load_timeline("abc1")
    places = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 0, 7: 2, 8: None}
    assert dict(zip(line.n, line.branch, strict=True)) == places


async def test_a_call_of_several_rounds_has_the_size_of_its_last_prompt_and_the_sum_of_all() -> None:
    log = FakeLog(exchanges=(exchange(1),))
    (first,) = exchange(1).rounds
    told = replace(make_plan("x1", epoch="p1"), tokens_client=100, tokens_upstream=10)
    recalled = replace(told, k=1, rung="epoch", tokens_client=0, tokens_upstream=12)
    rounds = (
        dataclasses.replace(first, k=0, plan=told, usage=Usage(10, 3, 4), timings=Timings(1, 2, 3, 0.75)),
        dataclasses.replace(first, k=1, plan=recalled, usage=Usage(12, 5, 10), timings=Timings(1, 2, 3)),
    )
    log.exchanges = (dataclasses.replace(exchange(1), rounds=rounds),)
    line = await SessionReports(log, INPUTS).load_timeline("abc1")
    assert (line.client, line.sent, line.rounds) == ([100], [12], [2])
    assert (line.input, line.read, line.output) == ([22], [14], [8])
    assert line.overhead_ms == [0.75]
    (newest,) = await log.load_newest((SESSION.id,))
    assert (newest.client, newest.sent) == (100, 12)


class SlowLog(FakeLog):
    """A log whose answers take until other requests have had their turn."""

    async def load_rounds(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[RoundFigures]:
        await asyncio.sleep(0)
        return await super().load_rounds(session, after, limit)


async def test_requests_at_once_get_each_call_once() -> None:
    reports = SessionReports(SlowLog(exchanges=(exchange(1), exchange(2))), INPUTS)
    lines = await asyncio.gather(*(reports.load_timeline("abc1") for _ in range(3)))
    assert [line.n for line in lines] == [[1, 2]] * 3


async def test_prices_that_changed_are_those_of_all_calls() -> None:
    cards = [PRICED]
    reports = SessionReports(FakeLog(), SavingsInputs(PriceList(lambda *_: cards[-1]), BudgetPolicy(), INPUTS.now_ms))
    assert (await reports.load_timeline("abc1")).money == [pytest.approx(25.0)]
    cards.append(Card())
    assert (await reports.load_timeline("abc1")).money == [None]


def replace_rounds(row: ExchangeRow, **changes: Any) -> ExchangeRow:
    """The same call with rounds of these properties."""
    return dataclasses.replace(row, rounds=tuple(dataclasses.replace(each, **changes) for each in row.rounds))
