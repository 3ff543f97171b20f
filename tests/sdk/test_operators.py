"""LLMMap and AgenticMap as programs use them: results, totals, events, progress, and nothing left running."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from proxy import AgenticMap, EventBus, LLMMap, MapResult, make_tool
from proxy.config import ConfigError, Settings
from proxy.engine.mapping.running import MapTotals
from proxy.engine.mapping.sandbox import Limits
from proxy.model.log import Selection
from proxy.model.results import TokenUsage
from proxy.sdk.engines import ENGINES
from proxy.sdk.errors import SessionNotFoundError
from proxy.sdk.operators import ProgressLine
from proxy.worker.sandbox import SandboxProcesses
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, Reply, call, say
from tests.support.scripted import LIMIT

SCHEMA: dict[str, Any] = {"type": "object", "required": ["said"]}


class Said(BaseModel):
    """An answer as a model."""

    said: str


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def echo(asked: dict[str, Any]) -> Reply:
    """Say what was asked last, as JSON."""
    return say(json.dumps({"said": asked["messages"][-1]["content"]}))


def work(asked: dict[str, Any]) -> Reply:
    """Call the first tool that is offered, and then say what it said."""
    last = asked["messages"][-1]
    if last["role"] == "tool":
        return say(f"found {last['content']}")
    if not asked.get("tools"):
        return say("no tools")
    return call(("c1", asked["tools"][0]["function"]["name"], {"place": last["content"]}))


def look(place: str) -> str:
    """Look at a place."""
    return f"it at {place}"


@pytest.fixture
def config(provider: ChatProvider, tmp_path: Path) -> Settings:
    provider.respond = echo
    return provider.settings(tmp_path)


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


async def test_results_come_as_they_are_completed_and_a_batch_in_the_order_of_inputs(config: Settings) -> None:
    mapper = LLMMap(config)
    found = [result async for result in mapper.run(["a", "b"], "Say {{ item }}", SCHEMA, "m")]
    batch = await mapper.run_batch(iter(["a", "b"]), "Say {{ item }}", SCHEMA, "m", concurrency=1)
    expected = [MapResult(input=each, output={"said": f"Say {each}"}, success=True, attempts=1) for each in "ab"]
    assert sorted(found, key=lambda each: str(each.input)) == batch == expected
    assert mapper.totals.tokens == TokenUsage(20, 6, 0, 0, 26)
    assert not ENGINES.open


async def test_outputs_are_instances_of_a_model(config: Settings) -> None:
    (result,) = await LLMMap(config).run_batch(["a"], "{{ item }}", Said, "m")
    assert result.output == Said(said="a")


async def test_an_answer_that_is_no_instance_says_why(config: Settings, provider: ChatProvider) -> None:
    provider.respond = lambda asked: say('{"said": [1]}')
    (result,) = await LLMMap(config).run_batch(["a"], "{{ item }}", Said, "m", max_retries=1)
    assert (result.error, result.attempts) == ("$.said: Input should be a valid string", 2)
    assert '"said"' in provider.seen[0]["messages"][0]["content"]


async def test_inputs_may_come_one_by_one(config: Settings) -> None:
    async def come() -> AsyncIterator[str]:
        for each in "abc":
            await asyncio.sleep(0)
            yield each

    results = await LLMMap(config).run_batch(come(), "{{ item }}", SCHEMA, "m")
    assert [each.input for each in results] == ["a", "b", "c"]


def test_what_cannot_be_is_told_before_anything_is_opened() -> None:
    mapper, agents = LLMMap(), AgenticMap()
    for template, schema, options, why in (
        ("Say it", SCHEMA, {}, "does not use item"),
        ("{{ item }}", {"type": "objekt"}, {}, "no valid JSON Schema"),
        ("{{ item }}", SCHEMA, {"concurrency": 0}, "concurrency is at least 1"),
        ("{{ item }}", SCHEMA, {"max_retries": -1}, "max_retries is at least 0"),
        ("{{ item }}", SCHEMA, {"timeout": 0}, "timeout"),
        ("{{ item }}", SCHEMA, {"timeout": None}, "timeout is a number of seconds"),
        ("{{ item }}", SCHEMA, {"temperature": "hot"}, "temperature is a number, or None"),
        ("{{ item }}", SCHEMA, {"concurrency": 2.5}, "concurrency is a whole number"),
        (None, SCHEMA, {}, "template is a text"),
        ("{{ item }}", "object", {}, "output_schema is a JSON Schema or a pydantic model, not str"),
        ("{{ item }}", int, {}, "not type"),
        ("{{ item }}", {"$ref": "#"}, {}, "never ends"),
        ("{{ " + "(" * 3000 + "item" + ")" * 3000 + " }}", SCHEMA, {}, "nested too deeply"),
    ):
        with pytest.raises(ValueError, match=why):
            mapper.run([], template, schema, "m", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not use item"):
        agents.run([], "Go on", "m")
    with pytest.raises(ValueError, match="max_turns is at least 1"):
        agents.run([], "{{ item }}", "m", max_turns=0)
    with pytest.raises(ValueError, match="agent is a name"):
        agents.run([], "{{ item }}", "m", agent="a b")
    with pytest.raises(ValueError, match="model is the name of a model"):
        agents.run([], "{{ item }}", "")
    with pytest.raises(TypeError, match="inputs are a list"):
        mapper.run(5, "{{ item }}", SCHEMA, "m")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"config is Settings\(...\)"):
        LLMMap({"data": "x"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="event_bus is an EventBus"):
        LLMMap(None, print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a tool is a function"):
        agents.run([], "{{ item }}", "m", tools=[3])  # type: ignore[list-item]
    assert not ENGINES.open


@dataclass
class Book:
    """An item that is an object of the program's own."""

    title: str

    def shout(self) -> str:
        return self.title.upper()


