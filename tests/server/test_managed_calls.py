"""Calls of the wire formats that are read: bodies, modes, and the headers by which a client finds them in the log."""

import json

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.exchange import Mode, Opening
from proxy.model.log import ArchiveHealth
from tests.support.scripted import LAST_CHUNK, Message, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving

WIRES = {
    "/v1/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic_messages",
}
BODY = b'{ "model":"m", "messages":[ {"role":"user","content":"\xc3\xa9"} ], "unknown": 1.50e0 }'


@pytest.mark.parametrize(("path", "wire"), WIRES.items())
async def test_a_managed_call_is_recorded_in_its_wire(
    served: Served, upstream: ScriptedUpstream, path: str, wire: str
) -> None:
    upstream.answer_with(answer(b'{"id":"x"}', "Content-Type: application/json"))
    got = await served.ask(request("POST", path + "?beta=true", "X-Kept: 1", body=BODY))
    assert got.body == b'{"id":"x"}'
    (sent,) = upstream.requests
    assert (sent.target, sent.body, sent.find(b"x-kept")) == (path.encode() + b"?beta=true", BODY, b"1")
    opening = await served.opening()
    assert (opening.kind, opening.wire, opening.model) == ("managed", wire, "m")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"null",
        b"[]",
        b"{}",
        b'{"messages":[{"content":"\\ud800"}]}',
        b'{"model":"\\ud800","messages":[{}]}',
        b'{"messages":[{"x":NaN}],"y":1e400}',
        b'{"messages":[1],"messages":[2],"model":1}',
        '{"messages":[]}'.encode("utf-16"),
        b"\xef\xbb\xbf" + BODY,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages":[' + b",".join([b'{"role":"user"}'] * 200_000) + b"]}",
        b'{"messages":[{"role":"tool","tool_call_id":"nobody"}]}',
        b"\x1f\x8b\x08\x00compressed",
        b'{"messages":[',
    ],
    ids=range(16),
)
@pytest.mark.parametrize("path", WIRES)
async def test_an_odd_body_is_for_the_upstream_to_judge(
    served: Served, upstream: ScriptedUpstream, path: str, body: bytes
) -> None:
    upstream.answer_with(answer(b"bad", status="400 Bad Request"))
    assert (await served.ask(request("POST", path, body=body))).body == b"bad"
    assert upstream.requests[0].body == body


async def test_a_chunked_body_goes_on_whole_and_with_a_length(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    head = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    await served.ask(head + b"".join(chunk(BODY[i : i + 1]) for i in range(len(BODY))) + b"0\r\n\r\n")
    (sent,) = upstream.requests
    assert (sent.body, sent.find(b"content-length"), sent.all(b"transfer-encoding")) == (BODY, b"%d" % len(BODY), [])


async def test_a_call_may_ask_to_be_sent_as_it_came(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    await served.ask(request("POST", "/v1/responses", "X-Palimpsest-Mode: bypass", body=BODY))
    opening = await served.opening()
    assert (opening.kind, opening.mode) == ("managed", "bypass")
    assert (upstream.requests[0].body, upstream.requests[0].all(b"x-palimpsest-mode")) == (BODY, [])


async def test_one_that_might_have_reasoning_of_an_epoch_is_read(upstream: ScriptedUpstream) -> None:
    kinds: dict[Mode, str] = {"manage": "managed", "observe": "managed", "bypass": "passthrough"}
    for mode, kind in kinds.items():
        upstream.answer_with(answer(b"ok"))
        async with serving(Plan(upstream.url, engine=EnginePolicy(mode=mode))) as served:
            await served.ask(request("POST", CHAT, "X-Palimpsest-Mode: bypass", body=HELLO))
            opening = await served.opening()
        assert (opening.kind, opening.mode) == (kind, "bypass")
        assert upstream.requests[-1].body == HELLO


async def test_a_mode_that_is_none_is_refused(served: Served, upstream: ScriptedUpstream) -> None:
    got = await served.ask(request("POST", "/v1/messages", "X-Palimpsest-Mode: magic", body=BODY))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (400, "bad_request")
    assert upstream.accepted == 0
    assert served.archive.of(Opening) == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/other"])
async def test_calls_can_be_refused_while_they_cannot_be_recorded(upstream: ScriptedUpstream, path: str) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(Plan(upstream.url, engine=EnginePolicy(on_failure="refuse"))) as served:
        assert (await served.ask(request("POST", path, body=BODY))).status == 200
        served.archive.health = ArchiveHealth("disk full", 0, 0, 0, 0)
        got = await served.ask(request("POST", path, body=BODY))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (503, "store_unavailable")
    assert len(upstream.requests) == 1


async def test_calls_go_on_while_they_cannot_be_recorded_unless_told_otherwise(
    served: Served, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"ok"))
    served.archive.health = ArchiveHealth("disk full", 0, 0, 0, 0)
    assert (await served.ask(request("POST", "/v1/messages", body=BODY))).status == 200


# --- the headers of ours, on every response but those of mode `bypass` ------------------------------------------------


CHAT = "/v1/chat/completions"
HELLO = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
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
    return request(method, path, *fields, body=HELLO if method == "POST" else b"")


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
