"""What answers teach, and what teaches nothing."""

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, TokenRatio
from proxy.context.pricing import Tariff
from proxy.engine import models as module
from proxy.engine.models import CacheCalibrator, ExpectedUsage, Models, OverflowWatch
from proxy.engine.policy import Provider
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import UNASKED, CacheTerms, Card, LimitKey, Prices, Rates
from proxy.model.events import AnswerRead, CacheDiffers, Event, SilentOverflowSeen
from proxy.model.exchange import Usage
from proxy.model.messages import Medium
from tests.support.caches import MAP
from tests.support.engine import FixedClock
from tests.support.events import hear_all
from tests.support.managing import QuarterTokens, StatedCatalog

UPSTREAM, MODEL = "main", "gpt-4o"
UNKNOWN = Card()


class World:
    """Lessons of one upstream, that keeps prompts the way it is told to."""

    def __init__(self, provider: Provider | None = None, window: int | None = None) -> None:
        self.counting = TokenCounter(QuarterTokens())
        self.bus, self.tasks = EngineBus(TaskRunner()), TaskRunner()
        self.events: list[Event] = []
        hear_all(self.bus, self.events.append)
        self.catalog = StatedCatalog(window)
        self.models = Models(self.catalog, self.counting, BudgetPolicy(), FixedClock(), self.tasks.spawn)
        self.overflows = OverflowWatch(self.models, self.bus)
        providers = {UPSTREAM: provider} if provider is not None else {}
        self.lessons = CacheCalibrator(self.counting, providers, self.overflows, self.bus)

    def send(self, lesson: ExpectedUsage, exchange: str = "x1", k: int = 0) -> None:
        self.lessons.wait_for(exchange, k, lesson)

    def answer(
        self, usage: Usage, exchange: str = "x1", k: int = 0, seconds: float = 0.0, finish: str = "stop"
    ) -> None:
        self.lessons.note_answer(AnswerRead(exchange, k, usage, seconds, finish))

    def tariff(self, model: str = MODEL, terms: CacheTerms = UNASKED, card: Card = UNKNOWN) -> Tariff:
        return self.lessons.find_tariff(UPSTREAM, model, card, terms)

    def tariff_of_rewritten(self, terms: CacheTerms = UNASKED) -> Tariff:
        return self.lessons.find_tariff(UPSTREAM, MODEL, UNKNOWN, terms, is_rewritten=True)

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


KEY = LimitKey(UPSTREAM, MODEL, "beta", b"t")


def watched(tokens: int = 20_000, size: int = 80_000, session: str = "s") -> ExpectedUsage:
    return ExpectedUsage(UPSTREAM, MODEL, tokens, 8_000, session=session, key=KEY, size=size)


def test_a_window_that_was_full_is_learned_and_the_next_request_is_to_be_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(window=200_000)
    world.send(watched(190_000, 800_000))
    world.answer(Usage(185_000, 5_000, cached=0), finish="model_context_window_exceeded")
    assert world.catalog.limits == [(KEY, 190_000, 190_001)]
    assert world.overflows.is_due("s", MODEL)
    assert not world.overflows.is_due("s", "gpt-4o-mini") and not world.overflows.is_due("s2", MODEL)
    seen = SilentOverflowSeen("x1", "s", UPSTREAM, MODEL, "stopped", 190_000, 190_000)
    assert world.events == [seen]
    assert "main accepted a request to gpt-4o that is too long for it (stopped); set upstreams.window" in caplog.text
    world.overflows.settle("s", MODEL)
    assert not world.overflows.is_due("s", MODEL)


def test_a_full_window_without_a_count_teaches_no_window() -> None:
    world = World()
    world.send(watched())
    world.answer(Usage(), finish="model_context_window_exceeded")
    assert (world.catalog.limits, world.overflows.is_due("s", MODEL)) == ([], True)


def test_more_than_the_known_window_is_too_much_and_the_window_stays() -> None:
    world = World(window=10_000)
    world.send(watched())
    world.answer(Usage(20_000, 5))
    assert (world.catalog.limits, world.overflows.is_due("s", MODEL)) == ([], True)
    assert world.events == [SilentOverflowSeen("x1", "s", UPSTREAM, MODEL, "beyond", 10_000, 20_000)]


def test_what_was_counted_whole_teaches_the_models_count_and_what_was_truncated_nothing() -> None:
    world = World(window=10_000)
    world.send(watched(10_000))
    world.answer(Usage(15_000, 5))
    assert world.ratio().value == pytest.approx(1.1)
    world.send(watched(10_000))
    world.answer(Usage(4_000, 5, cached=0))
    assert [event.kind for event in world.events if isinstance(event, SilentOverflowSeen)] == ["beyond", "truncated"]
    assert world.ratio().value == pytest.approx(1.1)
    assert world.tariff().read_share == 1.0


def test_after_three_signs_in_a_row_no_more_epochs_are_opened_for_them() -> None:
    world = World(window=10_000)
    due = []
    for given in (20_000, 20_000, 20_000, 20_000, 9_000, 20_000):
        world.send(watched(given))
        world.answer(Usage(given, 5))
        due.append(world.overflows.is_due("s", MODEL))
        world.overflows.settle("s", MODEL)
    assert due == [True, True, True, False, False, True]
    assert len(world.events) == 5


