"""The two fields by which a client finds its call in the log: on every answer but those of mode `bypass`."""

import json

import pytest

from proxy.engine.policy import EnginePolicy
from tests.support.scripted import LAST_CHUNK, Message, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
PATHS = pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("GET", "/v1/models"), ("POST", "/v1/files")])


def labels_of(got: Message) -> list[tuple[bytes, bytes]]:
    """The fields of ours in an answer's head."""
    return [(name, value) for name, value in got.headers if name.startswith(b"x-palimpsest-")]


async def expected(served: Served) -> list[tuple[bytes, bytes]]:
    opening = await served.opening()
    return [
        (b"x-palimpsest-session", opening.session.id.encode()),
        (b"x-palimpsest-exchange", opening.exchange.encode()),
    ]


def ask(method: str, path: str, *fields: str) -> bytes:
    return request(method, path, *fields, body=BODY if method == "POST" else b"")


@PATHS
async def test_every_answer_says_where_it_is_in_the_log(
    served: Served, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    upstream.answer_with(answer(b"{}"))
    got = await served.ask(ask(method, path))
    assert (got.status, got.body) == (200, b"{}")
    assert labels_of(got) == await expected(served)


@PATHS
async def test_a_stream_says_it_too(served: Served, upstream: ScriptedUpstream, method: str, path: str) -> None:
    upstream.answer_with(stream_head() + chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
    got = await served.ask(ask(method, path))
    assert got.body == b"data: [DONE]\n\n"
    assert labels_of(got) == await expected(served)


@PATHS
async def test_an_error_of_the_providers_says_it_too(
    served: Served, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    upstream.answer_with(answer(b"{}", status="429 Too Many Requests"))
    assert labels_of(got := await served.ask(ask(method, path))) == await expected(served)
    assert got.status == 429


@PATHS
async def test_an_error_of_ours_says_it_too_once_the_call_is_in_the_log(plan: Plan, method: str, path: str) -> None:
    async with serving(Plan("http://127.0.0.1:9/v1")) as served:
        got = await served.ask(ask(method, path))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (502, "upstream_unreachable")
        assert set(await expected(served)) < set(labels_of(got))


async def test_a_refusal_before_anything_is_recorded_names_nothing(served: Served) -> None:
    got = await served.ask(ask("POST", CHAT, "x-palimpsest-mode: unheard-of"))
    assert (got.status, labels_of(got)) == (400, [(b"x-palimpsest-error", b"true")])


@PATHS
@pytest.mark.parametrize("is_configured", [False, True])
async def test_in_bypass_nothing_is_added(
    plan: Plan, upstream: ScriptedUpstream, method: str, path: str, *, is_configured: bool
) -> None:
    upstream.answer_with(answer(b"ok", "x-request-id: r"))
    async with serving(
        Plan(plan.base_url, engine=EnginePolicy(mode="bypass" if is_configured else "manage"))
    ) as served:
        got = await served.ask(ask(method, path, *([] if is_configured else ["x-palimpsest-mode: bypass"])))
    assert got.headers == ((b"x-request-id", b"r"), (b"content-length", b"2"))


async def test_in_bypass_an_error_of_ours_names_nothing() -> None:
    async with serving(Plan("http://127.0.0.1:9/v1", engine=EnginePolicy(mode="bypass"))) as served:
        assert labels_of(await served.ask(ask("POST", CHAT))) == [(b"x-palimpsest-error", b"true")]


@PATHS
async def test_what_an_upstream_of_our_kind_says_is_not_passed_on_beside_ours(
    served: Served, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    upstream.answer_with(answer(b"ok", "X-Palimpsest-Session: theirs", "x-palimpsest-epoch: 3"))
    assert labels_of(await served.ask(ask(method, path))) == await expected(served)
