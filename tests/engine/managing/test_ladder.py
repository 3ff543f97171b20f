"""From what a request should be sent as down to what it can be sent as; each rung that did not bear is told."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from proxy.engine.managing.case import Case
from proxy.engine.managing.ladder import Footing
from proxy.model.epoch import Epoch
from proxy.model.events import CeilingUnreachable, EpochOpened, RungFailed
from proxy.model.plan import ContextPlan, Kept, Written
from tests.support import managed
from tests.support.engine import FixedClock
from tests.support.managed import PLANNING_SECONDS, Desk, Hanging, ManagedEngine
from tests.support.managing import make_history, make_subject

HISTORY = make_history(40, 1600)
LONG = HISTORY[: 2 + 2 * 22]


def fail(*_: Any) -> ContextPlan:
    raise RuntimeError("the builder is out of order")


def gain_nothing(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(0, (), (), 9_000, 8_000)


def grow(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(1, (Written("a ledger " * 9_000, 0, 0), Kept(0)), (), 9_000, 6_000)


async def test_an_epoch_that_opens_is_committed_and_holds() -> None:
    desk = Desk()
    case = await desk.look_at(LONG)
    footing = await desk.climb(case)
    (epoch,) = desk.committed
    assert (footing.rung, footing.epoch, footing.is_opened) == ("plan", epoch, True)
    assert (epoch.id, epoch.exchange, epoch.why, epoch.parent) == ("x1", "x1", "hard", "")
    assert epoch.through == case.subject.nodes[epoch.depth - 1]
    assert epoch.opened_ms == FixedClock().now_ms()
    assert footing.tokens == epoch.tokens_after < case.tokens == epoch.tokens_before
    assert case.context.find("gpt-4o", case.subject) is epoch
    assert list(case.context.sizes) == [epoch.id]  # what is sent for it need not be counted again
    again = await desk.look_at(LONG)
    assert (again.epoch, again.tokens, again.frozen) == (epoch, footing.tokens, case.context.sizes[epoch.id])
    kept = desk.ladder.keep(again)
    assert kept == Footing("epoch", footing.body, footing.tokens, epoch)
    assert desk.list_events(EpochOpened) == [
        EpochOpened("x1", "s1", "x1", "hard", epoch.tokens_before, epoch.tokens_after)
    ]


async def test_without_a_reason_none_opens() -> None:
    desk = Desk()
    case = await desk.look_at(LONG)
    footing = await desk.climb(case, None)
    assert footing == Footing("original", case.subject.split.content, case.client_tokens)
    assert (desk.builder.asked, desk.events, desk.ladder.keep(case)) == ([], [], None)


async def test_a_revert_to_the_clients_own_bytes_is_an_epoch_that_holds() -> None:
    desk = Desk()
    await desk.climb(await desk.look_at(LONG))
    subject = make_subject(LONG)
    revert = Epoch("r", "s1", "gpt-4o", "x1", subject.chain.root, 0, "revert", "", 1, 2, 9_000, b"[]", ())
    desk.steward._memory.contexts.add("s1", revert)
    case = await desk.look_at(HISTORY[: 2 + 2 * 23])
    footing = await desk.climb(case, None)
    assert footing == Footing("original", case.subject.split.content, case.client_tokens, revert)


async def test_an_epoch_that_does_not_bear_leaves_the_clients_own_bytes() -> None:
    desk = Desk()
    await desk.climb(await desk.look_at(LONG))
    case = await desk.look_at(HISTORY[: 2 + 2 * 23])
    assert case.epoch is not None
    broken = msgspec.structs.replace(case.epoch, id="broken", edits=b"[")
    footing = await desk.climb(msgspec.structs.replace(case, epoch=broken), None)
    assert (footing.rung, footing.epoch, footing.body) == ("original", None, case.subject.split.content)
    (failed,) = desk.list_events(RungFailed)
    assert (failed.rung, failed.exchange, "DecodeError" in failed.problem) == ("epoch", "x1", True)


@pytest.mark.parametrize("act", [gain_nothing, grow])
async def test_a_plan_that_leaves_no_less_is_not_opened_and_the_window_decides_about_more(act: Any) -> None:
    desk = Desk(act)
    footing = await desk.climb(await desk.look_at(LONG))
    assert (footing.rung, desk.committed, desk.builder.asked) == ("original", [], ["plan"])
    desk = Desk(act, window=12_000)
    footing = await desk.climb(await desk.look_at(LONG))
    assert (footing.rung, desk.builder.asked) == ("minimal", ["plan", "minimal"])
    desk = Desk(act)
    footing = await desk.climb(await desk.look_at(LONG), "overflow")
    assert (footing.rung, desk.builder.asked) == ("minimal", ["plan", "minimal"])


async def test_a_request_that_just_fits_needs_nothing_minimal() -> None:
    case = await Desk().look_at(LONG)
    for window, rung in ((case.tokens + 100, "original"), (case.tokens + 99, "minimal")):
        desk = Desk(fail, window=window)
        subject = make_subject(LONG, max_tokens=100)
        context = await desk.steward._memory.contexts.open(subject)
        budget = desk.steward._lookout.find_budget(subject)
        looked = await desk.steward._lookout.look_at(subject, context, None, budget)
        assert (await desk.climb(looked)).rung == rung


async def test_what_the_log_does_not_take_is_not_tried_a_second_time_under_the_same_id() -> None:
    desk = Desk(window=12_000)
    desk.is_lost = True
    case = await desk.look_at(LONG)
    assert (await desk.climb(case)).rung == "original"
    assert (len(desk.committed), desk.builder.asked) == (1, ["plan"])
    assert case.context.epochs == []
    (failed,) = desk.list_events(RungFailed)
    assert (failed.rung, failed.problem) == ("plan", "StoreUnavailable: the log did not take the epoch in time")


async def test_that_a_ceiling_is_out_of_reach_is_said_once_for_what_must_stay() -> None:
    desk = Desk(grow, grow, gain_nothing)
    case = await desk.look_at(LONG)
    for _ in range(2):
        await desk.climb(case)
    (said,) = desk.list_events(CeilingUnreachable)
    assert said == CeilingUnreachable("x1", "s1", "gpt-4o", case.path.head.tokens + 6_000, 7_760)
    assert case.context.protected["gpt-4o"] == case.path.head.tokens + 6_000


async def test_who_waits_for_another_requests_epoch_is_sent_under_it() -> None:
    desk = Desk()
    first, second = await desk.look_at(LONG), await desk.look_at(HISTORY[: 2 + 2 * 23], "x2")
    one, two = await asyncio.gather(desk.climb(first), desk.climb(second))
    assert (one.rung, one.is_opened, two.rung, two.is_opened) == ("plan", True, "epoch", False)
    assert two.epoch is one.epoch
    assert two.tokens == (await desk.look_at(HISTORY[: 2 + 2 * 23], "x3")).tokens
    assert desk.builder.asked == ["plan"]


class Late:
    """A desk whose first plan came too late, for a request at 22 steps."""

    def __init__(self) -> None:
        self._hang = Hanging()
        self.desk = Desk(self._hang, planning_seconds=PLANNING_SECONDS)

    async def begin(self) -> Case:
        case = await self.desk.look_at(LONG)
        try:
            assert (await self.desk.climb(case)).rung == "original"
        finally:
            self._hang.released.set()
        assert case.context._late is not None
        await asyncio.wait((case.context._late[1],))
        return case


async def test_a_plan_that_came_too_late_is_there_for_the_next_request() -> None:
    late = Late()
    await late.begin()
    case = await late.desk.look_at(HISTORY[: 2 + 2 * 23], "x2")
    footing = await late.desk.climb(case)
    assert (footing.rung, footing.is_opened, late.desk.builder.asked) == ("plan", True, ["plan"])


async def test_a_late_plan_that_leaves_too_much_for_this_request_is_made_anew() -> None:
    late = Late()
    await late.begin()
    case = await late.desk.look_at(HISTORY[: 2 + 2 * 23], "x2")
    tight = msgspec.structs.replace(case, budget=case.budget.limit(1_500))
    footing = await late.desk.climb(tight, "overflow")
    assert late.desk.builder.asked[:2] == ["plan", "plan"]
    assert footing.is_opened
    assert footing.tokens <= 1_500


async def test_a_minimal_plan_that_comes_too_late_does_not_take_the_place_of_the_other() -> None:
    hang = Hanging()
    desk = Desk(hang, hang, window=12_000, planning_seconds=PLANNING_SECONDS)
    case = await desk.look_at(LONG)
    try:
        assert (await desk.climb(case)).rung == "original"
    finally:
        hang.released.set()
    assert [failed.rung for failed in desk.list_events(RungFailed)] == ["plan", "minimal"]
    assert case.context._late is not None
    await asyncio.wait((case.context._late[1],))
    assert case.context._late[1].result().plan.rung == "plan"
    assert (await desk.climb(case)).rung == "plan"


@pytest.mark.parametrize("act", [gain_nothing, grow])
async def test_what_was_in_vain_is_tried_again_when_the_request_has_grown(act: Any) -> None:
    desk = Desk(act, act)
    case = await desk.look_at(LONG)
    for _ in range(3):
        assert (await desk.climb(case)).rung == "original"
    assert desk.builder.asked == ["plan"]
    assert (await desk.climb(await desk.look_at(HISTORY[: 2 + 2 * 26]))).rung == "original"
    assert (await desk.climb(await desk.look_at(HISTORY))).rung == "plan"
    assert desk.builder.asked == ["plan", "plan", "plan"]


async def test_a_reference_stands_for_the_same_messages_when_the_client_spells_them_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, history = ManagedEngine(), make_history(160, 300)
    for steps in range(30, 110):
        if len(engine.epochs) == 1:
            monkeypatch.setattr(managed, "spell_as_client", lambda body: json.dumps(body, indent=1).encode())
        await engine.send(history[: 2 + 2 * steps])
    named = [original for epoch in engine.epochs for original in epoch.originals]
    assert len(engine.epochs) > 1
    assert len(named) > len({original.id for original in named}) == len(set(named))
