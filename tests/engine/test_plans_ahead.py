"""Above the soft mark the next epoch is planned behind each call; the plan is used where a call's own is late."""

from typing import Any

import pytest

from proxy.context.conversation import PlanRequest
from proxy.model.epoch import ContextPlan
from tests.support.managed import PLANNING_SECONDS, Hanging, ManagedEngine, OwnBuilder, cut_end
from tests.support.managing import Message, make_history, make_subject

HISTORY = make_history(60, 1600)


def until(steps: int) -> list[Message]:
    return list(HISTORY[: 2 + 2 * steps])


class NotingBuilder(OwnBuilder):
    """Notes for how many messages each plan was made."""

    def __init__(self, *acts: Any) -> None:
        super().__init__(*acts)
        self.sizes: list[int] = []

    def build(self, view: PlanRequest) -> ContextPlan:
        self.sizes.append(len(view.messages))
        return super().build(view)


def fail(*_: object) -> ContextPlan:
    raise RuntimeError("the builder is out of order")


def make_engine(builder: OwnBuilder) -> ManagedEngine:
    return ManagedEngine(builder=builder, plans_ahead=True, hard_wait_seconds=PLANNING_SECONDS)


async def test_each_call_above_the_soft_mark_has_a_plan_made_behind_it() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    for steps in (4, 14, 15):
        await engine.send(until(steps))
        await engine.wait_for_ahead()
    assert builder.sizes == [len(until(14)) - 1, len(until(15)) - 1]
    assert (engine.epochs, engine.failures) == ([], [])


async def test_what_is_kept_of_plans_is_weighed_when_they_are_made() -> None:
    """A session may have no other call: each of many would hold a plan that nothing bounds."""
    hang = Hanging()
    engine = make_engine(OwnBuilder(None, hang))
    turn = await engine.send(until(14))
    await engine.wait_for_ahead()
    contexts = engine.controller.states.caches.contexts
    context = contexts.get(turn.labels["x-palimpsest-session"])
    assert context is not None
    assert contexts.weight == context.weight
    late = await engine.send(until(50))
    hang.released.set()
    await engine.wait_for_late(late)
    await engine.wait_for_ahead()
    assert contexts.weight == context.weight


async def test_a_request_that_has_hardly_grown_has_none_made_again() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    for more in range(4):
        await engine.send(
            [*until(14), {"role": "user", "content": "word " * 40}, *[{"role": "user", "content": "x"}] * more]
        )
        await engine.wait_for_ahead()
    assert len(builder.sizes) == 1


async def test_an_epoch_that_opens_is_planned_for_the_request_itself_where_that_takes_no_time() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    await engine.send(until(14))
    await engine.wait_for_ahead()
    turn = await engine.send(until(22))
    assert (turn.plan.rung, builder.sizes) == ("plan", [len(until(14)) - 1, len(until(22)) - 1])
    alone = ManagedEngine()
    await alone.send(until(14))
    assert turn.sent == (await alone.send(until(22))).sent


async def test_the_plan_made_ahead_is_sent_where_the_one_for_the_request_is_late() -> None:
    hang = Hanging()
    engine = make_engine(OwnBuilder(None, hang))
    await engine.send(until(14))
    await engine.wait_for_ahead()
    try:
        turn = await engine.send(until(18))
        assert (turn.plan.rung, engine.failures) == ("plan", [])
        assert turn.plan.tokens_upstream is not None and turn.plan.tokens_upstream < turn.plan.usable
        later = await engine.send(until(19))
        assert later.sent.startswith(cut_end(turn.sent))
    finally:
        hang.released.set()


async def test_the_plan_made_ahead_is_sent_where_the_one_for_the_request_fails() -> None:
    engine = make_engine(OwnBuilder(None, fail))
    await engine.send(until(14))
    await engine.wait_for_ahead()
    turn = await engine.send(until(18))
    assert (turn.plan.rung, engine.failures) == ("plan", [])


async def test_one_that_is_too_long_by_now_is_not_used() -> None:
    engine = make_engine(OwnBuilder(None, fail))
    await engine.send(until(14))
    await engine.wait_for_ahead()
    turn = await engine.send(until(50))
    assert turn.plan.rung == "minimal"
    assert [rung for rung, _ in engine.failures] == ["plan"]


async def test_one_that_failed_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(OwnBuilder(fail))
    await engine.send(until(14))
    await engine.wait_for_ahead()
    assert (engine.failures, caplog.records) == ([], [])
    assert (await engine.send(until(22))).plan.rung == "plan"


async def test_one_of_another_branch_is_not_used() -> None:
    engine = make_engine(OwnBuilder(None, fail))
    await engine.send(until(14))
    await engine.wait_for_ahead()
    other = [HISTORY[0], {"role": "user", "content": "Something else."}, *until(22)[2:]]
    turn = await engine.send(other)
    assert turn.plan.rung == "minimal"


@pytest.mark.parametrize("kind", ["conversation", "beside it"])
async def test_requests_that_open_no_epoch_have_none(kind: str) -> None:
    builder = NotingBuilder()
    engine, request = make_engine(builder), make_subject(until(14), is_side=kind == "beside it")
    context = await engine.controller.states.caches.contexts.open(request)
    state = await engine.controller.states.read(request, context, None, engine.controller.states.find_budget(request))
    engine.controller.chain.draft_ahead(state, state.tokens)
    assert len(engine.ahead) == (kind == "conversation")
    await engine.wait_for_ahead()
