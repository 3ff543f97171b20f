"""Planted causes of cache misses: calls through the engine to a provider that bills as its cache is, by its own clock.

What is said while calls are served must be what the log says later.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.engine.policy import Provider
from proxy.model.card import Card, Prices, Rates
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead
from proxy.model.exchange import Outcome
from proxy.read.cache import CacheReport, load_cache
from proxy.read.savings import Saving, SavingsInputs
from tests.support.engine import FixedClock
from tests.support.kept_log import KeptLog
from tests.support.managed import ManagedEngine, answer
from tests.support.managing import Message, make_history

BLOCK, MINIMUM, RETENTION = 128, 1024, 300.0
PROVIDER = Provider("api.openai.com")
CARD = Card(prices=Prices(Rates(2e-6, 1e-5, 2e-7, 2e-6)), prices_source="settings", retention=RETENTION)
HISTORY = make_history(120, 1200)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
LARGE = 1_000_000


class Billing:
    """A provider's cache: what it holds is read in whole blocks, from the beginning, for as long as it is kept."""

    def __init__(self, clock: FixedClock, characters: int) -> None:
        self._clock = clock
        self._characters = characters
        self.held: list[tuple[str, str, float]] = []

    def bill(self, body: bytes) -> dict[str, Any]:
        """The usage of a request; a token for every so many characters."""
        asked = json.loads(body)
        settings = {name: asked.get(name) for name in ("tools", "tool_choice")}
        prompt = json.dumps(settings) + "".join(map(json.dumps, asked["messages"]))
        now, model = self._clock.monotonic(), asked["model"]
        matching = [
            _count_common(known, prompt) for name, known, at in self.held if name == model and now - at <= RETENTION
        ]
        read = max(matching, default=0) // self._characters // BLOCK * BLOCK
        self.held.append((model, prompt, now))
        details = {"cached_tokens": read if read >= MINIMUM else 0}
        return {
            "prompt_tokens": len(prompt) // self._characters,
            "completion_tokens": 5,
            "prompt_tokens_details": details,
        }


def _count_common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


class World:
    """An engine before a provider that bills, and whoever watches its cache."""

    def __init__(self, ceiling: int = LARGE, characters: int = 4) -> None:
        self.engine = ManagedEngine(ceiling=ceiling, provider=PROVIDER, card=CARD)
        self.billing = Billing(self.engine.clock, characters)
        send = self.engine.upstream.send

        async def bill(method: str, target: bytes, headers: Any, body: Any) -> Any:
            if target != b"/v1/models":
                message = {"role": "assistant", "content": "done"}
                choice = {"message": message, "finish_reason": "stop"}
                reply = {"choices": [choice], "usage": self.billing.bill(body)} | self.extra
                self.engine.upstream.prepare(answer(json.dumps(reply).encode()))
            return await send(method, target, headers, body)

        setattr(self.engine.upstream, "send", bill)  # noqa: B010
        self.extra: dict[str, Any] = {}

    async def ask(self, messages: Sequence[Message], **members: Any) -> None:
        """One call, a second after the one before."""
        self.engine.clock.advance(1)
        turn = self.engine.start(messages, **members)
        await turn.finish()

    async def grow(self, steps: Sequence[int], **members: Any) -> None:
        for step in steps:
            await self.ask(until(step), **members)

    @property
    def told(self) -> dict[str, str]:
        """The cause of each call that missed something, as it was told while calls were served."""
        events = [event for event in self.engine.events if isinstance(event, AnswerRead)]
        return {event.exchange: event.cause for event in events if event.cause}

    async def load(self) -> tuple[CacheReport, Saving | None]:
        """What the log says."""
        archive = await self.store()
        inputs = SavingsInputs(PriceList(lambda upstream, model: CARD, {"scripted": PROVIDER}), BudgetPolicy())
        (row,) = await archive.list_sessions()
        log: Any = archive
        report = await load_cache(log, row.id, inputs)
        return report, report.saved

    async def store(self) -> KeptLog:
        """A log with the records of the engine's."""
        archive = KeptLog()
        for each in self.engine.log.appended:
            assert await archive.append(*each.records)
        return archive


