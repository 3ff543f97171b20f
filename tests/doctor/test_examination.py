"""What doctor gathers: a rehearsed session through a real engine, keys, upstreams on sockets, the log and its files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.assembly import measure
from proxy.config import make_settings
from proxy.config.settings import Settings
from proxy.doctor.examination import call_live, find_key, probe_upstream, rehearse
from proxy.doctor.rehearsal import answer, write_requests
from proxy.doctor.surroundings import examine_surroundings, inspect_store, list_models
from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.lineage.misplaced_keys import MisplacedKey
from proxy.lab.upstream import ScriptedCall, make_call, open_engine, serve_application
from proxy.model.exchange import Headers
from proxy.read.findings import Finding
from proxy.store.sqlite.archive import open_sqlite
from proxy.wire import CHAT
from tests.journeys.provider import run_provider
from tests.store.samples import make_key, make_opening, make_outcome, make_round

UPSTREAM = {"name": "main", "base_url": "http://127.0.0.1:9/v1"}


def make(tmp_path: Path, **values: Any) -> Settings:
    given = {name.replace("__", "."): value for name, value in values.items()}
    return make_settings({"data": tmp_path / "data", "upstreams": [UPSTREAM], "budget.ceiling_tokens": 12_000} | given)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


async def play(settings: Settings) -> list[Finding]:
    return await rehearse(settings, await measure(settings))


@pytest.mark.parametrize("strategy", ["epochs", "turns"])
async def test_a_rehearsed_session_is_recognised_shortened_and_repeated(tmp_path: Path, strategy: str) -> None:
    found = by_name(await play(make(tmp_path, strategy=strategy)))
    assert {name: finding.state for name, finding in found.items()} == {
        "session": "ok",
        "shortening": "ok",
        "cache": "ok",
        "gateway": "ok",
    }
    facts = found["shortening"].facts
    assert facts["strategy"] == strategy and int(facts["sent_tokens"] or 0) < 0.7 * int(facts["client_tokens"] or 0)
    assert not (tmp_path / "data").exists()


async def test_each_upstream_is_rehearsed_on_its_wire_with_its_model(tmp_path: Path) -> None:
    upstreams = [
        {"name": "first", "base_url": "http://127.0.0.1:9/v1", "models": ["gpt-5-mini"]},
        {"name": "second", "base_url": "https://api.anthropic.com/v1", "models": ["claude-*"]},
    ]
    findings = await play(make(tmp_path, upstreams=upstreams))
    told = [
        (each.facts["upstream"], each.facts["model"], each.facts["wire"]) for each in findings if each.name == "session"
    ]
    assert told == [
        ("first", "gpt-5-mini", "chat_completions"),
        ("first", "gpt-5-mini", "responses"),
        ("second", "claude-sonnet-4-5", "anthropic_messages"),
    ]
    assert {finding.state for finding in findings} == {"ok"}
    shortened = [each.facts for each in findings if each.name == "shortening"]
    assert all(int(each["sent_tokens"] or 0) < 0.7 * int(each["client_tokens"] or 0) for each in shortened)
    assert len(shortened) == 3 and len([each for each in findings if each.name == "gateway"]) == 1


async def test_a_session_that_may_not_be_inferred_is_recognised_by_its_name(tmp_path: Path) -> None:
    found = by_name(await play(make(tmp_path, sessions__infer=False)))
    assert found["session"].state == "warning" and "sessions.infer is off" in found["session"].sentence
    assert found["shortening"].state == "ok"


async def test_an_upstream_that_gets_no_call_is_neither_judged_nor_rehearsed(tmp_path: Path) -> None:
    upstreams = [UPSTREAM, {"name": "second", "base_url": "http://127.0.0.1:9/v1"}]
    settings = make(tmp_path, upstreams=upstreams)
    assert await list_models(settings) == [("main", "gpt-5")]
    findings = await examine_surroundings(settings)
    assert [each.state for each in findings if each.name.startswith("route")] == ["warning"]
    assert by_name(findings)["route second"].state == "warning"
    assert {each.facts["upstream"] for each in await play(settings) if each.name == "session"} == {"main"}


async def test_the_models_of_the_log_are_those_that_calls_still_bring(tmp_path: Path) -> None:
    upstreams = [{**UPSTREAM, "name": "openai"}, {**UPSTREAM, "name": "claude", "models": ["claude-*"]}]
    settings = make(tmp_path, upstreams=upstreams)
    settings.data.mkdir()
    archive = open_sqlite(settings.store_policy(), asyncio.get_running_loop())
    for exchange, model in (("e1", "claude-opus-4-5"), ("e2", "gpt-4o")):
        opening = make_opening(exchange, key=make_key(exchange), model=model)
        archive.append(opening, make_round(exchange), make_outcome(exchange))
    await archive.close()
    assert await list_models(settings) == [("openai", "gpt-4o"), ("claude", "claude-sonnet-4-5")]


async def test_without_summaries_of_a_model_a_snapshot_is_still_judged(tmp_path: Path) -> None:
    found = by_name(await play(make(tmp_path, strategy="snapshot")))
    assert found["shortening"].state in ("ok", "warning")


def make_policy(**values: Any) -> Any:
    (policy,) = make_settings({"upstreams": [{"name": "main", **values}]}).upstream_policies()
    return policy


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"base_url": "https://api.openai.com/v1"}, ((b"authorization", b"Bearer sk-mine"),)),
        ({"base_url": "https://api.anthropic.com/v1"}, ((b"x-api-key", b"sk-theirs"),)),
        ({"base_url": "http://127.0.0.1:9/v1"}, ()),
        ({"base_url": "https://api.openai.com.example.org/v1"}, ()),
        ({"base_url": "http://127.0.0.1:9/v1", "api_key": "sk-set"}, ((b"authorization", b"Bearer sk-set"),)),
    ],
)
def test_a_key_goes_to_its_own_provider_only(values: dict[str, str], expected: Headers) -> None:
    environment = {"OPENAI_API_KEY": "sk-mine", "ANTHROPIC_API_KEY": "sk-theirs"}
    assert find_key(make_policy(**values), environment) == expected


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    async def models(request: Request) -> Response:
        if request.headers.get("authorization") == "Bearer sk-right":
            return JSONResponse({"data": [{"id": "a"}, {"id": "b"}]})
        return JSONResponse({"error": {"message": "no"}}, 401)

    async def complete(request: Request) -> Response:
        asked = await request.json()
        if asked["model"] != "gpt-5" or asked["max_completion_tokens"] > 16:
            return JSONResponse({"error": {"message": "no"}}, 404)
        return JSONResponse({"usage": {"prompt_tokens": 1000, "completion_tokens": 100}})

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", complete, methods=["POST"])]
    with serve_application(Starlette(routes=routes)) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def test_an_upstream_is_asked_for_its_models_alone(address: str) -> None:
    probe = await probe_upstream(make_policy(base_url=address), ((b"authorization", b"Bearer sk-right"),))
    assert (probe.status, probe.models, probe.problem, probe.has_key) == (200, 2, "", True)
    assert probe.skew is not None and abs(probe.skew) < 60
    refused = await probe_upstream(make_policy(base_url=address), ())
    assert (refused.status, refused.models, refused.has_key) == (401, 0, False)


async def test_an_upstream_that_is_not_there_is_told() -> None:
    with run_provider() as provider:
        gone = provider.base_url
    probe = await probe_upstream(make_policy(base_url=gone), ())
    assert probe.status == 0 and probe.problem


async def test_a_live_call_says_its_price(address: str, tmp_path: Path) -> None:
    settings = make(tmp_path, upstreams=[{"name": "main", "base_url": address}])
    (policy,) = settings.upstream_policies()
    inputs = await measure(settings)
    made = await call_live(settings, policy, ((b"authorization", b"Bearer sk-right"),), inputs)
    assert made.state == "ok" and made.facts["money"] == pytest.approx(1000 * 1.25e-6 + 100 * 10e-6)
    assert (await call_live(settings, policy, (), inputs)).state == "warning"
    other = make(tmp_path, upstreams=[{"name": "main", "base_url": address, "models": ["other"]}])
    assert (await call_live(other, policy, ((b"authorization", b"Bearer sk-right"),), inputs)).state == "fault"


async def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    settings = make(tmp_path)
    found = by_name(await examine_surroundings(settings))
    assert found["store"].state == "ok" and "can be made" in found["store"].sentence
    assert found["token"].state == "ok" and found["traffic"].state == "warning"
    assert not (tmp_path / "data").exists()
    assert await list_models(settings) == [("main", "gpt-5")]


async def test_a_log_that_nears_its_limit_is_told_unless_room_is_made(tmp_path: Path) -> None:
    settings = make(tmp_path)
    settings.data.mkdir()
    archive = open_sqlite(settings.store_policy(), asyncio.get_running_loop())
    archive.append(make_opening("e1"), make_outcome("e1"))
    await archive.close()
    store = await inspect_store(settings)
    assert 0 < store.used_bytes <= store.log_bytes and not store.max_bytes
    limit = store.used_bytes * 21 // 20
    stopping = by_name(await examine_surroundings(make(tmp_path, store__max_bytes=limit)))["disk"]
    assert stopping.state == "warning" and "not recorded" in stopping.sentence
    erasing = by_name(await examine_surroundings(make(tmp_path, store__max_bytes=limit, store__when_full="erase")))
    assert erasing["disk"].state == "ok"


async def test_a_file_that_is_no_log_is_a_fault(tmp_path: Path) -> None:
    settings = make(tmp_path)
    settings.data.mkdir()
    (settings.data / "log.db").write_bytes(b"not a log" * 100)
    (settings.data / "admin-token").write_text("secret")
    (settings.data / "admin-token").chmod(0o644)
    found = by_name(await examine_surroundings(settings))
    assert found["store"].state == "fault" and found["token"].state == "fault"
    assert (await inspect_store(settings)).problem


async def test_a_credential_of_another_provider_passes_and_is_told(tmp_path: Path) -> None:
    openai = {"name": "openai", "base_url": "https://api.openai.com/v1"}
    arrived: list[Headers] = []

    async def note(call: ScriptedCall) -> WholeResponse:
        arrived.append(call.headers)
        return await answer(call)

    async with open_engine(make(tmp_path, upstreams=[openai]), tmp_path / "log", note) as engine:
        key = (b"authorization", b"Bearer sk-ant-api03-0123456789abcdef")
        for _ in range(2):
            client = await make_call(engine, CHAT, next(write_requests(CHAT, "gpt-5", "alpha", 9)), (key,))
            assert client.status == 200 and dict(arrived[-1])[b"authorization"] == key[1]
        assert engine.exchanges.calls.misplaced.found == {MisplacedKey("openai", "OpenAI", "Anthropic")}


async def test_a_configured_key_of_another_provider_is_told(tmp_path: Path) -> None:
    wrong = {"name": "openai", "base_url": "https://api.openai.com/v1", "api_key": "sk-ant-api03-0123456789abcdef"}
    found = by_name(await examine_surroundings(make(tmp_path, upstreams=[wrong])))
    assert found["credential openai"].state == "warning" and "Anthropic" in found["credential openai"].sentence
    assert "credential main" not in by_name(await examine_surroundings(make(tmp_path)))
