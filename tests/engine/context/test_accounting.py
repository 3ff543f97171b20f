"""What a request comes to is entered when it is decided, or while the upstream thinks: it comes to the same."""

import asyncio
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
from tests.support.engine import JSON, ScriptedResponse
from tests.support.managed import ManagedEngine, Setup, Turn, answer, refuse
from tests.support.managing import Message, QuarterTokens, make_history, make_subject

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


def take_time(engine: ManagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the upstream think for longer than what is postponed waits."""
    monkeypatch.setattr("proxy.engine.relay._COMPANY_SECONDS", 0)
    send = engine.upstream.send

    async def think(*args: Any) -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        return await send(*args)

    setattr(engine.upstream, "send", think)  # noqa: B010


def list_kinds(engine: ManagedEngine) -> list[type]:
    records = [record for appended in engine.log.appended for record in appended.records]
    return [type(record) for record in records if isinstance(record, Opening | Round | Plan | Outcome)]


def list_plans(engine: ManagedEngine) -> list[Plan]:
    return [replace(plan, exchange="", epoch=plan.epoch and "e") for plan in engine.log.of(Plan)]


@pytest.mark.no_cover
@pytest.mark.parametrize("members", [{}, {"stream": True}, {"tools": TOOLS}])
async def test_what_is_counted_later_comes_to_the_same(
    members: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = ManagedEngine(), ManagedEngine(tokenizer=Unready())
    take_time(quick, monkeypatch)
    turns = await play(quick, **members), await play(slow, **members)
    assert len(quick.epochs) > 2
    for one, other in zip(*turns, strict=True):
        assert one.all_sent == other.all_sent
        assert list(one.labels) == list(other.labels)
        assert one.labels.get("x-palimpsest-tokens") == other.labels.get("x-palimpsest-tokens")
    assert list_plans(quick) == list_plans(slow)
    assert len(quick.log.of(Plan)) > len(quick.epochs)


async def test_it_is_recorded_behind_the_opening_and_before_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    take_time(engine, monkeypatch)
    turn = await engine.send(until(steps))
    assert list_kinds(engine)[-4:] == [Opening, Round, Plan, Outcome]
    newest = engine.log.of(Round)[-1]
    assert newest.body is not None
    assert engine.log.of(Plan)[-1].rung == "epoch"
    assert turn.labels["x-palimpsest-tokens"].startswith("client=")


@pytest.mark.parametrize("window", [1_000_000, None])
@pytest.mark.parametrize("members", [{}, {"stream": True}])
async def test_an_answer_that_is_there_at_once_waits_for_no_count(window: int | None, members: dict[str, Any]) -> None:
    """What was sent is in the log before it all the same. Where no window is known, it is looked at before it goes."""
    engine = ManagedEngine(window=window)
    turn = await engine.send(until(await warm(engine)), **members)
    assert list_kinds(engine)[-4:] == [Opening, Round, Outcome, Plan]
    assert turn.plan.tokens_client is not None
    assert "x-palimpsest-tokens" not in turn.labels
    assert turn.labels["x-palimpsest-epoch"] == engine.epochs[-1].id


async def test_an_answer_that_comes_bit_by_bit_is_counted_for_first() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)

    async def begin(*args: Any) -> Any:
        return ScriptedResponse(b'{"choices":', b"[]}", headers=JSON, ending="last")

    setattr(engine.upstream, "send", begin)  # noqa: B010
    turn = await engine.send(until(steps))
    assert list_kinds(engine)[-4:] == [Opening, Round, Plan, Outcome]
    assert turn.labels["x-palimpsest-tokens"].startswith("client=")


async def test_one_that_is_refused_as_too_long_is_counted_before_it_is_cut() -> None:
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
    assert list_kinds(engine)[-4:] == [Opening, Round, Outcome, Plan]
    assert turn.plan.tokens_client is not None


async def test_the_body_is_on_its_way_first() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    before, opened = len(engine.log.of(Plan)), len(engine.log.of(Opening))
    rounds = len(engine.log.of(Round))
    seen: list[tuple[int, ...]] = []
    send = engine.upstream.send

    async def watch(*args: Any) -> Any:
        for seconds in (0, 0.1):
            seen.append(tuple(len(engine.log.of(kind)) for kind in (Opening, Round, Plan)))
            await asyncio.sleep(seconds)
        seen.append(tuple(len(engine.log.of(kind)) for kind in (Opening, Round, Plan)))
        return await send(*args)

    setattr(engine.upstream, "send", watch)  # noqa: B010
    await engine.send(until(steps))
    behind = opened + 1, rounds + 1
    assert seen == [(opened, rounds, before), (*behind, before), (*behind, before + 1)]


async def test_where_it_depends_on_the_count_that_comes_first() -> None:
    """Near a mark, or after what was in vain."""
    setup = Setup()
    kinds = []
    for steps in STEPS:
        subject = make_subject(until(steps), f"x{steps}", base=2 * steps)
        sending = await setup.decide(subject)
        assert sending.plan is not None or not setup.committed
        kinds.append(sending.uncounted is not None)
        if sending.uncounted is not None:
            setup.controller.account(sending)
    assert sum(kinds) > len(setup.committed)
    opened = [int(epoch.id[1:]) - 1 for epoch in setup.committed]
    assert not any(kinds[at] for at in opened)


async def test_what_was_in_vain_is_counted_first() -> None:
    setup = Setup()
    for steps in range(70, 100):
        sending = await setup.decide(make_subject(until(steps), f"x{steps}"))
        if sending.uncounted is not None:
            break
    assert sending.uncounted is not None
    setup.controller.account(sending)
    context = setup.controller.states.caches.contexts.get("s1")
    assert context is not None
    (epoch,) = context.epochs
    subject = make_subject(until(steps + 1), "x")
    account = context.get_account(epoch.view, epoch.id, setup.controller.states.find_budget(subject))
    account.account = replace(account.account, ineffective=1)
    sending = await setup.decide(subject)
    assert sending.uncounted is None


async def test_a_fault_while_it_is_entered_costs_the_count_and_no_more() -> None:
    tokenizer = Deaf()
    engine = ManagedEngine(tokenizer=tokenizer)
    steps = await warm(engine)
    tokenizer.is_deaf = True
    turn = await engine.send(until(steps))
    assert turn.client.status == 200
    assert turn.plan.rung == "epoch"
    assert (turn.plan.tokens_client, turn.plan.epoch) == (None, engine.epochs[-1].id)
    assert engine.log.of(Round)[-1].body is not None
    assert json.loads(turn.sent)["messages"][-1] == until(steps)[-1]
    assert "x-palimpsest-tokens" not in turn.labels
    tokenizer.is_deaf = False
    assert (await engine.send(until(steps + 1))).plan.tokens_client is not None


async def test_a_fault_of_the_record_costs_no_more_either(monkeypatch: pytest.MonkeyPatch) -> None:
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


EXACT = CacheModel("openai-breakpoints", minimum=10, lookback=80, is_head_marked=True)
MARKED = CacheModel("breakpoints", minimum=10, lookback=3, is_head_marked=True)
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
    assert await list_ends_of(replace(EXACT, is_head_marked=False)) == [9, 8, 6, 3, 1]
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
