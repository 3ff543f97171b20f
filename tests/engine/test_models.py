"""What is known of models: looked up without waiting, found out beside the calls."""

import zlib
from collections.abc import AsyncIterator

import pytest

from proxy.context.budget import BudgetPolicy
from proxy.context.model_catalog import Encoding
from proxy.engine.models import Models
from proxy.engine.runtime import TaskRunner
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import Card, LimitKey, Prices, Rates, Tier
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from tests.support.engine import JSON, LIMIT, FixedClock, ScriptedResponse, ScriptedUpstream

KEY: Headers = ((b"authorization", b"Bearer sk-1"),)


class NoTokens:
    """Nothing is counted here."""

    def is_ready(self, encoding: Encoding) -> bool:
        raise AssertionError

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        raise AssertionError


class ListedCatalog:
    """Knows what it is told."""

    def __init__(self) -> None:
        self.cards: dict[LimitKey, Card] = {}
        self.listings: list[tuple[str, bytes]] = []
        self.limits: list[tuple[LimitKey, int, int, bool]] = []
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    def note_listing(self, upstream: str, content: bytes) -> None:
        self.listings.append((upstream, content))

    def note_limit(self, key: LimitKey, window: int, sent: int, *, is_stated: bool = False) -> None:
        self.limits.append((key, window, sent, is_stated))

    def find(self, key: LimitKey) -> Card:
        return self.cards.get(key, Card())


class World:
    """Models over fakes."""

    def __init__(self) -> None:
        self.catalog, self.clock, self.tasks = ListedCatalog(), FixedClock(), TaskRunner()
        self.upstream = ScriptedUpstream()
        policy = BudgetPolicy(ceiling_tokens=100_000)
        self.models = Models(self.catalog, TokenCounter(NoTokens()), policy, self.clock, self.tasks.spawn)

    async def ask(self, *answers: ScriptedResponse | Exception, headers: Headers = KEY) -> None:
        """Ask once; the upstream answers so."""
        self.models.ask(self.upstream, headers)
        for answer in answers:
            self.upstream.answer(answer)
        assert await self.tasks.finish(LIMIT)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Models over fakes."""
    made = World()
    yield made
    assert await made.tasks.finish(LIMIT)


async def test_a_budget_is_of_the_models_window_and_the_ceiling(world: World) -> None:
    world.catalog.cards[LimitKey("u", "small")] = Card(window=32_000, output=4_000)
    small = world.models.budget(LimitKey("u", "small"))
    assert (small.window, small.output, small.usable) == (32_000, 4_000, (32_000 - 4_000 - 4_000) * 97 // 100)
    assert world.models.budget(LimitKey("u", "unknown")).usable == 97_000
    assert world.models.budget(LimitKey("u", "unknown"), ceiling=50_000).usable == 48_500
    assert world.models.budget(LimitKey("u", "small"), 10_000).output == 10_000


async def test_an_automatic_ceiling_stays_below_a_models_long_context_prices() -> None:
    catalog, tasks = ListedCatalog(), TaskRunner()
    models = Models(catalog, TokenCounter(NoTokens()), BudgetPolicy(), FixedClock(), tasks.spawn)
    dear = Tier(100_000, Rates(5.0, 25.0, 0.5, 6.25))
    catalog.cards[LimitKey("u", "tiered")] = Card(1_000_000, prices=Prices(Rates(1.0, 5.0, 0.1, 1.25), (dear,)))
    assert models.budget(LimitKey("u", "tiered")).usable == 97_000
    assert models.budget(LimitKey("u", "tiered"), ceiling=200_000).usable == 194_000  # as the request asks
    assert models.budget(LimitKey("u", "unknown")).usable == 124_160


async def test_limits_hold_for_whom_they_were_learned(world: World) -> None:
    key = LimitKey("u", "m", "beta", b"t")
    world.catalog.cards[key] = Card(window=7)
    assert world.models.card("u", "m", beta="beta", tenant=b"t").window == 7
    assert world.models.budget(LimitKey("u", "m", "beta", b"t")).window == 7
    assert world.models.card("u", "m").window is None
    world.catalog.cards[key] = Card(window=5)
    assert world.models.budget(key).window == 7  # as it was found a moment ago
    world.models.note_limit(key, 5, 6, is_stated=True)
    assert world.catalog.limits == [(key, 5, 6, True)]
    assert world.models.budget(key).window == 5


async def test_what_comes_with_the_installation_is_read(world: World) -> None:
    await world.models.open()
    assert world.catalog.is_open


async def test_an_upstream_is_asked_with_the_callers_credential(world: World) -> None:
    fields = (*KEY, (b"content-type", b"x"), (b"content-length", b"9"), (b"cookie", b"c"), (b"anthropic-version", b"1"))
    answer = ScriptedResponse(b'{"da', b'ta":[]}', ending="eof", headers=JSON)
    await world.ask(answer, headers=fields)
    [sent] = world.upstream.calls
    assert (sent.method, sent.target, sent.body) == ("GET", b"/v1/models", b"")
    assert sent.headers == (
        *(*KEY, (b"anthropic-version", b"1")),
        *((b"accept", b"application/json"), (b"accept-encoding", b"identity")),
    )
    assert world.catalog.listings == [(world.upstream.name, b'{"data":[]}')]
    assert answer.is_closed


async def test_it_is_asked_once_an_hour(world: World) -> None:
    await world.ask(ScriptedResponse(b"1", ending="eof"))
    world.clock.advance(3599)
    await world.ask()
    world.clock.advance(1)
    await world.ask(ScriptedResponse(b"2", ending="eof"))
    assert [content for _, content in world.catalog.listings] == [b"1", b"2"]


@pytest.mark.parametrize("credential", [b"Bearer eyJhbGciOiJ9.eyJzdWIi.x", b"Bearer sk-ant-oat01-x"])
async def test_nothing_is_asked_with_the_token_of_a_plan(world: World, credential: bytes) -> None:
    await world.ask(headers=((b"authorization", credential),))
    await world.ask(ScriptedResponse(b"1", ending="eof"))
    assert len(world.upstream.calls) == 1


async def test_a_compressed_list_is_read(world: World) -> None:
    headers = ((b"content-encoding", b"deflate"),)
    await world.ask(ScriptedResponse(zlib.compress(b"list"), ending="eof", headers=headers))
    assert world.catalog.listings == [(world.upstream.name, b"list")]


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedResponse(b"no", ending="eof", status=404),
        ScriptedResponse(b"no", ending="cut"),
        ScriptedResponse(b"no", ending="eof", headers=((b"content-encoding", b"br"),)),
        ScriptedResponse(b"x" * (8 * 1024 * 1024), b"x", ending="eof"),
        UpstreamUnreachable("gone"),
        TimeoutError(),
    ],
)
async def test_where_it_fails_nothing_is_known_and_nothing_is_said(
    world: World, answer: ScriptedResponse | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.ask(answer)
    assert (world.catalog.listings, caplog.records) == ([], [])
