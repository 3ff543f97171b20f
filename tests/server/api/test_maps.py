"""Operators over HTTP: results as they come, clear refusals, and nothing left running when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.assembly import Engine
from proxy.engine.mapping.sandbox import Limits
from proxy.worker.sandbox import SandboxProcesses
from tests.support.operators import Model, Reply, answer_last, running_engine, settings_for
from tests.support.scripted import LIMIT
from tests.support.whole_server import TOKEN, WholeServer, serving_engine

SCHEMA = {"type": "object", "required": ["said"]}
ENDLESS = "{% for i in range(99999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
ORDER: dict[str, Any] = {
    "model": "m1",
    "inputs": ["a", {"b": 1}],
    "prompt_template": "Say {{ item }}",
    "output_schema": SCHEMA,
}


class Bench:
    """A server whose only upstream is a model in this process."""

    def __init__(self, engine: Engine, model: Model, served: WholeServer) -> None:
        self.engine = engine
        self.model = model
        self.client = served.client

    async def ask(self, **changes: Any) -> httpx.Response:
        return await self.client.post("/-/api/maps", json={**ORDER, **changes})

    async def results(self, **changes: Any) -> list[dict[str, Any]]:
        """Return the results of an order, in the order of its inputs."""
        response = await self.ask(**changes)
        assert response.status_code == 200
        *lines, _ = [json.loads(line) for line in response.text.splitlines()]
        return [each["result"] for each in sorted(lines, key=lambda line: int(line["index"]))]


@pytest.fixture
def cpu_seconds() -> float:
    return Limits().cpu_seconds


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_seconds: float) -> AsyncIterator[Bench]:
    monkeypatch.setattr("proxy.assembly.SandboxProcesses", partial(SandboxProcesses, Limits(cpu_seconds)))
    model = Model(answer_last)
    settings = settings_for(tmp_path, **{"server.admin_token": TOKEN, "operators.max_retries": 1})
    async with running_engine(tmp_path, model) as engine:
        await engine.models.open()
        async with serving_engine(engine, settings) as served:
            yield Bench(engine, model, served)


async def test_results_are_lines_and_the_last_one_has_the_sums(bench: Bench) -> None:
    response = await bench.ask()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    *results, end = [json.loads(line) for line in response.text.splitlines()]
    assert sorted(each["index"] for each in results) == [0, 1]
    by_index = {each["index"]: each["result"] for each in results}
    assert by_index[0] == {
        "input": "a",
        "output": {"said": "Say a"},
        "success": True,
        "error": None,
        "attempts": 1,
    }
    assert by_index[1]["output"] == {"said": "Say {'b': 1}"}
    assert (end["type"], end["error"], end["totals"]["succeeded"]) == ("end", None, 2)
    assert end["totals"]["tokens"]["output"] == 4
    (session,) = await bench.engine.archive.list_sessions()
    assert (session.id, session.family) == (end["session"], f"map:{end['run']}")


async def test_no_input_has_no_result(bench: Bench) -> None:
    (line,) = (await bench.ask(inputs=[])).text.splitlines()
    assert json.loads(line)["totals"]["calls"] == 0


async def test_the_numbers_of_the_settings_hold_unless_the_order_has_others(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("no")
    for retries, calls in ((None, 2), (3, 4), (0, 1)):
        line = json.loads((await bench.ask(inputs=["a"], max_retries=retries)).text.splitlines()[0])
        assert (line["result"]["success"], line["result"]["attempts"]) == (False, calls)


BAD_ORDERS: list[tuple[dict[str, Any], str]] = [
    ({"prompt_template": "Say it"}, "does not use item"),
    ({"prompt_template": ""}, "prompt_template"),
    ({"output_schema": {"type": "objekt"}}, "no valid JSON Schema"),
    ({"output_schema": {"$ref": "http://127.0.0.1:1/schema"}}, "nothing is fetched"),
    ({"output_schema": {"$dynamicRef": "http://127.0.0.1:1/schema"}}, "nothing is fetched"),
    ({"output_schema": {"$ref": "#"}}, "never ends"),
    ({"output_schema": json.loads('{"not":' * 900 + "{}" + "}" * 900)}, "output_schema is nested too deeply"),
    ({"prompt_template": "{{ " + "(" * 3000 + "item" + ")" * 3000 + " }}"}, "template is nested too deeply"),
    ({"prompt_template": "{% for a in item %}" * 30 + "{% endfor %}" * 30}, "too many statically nested blocks"),
    ({"output_schema": None}, "needs an output_schema"),
    ({"operator": "agentic_map"}, "output_schema is for llm_map"),
    ({"parent_session_id": "a"}, "parent_session_id is for agentic_map"),
    ({"concurrency": 0}, "concurrency"),
    ({"inputs": "a"}, "inputs"),
    ({"tools": []}, "tools"),
]


async def test_a_bad_order_is_refused_before_any_call(bench: Bench) -> None:
    for changes, why in BAD_ORDERS:
        response = await bench.ask(**changes)
        assert response.status_code == 400, why
        assert why in response.json()["error"]["message"]
        assert not bench.model.requests


@pytest.mark.parametrize("cpu_seconds", [0.5])
async def test_what_takes_too_much_fails_as_the_result_of_its_input(bench: Bench) -> None:
    for template, why in [
        ("{{ item }}{% if item == 'bad' %}" + ENDLESS + "{% endif %}", "takes more than 0.5 s of processor time: use"),
        (
            "{{ item }}{% if item == 'bad' %}{{ 9 ** (9 ** (item | length * 3)) }}{% endif %}",
            "takes more than 0.5 s of processor time",
        ),
        ("{{ item }}{{ item * 700000000 if item == 'bad' }}", "takes more than 512 MB of memory: use"),
        ("{{ item | center(1500000000 if item == 'bad' else 1) }}", "takes more than 512 MB of memory: use"),
        ("{{ item | center(10000000 if item == 'bad' else 1) }}", "the result has more than 8 MB"),
    ]:
        bench.model.requests.clear()
        results = await bench.results(inputs=["a", "bad", "b"], prompt_template=template)
        assert [each["success"] for each in results] == [True, False, True], template
        assert "rendering the prompt template" in results[1]["error"] and why in results[1]["error"]
        assert (results[1]["attempts"], len(bench.model.requests)) == (0, 2)
    bench.model.requests.clear()
    response = await bench.ask(prompt_template="{{ item }}{{ 9 ** (9 ** 9) }}")  # a constant: it is known beforehand
    assert (response.status_code, bench.model.requests) == (400, [])
    assert "takes more than 0.5 s of processor time" in response.json()["error"]["message"]


@pytest.mark.parametrize("cpu_seconds", [0.5])
async def test_an_answer_whose_check_takes_too_much_fails_and_is_not_asked_for_again(bench: Bench) -> None:
    schema = {"properties": {"said": {"pattern": "^(a+)+$"}}}
    results = await bench.results(inputs=["aaa", "a" * 50 + "!"], prompt_template="{{ item }}", output_schema=schema)
    assert [each["success"] for each in results] == [True, False]
    assert "checking the answer against output_schema takes more than 0.5 s of processor time" in results[1]["error"]
    assert (results[1]["attempts"], len(bench.model.requests)) == (1, 2)


@pytest.mark.parametrize("cpu_seconds", [600.0])
async def test_nothing_waits_for_an_order_that_never_ends(bench: Bench) -> None:
    order = {**ORDER, "prompt_template": ENDLESS + "{{ item }}", "inputs": list(range(20))}
    never = asyncio.ensure_future(bench.client.post("/-/api/maps", json=order))
    async with asyncio.timeout(LIMIT):
        for _ in range(3):
            assert [each["success"] for each in await bench.results()] == [True, True]
            assert (await bench.client.get("/-/live")).status_code == 200
    assert not never.done()
    never.cancel()


async def test_inputs_may_be_many(bench: Bench) -> None:
    response = await bench.ask(inputs=["x" * 1000] * 200)
    assert json.loads(response.text.splitlines()[-1])["totals"]["succeeded"] == 200


async def test_agents_have_sessions_and_no_tools_but_recall(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply("done")
    parent = json.loads((await bench.client.post("/-/api/sessions", json={"model": "m1"})).text)["id"]
    order = {"model": "m1", "inputs": ["a", "b"], "prompt_template": "Do {{ item }}", "operator": "agentic_map"}
    response = await bench.client.post("/-/api/maps", json={**order, "parent_session_id": parent, "agent": "finder"})
    *results, end = [json.loads(line) for line in response.text.splitlines()]
    assert [each["result"]["output_text"] for each in results] == ["done", "done"]
    assert (end["session"], end["totals"]["succeeded"]) == ("", 2)
    for each in results:
        row = await bench.engine.archive.find_session(each["result"]["session_id"])
        assert (row.parent, row.family.partition("-")[0]) == (parent, "finder")
    assert all("tools" not in request for request in bench.model.requests)


async def test_an_unknown_parent_is_not_found(bench: Bench) -> None:
    order = {"model": "m1", "inputs": ["a"], "prompt_template": "{{ item }}", "operator": "agentic_map"}
    response = await bench.client.post("/-/api/maps", json={**order, "parent_session_id": "0" * 20})
    assert (response.status_code, bench.model.requests) == (404, [])


async def test_only_an_administrator_may_spend(bench: Bench) -> None:
    response = await bench.client.post("/-/api/maps", json=ORDER, headers={"authorization": "Bearer guessed"})
    assert response.status_code == 401
    assert not bench.model.requests


async def test_a_run_stops_with_its_client(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply('{"said": 1}', seconds=0 if number == 0 else 1000)
    order = {**ORDER, "inputs": list(range(100)), "concurrency": 3}
    async with bench.client.stream("POST", "/-/api/maps", json=order) as response:
        line = await anext(response.aiter_lines())
        assert json.loads(line)["result"]["success"]
        assert bench.model.running
    async with asyncio.timeout(LIMIT):
        while bench.model.running:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    assert len(bench.model.requests) <= 5
