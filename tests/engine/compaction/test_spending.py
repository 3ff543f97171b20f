"""Shares of sessions, caps of days, and what was spent in vain."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from proxy.context.pricing import Cost
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import SpendBudget
from proxy.engine.models import PriceList
from proxy.engine.policy import Provider
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.card import CacheFacts, Card, Prices, Rates
from proxy.model.errors import StoreUnavailable
from proxy.model.events import AnswerRead, Event, ExchangeRecorded, SummaryWasted
from proxy.model.exchange import Usage
from proxy.model.log import AuxiliaryUsage
from tests.support.engine import FixedClock
from tests.support.events import hear_all

DAY = 86_400


def tell(upstream: str, model: str, usage: Usage) -> AuxiliaryUsage:
    """What the log tells of a model."""
    return AuxiliaryUsage("s", upstream, model, 1, usage)


class Log:
    """A log that knows sums."""

    def __init__(self, *sums: AuxiliaryUsage) -> None:
        self.sums = sums
        self.asked: list[int] = []

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        self.asked.append(since_ms)
        if not self.sums:
            raise StoreUnavailable("the log cannot be read")
        return self.sums


class World:
    """A budget at prices of one a token, where there are any."""

    def __init__(self, *, is_priced: bool = True, **policy: float) -> None:
        card = Card(prices=Prices(Rates(1.0, 5.0, 0.1, 1.0)), prices_source="settings")
        self.clock, self.events = FixedClock(), list[Event]()
        bus = EngineBus(TaskRunner())
        hear_all(bus, self.events.append)
        self.asked: list[tuple[str, str]] = []

        def find_card(upstream: str, model: str) -> Card:
            self.asked.append((upstream, model))
            return card if is_priced else Card()

        self.budget = SpendBudget(CompactionPolicy(**policy), PriceList(find_card), bus, self.clock)  # type: ignore[arg-type]

    def earn(self, tokens: int, session: str = "s", **changes: object) -> None:
        """A call of the client's."""
        event = ExchangeRecorded(
            *("x", session, "managed", "w", "main", 200, "complete", 1, 1, 0.1, 0.1), is_readable=True, model="m"
        )
        self.budget.record_exchange(replace(event, **changes))
        self.budget.record_answer(AnswerRead("x", 0, Usage(tokens, 0)))

    def spend(self, tokens: float, exchange: str = "a1", session: str = "s") -> None:
        """A call of our own, from beginning to end."""
        cost = Cost(tokens, tokens)
        self.budget.reserve(session, cost)
        self.budget.settle(session, exchange, cost, cost)

    def objects(self, tokens: float, session: str = "s", money: float | None = -1.0) -> str:
        return self.budget.find_objection(session, Cost(tokens, tokens if money == -1.0 else money))


def test_before_anything_was_paid_nothing_is_spent() -> None:
    world = World()
    assert (
        world.objects(1)
        == "it would take more than 5% of what this session's own calls cost (compaction.spend_fraction)"
    )
    world.earn(100, session="another")
    assert world.objects(1)


def test_a_call_must_fit_into_the_share_with_all_before_it() -> None:
    world = World()
    world.earn(1000)
    assert not world.objects(50)
    assert world.objects(51)
    world.spend(20)
    assert not world.objects(30)
    assert world.objects(31)
    world.earn(1000)
    assert not world.objects(80)
    assert world.asked[0] == ("main", "m")


def test_a_call_costs_what_the_cache_of_its_models_generation_takes_where_no_price_is_stated() -> None:
    """As commands and metrics say: a read costs a tenth and a write a quarter more, not half and nothing more."""
    card = Card(caches=(CacheFacts("openai-breakpoints", "a page", ("api.example",), read=0.1, write=1.25),))
    prices = PriceList(lambda upstream, model: card, {"main": Provider(host="api.example")})
    budget = SpendBudget(CompactionPolicy(), prices, EngineBus(TaskRunner()), FixedClock())
    usage = Usage(1000, 0, cached=600, written=400)
    assert budget.price("main", "m", usage).tokens == pytest.approx(560.0)
    assert budget.price("main", "m", usage) == prices.price("main", "m", usage)


