"""Before the next epoch opens, it is planned behind a call. What opens it then renders and checks that plan."""

from typing import Any

import pytest

from proxy.context.conversation import PlanRequest
from proxy.model.epoch import ContextPlan
from tests.support.managed import PLANNING_SECONDS, Hanging, ManagedEngine, OwnBuilder, Turn, cut_end
from tests.support.managing import Message, make_history, make_subject

HISTORY = make_history(60, 1600)
SHORT, NEAR, FULL = 4, 16, 18
"""Steps of a request below the soft mark, of one that is near the high mark, and of one above it."""


def until(steps: int) -> list[Message]:
    return list(HISTORY[: 2 + 2 * steps])


class NotingBuilder(OwnBuilder):
    """Notes each plan that is asked for: the number of messages, and the growth that it is made for."""

    def __init__(self, *acts: Any) -> None:
        super().__init__(*acts)
        self.views: list[PlanRequest] = []

    @property
    def sizes(self) -> list[int]:
        return [len(view.messages) for view in self.views]

    def build(self, view: PlanRequest) -> ContextPlan:
        self.views.append(view)
        return super().build(view)


def fail(*_: object) -> ContextPlan:
    raise RuntimeError("the builder is out of order")


def make_engine(builder: OwnBuilder) -> ManagedEngine:
    return ManagedEngine(builder=builder, plans_ahead=True, hard_wait_seconds=PLANNING_SECONDS)


async def send(engine: ManagedEngine, *steps: int) -> Turn:
    """Send requests of so many steps. Return the last one, when the plan behind it is made."""
    for each in steps:
        turn = await engine.send(until(each))
        await engine.wait_for_ahead()
    return turn


async def test_each_call_shortly_before_an_epoch_has_a_plan_made_behind_it() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    await send(engine, SHORT, 12)
    assert builder.sizes == []
    await send(engine, NEAR - 1, NEAR)
    assert builder.sizes == [len(until(NEAR - 1)) - 1, len(until(NEAR)) - 1]
    assert (engine.epochs, engine.failures) == ([], [])
    assert all(view.growth > 300 for view in builder.views)


async def test_what_is_kept_of_plans_is_weighed_when_they_are_made() -> None:
    """A session may have no other call: each of many would hold a plan that nothing bounds."""
    hang = Hanging()
    engine = make_engine(OwnBuilder(None, hang))
    turn = await send(engine, NEAR)
    contexts = engine.controller.states.caches.contexts
    context = contexts.get(turn.labels["x-palimpsest-session"])
    assert context is not None
    assert contexts.weight == context.weight
    late = await engine.send(until(50))
    awaited = context.drafting
    assert awaited is not None
    hang.released.set()
    await engine.wait_for_late(late)
    await engine.wait_for_ahead()
    assert contexts.weight == context.weight


async def test_a_request_that_has_not_grown_has_none_made_again() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    await send(engine, NEAR, NEAR, NEAR)
    assert len(builder.sizes) == 1


async def test_an_epoch_opens_with_the_plan_that_was_made_ahead() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    turn = await send(engine, NEAR, FULL)
    assert (turn.plan.rung, len(engine.epochs), builder.sizes) == ("plan", 1, [len(until(NEAR)) - 1])
    assert turn.messages[-6:] == until(FULL)[-6:]  # the three newest calls
    alone = ManagedEngine()
    await alone.send(until(NEAR))
    own = await alone.send(until(FULL))
    assert turn.plan.tokens_upstream is not None and own.plan.tokens_upstream is not None
    assert turn.plan.tokens_upstream <= own.plan.tokens_upstream + 400  # the messages of a call
    later = await send(engine, FULL + 1)
    assert later.sent.startswith(cut_end(turn.sent))


async def test_what_was_new_when_it_was_made_has_been_answered_by_then() -> None:
    """A plan of that request itself would keep the large output whole."""
    large = until(11)
    large[-1] = {**large[-1], "content": "word " * 2_600}
    builder = NotingBuilder()
    engine = make_engine(builder)
    await engine.send(large)
    await engine.wait_for_ahead()
    turn = await engine.send([*large, *HISTORY[2 + 2 * 11 : 2 + 2 * 12]])
    assert (turn.plan.rung, len(builder.sizes)) == ("plan", 1)
    assert "word " * 2_600 not in turn.sent.decode()


async def test_a_request_with_a_turn_of_the_user_and_no_new_call_keeps_the_three_newest_calls() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    await send(engine, NEAR)
    said: list[Message] = [
        {"role": "assistant", "content": "It is done."},
        {"role": "user", "content": "Now the lexer. " * 300},
    ]
    turn = await engine.send([*until(NEAR), *said])
    assert (turn.plan.rung, len(builder.sizes)) == ("plan", 2)
    assert turn.messages[-8:] == [*until(NEAR), *said][-8:]


@pytest.mark.parametrize("act", [fail, Hanging])
async def test_where_it_is_too_long_by_now_a_plan_of_the_request_itself_is_made_if_there_is_time(act: Any) -> None:
    """It would leave more than 0.85 of the ceiling, but less than the ceiling."""
    hang = Hanging()
    engine = make_engine(NotingBuilder(None, hang if act is Hanging else fail))
    await send(engine, NEAR)
    try:
        turn = await engine.send(until(27))
        assert (turn.plan.rung, engine.failures) == ("plan", [])
        assert turn.plan.tokens_upstream is not None
        assert 0.85 * turn.plan.usable < turn.plan.tokens_upstream < turn.plan.usable
    finally:
        hang.released.set()


async def test_where_it_would_free_too_little_by_now_the_request_has_a_plan_of_its_own() -> None:
    builder = NotingBuilder()
    engine = make_engine(builder)
    await send(engine, NEAR)
    turn = await engine.send(until(28))
    assert (turn.plan.rung, len(builder.sizes)) == ("plan", 2)
    assert turn.plan.tokens_upstream is not None and turn.plan.tokens_upstream < 0.5 * turn.plan.usable


async def test_one_above_the_ceiling_by_now_is_not_used() -> None:
    engine = make_engine(OwnBuilder(None, fail))
    await send(engine, NEAR)
    turn = await engine.send(until(50))
    assert turn.plan.rung == "minimal"
    assert [rung for rung, _ in engine.failures] == ["plan"]


async def test_one_that_failed_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(OwnBuilder(fail))
    await send(engine, NEAR)
    assert (engine.failures, caplog.records) == ([], [])
    assert (await engine.send(until(FULL))).plan.rung == "plan"


async def test_one_of_another_branch_is_not_used() -> None:
    engine = make_engine(OwnBuilder(None, fail))
    await send(engine, NEAR)
    other = [HISTORY[0], {"role": "user", "content": "Something else."}, *until(FULL)[2:]]
    turn = await engine.send(other)
    assert turn.plan.rung == "minimal"


@pytest.mark.parametrize("kind", ["conversation", "beside it"])
async def test_requests_that_open_no_epoch_have_none(kind: str) -> None:
    builder = NotingBuilder()
    engine, request = make_engine(builder), make_subject(until(NEAR), is_side=kind == "beside it")
    context = await engine.controller.states.caches.contexts.open(request)
    state = await engine.controller.states.read(request, context, None, engine.controller.states.find_budget(request))
    engine.controller.chain.draft_ahead(state)
    assert len(engine.ahead) == (kind == "conversation")
    await engine.wait_for_ahead()
