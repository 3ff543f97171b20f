"""What answers teach, and what teaches nothing."""

import pytest

from proxy.context.budget import TokenRatio
from proxy.context.pricing import Tariff
from proxy.engine import models as module
from proxy.engine.models import CacheCalibrator, ExpectedUsage
from proxy.engine.policy import Provider
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import CacheTerms, Card, Prices, Rates
from proxy.model.events import AnswerRead
from proxy.model.exchange import Usage
from tests.support.caches import MAP
from tests.support.managing import QuarterTokens

UPSTREAM, MODEL = "main", "gpt-4o"
UNKNOWN, UNASKED = Card(), CacheTerms()


class World:
    """Lessons of one upstream, that keeps prompts the way it is told to."""

    def __init__(self, provider: Provider | None = None) -> None:
        self.counting = TokenCounter(QuarterTokens())
        self.lessons = CacheCalibrator(self.counting, {UPSTREAM: provider} if provider is not None else {})

    def send(self, lesson: ExpectedUsage, exchange: str = "x1", k: int = 0) -> None:
        self.lessons.wait_for(exchange, k, lesson)

    def answer(self, usage: Usage, exchange: str = "x1", k: int = 0, seconds: float = 0.0) -> None:
        self.lessons.note_answer(AnswerRead(exchange, k, usage, seconds))

    def tariff(self, model: str = MODEL, terms: CacheTerms = UNASKED, card: Card = UNKNOWN) -> Tariff:
        return self.lessons.find_tariff(UPSTREAM, model, card, terms)

    def ratio(self, model: str = MODEL) -> TokenRatio:
        return self.counting.find_ratio(UPSTREAM, model)


def lesson(tokens: int = 10_000, expected: int = 8_000, stable: int | None = None, model: str = MODEL) -> ExpectedUsage:
    return ExpectedUsage(UPSTREAM, model, tokens, expected, stable)


def test_before_anything_is_heard_it_is_as_published() -> None:
    tariff = World().tariff()
    assert (tariff.read_share, tariff.survival) == (1.0, 0.0)


def test_a_model_that_counts_more_teaches_its_ratio() -> None:
    world = World()
    world.send(lesson())
    world.answer(Usage(20_000, 10))
    assert world.ratio().value == pytest.approx(1.2)
    assert world.ratio("gpt-4o-mini").value == 1.0


def test_a_cache_that_keeps_half_teaches_its_share_in_the_models_tokens() -> None:
    world = World()
    world.send(lesson(10_000, expected=8_000))
    world.answer(Usage(20_000, 10, cached=8_000))  # 8,000 of ours are 16,000 of theirs
    assert world.tariff().read_share == pytest.approx(0.9)
    assert world.tariff().survival == 0.0


def test_the_first_request_of_an_epoch_teaches_what_survives_one() -> None:
    world = World()
    world.send(lesson(10_000, expected=2_000, stable=2_000))
    world.answer(Usage(10_000, 10, cached=1_500))
    assert (world.tariff().survival, world.tariff().read_share) == (0.75, 1.0)


@pytest.mark.parametrize("usage", [Usage(), Usage(None, 10, cached=0), Usage(0, 10, cached=0)])
def test_an_answer_that_does_not_say_what_it_read_teaches_nothing(usage: Usage) -> None:
    world = World()
    before = world.tariff(), world.ratio()
    world.send(lesson())
    world.answer(usage, seconds=1.0)
    assert (world.tariff(), world.ratio()) == before


def test_unknown_is_not_nothing() -> None:
    world = World()
    world.send(lesson())
    world.answer(Usage(10_000, 10, cached=None))
    assert world.tariff().read_share == 1.0


def test_an_answer_teaches_once_and_only_of_its_own_round() -> None:
    world = World()
    world.send(lesson())
    world.answer(Usage(20_000, 10, cached=0), k=1)
    world.answer(Usage(20_000, 10, cached=0), "x2")
    assert world.ratio().value == 1.0
    for _ in range(2):
        world.answer(Usage(20_000, 10, cached=0))
    assert (world.ratio().value, world.tariff().read_share) == pytest.approx((1.2, 0.8))


def test_a_request_without_tokens_is_taken_as_the_model_counts_it() -> None:
    world = World()
    world.send(lesson(0, expected=100))
    world.answer(Usage(1_000, 10, cached=50))
    assert world.tariff().read_share == pytest.approx(0.9)


def test_where_caching_saves_time_the_time_to_the_first_byte_is_its_price() -> None:
    world = World(Provider(cache="local"))
    for exchange, cached, seconds in (("x1", 0, 10.0), ("x2", 10_000, 2.0)):
        world.send(lesson(10_000, expected=cached), exchange)
        world.answer(Usage(10_000, 10, cached=cached), exchange, seconds=seconds)
    assert world.tariff().prices.rates.cached == pytest.approx(0.2)


def test_a_time_that_nobody_took_is_none() -> None:
    world = World(Provider(cache="local"))
    world.send(lesson())
    world.answer(Usage(10_000, 10, cached=0), seconds=0.0)
    world.send(lesson())
    world.answer(Usage(10_000, 10, cached=10_000), seconds=2.0)
    assert world.tariff().prices.rates.cached == 0.0


def test_the_markers_of_the_request_say_how_long_its_prompt_is_kept() -> None:
    world, card = World(Provider(host="api.anthropic.com")), Card(caches=MAP.find("claude-sonnet-4").caches)
    assert world.tariff("claude-sonnet-4", CacheTerms(messages=("5m",)), card).cache.retention == 300.0
    assert not world.tariff("claude-sonnet-4", card=card).cache.is_used


def test_a_model_of_unknown_prices_has_those_of_its_generation() -> None:
    world, card = World(Provider(host="api.anthropic.com")), Card(caches=MAP.find("claude-fable-5-2").caches)
    rates = world.tariff("claude-fable-5-2", CacheTerms(head=("5m",)), card).prices.rates
    assert (rates.input, rates.cached, rates.written) == (1.0, 0.025, 1.25)
    stated = Card(prices=Prices(Rates(2.0, 10.0, 1.0, 2.0)), prices_source="settings", caches=card.caches)
    rates = world.tariff("claude-fable-5-2", CacheTerms(head=("5m",)), stated).prices.rates
    assert (rates.cached, rates.written) == (0.5, 1.0)


def test_what_a_person_says_of_the_cache_counts() -> None:
    assert World().tariff(card=Card(retention=600.0)).cache.is_cold(900.0)
    assert not World().tariff().cache.is_cold(900.0)


def test_calls_that_are_never_answered_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    world = World()
    for number in range(4):
        world.send(lesson(), f"x{number}")
    world.answer(Usage(20_000, 10), "x0")
    assert world.ratio().value == 1.0
    world.answer(Usage(20_000, 10), "x1")
    assert world.ratio().value == pytest.approx(1.2)


def test_of_models_without_end_those_heard_of_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MODELS", 2)
    world = World()
    for model in ("a", "b", "a", "c"):
        world.send(lesson(model=model))
        world.answer(Usage(10_000, 10, cached=0))
    assert [world.tariff(model).read_share < 1.0 for model in "abc"] == [True, False, True]
