"""Live says that the server answers, ready whether calls are served and kept; metrics are Prometheus text."""

import json

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.events import AnswerRead, ExchangeRecorded
from proxy.model.exchange import Outcome
from proxy.model.log import ArchiveHealth
from tests.support.scripted import Message, ScriptedUpstream, answer, request
from tests.support.serving import TOKEN, Plan, Served, serving

FULL = ArchiveHealth("disk full", 3, 4096, 2, 1)


def told(got: Message) -> tuple[int, str, list[str]]:
    """Status, state and reasons of an answer of `/-/ready`."""
    value = json.loads(got.body)
    return got.status, value["status"], value["reasons"]


@pytest.mark.parametrize("path", ["/-/live", "/-/ready"])
async def test_both_are_open_to_anybody_and_never_forwarded(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    assert (await served.ask(request("GET", path, host="localhost:1"))).status == 200
    assert (await served.ask(request("HEAD", path))).status == 200
    assert upstream.accepted == 0


async def test_a_server_that_serves_is_ready(served: Served) -> None:
    assert told(await served.ask(request("GET", "/-/ready"))) == (200, "ready", [])
    assert json.loads((await served.ask(request("GET", "/-/live"))).body) == {"status": "live"}


async def test_a_server_that_still_loads_lives_and_is_not_ready(served: Served) -> None:
    served.health.is_starting = True
    assert told(await served.ask(request("GET", "/-/ready"))) == (503, "starting", ["loading the tokenizer"])
    assert (await served.ask(request("GET", "/-/live"))).status == 200
    served.health.is_starting = False
    assert told(await served.ask(request("GET", "/-/ready")))[0] == 200


async def test_a_degraded_log_is_told_and_calls_go_on(served: Served) -> None:
    served.archive.health = FULL
    status, state, reasons = told(await served.ask(request("GET", "/-/ready")))
    assert (status, state, reasons[0]) == (200, "degraded", "disk full")
    assert "not held back until they are durable" in reasons[1]


async def test_a_degraded_log_is_not_ready_where_calls_are_refused(upstream: ScriptedUpstream) -> None:
    async with serving(Plan(upstream.url, engine=EnginePolicy(on_failure="refuse"))) as served:
        served.archive.health = FULL
        status, state, reasons = told(await served.ask(request("GET", "/-/ready")))
        assert (status, state) == (503, "degraded")
        assert "no response is completed before it is durable" in reasons[1]


async def test_a_server_that_is_shutting_down_lives_and_is_not_ready(served: Served) -> None:
    served.health.is_draining = True
    assert told(await served.ask(request("GET", "/-/ready"))) == (503, "draining", ["shutting down"])
    served.archive.health = FULL
    assert told(await served.ask(request("GET", "/-/ready")))[2] == ["shutting down", "disk full"]
    assert (await served.ask(request("GET", "/-/live"))).status == 200


async def test_metrics_are_prometheus_text(served: Served) -> None:
    served.archive.health = FULL
    got = await served.ask(request("GET", "/-/metrics", f"Authorization: Bearer {TOKEN}"))
    assert got.find(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
    assert b"\npalimpsest_log_degraded 1.0\n" in got.body


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_what_operators_are_told_of_a_call_comes_with_its_events(
    served: Served, upstream: ScriptedUpstream, status: str
) -> None:
    heard: list[ExchangeRecorded | AnswerRead] = []
    served.bus.subscribe(ExchangeRecorded, heard.append)
    served.bus.subscribe(AnswerRead, heard.append)
    upstream.answer_with(answer(b'{"error":{"message":"no usage"}}', "Content-Type: application/json", status=status))
    await served.ask(request("POST", "/v1/chat/completions", body=b'{"model":"m","messages":[]}'))
    await served.read_answer(1)
    recorded, read = heard
    assert isinstance(recorded, ExchangeRecorded)
    assert isinstance(read, AnswerRead)
    assert recorded.overhead_s is not None
    assert 0 < recorded.overhead_s < 60
    (stored,) = served.archive.of(Outcome)
    assert stored.timings.overhead_ms == pytest.approx(recorded.overhead_s * 1000, abs=0.001)
    assert (read.exchange, read.answer) == (recorded.exchange, b'{"error":{"message":"no usage"}}')
