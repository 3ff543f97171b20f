"""The table: which path is whose. What is under `/-/` is ours and never goes upstream; all else goes there."""

import json

import pytest

from proxy.wire import FORMATS, find_wire
from tests.support.scripted import ScriptedUpstream, answer, request
from tests.support.serving import TOKEN, Served

BEARER = f"Authorization: Bearer {TOKEN}"


def test_a_path_ends_as_its_wire_does() -> None:
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
    assert list(map(find_wire, paths)) == ["chat_completions", "responses", "anthropic_messages"] == list(FORMATS)
    assert all(form.name == name for name, form in FORMATS.items())


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/-/unknown",
            "/-/chat/completions",
            "/-/api/v1/messages",
            "/-/api/sessions/",
            "/-/api/unknown",
            "/-/mcp/x",
            "/-/live/x",
            "/%2d/unknown",
            "/-//x",
        ),
        *("//-/", "//-/api/sessions", "//-", "///-/live", "/%2f-/api", "//%2D/x", "/-%2funknown"),
    ],
)
async def test_an_unknown_page_of_ours_is_not_found_and_not_forwarded(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    got = await served.ask(request("GET", path, BEARER))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (404, "not_found")
    assert upstream.accepted == 0


@pytest.mark.parametrize("path", ["/-", "/-?token=x", "/%2d"])
async def test_our_page_without_its_slash_is_ours_too(served: Served, upstream: ScriptedUpstream, path: str) -> None:
    got = await served.ask(request("GET", path, BEARER))
    assert (got.status, got.find(b"location")) == (307, b"/-/")
    assert (await served.ask(request("POST", path, BEARER, body=b"{}"))).status == 404
    assert (await served.ask(request("POST", path, body=b"{}"))).status == 401
    assert upstream.accepted == 0


@pytest.mark.parametrize("path", ["/./-/", "/x/../-/", "/%2e/-/", "/%252e/-/", "/\\-/", "/-;a/"])
async def test_a_path_that_may_come_to_mean_ours_goes_nowhere(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    assert (await served.ask(request("GET", path, BEARER))).status == 400
    assert upstream.accepted == 0


async def test_what_is_asked_of_the_server_itself_goes_nowhere(served: Served, upstream: ScriptedUpstream) -> None:
    assert (await served.ask(request("OPTIONS", "*"))).status == 401
    assert upstream.accepted == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/-/", "/-/live", "/-/ready", "/-/metrics", "/-/unknown", "/-/chat/completions"])
async def test_another_method_on_our_pages_is_not_forwarded_either(
    served: Served, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    assert (await served.ask(request(method, path, body=b"{}"))).status == 401
    assert (await served.ask(request(method, path, BEARER, body=b"{}"))).status in (404, 405)
    assert upstream.accepted == 0


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/chat/completions", "managed"),
        ("POST", "/v1/messages?beta=true", "managed"),
        ("GET", "/v1/chat/completions", "passthrough"),
        ("GET", "/v1/responses/resp_1", "passthrough"),
        ("POST", "/v1/responses/resp_1/cancel", "passthrough"),
        ("POST", "/v1/messages/count_tokens", "passthrough"),
        ("POST", "/v1/responses/input_tokens", "passthrough"),
        ("POST", "/v1/responses/compact", "passthrough"),
        ("POST", "/v1/chat/completions/", "passthrough"),
        ("POST", "/V1/chat/completions", "managed"),
        ("POST", "//v1/messages", "managed"),
        ("POST", "/chat/completions", "managed"),
        ("POST", "/responses", "managed"),
        ("POST", "/messages", "passthrough"),
        ("POST", "/v2/messages", "passthrough"),
        ("POST", "/anthropic/v1/messages", "managed"),
        ("POST", "/api/v1/chat/completions", "managed"),
        ("POST", "/v1beta/openai/chat/completions", "managed"),
        ("POST", "/openai/deployments/gpt-x/chat/completions?api-version=2026-01-01", "managed"),
        ("POST", "/openai/responses?api-version=2026-01-01", "managed"),
        ("GET", "/api/v1/chat/completions", "passthrough"),
        ("POST", "/v1/threads/t/messages", "passthrough"),
        ("POST", "/v1/threads/t/v1/messages", "passthrough"),
        ("POST", "/v1/threads/t/responses", "passthrough"),
        ("POST", "/%76%31/threads/t/chat/completions", "passthrough"),
        ("POST", "/v1/mychat/completions", "passthrough"),
        ("POST", "/v1/myresponses", "passthrough"),
        ("POST", "/v1/completions", "passthrough"),
        ("GET", "/", "passthrough"),
        ("GET", "/live", "passthrough"),
        ("GET", "/metrics", "passthrough"),
        ("GET", "/-x/live", "passthrough"),
        ("GET", "/v1/-/live", "passthrough"),
    ],
)
async def test_every_other_path_goes_upstream(
    served: Served, upstream: ScriptedUpstream, method: str, path: str, kind: str
) -> None:
    upstream.answer_with(answer(b"ok"))
    got = await served.ask(request(method, path, body=b"{}" if method == "POST" else b""))
    assert (got.status, got.body) == (200, b"ok")
    assert upstream.requests[0].line == f"{method} {path} HTTP/1.1".encode()
    assert (await served.opening()).kind == kind


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        ("/chat/completions", "chat_completions"),
        ("/api/v1/responses", "responses"),
        ("/anthropic/v1/messages", "anthropic_messages"),
    ],
)
async def test_a_call_is_read_by_how_its_path_ends(
    served: Served, upstream: ScriptedUpstream, path: str, wire: str
) -> None:
    upstream.answer_with(answer(b"{}"))
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi","max_tokens":9}'
    assert (await served.ask(request("POST", path, body=body))).status == 200
    opening = await served.opening()
    assert (opening.wire, opening.model, upstream.requests[0].target) == (wire, "m", path.encode())
