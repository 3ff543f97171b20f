"""What Claude Code and codex expect of a gateway, as one table of calls: each goes on as it came and comes back so.

Sources: the published contract of Claude Code's gateways (WIRES 6.2 to 6.5), codex's source and its threads (WIRES 6.1,
PROTOCOL 1). Rule: bytes are compared. What a gateway may consume is passed on as well.
"""

import json
from typing import NamedTuple

import pytest

from proxy.wire.headers import find_header
from tests.support.scripted import LAST_CHUNK, Message, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import Served

BETAS = "claude-code-20250219,oauth-2025-04-20,interleaved-thinking-2025-05-14,context-management-2025-06-27"
CLAUDE = (
    "Authorization: Bearer sk-ant-oat01-0123456789",
    "anthropic-version: 2023-06-01",
    f"anthropic-beta: {BETAS}",
    "anthropic-workspace-id: wrkspc_1",
    "anthropic-dangerous-direct-browser-access: true",
    "anthropic-thing-of-tomorrow: 7",
    "x-claude-code-session-id: 0b3f",
    "x-claude-code-agent-id: a1",
    "x-claude-code-parent-agent-id: main",
    "x-app: cli",
    "x-stainless-retry-count: 0",
    "user-agent: claude-cli/2.1.280 (external, cli)",
)
CODEX = (
    "Authorization: Bearer eyJhbGciOi.J9",
    "chatgpt-account-id: acc-1",
    "originator: codex_cli_rs",
    "version: 0.169.0",
    "thread-id: 0199",
    "session-id: 0198",
    'x-codex-turn-metadata: {"request_kind":"turn"}',
    "x-codex-turn-state: opaque==",
    "x-codex-window-id: w:0",
    "x-openai-subagent: review",
    "accept: text/event-stream",
)
MESSAGES = (
    b'{"model":"claude-opus-5","max_tokens":32000, "system":[{"type":"text","text":"x-anthropic-billing-header: cc=1;"}'
    b',{"type":"text","text":"You are Claude Code.","cache_control":{"type":"ephemeral","ttl":"1h"}}],"mess'
    b'ages":[{"role":"user","content":[{"type":"text","text":"Hi \xc3\xa9","cache_control":{"type":"ephemeral"}}]}]'
    b',"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"output_config":{"effort":"high"},'
    b'"metadata":{"user_id":"{\\"session_id\\":\\"0b3f\\"}"},"field_of_tomorrow":{"a":[1.50e0]},"stream":true}'
)
COUNT = b'{"model":"claude-opus-5","messages":[{"role":"user","content":"Hi"}],"tools":[]}'
RESPONSES = (
    b'{"model":"gpt-6-sol","instructions":"You are codex.","input":[{"type":"message","role":"user","content":'
    b'[{"type":"input_text","text":"Hi"}]}],"tools":[],"store":false,"stream":true,'
    b'"include":["reasoning.encrypted_content"],"prompt_cache_key":"0198","client_metadata":{"b":1,"a":2},"new":1.0}'
)
TRIGGERED = RESPONSES.replace(b'}],"tools"', b'},{"type":"compaction_trigger"}],"tools"')


class Call(NamedTuple):
    """One call of a client."""

    method: str
    target: str
    headers: tuple[str, ...]
    body: bytes = b""


CALLS = {
    "claude probes the gateway": Call("HEAD", "/", CLAUDE),
    "claude discovers models": Call("GET", "/v1/models?limit=1000", CLAUDE),
    "claude sends a turn": Call("POST", "/v1/messages?beta=true", CLAUDE, MESSAGES),
    "claude counts tokens": Call("POST", "/v1/messages/count_tokens?beta=true", CLAUDE, COUNT),
    "claude writes files": Call("POST", "/v1/files?beta=true", CLAUDE, b"--x\r\n\xff--x--"),
    "claude sends batches": Call("POST", "/v1/messages/batches?beta=true", CLAUDE, b'{"requests":[]}'),
    "claude reports events": Call("POST", "/api/event_logging/batch", CLAUDE, b'{"events":[]}'),
    "codex lists models": Call("GET", "/v1/models?client_version=0.169.0", CODEX),
    "codex sends a turn": Call("POST", "/v1/responses", CODEX, RESPONSES),
    "codex sends a turn to its own backend": Call("POST", "/backend-api/codex/responses", CODEX, RESPONSES),
    "codex asks for a compaction in a turn": Call("POST", "/v1/responses", CODEX, TRIGGERED),
    "codex asks for a compaction": Call("POST", "/v1/responses/compact", CODEX, RESPONSES),
    "codex counts tokens": Call("POST", "/v1/responses/input_tokens", CODEX, RESPONSES),
}
TURNS = [name for name in CALLS if "a turn" in name]

