"""What a request comes to is entered when it is decided, or while the upstream thinks: it comes to the same."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.pricing import estimate_own, make_tariff
from proxy.context.provider_cache import CacheModel
from proxy.engine.context.accounting import list_ends
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.context.session_caches import SentBodies
from proxy.engine.policy import Provider
from proxy.model.card import UNPRICED, CacheKind
from proxy.model.epoch import Epoch, Plan
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import CacheDiffers, Planned
from proxy.model.exchange import Opening, Outcome, Round, Usage
from tests.support.managed import ManagedEngine, Setup, Turn, answer, refuse
from tests.support.managing import Message, QuarterTokens, make_history

HISTORY = make_history(160, 300)
STEPS = range(1, 110)
TOOLS = [{"type": "function", "function": {"name": "a"}}]


class Unready(QuarterTokens):
    """Has everything counted in a thread, before anything is decided."""

    def is_ready(self, encoding: Any) -> bool:
        return False


class Deaf(QuarterTokens):
    """Counts until it is told not to."""

    is_deaf = False

    def count(self, text: str, encoding: Any, model: str = "") -> tuple[int, bool]:
        if self.is_deaf:
            raise RuntimeError("not now")
        return super().count(text, encoding)


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def play(engine: ManagedEngine, **members: Any) -> list[Turn]:
    return [await engine.send(until(steps), **members) for steps in STEPS]


async def warm(engine: ManagedEngine) -> int:
    """Send a history until an epoch stands far from its marks; how many steps the next request has."""
    steps = 30
    while not engine.epochs:
        await engine.send(until(steps))
        steps += 1
    return steps


def list_kinds(engine: ManagedEngine) -> list[type]:
    records = [record for appended in engine.log.appended for record in appended.records]
    return [type(record) for record in records if isinstance(record, Opening | Round | Plan | Outcome)]


def list_plans(engine: ManagedEngine) -> list[Plan]:
    return [replace(plan, exchange="", epoch=plan.epoch and "e") for plan in engine.log.of(Plan)]


@pytest.mark.no_cover
@pytest.mark.parametrize("members", [{}, {"stream": True, "tools": TOOLS}])
async def test_deciding_at_once_comes_to_the_same_as_counting_in_a_thread(
    members: dict[str, Any],
) -> None:
    quick, slow = ManagedEngine(), ManagedEngine(tokenizer=Unready())
    turns = await play(quick, **members), await play(slow, **members)
    assert len(quick.epochs) > 2
    for one, other in zip(*turns, strict=True):
        assert one.all_sent == other.all_sent
        assert list(one.labels) == list(other.labels)
        assert one.labels.get("x-palimpsest-tokens") == other.labels.get("x-palimpsest-tokens")
    assert list_plans(quick) == list_plans(slow)
    assert len(quick.log.of(Plan)) > len(quick.epochs)


async def test_a_plan_is_recorded_behind_the_opening_and_before_the_outcome() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    turn = await engine.send(until(steps))
    assert list_kinds(engine)[-4:] == [Opening, Round, Plan, Outcome]
    newest = engine.log.of(Round)[-1]
    assert newest.body is not None
    assert engine.log.of(Plan)[-1].rung == "epoch"
    assert turn.labels["x-palimpsest-tokens"].startswith("client=")


async def test_a_request_that_is_refused_as_too_long_is_counted_and_cut() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    engine.upstream.prepare(refuse("maximum context length is 1000 tokens. However, your messages resulted in 1100"))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(steps))
    first, second = turn.plans
    assert (first.k, second.k, first.tokens_client is not None) == (0, 1, True)
    assert turn.labels["x-palimpsest-epoch"] == second.epoch != first.epoch
    assert "x-palimpsest-notice" in turn.labels


async def test_of_a_call_that_comes_to_nothing_all_is_recorded() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)

    async def fail(*args: Any) -> Any:
        raise UpstreamUnreachable("gone")

    setattr(engine.upstream, "send", fail)  # noqa: B010
    turn = await engine.send(until(steps))
    assert turn.client.error is not None
    assert list_kinds(engine)[-4:] == [Opening, Round, Plan, Outcome]
    assert turn.plan.tokens_client is not None


async def test_a_fault_while_tokens_are_counted_leaves_the_call_alone() -> None:
    tokenizer = Deaf()
    engine = ManagedEngine(tokenizer=tokenizer)
    steps = await warm(engine)
    tokenizer.is_deaf = True
    turn = await engine.send(until(steps))
    assert turn.client.status == 200
    assert turn.plan.rung == "original"
    assert turn.plan.reason == "RuntimeError: not now"
    tokenizer.is_deaf = False
    assert (await engine.send(until(steps + 1))).plan.rung == "epoch"


async def test_a_fault_of_the_record_leaves_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ManagedEngine()
    steps = await warm(engine)

    def fail(*args: Any) -> Any:
        raise RuntimeError("not now")

    monkeypatch.setattr(SentBodies, "keep", fail)
    turn = await engine.send(until(steps))
    manifest = engine.log.of(Round)[-1].body
    assert manifest is not None
    assert manifest.size == len(turn.sent)
    while len(engine.epochs) == 1:  # nor where an epoch opens
        steps += 1
        turn = await engine.send(until(steps))
    assert turn.plan.rung == "plan"
    manifest = engine.log.of(Round)[-1].body
    assert manifest is not None
    assert manifest.size == len(turn.sent)


async def test_each_request_is_told_of_once() -> None:
    engine = ManagedEngine()
    await play(engine)
    planned = [event.exchange for event in engine.events if isinstance(event, Planned)]
    assert planned == [plan.exchange for plan in engine.log.of(Plan)]
    assert len(set(planned)) == len(planned)


EXACT = CacheModel("openai-breakpoints", minimum=10, lookback=80, has_head_breakpoint=True)
MARKED = CacheModel("breakpoints", minimum=10, lookback=3, has_head_breakpoint=True)
PART = {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}


async def list_ends_of(cache: CacheModel, *, kept: int | None = 100, is_opened: bool = False) -> list[int] | None:
    """The ends in a request of a task, three steps, the second with two calls, and a marked message of a person."""
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "x" * 400} for n in range(2)]
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "a", "arguments": "{}"}} for n in range(2)]
    double: list[Message] = [{"role": "assistant", "content": None, "tool_calls": calls}, *results]
    state = await Setup().read_state([*until(1), *double, *HISTORY[4:6], {"role": "user", "content": [PART]}])
    state = replace(state, kept=kept, tariff=make_tariff(UNPRICED, cache))
    head, sums = state.history.head.tokens, list(state.history.sums)
    found = list_ends(state, OutgoingRequest("original", b"", is_opened=is_opened))
    return None if found is None else [([head, *(head + end for end in sums)]).index(end) for end in found]


async def test_where_the_prefix_is_broken_a_read_ends_at_a_breakpoint_before() -> None:
    # 0 is the head, 1 the task, 3 the first result, 6 the second one of the double step, 8 the third, 9 the message
    assert await list_ends_of(EXACT) == [9, 8, 6, 3, 1, 0]
    assert await list_ends_of(replace(EXACT, has_head_breakpoint=False)) == [9, 8, 6, 3, 1]
    assert await list_ends_of(MARKED) == [9, 8, 7, 0]  # at most three blocks up to each marker
    assert await list_ends_of(CacheModel()) is None
    assert await list_ends_of(EXACT, kept=None) is None
    assert await list_ends_of(EXACT, is_opened=True) is None


async def test_the_frozen_prefix_ends_at_a_breakpoint() -> None:
    setup = Setup()
    state = await setup.read_state(until(3))
    epoch = Epoch("e", "s1", "gpt-4o", "", b"", 5, "hard", "x", 1, 2, 1, b"[]", (b"{}",))
    state = replace(state, epoch=epoch, epoch_tokens=50, kept=1, tariff=make_tariff(UNPRICED, EXACT))
    head, last = state.history.head.tokens, state.history.count(5, 7)
    assert list_ends(state, OutgoingRequest("epoch", b"")) == [head + 50 + last, head + 50, head]


@pytest.mark.parametrize(("cache", "is_reported"), [("openai-breakpoints", False), ("prefix", True)])
async def test_what_cannot_be_read_of_a_broken_prefix_is_not_missed(cache: CacheKind, *, is_reported: bool) -> None:
    """A client that changes the last of twelve results each time: no breakpoint is in the group before it."""
    engine = ManagedEngine(provider=Provider(cache=cache))
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "a", "arguments": "{}"}} for n in range(12)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "word " * 360} for n in range(11)]
    step: list[Message] = [*until(0), {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    for number in range(8):
        last = {"role": "tool", "tool_call_id": "c11", "content": f"{number} " + "word " * 350}
        usage = {"prompt_tokens": 5_500, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        engine.upstream.prepare(answer(json.dumps({"choices": [], "usage": usage}).encode()))
        await engine.send([*step, last])
    assert engine.epochs == []
    assert any(isinstance(event, CacheDiffers) for event in engine.events) is is_reported


async def test_a_cache_that_keeps_nothing_would_have_kept_nothing_of_the_clients_own_request() -> None:
    """What is sent in short to a provider without a cache saves all that is left out, at the full price."""
    engine = ManagedEngine(provider=Provider(cache="prefix"))
    for steps in range(20, 60):
        usage = {"prompt_tokens": 5_500, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        engine.upstream.prepare(answer(json.dumps({"choices": [], "usage": usage}).encode()))
        await engine.send(until(steps))
    before, after = engine.log.of(Plan)[1], engine.log.of(Plan)[-1]
    assert before.client_read and before.sent_read
    assert after.client_read == after.sent_read == 0
    found = estimate_own(replace(after, own_expected=20_000, sent_expected=5_500), Usage(5_500, 1, 0))
    assert found is not None and (found.own.input, found.own.cached) == (20_000, 0)
