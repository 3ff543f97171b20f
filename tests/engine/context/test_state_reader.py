"""How a request stands: what is counted, what need not be, what may be sent."""

import json
from typing import Any

import msgspec
import pytest

from proxy.context.budget import Budget, BudgetPolicy, make_budget
from proxy.engine.context.request_state import StateReader, find_key
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.session_context import SessionContext
from proxy.engine.models import Models
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import Card, LimitKey
from proxy.model.exchange import Headers
from proxy.wire.body import split_body
from tests.support.contexts import HISTORY, StatedArchive, ask, make_epoch
from tests.support.engine import FixedClock
from tests.support.managing import MODEL, SESSION, QuarterTokens, StatedCatalog, make_subject
from tests.support.measuring import follow_on

TOOLS = [{"type": "function", "function": {"name": "bash", "description": "d " * 4000}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"description": "d" * 9000}}}
LONG = {"role": "system", "content": "Mind this. " * 900}


class World:
    """A state_reader over fakes; a token for each four characters."""

    def __init__(self, window: int | None = 100_000) -> None:
        self.clock = FixedClock()
        self.counting = TokenCounter(QuarterTokens())
        self.catalog = StatedCatalog(window)
        policy = BudgetPolicy(ceiling_tokens=50_000)
        self.models = Models(self.catalog, self.counting, policy, self.clock, TaskRunner().spawn)
        self.memory = ContextCaches(StatedArchive(), self.counting, 1 << 24)
        self.state_reader = StateReader(self.memory, self.models, EngineBus(TaskRunner()), self.clock)

    def learn_double(self) -> None:
        """The model counts two tokens for each of ours."""
        for _ in range(200):
            self.counting.learn("main", MODEL, 10_000, 20_000)