def test_a_call_counts_as_expected_until_its_answer_tells() -> None:
    world = World()
    world.budget.record_estimate("x", Usage(1000, 0))
    event = ExchangeRecorded(
        *("x", "s", "managed", "w", "main", 200, "complete", 1, 1, 0.1, 0.1), is_readable=True, model="m"
    )
    world.budget.record_exchange(event)
    assert not world.objects(50)
    assert world.objects(51)
    world.budget.record_answer(AnswerRead("x", 0, Usage(400, 0)))
    assert not world.objects(20)
    assert world.objects(21)


def test_many_calls_of_which_nobody_says_how_much_they_were_count_once_each() -> None:
    world, most = World(), 200
    for i in range(most):
        world.budget.record_estimate(f"x{i}", Usage(100, 0))
        event = ExchangeRecorded(
            *(f"x{i}", "s", "managed", "w", "main", 200, "complete", 1, 1, 0.1, 0.1), is_readable=True, model="m"
        )
        world.budget.record_exchange(event)
    world.budget.record_answer(AnswerRead("x0", 0, Usage(100, 0)))  # too late: it was counted as it was expected to be
    assert not world.objects(5 * most)
    assert world.objects(5 * most + 1)


def test_what_is_under_way_counts_until_it_is_settled() -> None:
    world = World()
    world.earn(1000)
    expected = Cost(40.0, 40.0)
    world.budget.reserve("s", expected)
    assert world.objects(11)
    world.budget.settle("s", "a1", expected, Cost(5.0, 5.0))
    assert not world.objects(45)
    assert world.objects(46)


def test_where_prices_are_unknown_tokens_count() -> None:
    world = World(is_priced=False)
    world.earn(1000)
    assert not world.objects(50, money=None)
    assert world.objects(51, money=None)


@pytest.mark.parametrize(
    "changes", [{"kind": "auxiliary"}, {"kind": "passthrough"}, {"is_readable": False}, {"is_final": False}]
)
def test_only_what_clients_asked_is_the_sessions_own(changes: dict[str, object]) -> None:
    world = World()
    world.earn(1000, "s", **changes)
    assert world.objects(1)


async def test_a_day_has_a_cap_for_all_sessions() -> None:
    world = World(spend_per_day=30)
    await world.budget.load_today(Log(tell("main", "m", Usage(10, 0))).sum_auxiliary)
    world.earn(1000)
    world.earn(1000, "t")
    assert not world.objects(20)
    assert world.objects(21) == "it would take more than 30 a day (compaction.spend_per_day)"
    world.spend(15, session="t")
    assert world.objects(6)
    world.budget.reserve("t", Cost(1.0, 1.0))
    assert not world.objects(4)
    assert world.objects(5)


async def test_what_a_person_wished_may_take_more_than_the_share_of_its_session_but_not_than_a_days() -> None:
    world = World(spend_per_day=30)
    await world.budget.load_today(Log(tell("main", "m", Usage(10, 0))).sum_auxiliary)
    assert world.objects(20).endswith("(compaction.spend_fraction)")
    assert world.budget.find_objection("s", Cost(20.0, 20.0), is_manual=True) == ""
    assert world.budget.find_objection("s", Cost(21.0, 21.0), is_manual=True).endswith("(compaction.spend_per_day)")


def test_what_was_spent_besides_can_be_asked_for_each_session() -> None:
    world = World()
    world.spend(15, session="t")
    assert (world.budget.get_balance("t").summaries.tokens, world.budget.get_balance("s").summaries.tokens) == (15, 0)