def until(step: int) -> list[Message]:
    return list(HISTORY[: 2 + 2 * step])


def list_causes(report: CacheReport) -> dict[str, str]:
    """The cause of each call that missed something, as the log says."""
    return {call.exchange: call.cause for call in report.calls if call.cause}


async def judge(world: World) -> list[str]:
    """The causes, call by call, if what was told meanwhile and what the log says are the same."""
    report, _ = await world.load()
    causes: list[str] = [call.cause for call in report.calls]
    assert world.told == list_causes(report)
    assert len(causes) == len(world.engine.log.of(Outcome))
    return causes


async def test_nothing_is_missed_in_a_clean_session() -> None:
    world = World()
    await world.grow(range(10, 20), tools=TOOLS)
    title = [{"role": "user", "content": "Give this conversation a title."}]
    await world.ask(title)
    await world.ask(until(19), tools=TOOLS)  # a retry
    await world.grow(range(20, 30), tools=TOOLS)
    assert await judge(world) == [""] * 22
    report, estimate = await world.load()
    assert [call.use for call in report.calls[:2]] == ["first", "read"]
    assert report.totals == {}
    assert estimate is None  # nothing was counted below the soft mark


def change_system(messages: list[Message]) -> list[Message]:
    return [{"role": "system", "content": "You are another agent."}, *messages[1:]]


def change_message(place: int) -> Callable[[list[Message]], list[Message]]:
    def change(messages: list[Message]) -> list[Message]:
        edited = {**messages[place], "content": f"Changed. {messages[place]['content']}"}
        return [*messages[:place], edited, *messages[place + 1 :]]

    return change


CHANGES: list[tuple[str, Callable[[list[Message]], list[Message]], dict[str, Any], str]] = [
    ("system", change_system, {}, "the client changed its system prompt"),
    ("message", change_message(1), {}, "the client changed message 1"),
    ("message", change_message(9), {}, "the client changed message 9"),
    ("tools", lambda each: each, {"tools": [*TOOLS, *TOOLS]}, "the client changed its tools"),
    ("parameters", lambda each: each, {"tool_choice": "none"}, "the client changed tool_choice"),
    ("model", lambda each: each, {"model": "another"}, "another model, or upstream, had this prompt"),
]


@pytest.mark.parametrize(("cause", "change", "members", "text"), CHANGES, ids=[each[3] for each in CHANGES])
async def test_what_the_client_changed_is_named(
    cause: str, change: Callable[[list[Message]], list[Message]], members: dict[str, Any], text: str
) -> None:
    world = World()
    await world.grow(range(20, 24), tools=TOOLS)
    changed = {"tools": TOOLS} | members
    for step in range(24, 28):
        await world.ask(change(until(step)), **changed)
    assert await judge(world) == [""] * 4 + [cause] + [""] * 3
    report, _ = await world.load()
    (total,) = report.totals.values()
    missed = report.calls[4]
    assert (total.calls, total.missed) == (1, missed.missed)
    assert missed.missed == missed.expected - (missed.read or 0) > 2000
    assert missed.cost == pytest.approx(0.9 * missed.missed)
    assert missed.money == pytest.approx(0.9 * missed.missed * 2e-6)
    assert missed.explanation == text


async def test_a_session_that_pauses_for_too_long_misses_by_that() -> None:
    world = World()
    await world.grow(range(20, 24))
    world.engine.clock.advance(200)
    await world.grow(range(24, 26))
    world.engine.clock.advance(400)
    await world.grow(range(26, 28))
    assert await judge(world) == [""] * 6 + ["idle", ""]


