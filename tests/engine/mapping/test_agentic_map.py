"""AgenticMap at a whole engine: sessions of their own, tools, bounds, faults, and what the log has of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.assembly import Engine
from proxy.engine.mapping import running
from proxy.engine.mapping.agentic_map import AgenticMapOrder, AgentMapper
from proxy.engine.mapping.running import OperatorEngine
from proxy.engine.mapping.sandbox import PromptTemplate
from proxy.engine.policy import OperatorPolicy
from proxy.engine.turns.recording import SessionRequest
from proxy.engine.turns.tools import ProgramTool, make_tool
from proxy.model.errors import NotFound, UpstreamUnreachable
from proxy.model.events import SessionClosedEvent
from proxy.model.results import AgentMapResult
from tests.support.engine import LIMIT
from tests.support.operators import Model, Reply, running_engine


def call(name: str, number: int = 1, **arguments: Any) -> Reply:
    """A call of a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return Reply("I look.", calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def talk(request: dict[str, Any], number: int) -> Reply:
    """Call a tool first, and then say what it said."""
    last = request["messages"][-1]
    if last["role"] != "tool":
        return call("look", where=last["content"])
    return Reply(f"found {last['content']}")


def look(where: str) -> str:
    """Look somewhere."""
    return f"it at {where}"


class Bench:
    """An engine, its model, and one run."""

    def __init__(self, engine: Engine, model: Model) -> None:
        self.engine = engine
        self.model = model
        self.told: list[Any] = []
        self.operators = OperatorEngine(engine.conversations, OperatorPolicy(), engine.sandbox)
        self.run = self.operators.begin("agentic_map", "m1", publish=self.told.append)

    def make(
        self, text: str = "{{ item }}", *, tools: tuple[ProgramTool, ...] = (make_tool(look),), **changes: Any
    ) -> AgentMapper:
        order = AgenticMapOrder(template=PromptTemplate(text), model="m1", tools=tools, **changes)
        return AgentMapper(order, self.run, self.operators)

    async def results(self, inputs: Any, **changes: Any) -> list[AgentMapResult]:
        """Return the results in the order of the inputs."""
        found = {number: result async for number, result in self.make(**changes).results(inputs)}
        return [found[number] for number in sorted(found)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    model = Model(talk)
    async with running_engine(tmp_path, model) as engine:
        await engine.models.open()
        yield Bench(engine, model)


async def test_each_item_has_an_agent_with_a_session_of_its_own(bench: Bench) -> None:
    results = await bench.results(["a", "b", "c"])
    assert [(each.output_text, each.success, each.error) for each in results] == [
        (f"found it at {place}", True, None) for place in "abc"
    ]
    assert len({each.session_id for each in results}) == 3
    assert (results[0].token_usage.input, results[0].token_usage.output) == (20, 4)
    totals = bench.run.totals
    assert (totals.succeeded, totals.calls, totals.tokens.output) == (3, 6, 12)
    assert totals.cost == pytest.approx((60 * 1.0 + 12 * 10.0) / 1e6)


async def test_no_more_agents_run_at_once_than_the_settings_say(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("done", seconds=0.5 if number < 4 else 0)
    await bench.results(range(20))
    assert bench.model.most == 4


async def test_a_session_is_in_the_log_as_that_of_its_parent(bench: Bench) -> None:
    parent = await bench.engine.conversations.create(SessionRequest("m1", "parent"))
    (result,) = await bench.results(["a"], parent=parent.key.id, agent="finder")
    row = await bench.engine.archive.find_session(result.session_id)
    assert row.parent == parent.key.id
    assert row.family.startswith("finder-")
    calls = await bench.engine.archive.list_exchanges(result.session_id)
    assert [each.mode for each in calls if each.model][-2:] == ["manage", "manage"]


async def test_a_parent_that_the_log_does_not_know_is_told_before_any_call(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.make(parent="0" * 20).check()
    await bench.make().check()


async def test_an_agent_that_is_never_done_fails_with_its_last_text(bench: Bench) -> None:
    silent = Reply(calls=call("look", 9, where="x").calls)
    bench.model.say = lambda request, number: silent if number else call("look", where="x")
    (result,) = await bench.results(["a"], max_turns=3)
    assert (result.success, result.output_text) == (False, "I look.")
    assert result.error == "the agent was not done after 3 answers"
    assert len(bench.model.requests) == 3


async def test_one_answer_may_be_all(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("at once")
    (result,) = await bench.results(["a"], max_turns=1)
    assert (result.success, result.output_text, len(bench.model.requests)) == (True, "at once", 1)


async def test_a_tool_that_raises_is_a_result_for_the_model(bench: Bench) -> None:
    def look(where: str) -> str:
        raise LookupError(f"nothing at {where}")

    (result,) = await bench.results(["a"], tools=(make_tool(look),))
    assert result.success
    assert result.output_text == "found Error: LookupError: nothing at a"


@pytest.mark.parametrize(
    "fault", [Reply("overloaded", status=503), UpstreamUnreachable("reset"), Reply(body=b"<html>")]
)
@pytest.mark.parametrize("at", [0, 1])
async def test_a_fault_that_passes_ends_no_agent(bench: Bench, fault: Reply | Exception, at: int) -> None:
    looked: list[str] = []

    def look(where: str) -> str:
        looked.append(where)
        return "it"

    bench.model.say = lambda request, number: fault if number == at else talk(request, number)
    (result,) = await bench.results(["a"], tools=(make_tool(look),))
    assert (result.success, result.output_text) == (True, "found it"), result.error
    assert looked == ["a"]
    assert [each["role"] for each in bench.model.requests[-1]["messages"]] == ["system", "user", "assistant", "tool"]


async def test_a_refused_credential_ends_the_calls_of_all_agents(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("wrong key", status=401)
    results = await bench.results(range(50))
    assert all("wrong key" in str(each.error) for each in results)
    assert len(bench.model.requests) <= 4
    assert results[-1].session_id == ""


async def test_an_answer_that_is_cut_off_is_no_result(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("half of", finish="length")
    (result,) = await bench.results(["a"])
    assert (result.success, result.output_text) == (False, "half of")
    assert result.error == "the last answer is not whole: max_tokens"


async def test_an_item_that_the_template_cannot_take_has_no_session(bench: Bench) -> None:
    first, second = await bench.results([1, {"n": "a"}], text="{{ item.n }}")
    assert (first.success, first.session_id) == (False, "")
    assert "has no attribute 'n'" in str(first.error)
    assert second.success


async def test_events_name_the_session_of_each_item(bench: Bench) -> None:
    closed: list[str] = []
    bench.engine.bus.subscribe(SessionClosedEvent, lambda event: closed.append(event.session))
    results = await bench.results(["a", "b"])
    _, *items, end = bench.told
    assert {each.item_session for each in items} == {each.session_id for each in results} == set(closed)
    assert (end.operator, end.succeeded, end.is_cancelled) == ("agentic_map", 2, False)


async def test_a_consumer_that_stops_ends_the_agents_and_their_tools(bench: Bench) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def look(where: str) -> str:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()
        return ""

    consumer = asyncio.ensure_future(bench.results(["a"] * 10, tools=(make_tool(look),)))
    await begun.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert ended.is_set()
    assert not bench.model.running
    assert bench.told[-1].is_cancelled


async def test_a_pause_that_the_upstream_asks_for_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FIRST_PAUSE", 1000.0)  # waited where the upstream says nothing
    refusal = Reply("slow down", status=429, headers=((b"retry-after", b"0.01"),))
    bench.model.say = lambda request, number: refusal if number == 0 else Reply("done")
    async with asyncio.timeout(LIMIT):
        [result] = await bench.results(["a"])
    assert (result.success, result.output_text) == (True, "done")


async def test_an_answer_that_tells_no_tokens_is_in_neither_sum(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("done", usage=None)
    await bench.results(["a"])
    totals = bench.run.totals
    assert (totals.calls, totals.uncounted, totals.tokens.input, totals.cost) == (1, 1, 0, 0.0)