@pytest.mark.parametrize(
    ("first", "sent", "given", "is_cut"),
    [
        (None, watched(), 7_900, True),  # by a guess
        (None, watched(), 8_100, False),
        (15_000, msgspec.structs.replace(watched(), expected=2_000), 8_900, True),  # of 15,000 that it would count
        (15_000, msgspec.structs.replace(watched(), expected=2_000), 9_100, False),
        (15_000, watched(), 8_900, False),  # as many as are new
        (15_000, watched(), 6_700, True),
        (None, watched(0, 80_000), 6_500, True),  # by its bytes
        (None, watched(0, 80_000), 6_700, False),
        (None, watched(20_000, 0), 100, False),  # with media
        (None, watched(session=""), 100, False),
        (None, msgspec.structs.replace(watched(), key=None), 100, False),
    ],
)
def test_who_reads_far_less_than_was_sent_has_left_out_the_rest(
    first: int | None, sent: ExpectedUsage, given: int, *, is_cut: bool
) -> None:
    world = World()
    if first is not None:
        world.send(watched(), "x0")
        world.answer(Usage(first, 5), "x0")
    world.send(sent)
    world.answer(Usage(given, 5))
    assert world.overflows.is_due("s", MODEL) is is_cut
    assert [limit[1] for limit in world.catalog.limits] == ([given] if is_cut else [])
    assert all(window < most for _, window, most in world.catalog.limits)


def test_a_learned_window_that_is_exceeded_was_none() -> None:
    world = World()
    world.catalog.card = Card(window=10_000, window_source="learned")
    world.send(watched())
    world.answer(Usage(10_000, 5))
    assert world.catalog.limits == []
    world.send(watched())
    world.answer(Usage(20_000, 5))
    assert (world.catalog.limits, world.events) == ([(KEY, 0, 0)], [])
    assert not world.overflows.is_due("s", MODEL)


def test_a_request_that_was_not_counted_teaches_nothing_else() -> None:
    world = World()
    before = world.tariff(), world.ratio()
    world.send(watched(0))
    world.answer(Usage(20_000, 5, cached=0), seconds=1.0)
    assert (world.tariff(), world.ratio()) == before


def test_a_cache_that_keeps_nothing_is_reported_once_and_its_epochs_cost_no_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    bust = world.tariff().price_cache_bust(10_000)
    for number in range(6):
        world.send(lesson(), f"x{number}")
        world.answer(Usage(10_000, 10, cached=0), f"x{number}")
        assert len(world.events) == (number >= 3)
    assert world.events == [CacheDiffers("x3", UPSTREAM, MODEL, 0.0)]
    assert "the cache of main reads hardly anything for gpt-4o" in caplog.text
    assert bust == pytest.approx(9_000)
    assert world.tariff().price_cache_bust(10_000) == 0.0


def test_a_cache_that_keeps_prompts_again_is_believed_by_and_by_and_reported_again() -> None:
    world = World()
    for number, cached in enumerate((0, 0, 0, 8_000, 0, 0, 0, 0, 8_000, 0, 0, 0, 0)):
        world.send(lesson(), f"x{number}")
        world.answer(Usage(10_000, 10, cached=cached), f"x{number}")
    assert [event.exchange for event in world.events if isinstance(event, CacheDiffers)] == ["x7", "x12"]


def test_a_rewritten_request_has_markers_of_ours_where_the_upstream_takes_them() -> None:
    world = World(Provider(cache="breakpoints"))
    assert not world.tariff().cache.is_used
    assert world.tariff().price_cache_bust(10_000) == 0.0  # nothing is cached that could be lost
    assert world.tariff_of_rewritten().cache.is_used
    assert not world.tariff_of_rewritten().cache.is_head_kept
    cache = world.tariff_of_rewritten(CacheTerms(has_leading=True)).cache
    assert (cache.is_head_kept, cache.retention) == (True, 300.0)
    hour = world.tariff_of_rewritten(CacheTerms(head=("1h",), messages=("1h",))).cache
    assert hour.retention == 3600.0
    by_host = World(Provider(host="api.anthropic.com"))
    card = Card(caches=MAP.find("claude-opus-5").caches)
    assert not by_host.lessons.find_tariff(UPSTREAM, MODEL, card, is_rewritten=True).cache.is_used


def test_the_first_usage_with_a_file_tells_its_size_and_nothing_of_the_ratio() -> None:
    world = World()
    file = Medium("document", reference="file-1")
    world.send(msgspec.structs.replace(lesson(12_000), guessed=(file,)))
    world.answer(Usage(60_000, 1))
    assert world.counting.find_size(UPSTREAM, MODEL, "file-1") == 50_000
    assert world.ratio().value == pytest.approx(1.0)
    world.send(msgspec.structs.replace(lesson(61_000), guessed=(file,)), "x2")
    world.answer(Usage(30_000, 1), "x2")
    assert world.counting.find_size(UPSTREAM, MODEL, "file-1") == 50_000  # told once