def soft(tokens: int) -> Budget:
    """A budget with this soft mark."""
    return make_budget(1_000_000, None, 1000, BudgetPolicy(ceiling_tokens=tokens * 100 // 97 + 1, soft_fraction=1.0))


def body_size(**members: Any) -> int:
    return len(make_subject(HISTORY, **members).split.content)


def spell_as(content: bytes, subject: ManagedRequest) -> ManagedRequest:
    """The same request with its body spelt otherwise."""
    split = split_body(content, subject.items_key)
    assert split is not None
    return msgspec.structs.replace(subject, split=split)


def test_a_budget_is_in_our_tokens() -> None:
    world = World()
    plain = world.state_reader.find_budget(ask())
    assert plain.usable == 48_500
    world.learn_double()
    assert world.state_reader.find_ratio(ask()).value == pytest.approx(2.0, rel=0.01)
    assert world.state_reader.find_budget(ask()).usable == pytest.approx(24_250, rel=0.01)


def test_a_ceiling_and_an_output_of_its_own_count() -> None:
    state_reader = World().state_reader
    assert state_reader.find_budget(msgspec.structs.replace(ask(), ceiling=10_000)).usable == 9_700
    assert state_reader.find_budget(make_subject(HISTORY, max_tokens=70_000)).output == 70_000
    assert state_reader.find_budget(make_subject(HISTORY)).output == 8_192


@pytest.mark.parametrize(
    ("headers", "beta"),
    [
        ((), ""),
        (((b"anthropic-beta", b"a"), (b"x-other", b"b"), (b"anthropic-beta", b"c")), "a,c"),
        (((b"anthropic-beta", b"\xff"),), "\xff"),
    ],
)
def test_limits_are_learned_for_beta_headers_and_a_tenant(headers: Headers, beta: str) -> None:
    subject = msgspec.structs.replace(make_subject(HISTORY, headers=headers), wire="anthropic_messages")
    assert find_key(subject) == LimitKey("main", MODEL, beta, SESSION.tenant)


def test_beta_headers_are_those_of_the_wire_that_has_them() -> None:
    assert find_key(make_subject(HISTORY, headers=((b"anthropic-beta", b"a"),))).beta == ""


async def test_a_retention_that_somebody_declared_is_in_the_tariff() -> None:
    world = World()
    path = await world.memory.histories.follow(ask())
    assert world.state_reader.find_tariff(ask(), path).cache.retention is None
    world.catalog.card = Card(window=100_000, retention=600.0)
    world.clock.advance(61)  # what is known of a model is kept for a minute
    assert world.state_reader.find_tariff(ask(), path).cache.retention == 600.0


def test_what_has_few_bytes_is_below_and_is_not_counted() -> None:
    world, subject = World(), ask()
    size = body_size() + 1024
    assert world.state_reader.is_below(subject, soft(size + 2))
    assert subject.measured == {}
    assert not world.state_reader.is_below(ask(), soft(size - 2))


async def test_what_was_counted_counts_by_its_tokens() -> None:
    world = World()
    budget = soft(body_size() // 2 + 1024)
    assert not world.state_reader.is_below(ask(), budget)
    await world.memory.histories.follow(before := ask(len(HISTORY) - 1))
    assert world.state_reader.is_below(follow_on(before, ask()), budget)


@pytest.mark.parametrize("order", [["tools", "model", "messages"], ["messages", "tools", "model"]])
async def test_tools_that_were_counted_count_by_their_tokens_wherever_they_stand(order: list[str]) -> None:
    world = World()
    members = {"messages": HISTORY, "tools": TOOLS, "model": MODEL}
    subject = make_subject(HISTORY, tools=TOOLS)
    content = json.dumps({name: members[name] for name in order}).encode()
    assert len(content) == len(subject.split.content)
    subject = spell_as(content, subject)
    path = await world.memory.histories.follow(subject)
    assert world.state_reader.is_below(subject, soft(path.tokens + 1024 + 200))
    assert not world.state_reader.is_below(subject, soft(path.tokens + 1024))


async def test_new_instructions_are_not_overlooked() -> None:
    world = World()
    await world.memory.histories.follow(before := ask())
    longer = follow_on(before, make_subject([LONG, *HISTORY[1:]]))
    assert not world.state_reader.is_below(longer, soft(5_000))


async def test_other_tools_are_not_overlooked() -> None:
    world = World()
    await world.memory.histories.follow(before := ask())
    assert not world.state_reader.is_below(follow_on(before, make_subject(HISTORY, tools=TOOLS)), soft(5_000))


async def test_what_else_stands_before_the_messages_is_not_overlooked() -> None:
    world = World()
    await world.memory.histories.follow(before := ask())
    content = json.dumps({"model": MODEL, "response_format": SCHEMA, "messages": HISTORY}).encode()
    subject = follow_on(before, spell_as(content, ask()))
    assert not world.state_reader.is_below(subject, soft(5_000))
    assert world.state_reader.is_below(subject, soft(15_000))


async def test_what_an_older_message_has_got_since_is_not_overlooked() -> None:
    world = World()
    await world.memory.histories.follow(before := ask())
    thinking = [{**each, "reasoning_content": "hm " * 900} if each["role"] == "assistant" else each for each in HISTORY]
    assert not world.state_reader.is_below(follow_on(before, make_subject(thinking)), soft(6_000))


async def test_a_request_is_looked_at_as_it_stands() -> None:
    world, asked = World(), ask()
    context = SessionContext()
    context.protected[MODEL] = 70
    case = await world.state_reader.read(asked, context, None, budget := world.state_reader.find_budget(asked))
    assert (case.epoch, case.epoch_tokens, case.kept, case.budget, case.protected) == (None, 0, None, budget, 70)
    assert (case.now, case.ratio, case.request) == (
        world.clock.monotonic(),
        world.state_reader.find_ratio(ask()),
        asked,
    )
    assert case.tokens == (await world.memory.histories.follow(ask())).tokens


async def test_what_is_sent_for_an_epoch_is_counted_once() -> None:
    world = World()
    epoch = make_epoch("a", 4, rendered=(b'{"role":"user","content":"%b"}' % (b"word " * 100),))
    context, budget = SessionContext(), world.state_reader.find_budget(ask())
    context.add(epoch)
    case = await world.state_reader.read(ask(), context, epoch, budget)
    assert case.epoch_tokens == context.sizes["a"] > 100
    context.sizes["a"] = 7
    assert (await world.state_reader.read(ask(), context, epoch, budget)).epoch_tokens == 7


async def test_what_was_sent_before_is_that_under_the_same_epoch() -> None:
    world = World()
    context, budget = SessionContext(), world.state_reader.find_budget(ask())
    context.add(epoch := make_epoch("a", 4))
    context.get_account(MODEL, "", budget).before = ask(3).nodes
    context.get_account(MODEL, "a", budget).before = ask(12).nodes
    assert (await world.state_reader.read(ask(9), context, None, budget)).kept is None
    case = await world.state_reader.read(ask(9), context, epoch, budget)
    assert case.kept == case.tokens


async def test_a_state_is_read_at_once_where_the_epoch_and_all_messages_before_are_counted() -> None:
    world, asked = World(), ask()
    epoch, context, budget = make_epoch("a", 2), SessionContext(), world.state_reader.find_budget(ask())
    context.sizes["a"] = 70
    assert world.state_reader.read_now(asked, context, epoch, budget) is None
    await world.state_reader.read(asked, SessionContext(), None, budget)
    assert world.state_reader.read_now(asked, SessionContext(), epoch, budget) is None
    state = world.state_reader.read_now(asked, context, epoch, budget)
    assert state == await world.state_reader.read(asked, context, epoch, budget)
    assert state is not None
    assert state.epoch_tokens == 70