async def test_objects_of_the_program_are_rendered_and_made_in_it(config: Settings) -> None:
    items = [Book("one"), {"shout": Book("two").shout}, Book("three")]
    results = await LLMMap(config).run_batch(items, "{{ item.shout() }}", Said, "m")
    assert [result.success for result in results] == [True] * 3
    assert {type(result.output) for result in results} == {Said}


async def test_what_takes_too_much_fails_alone(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.assembly.SandboxProcesses", partial(SandboxProcesses, Limits(cpu_seconds=0.5)))
    endless = "{% for i in range(item) %}{% for j in range(item) %}{% endfor %}{% endfor %}{{ item }}"
    results = await LLMMap(config).run_batch([1, 99_999, 2], endless, SCHEMA, "m")
    assert [result.success for result in results] == [True, False, True]
    assert "takes more than 0.5 s of processor time" in str(results[1].error)
    agents = await AgenticMap(config).run_batch([1, 99_999], endless, "m")
    assert [result.success for result in agents] == [True, False]
    assert "takes more than 0.5 s of processor time" in str(agents[1].error)


async def test_leaving_the_loop_ends_a_run_whose_results_are_kept(config: Settings, bus: EventBus) -> None:
    ended = asyncio.Event()
    bus.subscribe("MAP_COMPLETED", lambda event, payload: ended.set())
    results = LLMMap(config, bus).run(range(1_000_000), "{{ item }}", SCHEMA, "m")
    async for result in results:
        assert result.success
        break
    await asyncio.wait_for(ended.wait(), LIMIT)
    await results.aclose()
    assert not ENGINES.open
    assert results.totals.succeeded < 100
    assert [result async for result in results] == []


async def test_a_missing_key_is_told_before_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = Settings(data=tmp_path)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await LLMMap(config).run_batch(["a"], "{{ item }}", SCHEMA, "gpt-5")
    assert not ENGINES.open


async def test_the_part_of_the_settings_is_enough(
    provider: ChatProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"data": str(tmp_path), "upstreams": [{"base_url": provider.base_url}]}))
    monkeypatch.setenv("PALIMPSEST_CONFIG", str(file))
    operators = Settings(operators={"max_retries": 1}).operators
    (result,) = await LLMMap(operators).run_batch(["a"], "{{ item }}", SCHEMA, "m")
    assert (result.success, result.attempts) == (False, 2)


async def test_a_bus_is_told_of_the_runs_of_its_operator_and_of_no_others(config: Settings, bus: EventBus) -> None:
    told: list[tuple[str, Any]] = []
    bus.subscribe_all(lambda name, payload: told.append((name, payload)))
    bus.subscribe("MAP_ITEM_COMPLETED", lambda name, payload: 1 / 0)
    await asyncio.gather(
        LLMMap(config, bus).run_batch(["a", "b"], "{{ item }}", SCHEMA, "m"),
        LLMMap(config).run_batch(["c"] * 5, "{{ item }}", SCHEMA, "m"),
        AgenticMap(config).run_batch(["d"], "{{ item }}", "m"),
    )
    names = [name for name, _ in told]
    assert names == ["MAP_STARTED", "MAP_ITEM_COMPLETED", "MAP_ITEM_COMPLETED", "MAP_COMPLETED"]
    assert (told[0][1].items, told[-1][1].succeeded) == (2, 2)


