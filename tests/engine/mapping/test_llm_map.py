"""LLMMap at a whole engine: what is asked, what is asked again, what is counted, and what the log has of it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.assembly import Engine
from proxy.engine.mapping.llm_map import LlmMapOrder, LlmMapper
from proxy.engine.mapping.running import MapRun, OperatorEngine
from proxy.engine.mapping.sandbox import PromptTemplate
from proxy.engine.policy import OperatorPolicy
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import MapCompletedEvent, MapItemCompletedEvent, MapStartedEvent
from proxy.model.log import Selection
from proxy.model.results import MapResult
from tests.support.operators import Model, Reply, answer_last, running_engine

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
GOOD = Reply('{"said": "yes"}')


class Bench:
    """An engine, its model, and the runs that were made on it."""

    def __init__(self, engine: Engine, model: Model) -> None:
        self.engine = engine
        self.model = model
        self.operators = OperatorEngine(engine.conversations, OperatorPolicy(), engine.sandbox)
        self.told: list[Any] = []
        self.run = self.begin()

    def begin(self, concurrency: int = 4) -> MapRun:
        return self.operators.begin("llm_map", "m1", concurrency, self.told.append)

    def make(self, text: str = "Say {{ item }}", **changes: Any) -> LlmMapper:
        given: dict[str, Any] = {"schema": SCHEMA, "model": "m1", **changes}
        order = LlmMapOrder(template=PromptTemplate(text), **given)
        return LlmMapper(order, self.run, self.operators)

    async def results(self, inputs: Any, **changes: Any) -> list[MapResult]:
        """Return the results in the order of the inputs."""
        found = {number: result async for number, result in self.make(**changes).results(inputs)}
        return [found[number] for number in sorted(found)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    model = Model(answer_last)
    async with running_engine(tmp_path, model) as engine:
        await engine.models.open()
        yield Bench(engine, model)


def says(*replies: Reply | Exception) -> Any:
    """A model that gives these replies, and then the last one again."""
    return lambda request, number: replies[min(number, len(replies) - 1)]


async def test_each_item_has_its_answer(bench: Bench) -> None:
    results = await bench.results(["a", "b", "c"], system_prompt="Be brief.")
    assert results == [
        MapResult(input=each, output={"said": f"Say {each}"}, success=True, attempts=1) for each in "abc"
    ]
    request = bench.model.requests[0]
    assert (request["model"], request["temperature"], sorted(request)) == (
        "m1",
        0.0,
        ["messages", "model", "temperature"],
    )
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][0]["content"].startswith("Be brief.\n\n")
    assert json.dumps(SCHEMA) in request["messages"][0]["content"]


async def test_what_was_used_is_added_up(bench: Bench) -> None:
    await bench.results(["a", "b"])
    totals = bench.run.totals
    assert (totals.succeeded, totals.failed, totals.calls, totals.uncounted) == (2, 0, 2, 0)
    assert (totals.tokens.input, totals.tokens.output) == (20, 4)
    assert totals.cost == pytest.approx((20 * 1.0 + 4 * 10.0) / 1e6)


async def test_an_answer_without_usage_is_uncounted(bench: Bench) -> None:
    bench.model.say = says(Reply(GOOD.text, usage=None))
    await bench.results(["a"])
    assert (bench.run.totals.uncounted, bench.run.totals.cost) == (1, 0.0)


async def test_a_retry_shows_the_model_its_answer_and_the_error(bench: Bench) -> None:
    bench.model.say = says(Reply('{"said": 1}'), GOOD)
    assert await bench.results(["a"]) == [MapResult(input="a", output={"said": "yes"}, success=True, attempts=2)]
    first, second = (request["messages"] for request in bench.model.requests)
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": '{"said": 1}'}
    assert "$.said: 1 is not of type 'string'" in second[3]["content"]


async def test_what_nothing_fits_fails_after_the_retries(bench: Bench) -> None:
    (result,) = await bench.results(["a"], schema={"type": "object", "not": {}}, max_retries=2)
    assert (result.success, result.output, result.attempts) == (False, None, 3)
    assert "should not be valid under {}" in str(result.error)
    assert (len(bench.model.requests), len(bench.model.requests[-1]["messages"])) == (3, 4)


async def test_an_answer_that_was_cut_off_does_not_count(bench: Bench) -> None:
    bench.model.say = says(Reply(GOOD.text, finish="length"), GOOD)
    (result,) = await bench.results(["a"])
    assert (result.success, result.attempts) == (True, 2)
    assert "more briefly" in bench.model.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "fault",
    [
        Reply("overloaded", status=503),
        Reply("too many", status=429, headers=((b"retry-after", b"0.01"),)),
        Reply(body=b"<html>"),
        Reply(body=b""),
        Reply(body=b'{"error": {"message": "broken inside"}}'),
        UpstreamUnreachable("reset"),
    ],
)
async def test_a_fault_that_passes_is_followed_by_another_call(bench: Bench, fault: Reply | Exception) -> None:
    bench.model.say = says(fault, GOOD)
    (result,) = await bench.results(["a"])
    assert (result.success, result.attempts) == (True, 2)
    assert len(bench.model.requests[-1]["messages"]) == 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Reply("no such parameter", status=400), "status 400: no such parameter"),
        (Reply(body=b"<html>oops", status=413), "status 413: .*oops"),
        (Reply(body=json.dumps({"choices": [{"message": {"refusal": "no"}}]}).encode()), "the model refused: no"),
    ],
)
async def test_what_would_fail_again_is_not_repeated(bench: Bench, fault: Reply, why: str) -> None:
    bench.model.say = says(fault)
    (result,) = await bench.results(["a"])
    assert (result.success, result.attempts) == (False, 1)
    assert re.search(why, str(result.error))


async def test_a_refused_credential_ends_the_calls_of_all_items(bench: Bench) -> None:
    bench.model.say = says(Reply("wrong key", status=401))
    results = await bench.results(range(1000))
    assert {result.error for result in results} == {"status 401: wrong key"}
    assert len(bench.model.requests) <= 4
    assert (results[-1].attempts, bench.run.totals.failed) == (0, 1000)


async def test_all_items_wait_while_the_upstream_says_so(bench: Bench) -> None:
    began = asyncio.get_running_loop().time()
    bench.model.say = says(Reply("slow down", status=429, headers=((b"retry-after", b"0.3"),)), GOOD)
    results = await bench.results(["a", "b", "c", "d", "e", "f"])
    assert [result.attempts for result in results].count(2) == 1
    assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_call_that_takes_too_long_is_ended(bench: Bench) -> None:
    bench.model.say = says(Reply(GOOD.text, seconds=1000))
    (result,) = await bench.results(["a"], timeout=0.05, max_retries=1)
    assert (result.error, result.attempts) == ("no complete answer came within 0.05 s", 2)
    assert not bench.model.running


async def test_an_item_that_the_template_cannot_take_fails_alone(bench: Bench) -> None:
    results = await bench.results([{"n": 1}, 2, {"n": 3}], text="{{ item.n }}")
    assert [result.success for result in results] == [True, False, True]
    assert "has no attribute 'n'" in str(results[1].error)
    assert results[1].attempts == 0


async def test_a_run_tells_what_happens(bench: Bench) -> None:
    await bench.results(iter(["a", "b"]))
    start, *items, end = bench.told
    assert isinstance(start, MapStartedEvent)
    assert (start.operator, start.model, start.items) == ("llm_map", "m1", None)
    assert all(isinstance(each, MapItemCompletedEvent) and each.success and each.attempts == 1 for each in items)
    assert sorted(each.index for each in items) == [0, 1]
    assert isinstance(end, MapCompletedEvent)
    assert (end.succeeded, end.failed, end.is_cancelled, end.tokens.output) == (2, 0, False, 4)
    assert {each.run for each in bench.told} == {bench.run.id}


async def test_a_consumer_that_stops_ends_the_calls(bench: Bench) -> None:
    bench.model.say = lambda request, number: Reply(GOOD.text, seconds=0 if number == 0 else 1000)

    def come() -> Iterator[str]:
        while True:
            yield "a"

    results = bench.make().results(come())
    await anext(results)
    await results.aclose()
    assert not bench.model.running
    assert bench.told[-1].is_cancelled
    assert len(bench.told) == 3


async def test_the_log_has_the_calls_in_one_session_that_is_no_conversation(bench: Bench) -> None:
    await bench.results(["a", "b", "c"])
    (session,) = await bench.engine.archive.list_sessions(selection=Selection(family="map:"))
    assert (session.id, session.family) == (bench.run.session, f"map:{bench.run.id}")
    assert session.branches == 0
    calls = await bench.engine.archive.list_exchanges(session.id)
    assert [(call.mode, call.kind) for call in calls] == [("observe", "managed")] * 3
    assert not await bench.engine.archive.list_nodes(session.id)
    assert not any(row.is_managed for row in await bench.engine.archive.load_rounds(session.id))


async def test_an_answer_that_is_an_error_costs_what_it_tells(bench: Bench) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    broken = Reply(body=json.dumps({"error": {"message": "broken inside"}, "usage": usage}).encode())
    bench.model.say = says(broken, GOOD)
    await bench.results(["a"])
    totals = bench.run.totals
    assert (totals.calls, totals.uncounted, totals.tokens.input) == (2, 0, 17)
