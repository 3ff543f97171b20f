"""The watch over caches while calls are served: it is told of prompts, plans and epochs, and of what came back."""

from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy
from proxy.engine.context import accounting
from proxy.engine.context.accounting import AnswerAccounting
from proxy.engine.models import CacheCalibrator, Models, OverflowWatch, PriceList, PromptSizes
from proxy.engine.policy import Provider
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import UNASKED, CacheFacts, CacheTerms, Card
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead, EpochOpened, ExchangeRecorded, PromptSent, ResponseRead
from proxy.model.exchange import Usage
from tests.store.samples import make_epoch
from tests.support.engine import FixedClock
from tests.support.managing import QuarterTokens, StatedCatalog

UNKNOWN_CARD = Card()
LAYERS = b"tools---system--settings"
RECORDED = ExchangeRecorded("x", "s", "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.5, 1.0, model="m")


class Watched:
    """A bus with a watch."""

    def __init__(self, provider: Provider | None = None, card: Card = UNKNOWN_CARD) -> None:
        self.bus = EngineBus(TaskRunner())
        self.told: list[AnswerRead] = []
        self.plans: dict[str, Plan] = {}
        prices = PriceList(lambda upstream, model: card, {"main": provider} if provider else {})
        counter = TokenCounter(QuarterTokens())
        models = Models(StatedCatalog(None), counter, BudgetPolicy(), FixedClock(), TaskRunner().spawn)
        calibrator = CacheCalibrator(counter, {}, OverflowWatch(models, self.bus), self.bus)
        AnswerAccounting(self.bus, prices, calibrator, PromptSizes())
        self.bus.subscribe(AnswerRead, self.told.append)

    def send(self, exchange: str, depth: int, at: float = 0.0, terms: CacheTerms = UNASKED, session: str = "s") -> None:
        nodes = [f"{place}".encode() for place in range(depth)]
        self.bus.publish(PromptSent(exchange, session, "main", "m", nodes, LAYERS, int(at * 1000), terms))

    def read(self, exchange: str, input: int, cached: int, written: int | None = None, told: Any = "") -> str:
        """The response was read; the cause."""
        ended = replace(RECORDED, exchange=exchange, plan=self.plans.get(exchange))
        usage = Usage(input, 5, cached, written)
        self.bus.publish(ResponseRead(exchange, 0, usage, 0.5, told=told, round=ended))
        assert self.told[-1].exchange == exchange
        return self.told[-1].cause


def test_a_plan_and_the_reason_of_its_epoch_count_for_the_prompt_that_they_were_made_for() -> None:
    watched = Watched()
    watched.send("x1", 3)
    watched.read("x1", 4000, 0)
    watched.send("x2", 5, 10)
    watched.bus.publish(EpochOpened(make_epoch(session="s")))  # asked for by a person, for no call
    watched.bus.publish(EpochOpened(make_epoch(session="s", exchange="x2")))
    watched.plans["x2"] = Plan("x2", 0, "m", "plan", "e", saving=-7.0)
    assert watched.read("x2", 2000, 0) == "epoch"
    told = watched.told[-1]
    assert (told.cause, told.missed, told.missed_cost, told.missed_money) == ("epoch", 2000, 1800.0, None)
    assert (told.saved, told.saved_money) == (-7.0, None)


def test_an_epoch_that_is_refused_does_not_change_why_another_was_opened() -> None:
    watched = Watched()
    watched.send("x1", 5)
    watched.read("x1", 4000, 0)
    watched.send("x2", 2, 10)
    for why in ("client", "refused"):
        watched.bus.publish(EpochOpened(replace(make_epoch(session="s", exchange="x2"), why=why)))
    watched.plans["x2"] = Plan("x2", 0, "m", "plan", "e")
    assert watched.read("x2", 4000, 0) == "message"


def test_a_fault_of_the_accounting_takes_the_response_from_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    monkeypatch.setattr(accounting, "explain_use", lambda *_: 1 / 0)
    watched.plans["x1"] = Plan("x1", 0, "m", "plan", "e")
    watched.send("x1", 3)
    assert watched.read("x1", 4000, 0) == ""
    assert watched.told[-1].usage.input == 4000
    assert "handling the event ResponseRead failed" in caplog.text


def test_what_a_provider_says_is_believed() -> None:
    watched = Watched()
    watched.send("x1", 3)
    watched.read("x1", 4000, 0)
    watched.send("x2", 5, 10)
    assert watched.read("x2", 5000, 0, told="tools") == "tools"


def test_markers_say_for_how_long_a_cache_is_kept() -> None:
    watched = Watched(Provider(cache="breakpoints"))
    terms = CacheTerms(messages=("5m",))
    watched.send("x1", 3, terms=terms)
    watched.read("x1", 4000, 0, 4000)
    watched.send("x2", 5, 400, terms)
    assert watched.read("x2", 5000, 0, 5000) == "idle"


def test_markers_of_ours_count_where_a_request_is_rewritten() -> None:
    watched = Watched(Provider(cache="breakpoints"))
    for exchange, depth, epoch in (("x1", 3, "e"), ("x2", 5, "e"), ("x3", 7, "")):
        watched.send(exchange, depth, depth)
        watched.plans[exchange] = Plan(exchange, 0, "m", "epoch", epoch)
        watched.read(exchange, 4000, 0, 4000)
    assert [each.cause for each in watched.told] == ["", "provider", ""]  # a client's own has no marker


def test_exact_breakpoints_are_a_cache_that_lasts_as_long_as_the_request_asks_for() -> None:
    caches = (CacheFacts("openai-breakpoints", "a page", lifetime=1800.0),)
    for terms, cause in ((UNASKED, "idle"), (CacheTerms(lifetime="1h"), "provider")):
        watched = Watched(card=Card(caches=caches))
        watched.send("x1", 3, terms=terms)
        watched.read("x1", 4000, 0, 4000)
        watched.send("x2", 5, 2400, terms)
        assert watched.read("x2", 5000, 0, 5000) == cause


def test_an_answer_to_what_was_not_seen_says_nothing() -> None:
    watched = Watched()
    assert watched.read("x", 4000, 0) == ""
    assert watched.told[-1].saved is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MOST_NODES", 5)
    monkeypatch.setattr(accounting, "MOST_PROMPTS", 2)
    watched = Watched()
    for session in ("s", "other"):
        watched.send(session, 3, session=session)
        watched.read(session, 4000, 0)
    watched.send("x2", 5, 10)
    assert watched.read("x2", 5000, 0) == ""  # the session's first, as far as is known
    watched.send("x3", 7, 20)
    assert watched.read("x3", 6000, 0) == "provider"  # the newest is kept, however long it is
    for number in range(3):
        watched.send(f"y{number}", 3)
    assert watched.read("y0", 4000, 0) == ""