async def test_leaving_the_loop_ends_all_that_runs(config: Settings, provider: ChatProvider) -> None:
    taken: list[int] = []

    def count() -> Iterator[int]:
        for each in range(1_000_000):
            taken.append(each)
            yield each

    async def take_one() -> None:
        async for _ in LLMMap(config).run(count(), "{{ item }}", SCHEMA, "m", concurrency=4):
            provider.gate.clear()
            break

    await take_one()
    for _ in range(100):
        if not ENGINES.open:
            break
        await asyncio.sleep(0.05)
    assert not ENGINES.open
    assert len(taken) < 20


async def test_closing_the_results_ends_all_that_runs(config: Settings, provider: ChatProvider) -> None:
    provider.gate.clear()
    results = LLMMap(config).run(["a"] * 10, "{{ item }}", SCHEMA, "m")
    first = asyncio.ensure_future(anext(results))
    await provider.called.wait()
    first.cancel()
    await asyncio.wait((first,))
    await results.aclose()
    assert not ENGINES.open
    provider.gate.set()


async def test_agents_have_only_tools_that_are_marked_unless_all_are_allowed(
    config: Settings, provider: ChatProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.respond = work

    def write(place: str) -> str:
        """Write at a place."""
        return f"written at {place}"

    tools = [write, make_tool(look, is_read_only=True)]
    agents = AgenticMap(config)
    (marked,) = await agents.run_batch(["a"], "{{ item }}", "m", tools=tools)
    (every,) = await agents.run_batch(["a"], "{{ item }}", "m", tools=tools, read_only=False)
    assert (marked.output_text, every.output_text) == ("found it at a", "found written at a")
    (none,) = await agents.run_batch(["a"], "{{ item }}", "m", tools=[write])
    assert none.output_text == "no tools"
    assert "no tool is marked as read-only" in caplog.text


async def test_agents_are_children_in_the_log_of_their_parent(
    create: Create, provider: ChatProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.respond = work
    monkeypatch.setenv("PALIMPSEST_DATA", str(tmp_path / "elsewhere"))
    async with await create() as parent:
        told: list[str] = []
        parent.event_bus.subscribe_all(lambda name, payload: told.append(payload.session))
        results = await AgenticMap().run_batch(["a", "b"], "{{ item }}", "m", parent_session_id=parent.id)
        assert [each.success for each in results] == [True, True]
        (shared,) = ENGINES.open.values()
        for each in results:
            assert (await shared.engine.archive.find_session(each.session_id)).parent == parent.id
        await parent.send("hello")
    assert set(told) == {parent.id}


async def test_an_unknown_parent_is_told_before_any_call(config: Settings, provider: ChatProvider) -> None:
    with pytest.raises(SessionNotFoundError):
        await AgenticMap(config).run_batch(["a"], "{{ item }}", "m", parent_session_id="0" * 20)
    assert not provider.seen


async def test_calls_are_kept_in_a_session_of_the_run(config: Settings, create: Create) -> None:
    async with await create():
        await LLMMap(config).run_batch(["a"], "{{ item }}", SCHEMA, "m")
        (shared,) = ENGINES.open.values()
        (row,) = await shared.engine.archive.list_sessions(selection=Selection(family="map:"))
    assert row.branches == 0


def test_a_terminal_is_shown_how_far_a_run_is() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = ProgressLine("LLMMap", 4, stream)
        line.show(MapTotals(succeeded=1))
        line.show(MapTotals(succeeded=2))  # within a tenth of a second
        line.end(MapTotals(succeeded=3, failed=1, tokens=TokenUsage(input=1500), cost=0.25))
    assert file.getvalue() == ""
    first, last = terminal.getvalue().strip().split("\r")
    assert first == "LLMMap [######..................] 1/4, 0 tokens"
    assert last == "LLMMap [########################] 4/4, 1 failed, 1,500 tokens, cost 0.2500"


def test_without_a_number_of_inputs_there_is_no_bar() -> None:
    terminal = Terminal()
    ProgressLine("AgenticMap", None, terminal).end(MapTotals(succeeded=1200))
    assert terminal.getvalue() == "\rAgenticMap 1,200, 0 tokens\n"