async def test_a_provider_that_forgets_is_named_unless_it_says_why() -> None:
    world = World()
    await world.grow(range(20, 24))
    world.billing.held.clear()
    await world.grow(range(24, 26))
    world.billing.held.clear()
    world.extra = {"diagnostics": {"cache_miss_reason": {"type": "messages_changed"}}}
    await world.grow(range(26, 28))
    assert await judge(world) == [""] * 4 + ["provider", "", "message", ""]


async def test_our_epochs_are_named_and_nothing_else() -> None:
    world = World(ceiling=8000)
    await world.grow(range(5, 110))
    opened = [epoch.exchange for epoch in world.engine.epochs]
    assert len(opened) > 2
    report, estimate = await world.load()
    assert world.told == list_causes(report)
    assert world.told == dict.fromkeys(opened, "epoch")
    assert {call.epoch_why for call in report.calls if call.cause} <= {"soft", "hard"}
    assert estimate is not None
    assert not estimate.is_loss
    live = [event.saved for event in world.engine.events if isinstance(event, AnswerRead) and event.saved is not None]
    assert sum(live) == pytest.approx(estimate.tokens)


async def test_a_session_that_ends_with_its_epoch_is_a_loss_and_says_so() -> None:
    world = World(ceiling=8000)
    step = 5
    while not world.engine.epochs:
        await world.ask(until(step))
        step += 1
    _, estimate = await world.load()
    assert estimate is not None
    assert estimate.is_loss
    assert estimate.money is not None
    assert estimate.money < 0
    assert estimate.reason == "no call came after its last epoch, too few to pay for writing the cache anew"
    await world.grow(range(step, step + 5))
    _, later = await world.load()
    assert later is not None
    assert not later.is_loss


async def test_of_a_request_whose_system_prompt_changed_nothing_would_have_been_read() -> None:
    world = World(ceiling=8000)
    step = 5
    while not world.engine.epochs:
        await world.ask(until(step))
        step += 1
    await world.ask(until(step))
    await world.ask(change_system(until(step + 1)))
    *_, before, changed = world.engine.log.of(Plan)
    assert before.client_read and before.sent_read
    assert (changed.client_read, changed.sent_read, changed.rung) == (0, 0, "epoch")
    assert list(world.told.values())[-1] == "system"


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("characters", "steps"),
    [
        (3, range(5, 110)),
        (4, range(5, 110)),
        (5, range(5, 110)),
        (3, [*range(5, 60), *range(58, 100)]),
        (5, [*range(5, 40), 39, *range(40, 70)]),
    ],
)
async def test_a_saving_is_what_sending_everything_would_have_cost_less_what_was_billed(
    characters: int, steps: Sequence[int]
) -> None:
    """However the provider counts, also of a session that goes back, or sends a request again."""
    world, alone = World(ceiling=8000, characters=characters), World(characters=characters)
    await world.grow(steps)
    await alone.grow(steps)
    assert len(world.engine.epochs) > 1
    report, estimate = await world.load()
    whole, _ = await alone.load()
    billed, baseline = (
        sum((call.input or 0) - 0.9 * (call.read or 0) for call in each.calls) for each in (report, whole)
    )
    assert estimate is not None
    assert -0.01 * baseline < estimate.tokens - (baseline - billed) < 0.01 * baseline
    assert sum(call.saved.cost for call in report.calls if call.saved) == pytest.approx(estimate.tokens)


@pytest.mark.no_cover
async def test_a_session_that_was_never_shortened_saved_nothing_whatever_its_cache_did() -> None:
    world = World(ceiling=8000)
    step = 5
    while not world.engine.epochs:
        world.billing.held.clear()
        await world.ask(until(step))
        step += 1
    counted = [plan for plan in world.engine.log.of(Plan) if plan.rung == "original" and plan.tokens_client]
    assert counted
    assert {plan.saving for plan in counted} <= {0.0, None}
    report, _ = await world.load()
    assert {call.saved.cost for call in report.calls[:-1] if call.saved} <= {0.0}