ERRORS = {
    "binding": (
        "400 Bad Request",
        b'{"type":"error", "error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid '
        b'`signature` in `thinking` block. The block is bound to a different conversation."},"request_id":"req_1"}\n',
    ),
    "too long": (
        "400 Bad Request",
        b'{"type":"error","error":{"type":"invalid_request_error",'
        b'"message":"prompt is too long: 9 tokens > 8 maximum"}}',
    ),
    "too long, of a gateway": ("400 Bad Request", b'{"error":"capability_rejected: prompt_too_long"}'),
    "too long, of Bedrock": ("400 Bad Request", b'{"message":"Input is too long for requested model."}'),
    "half a pair": (
        "400 Bad Request",
        b'{"type":"error","error":{"type":"invalid_request_error",'
        b'"message":"context_management: Extra inputs are not permitted"}}',
    ),
    "of Vertex": (
        "400 Bad Request",
        b'[{"error":{"code":400,"message":"Unexpected value(s) `x` for the `anthropic-beta` header",'
        b'"status":"INVALID_ARGUMENT"}}]',
    ),
    "credential": ("401 Unauthorized", b'{"type":"error","error":{"type":"authentication_error","message":"OAuth"}}'),
    "forbidden": ("403 Forbidden", b"<html>no</html>"),
    "not served": ("404 Not Found", b'{"type":"error","error":{"type":"not_found_error","message":"model: x"}}'),
    "too large": ("413 Payload Too Large", b'{"type":"error","error":{"type":"request_too_large","message":"32 MB"}}'),
    "rate": ("429 Too Many Requests", b'{"type":"error","error":{"type":"rate_limit_error","message":"wait"}}'),
    "encrypted": (
        "400 Bad Request",
        b'{"error":{"message":"The encrypted content gAAA... could not be verified.",'
        b'"code":"invalid_encrypted_content"}}',
    ),
    "overloaded": ("529 ", b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
}
HEADERS = (
    "content-type: application/json; charset=utf-8",
    "request-id: req_011",
    "x-request-id: req_012",
    "retry-after: 7",
    "retry-after-ms: 7001",
    "x-should-retry: false",
    "anthropic-ratelimit-unified-status: allowed",
    "anthropic-thinking-prefix-mismatch: block=messages.1.content.0;kind=pattern",
    "anthropic-organization-id: org",
    "x-codex-turn-state: next==",
    "x-codex-primary-used-percent: 3",
    "openai-model: gpt-6-sol",
    "x-models-etag: 1",
)


def list_fields(lines: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """Header lines as they are compared."""
    pairs = (line.split(": ", 1) for line in lines)
    return [(name.lower().encode(), value.encode()) for name, value in pairs]


def check_sent(sent: Message, call: Call) -> None:
    """The request is the client's: its line, all of its headers in order, its body."""
    assert sent.line == f"{call.method} {call.target} HTTP/1.1".encode()
    names = {name for name, _ in list_fields(call.headers)}
    assert [field for field in sent.headers if field[0] in names] == list_fields(call.headers)
    assert sent.body == call.body


def check_headers(got: Message) -> None:
    """The response has all of the upstream's headers."""
    assert [field for field in list_fields(HEADERS) if field not in got.headers] == []


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_goes_on_as_it_came_and_its_answer_comes_back_so(
    served: Served, upstream: ScriptedUpstream, name: str
) -> None:
    call, body = CALLS[name], b"" if CALLS[name].method == "HEAD" else b'{"data": [ ]}\n'
    upstream.answer_with(answer(body, *HEADERS))
    got = await served.ask(request(call.method, call.target, *call.headers, body=call.body))
    assert (got.status, got.body) == (200, body)
    check_headers(got)
    (sent,) = upstream.requests
    check_sent(sent, call)


@pytest.mark.parametrize("name", TURNS)
async def test_a_stream_comes_event_by_event_as_it_was_sent(
    served: Served, upstream: ScriptedUpstream, name: str
) -> None:
    call = CALLS[name]
    pieces = (
        b'event: ping\ndata: {"type": "ping"}\n\n',
        b": keep-alive\r\n\r\n",
        b'event: thing_of_tomorrow\ndata: {"type":"thing_of_tomorrow","x":1.50e0}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
    )
    async with await served.connect() as client:
        client.send(request(call.method, call.target, *call.headers, body=call.body))
        wire, sent = await upstream.accept_request()
        check_sent(sent, call)
        wire.send(stream_head(*HEADERS[1:]) + b"".join(map(chunk, pieces)) + LAST_CHUNK)
        got = await client.read_answer()
    assert (got.status, got.body) == (200, b"".join(pieces))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", [*TURNS, "claude counts tokens", "claude discovers models"])
async def test_an_error_comes_back_in_the_upstreams_own_words(
    served: Served, upstream: ScriptedUpstream, name: str, error: str
) -> None:
    call, (status, body) = CALLS[name], ERRORS[error]
    upstream.answer_with(answer(body, *HEADERS, status=status))
    got = await served.ask(request(call.method, call.target, *call.headers, body=call.body))
    assert (str(got.status), got.body) == (status[:3], body)
    check_headers(got)
    assert [sent.body for sent in upstream.requests] == [call.body]


async def test_a_redirect_is_the_clients_to_follow_or_not(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"", "location: https://elsewhere.example/v1/models", status="307 Temporary Redirect"))
    got = await served.ask(request("GET", "/v1/models?limit=1000", *CLAUDE))
    assert (got.status, got.find(b"location")) == (307, b"https://elsewhere.example/v1/models")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/backend-api/codex/responses", "/v1/realtime?model=x"])
async def test_a_websocket_is_refused_so_that_codex_goes_on_over_http(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    """Only a 426 makes codex try HTTP at once; after anything else it first tries again."""
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    async with await served.connect() as client:
        client.send(request("GET", path, *CODEX, *upgrade, "OpenAI-Beta: responses_websockets=2026-02-06"))
        got = await client.read_answer()
        error = json.loads(got.body)["error"]
        assert (got.status, error["code"]) == (426, "upgrade_required") and "HTTP" in error["message"]
        assert find_header(got.headers, b"content-type").startswith(b"application/json")
        # RFC 9110, 15.5.22: the response names a protocol that will do
        assert [find_header(got.headers, name) for name in (b"upgrade", b"connection")] == [b"HTTP/1.1", b"upgrade"]
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200  # the connection goes on with HTTP
    assert upstream.accepted == 0
    upstream.answer_with(answer(b"{}"))
    call = CALLS["codex sends a turn"]
    got = await served.ask(request(call.method, call.target, *call.headers, body=call.body))
    assert (got.status, got.body) == (200, b"{}")