async def test_a_day_ends() -> None:
    world = World(spend_per_day=30)
    log = Log(tell("main", "m", Usage(30, 0)))
    await world.budget.load_today(log.sum_auxiliary)
    assert log.asked == [world.clock.now_ms() // (DAY * 1000) * DAY * 1000]
    world.earn(1000)
    assert world.objects(1)
    world.clock.advance(DAY)
    assert not world.objects(30)


async def test_until_the_log_was_read_a_cap_lets_nothing_pass() -> None:
    world = World(spend_per_day=30)
    world.earn(1000)
    assert world.objects(1) == "what was spent today has not been read from the log yet"
    with pytest.raises(StoreUnavailable):
        await world.budget.load_today(Log().sum_auxiliary)
    assert world.objects(1)
    assert not World().budget.find_objection("s", Cost())


async def test_what_is_read_of_yesterday_is_not_of_today() -> None:
    world = World(spend_per_day=30)

    class Slow(Log):
        async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
            world.clock.advance(DAY)
            return await super().sum_auxiliary(since_ms)

    await world.budget.load_today(Slow(tell("main", "m", Usage(30, 0))).sum_auxiliary)
    world.earn(1000)
    assert not world.objects(30)


async def test_what_was_held_at_unknown_prices_is_forgotten_with_it() -> None:
    world = World(spend_per_day=30)
    await world.budget.load_today(Log(tell("main", "m", Usage(1, 0))).sum_auxiliary)
    world.earn(1000)
    world.budget.reserve("s", Cost(1.0, None))
    assert world.objects(1).endswith("state it under pricing")
    world.budget.settle("s", "a1", Cost(1.0, None), Cost())
    assert not world.objects(29)


async def test_a_cap_in_money_cannot_be_kept_without_prices() -> None:
    world = World(is_priced=False, spend_per_day=30)
    await world.budget.load_today(Log(tell("main", "m", Usage(1, 0))).sum_auxiliary)
    world.earn(1000)
    assert world.objects(1, money=None).endswith("state it under pricing")


def test_what_was_never_used_is_a_loss() -> None:
    world = World()
    world.spend(7, "a1")
    world.spend(8, "a2")
    assert world.budget.record_waste("s", ["a1", "a2", "unknown"]).tokens == 15
    assert world.budget.record_waste("s", ["a1"]).tokens == 0  # once is enough
    assert world.budget.record_waste("s", []).tokens == 0
    assert world.events == [
        *(SummaryWasted("unknown", "s", 15.0), SummaryWasted("a1", "s", 0.0), SummaryWasted("", "s", 0.0)),
    ]


def test_what_is_let_go_leaves_nothing() -> None:
    world = World()
    world.earn(1000)
    for _ in range(10):
        world.budget.reserve("s", Cost(0.1, 0.1))
    for number in range(10):
        world.budget.settle("s", f"a{number}", Cost(0.1, 0.1), Cost())
    assert not world.objects(50)


def test_only_so_much_is_remembered() -> None:
    world = World()
    for number in range(4097):
        world.earn(1000, f"s{number}")
        world.spend(1, f"a{number}", f"s{number}")
    assert world.objects(1, "s0")
    assert world.budget.record_waste("s", ["a0", "a1"]).tokens == 1


def test_what_is_left_of_the_share_pays_for_so_many_tokens() -> None:
    world = World(spend_fraction=0.05)
    world.earn(100_000)
    prompt = Usage(20_000, cached=20_000)  # 2,000; each token of the answer costs 5

    def count(given: Usage = prompt, most: int = 8192) -> int:
        return world.budget.count_affordable("s", "main", "m", given, most)

    assert count() == 600
    assert count(most=400) == 400
    assert world.budget.find_objection("s", world.budget.price("main", "m", replace(prompt, output=600))) == ""
    assert world.budget.find_objection("s", world.budget.price("main", "m", replace(prompt, output=601)))
    world.spend(1000)
    assert count() == 400
    assert count(Usage(20_000)) == count(Usage(4001)) == 0
