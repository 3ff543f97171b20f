"""From what a request should be sent as down to what it can be sent as; each rung that did not bear is told."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.engine.context.request_state import OutgoingRequest, RequestState
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import ContextPlan, Epoch, Kept, Pin, Written
from proxy.model.events import CeilingUnreachable, EpochOpened, RungFailedEvent
from tests.support import managed
from tests.support.chat_clients import TOOLS
from tests.support.engine import LIMIT, FixedClock
from tests.support.managed import PLANNING_SECONDS, Hanging, ManagedEngine, Setup
from tests.support.managing import make_history, make_subject

HISTORY = make_history(40, 1600)
LONG = HISTORY[: 2 + 2 * 22]
BELOW = HISTORY[: 2 + 2 * 15]


def fail(*_: Any) -> ContextPlan:
    raise RuntimeError("the builder is out of order")


def orphan(view: Any, build: Any) -> ContextPlan:
    """A call stays without its result, which upstreams refuse."""
    return ContextPlan(3, (Kept(0), Kept(1)), (), 100, 100)


def gain_nothing(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(0, (), (), 9_000, 8_000)


def stay(view: Any, build: Any) -> ContextPlan:
    """More should stay than leaves room for anything else, and what is left is no less than it was."""
    return ContextPlan(1, (Written("a ledger " * 9_000, 0, 0), Kept(0)), (), 9_000, 5_000, beyond=6_000)


def reach_nothing(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(0, (), (), 9_000, 9_000, beyond=9_000)


def grow(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(1, (Written("a ledger " * 9_000, 0, 0), Kept(0)), (), 9_000, 6_000)


async def test_an_epoch_that_opens_is_committed_and_holds() -> None:
    setup = Setup()
    case = await setup.read_state(LONG)
    outgoing = await setup.run_chain(case)
    (epoch,) = setup.committed
    assert (outgoing.rung, outgoing.epoch, outgoing.is_opened) == ("plan", epoch, True)
    assert (epoch.id, epoch.exchange, epoch.why, epoch.parent) == ("x1", "x1", "hard", "")
    assert epoch.through == case.request.nodes[epoch.depth - 1]
    assert epoch.opened_ms == FixedClock().now_ms()
    assert outgoing.tokens == epoch.tokens_after < case.tokens == epoch.tokens_before
    assert case.context.find("gpt-4o", case.request) is epoch
    assert list(case.context.sizes) == [epoch.id]  # what is sent for it need not be counted again
    again = await setup.read_state(LONG)
    assert (again.epoch, again.tokens, again.epoch_tokens) == (epoch, outgoing.tokens, case.context.sizes[epoch.id])
    kept = setup.chain.keep(again)
    assert kept == OutgoingRequest("epoch", outgoing.body, outgoing.tokens, epoch)
    assert [opened.epoch for opened in setup.list_events(EpochOpened)] == [epoch]


async def test_without_a_reason_none_opens() -> None:
    setup = Setup()
    case = await setup.read_state(LONG)
    outgoing = await setup.run_chain(case, None)
    assert outgoing == OutgoingRequest("original", case.request.split.content, case.client_tokens)
    assert (setup.builder.asked, setup.events, setup.chain.keep(case)) == ([], [], None)


async def test_a_revert_to_the_clients_own_bytes_is_an_epoch_that_holds() -> None:
    setup = Setup()
    await setup.run_chain(await setup.read_state(LONG))
    subject = make_subject(LONG)
    revert = Epoch("r", "s1", "gpt-4o", "x1", subject.chain.root, 0, "revert", "", 1, 2, 9_000, b"[]", ())
    setup.controller.states.caches.contexts.add("s1", revert)
    case = await setup.read_state(HISTORY[: 2 + 2 * 23])
    outgoing = await setup.run_chain(case, None)
    assert outgoing == OutgoingRequest("original", case.request.split.content, case.client_tokens, revert)


async def break_epoch(setup: Setup, *, is_side: bool = False, **changes: Any) -> RequestState:
    """A request above the ceiling under an epoch that does not bear."""
    await setup.run_chain(await setup.read_state(LONG))
    case = await setup.read_state(HISTORY[: 2 + 2 * 23], is_side=is_side)
    assert case.epoch is not None
    broken = msgspec.structs.replace(case.epoch, id="broken", edits=b"[")
    return msgspec.structs.replace(case, epoch=broken, **changes)


LEVELS = {
    (): ("plan", "the active epoch: DecodeError"),
    (fail,): ("minimal", "the active epoch: DecodeError; a plan: RuntimeError"),
    (orphan,): ("minimal", "the active epoch: DecodeError; a plan: missing call_000000000000000000000000"),
    (fail, fail): ("original", "the active epoch: DecodeError; a plan: RuntimeError; a minimal plan: RuntimeError"),
}


@pytest.mark.parametrize("acts", LEVELS)
async def test_above_the_ceiling_the_clients_own_bytes_are_the_last_level(acts: tuple[Any, ...]) -> None:
    setup = Setup(None, *acts)
    case = await break_epoch(setup)
    outgoing = await setup.run_chain(case, None)
    assert (outgoing.rung, outgoing.failed) == LEVELS[acts]
    assert (outgoing.tokens < 7_760) is (outgoing.rung != "original")
    first, *later = setup.list_events(RungFailedEvent)
    assert (first.rung, first.exchange, "DecodeError" in first.error) == ("epoch", "x1", True)
    assert [each.rung for each in later] == ["plan", "minimal"][: len(acts)]
    assert outgoing.rung != "original" or outgoing.body == case.request.split.content


async def test_below_the_ceiling_and_for_side_requests_nothing_opens_in_place_of_an_epoch_that_failed() -> None:
    roomy: dict[str, Any] = {"budget": make_budget(None, None, None, BudgetPolicy(ceiling_tokens=50_000))}
    for changes in (roomy, {"is_side": True}):
        setup = Setup()
        case = await break_epoch(setup, **changes)
        outgoing = await setup.run_chain(case, None)
        assert (outgoing.rung, outgoing.body) == ("original", case.request.split.content)
        assert (setup.builder.asked, outgoing.failed) == (["plan"], "the active epoch: DecodeError")


@pytest.mark.parametrize("act", [gain_nothing, grow])
async def test_where_a_plan_leaves_no_less_a_minimal_one_would_not_either(act: Any) -> None:
    for why in ("hard", "overflow"):
        setup = Setup(act)
        outgoing = await setup.run_chain(await setup.read_state(LONG), why)
        assert (outgoing.rung, setup.committed, setup.builder.asked) == ("original", [], ["plan"])


async def test_where_a_plan_fails_a_minimal_one_is_made_for_what_is_above_the_ceiling() -> None:
    for why in ("hard", "overflow"):
        setup = Setup(fail)
        outgoing = await setup.run_chain(await setup.read_state(LONG), why)
        assert (outgoing.rung, outgoing.tokens < 7_760) == ("minimal", True)
        assert setup.builder.asked == ["plan", "minimal"]


@pytest.mark.parametrize("act", [gain_nothing, grow, fail])
async def test_below_the_ceiling_no_minimal_plan_is_made(act: Any) -> None:
    setup = Setup(act)
    outgoing = await setup.run_chain(await setup.read_state(BELOW), "soft")
    assert (outgoing.rung, setup.committed, setup.builder.asked) == ("original", [], ["plan"])


async def test_what_the_log_does_not_take_is_not_tried_a_second_time_under_the_same_id() -> None:
    setup = Setup(window=12_000)
    setup.is_lost = True
    case = await setup.read_state(LONG)
    assert (await setup.run_chain(case)).rung == "original"
    assert (len(setup.committed), setup.builder.asked) == (1, ["plan"])
    assert case.context.epochs == []
    (failed,) = setup.list_events(RungFailedEvent)
    assert (failed.rung, failed.error) == ("plan", "StoreUnavailable: the log did not take the epoch in time")


async def test_that_a_ceiling_is_out_of_reach_is_said_once_until_there_is_room_again() -> None:
    setup = Setup(stay, stay, gain_nothing, reach_nothing)
    case = await setup.read_state(LONG)
    for _ in range(2):
        await setup.run_chain(case, "overflow")
    (said,) = setup.list_events(CeilingUnreachable)
    assert said == CeilingUnreachable("x1", "s1", "gpt-4o", 6_000, 7_760)
    assert case.context.protected["gpt-4o"] == case.history.head.tokens + 5_000
    await setup.run_chain(case, "overflow")
    assert setup.builder.asked == ["plan"] * 3
    shown = setup.list_events(CeilingUnreachable)
    await setup.run_chain(case, "overflow")
    assert (len(shown), len(setup.list_events(CeilingUnreachable))) == (1, 2)


async def test_who_waits_for_another_requests_epoch_is_sent_under_it() -> None:
    setup = Setup()
    first, second = await setup.read_state(LONG), await setup.read_state(HISTORY[: 2 + 2 * 23], "x2")
    one, two = await asyncio.gather(setup.run_chain(first), setup.run_chain(second))
    assert (one.rung, one.is_opened, two.rung, two.is_opened) == ("plan", True, "epoch", False)
    assert two.epoch is one.epoch
    assert two.tokens == (await setup.read_state(HISTORY[: 2 + 2 * 23], "x3")).tokens
    assert setup.builder.asked == ["plan"]


class Late:
    """A setup whose first plan hangs until it is released."""

    def __init__(self, *acts: Any) -> None:
        self.hang = Hanging()
        self.setup = Setup(self.hang, *acts, hard_wait_seconds=PLANNING_SECONDS)

    async def release(self, case: RequestState) -> None:
        awaited = case.context.drafting
        assert awaited is not None
        self.hang.released.set()
        async with asyncio.timeout(LIMIT):
            await asyncio.wait((awaited,))


def owe(case: RequestState) -> RequestState:
    """Let an epoch pay at once."""
    case.epoch_account.account = msgspec.structs.replace(case.account, owed=1e9)
    return case


async def test_a_plan_that_came_too_late_is_there_for_the_next_request() -> None:
    late = Late()
    case = await late.setup.read_state(BELOW)
    try:
        assert (await late.setup.run_chain(case, "soft")).rung == "original"
    finally:
        await late.release(case)
    case = owe(await late.setup.read_state(HISTORY[: 2 + 2 * 16], "x2"))
    outgoing = await late.setup.run_chain(case, "soft")
    assert (outgoing.rung, outgoing.is_opened, late.setup.builder.asked) == ("plan", True, ["plan"])
    assert case.context.find_drafted(case.request, case.epoch) is None


async def test_a_plan_that_does_not_pay_opens_no_epoch_and_is_kept() -> None:
    setup = Setup()
    case = await setup.read_state(BELOW)
    outgoing = await setup.run_chain(case, "soft")
    assert (outgoing.rung, setup.committed, setup.builder.asked) == ("original", [], ["plan"])
    assert setup.list_events(RungFailedEvent) == []
    case = owe(await setup.read_state(HISTORY[: 2 + 2 * 16], "x2"))
    assert (case.facts.planned, case.planned_facts.planned is not None) == (None, True)
    assert (await setup.run_chain(case, "soft")).is_opened
    assert setup.builder.asked == ["plan"]


async def test_a_plan_is_used_only_where_it_keeps_what_a_plan_of_the_request_itself_would() -> None:
    setup = Setup()
    await setup.run_chain(await setup.read_state(BELOW), "soft")
    case = owe(await setup.read_state(HISTORY[: 2 + 2 * 16], "x2"))
    case.context.pin(Pin("s1", case.request.nodes[3], True, 1))
    outgoing = await setup.run_chain(case, "soft")
    assert (outgoing.is_opened, setup.builder.asked) == (True, ["plan", "plan"])
    assert str(HISTORY[4]["content"]).encode() in outgoing.body


async def test_a_plan_that_was_found_invalid_is_not_tried_again() -> None:
    setup = Setup(lambda view, build: ContextPlan(len(view.messages), (Kept(0), Kept(3)), (), 10))
    assert (await setup.run_chain(await setup.read_state(LONG))).rung == "minimal"
    case = await setup.read_state(LONG, "x2")
    assert case.context.find_drafted(case.request, None) is None


async def test_a_late_plan_is_told_by_its_limit_however_much_of_that_memory_took() -> None:
    """Equal lines of the log are counted: what was left of the limit would make each another."""
    late = Late()
    case = await late.setup.read_state(LONG)

    class SlowMemory:
        async def add(self, state: RequestState, seconds: float) -> RequestState:
            late.setup.clock.advance(seconds - 0.01)
            return state

        async def show(self, state: RequestState) -> RequestState:
            return state

    late.setup.chain.memory = SlowMemory()
    try:
        await late.setup.run_chain(case)
    finally:
        await late.release(case)
    [failed] = late.setup.list_events(RungFailedEvent)
    assert failed.error == "planning took more than 10 s"


async def test_where_all_the_time_is_spent_the_minimal_plan_is_made_all_the_same() -> None:
    late = Late()
    case = await late.setup.read_state(LONG)
    try:
        outgoing = await late.setup.chain.run(case, "hard", late.setup.commit, seconds=0.0)
    finally:
        await late.release(case)
    assert (outgoing.rung, outgoing.tokens < case.budget.high) == ("minimal", True)


async def test_a_late_plan_that_leaves_no_less_than_what_stands_is_made_anew() -> None:
    """What was sent meanwhile was shorter than it."""
    late = Late()
    case = await late.setup.read_state(LONG)
    try:
        assert (await late.setup.run_chain(case)).rung == "minimal"
    finally:
        await late.release(case)
    outgoing = await late.setup.run_chain(await late.setup.read_state(make_history(60, 1600), "x2"))
    assert (outgoing.rung, late.setup.builder.asked) == ("plan", ["plan", "minimal", "plan"])


async def test_a_late_plan_that_leaves_too_much_for_this_request_is_made_anew() -> None:
    late = Late()
    case = await late.setup.read_state(BELOW)
    try:
        assert (await late.setup.run_chain(case, "soft")).rung == "original"
    finally:
        await late.release(case)
    case = await late.setup.read_state(HISTORY[: 2 + 2 * 16], "x2")
    tight = msgspec.structs.replace(case, budget=case.budget.limit(1_500))
    outgoing = await late.setup.run_chain(tight, "overflow")
    assert late.setup.builder.asked == ["plan", "plan"]
    assert (outgoing.rung, outgoing.tokens <= 1_500) == ("plan", True)


async def test_a_late_plan_that_failed_is_made_anew_for_the_next_request() -> None:
    late = Late()
    late.setup.builder.acts = [lambda view, build: late.hang(view, fail)]
    case = await late.setup.read_state(BELOW)
    try:
        await late.setup.run_chain(case, "soft")
    finally:
        await late.release(case)
    outgoing = await late.setup.run_chain(await late.setup.read_state(LONG, "x2"))
    assert (outgoing.rung, late.setup.builder.asked) == ("plan", ["plan", "plan"])


@pytest.mark.parametrize("act", [gain_nothing, grow])
async def test_a_plan_in_vain_is_a_fact_of_that_request_and_of_those_that_follow(act: Any) -> None:
    setup = Setup(act)
    case = await setup.read_state(LONG)
    assert (case.facts.unshortened, case.facts.is_unshortened) == (0, False)
    assert (await setup.run_chain(case)).rung == "original"
    assert (case.facts.unshortened, case.facts.is_unshortened) == (case.tokens, True)
    longer = await setup.read_state([*LONG, {"role": "user", "content": "."}])
    assert (longer.facts.unshortened, longer.facts.is_unshortened) == (case.tokens, False)
    assert (await setup.run_chain(longer)).rung == "plan"


async def _find_nothing(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
    return "Nothing was found."


async def test_a_reference_stands_for_the_same_messages_when_the_client_spells_them_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, history = ManagedEngine(run=_find_nothing), make_history(160, 300)  # with the tool that reads references
    for steps in range(30, 110):
        if len(engine.epochs) == 1:
            monkeypatch.setattr(managed, "spell_as_client", lambda body: json.dumps(body, indent=1).encode())
        await engine.send(history[: 2 + 2 * steps], tools=TOOLS)
    named = [original for epoch in engine.epochs for original in epoch.originals]
    assert len(engine.epochs) > 1
    assert len(named) > len({original.id for original in named}) == len(set(named))
