"""Upstreams of kind litellm: the real library against scripted providers, over sockets."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.engine.ports import UpstreamResponse
from proxy.engine.runtime import TaskRunner
from proxy.model.errors import BadRequest, NotFound, TooLarge, UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.litellm_client import LitellmClient
from proxy.upstream.litellm_library import load_litellm
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire.overflow import read_overflow, read_stream_start
from tests.support import provider_answers as says
from tests.support.loops import put_forward
from tests.support.scripted import LAST_CHUNK, LIMIT, ScriptedUpstream, answer, chunk, stream_head
from tests.upstream.client_contract import Upload, read_all

# litellm compares what providers answer with its own types, and warns of each difference.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

CHAT, RESPONSES, MESSAGES = b"/v1/chat/completions", b"/v1/responses", b"/v1/messages"
ASKED = [{"role": "user", "content": "hi"}]
OPENAI, ANTHROPIC, GEMINI = "openai/gpt-4.1", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-pro"
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
KEY: Headers = ((b"authorization", b"Bearer sk-client"),)

Make = Callable[..., LitellmClient]


@pytest.fixture
async def make(upstream: ScriptedUpstream, tasks: TaskRunner) -> AsyncIterator[Make]:
    """Makes clients of the scripted provider, by what of their policy is another."""
    made: list[LitellmClient] = []

    def build(library: Any = None, hop_id: str = "", **values: object) -> LitellmClient:
        told: dict[str, object] = {"base_url": upstream.url, "kind": "litellm", "idle_timeout": LIMIT, **values}
        policy = UpstreamPolicy("u", **told)  # type: ignore[arg-type]
        made.append(LitellmClient(policy, library or load_litellm(), tasks.spawn, hop_id=hop_id))
        return made[-1]

    yield build
    for client in made:
        await client.aclose()


async def send(client: LitellmClient, body: object, target: bytes = CHAT, headers: Headers = KEY) -> UpstreamResponse:
    content = body if isinstance(body, bytes | Upload) else json.dumps(body).encode()
    async with asyncio.timeout(LIMIT):
        return await client.send("POST", target, headers, content)


async def ask(client: LitellmClient, body: object, target: bytes = CHAT, headers: Headers = KEY) -> tuple[int, Any]:
    response = await send(client, body, target, headers)
    return response.status, json.loads(await read_all(response))


def upload(*pieces: bytes) -> Upload:
    body = Upload()
    for piece in (*pieces, b""):
        body.add(piece)
    return body


def read_events(content: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in content.splitlines() if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


async def test_a_chat_completion_reaches_the_provider_as_the_body_says(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.whole(says.CHAT, "X-Request-Id: r1", "X-RateLimit-Remaining-Tokens: 99", "Server: s"))
    body = {"model": OPENAI, "messages": ASKED, "tools": TOOLS, "temperature": 0.5, "max_tokens": 7}
    response = await send(make(), body)
    value = json.loads(await read_all(response))
    assert (response.status, value["choices"][0]["message"]["tool_calls"]) == (200, [says.TOOL_CALL])
    assert value["choices"][0]["message"]["content"] is None
    assert value["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    headers = dict(response.headers)
    assert (headers[b"x-request-id"], headers[b"x-ratelimit-remaining-tokens"]) == (b"r1", b"99")
    assert b"server" not in headers
    (asked,) = upstream.requests
    assert (asked.target, asked.find(b"authorization")) == (b"/v1/chat/completions", b"Bearer sk-client")
    assert json.loads(asked.body) == {**body, "model": "gpt-4.1"}


async def test_a_stream_has_its_tool_calls_its_usage_and_its_end(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.stream(says.CHAT_EVENTS))
    body = {
        "model": OPENAI,
        "messages": ASKED,
        "tools": TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    response = await send(make(), body)
    *events, end = read_events(await read_all(response))
    assert dict(response.headers)[b"content-type"].startswith(b"text/event-stream")
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "hello"
    calls = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "".join(calls) == says.TOOL_CALL["function"]["arguments"]  # type: ignore[index]
    assert [event["usage"]["prompt_tokens"] for event in events if event.get("usage")] == [5]
    assert end == "[DONE]"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
SEEN = [{"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]}]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_anthropic_is_asked_in_its_own_words(make: Make, upstream: ScriptedUpstream, is_stream: bool) -> None:
    upstream.answer_with(says.stream(says.MESSAGE_EVENTS) if is_stream else says.whole(says.MESSAGE))
    client = make(base_url=upstream.url.removesuffix("/v1"))
    assert b"hello" in await read_all(await send(client, {"model": ANTHROPIC, "messages": SEEN, "stream": is_stream}))
    (asked,) = upstream.requests
    assert (asked.target, asked.find(b"x-api-key")) == (b"/v1/messages", b"sk-client")
    parts = json.loads(asked.body)["messages"][0]["content"]
    assert {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="} in [part.get("source") for part in parts]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_gemini_is_asked_in_its_own_words(make: Make, upstream: ScriptedUpstream, is_stream: bool) -> None:
    upstream.answer_with(says.stream([says.data(says.GEMINI)]) if is_stream else says.whole(says.GEMINI))
    assert b"hello" in await read_all(await send(make(), {"model": GEMINI, "messages": SEEN, "stream": is_stream}))
    (asked,) = upstream.requests
    assert b"/models/gemini-2.5-pro:" in asked.target
    assert asked.find(b"x-goog-api-key") == b"sk-client"
    assert b'"mime_type":"image/png"' in asked.body.replace(b" ", b"")


async def test_azure_is_asked_for_a_deployment(
    make: Make, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_API_VERSION", "2025-01-01-preview")
    upstream.answer_with(says.whole(says.CHAT))
    client = make(base_url=upstream.url.removesuffix("/v1"), api_key="sk-own")
    assert (await ask(client, {"model": "azure/mine", "messages": ASKED, "tools": TOOLS}))[0] == 200
    (asked,) = upstream.requests
    assert asked.target == b"/openai/deployments/mine/chat/completions?api-version=2025-01-01-preview"
    assert asked.find(b"api-key") == b"sk-own"


async def test_bedrock_is_asked_with_the_credentials_of_the_environment(
    make: Make, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ACCESS_KEY_ID": "AKIAOWN", "SECRET_ACCESS_KEY": "s", "REGION_NAME": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    upstream.answer_with(says.whole(says.CONVERSE))
    client = make(auth="none")
    body = {"model": "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", "messages": SEEN, "tools": TOOLS}
    status, value = await ask(client, body)
    assert (status, value["choices"][0]["message"]["content"]) == (200, "hello")
    (asked,) = upstream.requests
    assert b"/converse" in asked.target
    assert b"Credential=AKIAOWN/" in asked.find(b"authorization")
    assert b"sk-client" not in asked.find(b"authorization")
    assert b'"image"' in asked.body


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad Request", "invalid_request_error"),
        ("401 Unauthorized", "authentication_error"),
        ("403 Forbidden", "permission_error"),
        ("404 Not Found", "not_found_error"),
        ("429 Too Many Requests", "rate_limit_error"),
        ("500 Internal Server Error", "api_error"),
        ("503 Service Unavailable", "overloaded_error"),
    ],
)
async def test_an_error_has_the_providers_status_and_the_shape_of_both_apis(
    make: Make, upstream: ScriptedUpstream, status: str, kind: str, is_stream: bool
) -> None:
    upstream.answer_with(says.whole(says.openai_error("no good", "why"), "Retry-After: 7", status=status))
    response = await send(make(), {"model": OPENAI, "messages": ASKED, "stream": is_stream})
    value = json.loads(await read_all(response))
    assert response.status == int(status[:3])
    assert (value["type"], value["error"]["type"]) == ("error", kind)
    assert "no good" in value["error"]["message"]
    assert dict(response.headers)[b"retry-after"] == b"7"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("model", "target", "refusal"),
    [
        (OPENAI, CHAT, says.openai_error(says.OPENAI_TOO_LONG)),
        (ANTHROPIC, CHAT, says.anthropic_error(says.ANTHROPIC_TOO_LONG)),
        (GEMINI, CHAT, {"error": {"code": 400, "message": says.GEMINI_TOO_LONG, "status": "INVALID_ARGUMENT"}}),
        (ANTHROPIC, MESSAGES, says.anthropic_error(says.ANTHROPIC_TOO_LONG)),
        (OPENAI, RESPONSES, says.openai_error(says.OPENAI_TOO_LONG)),
    ],
)
async def test_a_context_that_is_too_long_is_recognised(
    make: Make,
    upstream: ScriptedUpstream,
    model: str,
    target: bytes,
    refusal: Mapping[str, object],
    is_stream: bool,
) -> None:
    upstream.answer_with(says.whole(refusal, status="400 Bad Request"))
    asked = {"input": "hi"} if target == RESPONSES else {"messages": ASKED, "max_tokens": 9}
    response = await send(make(), {"model": model, **asked, "stream": is_stream}, target)
    found = read_overflow(response.status, response.headers, await read_all(response))
    assert found is not None
    assert (found.window, found.sent) == (8192, 9000)


async def test_an_overflow_without_numbers_is_recognised_by_litellm(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.whole(says.openai_error("too long", "context_length_exceeded"), status="400 Bad Request"))
    response = await send(make(), {"model": OPENAI, "messages": ASKED})
    assert read_overflow(response.status, response.headers, await read_all(response)) is not None


@pytest.mark.parametrize("is_stream", [False, True])
async def test_responses_go_through_litellms_own_entry(make: Make, upstream: ScriptedUpstream, is_stream: bool) -> None:
    upstream.answer_with(says.stream(says.RESPONSE_EVENTS) if is_stream else says.whole(says.RESPONSE))
    body = {"model": OPENAI, "input": [{"role": "user", "content": "hi"}], "stream": is_stream, "client_metadata": {}}
    content = await read_all(await send(make(), body, RESPONSES))
    assert b"hello" in content
    assert json.loads(upstream.requests[0].body)["input"] == body["input"]
    assert upstream.requests[0].target == b"/v1/responses"
    if is_stream:
        assert content.startswith(b"event: response.created\ndata: {")
        assert read_events(content)[-1]["response"]["usage"]["input_tokens"] == 5


async def test_a_stream_of_messages_has_signed_reasoning_as_the_provider_wrote_it(
    make: Make, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(says.stream(says.MESSAGE_EVENTS))
    body = {"model": ANTHROPIC, "messages": ASKED, "max_tokens": 9, "system": "s", "stream": True}
    content = await read_all(await send(make(base_url=upstream.url.removesuffix("/v1")), body, MESSAGES))
    events = read_events(content)
    assert [event["type"] for event in events][:2] == ["message_start", "content_block_start"]
    started = events[1]["content_block"]["thinking"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert started + "".join(delta.get("thinking", "") for delta in deltas) == "hm"
    assert [delta["signature"] for delta in deltas if "signature" in delta] == ["c2ln"]
    assert events[-1] == {"type": "message_stop"}
    assert events[-2]["usage"]["cache_read_input_tokens"] == 100


@pytest.mark.parametrize("is_stream", [False, True])
async def test_messages_reach_providers_of_both_kinds(make: Make, upstream: ScriptedUpstream, is_stream: bool) -> None:
    client = make(base_url=upstream.url.removesuffix("/v1"))
    body = {"messages": ASKED, "max_tokens": 9, "stream": is_stream}
    upstream.answer_with(says.stream(says.MESSAGE_EVENTS) if is_stream else says.whole(says.MESSAGE))
    assert b"hello" in await read_all(await send(client, {"model": ANTHROPIC, **body}, MESSAGES))
    upstream.answer_with(says.stream(says.CHAT_EVENTS) if is_stream else says.whole(says.CHAT))
    answered = await read_all(await send(client, {"model": "hosted_vllm/m", **body}, MESSAGES))
    assert b'"tool_use"' in answered
    assert [asked.target for asked in upstream.requests] == [b"/v1/messages", b"/chat/completions"]


@pytest.mark.parametrize(
    ("model", "is_stream"), [(ANTHROPIC, True), (OPENAI, True), (OPENAI, False), (ANTHROPIC, False)]
)
async def test_an_error_of_a_tool_reaches_every_provider(
    make: Make, upstream: ScriptedUpstream, model: str, is_stream: bool
) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such file", "is_error": True}
    messages = [*ASKED, {"role": "assistant", "content": [call]}, {"role": "user", "content": [failed]}]
    answers = (says.MESSAGE_EVENTS, says.MESSAGE) if model == ANTHROPIC else (says.RESPONSE_EVENTS, says.RESPONSE)
    upstream.answer_with(says.stream(answers[0]) if is_stream else says.whole(answers[1]))
    client = make(base_url=upstream.url.removesuffix("/v1")) if model == ANTHROPIC else make()
    body = {"model": model, "messages": messages, "max_tokens": 9, "stream": is_stream}
    await read_all(await send(client, body, MESSAGES))
    sent = upstream.requests[0].body.replace(b" ", b"")
    is_passed = model == ANTHROPIC and not is_stream  # as it came
    assert (b'"is_error":true' in sent, b"Error:nosuchfile" in sent) == (is_passed, not is_passed)


@pytest.mark.parametrize(
    ("auth", "api_key", "headers", "sent"),
    [
        ("bearer", "", KEY, b"Bearer sk-client"),
        ("bearer", "", ((b"x-api-key", b"sk-x"),), b"Bearer sk-x"),
        ("bearer", "sk-own", KEY, b"Bearer sk-own"),
        ("bearer", "", (), b"Bearer none"),
        ("none", "", KEY, b"Bearer sk-environment"),
    ],
)
async def test_the_key_is_that_of_the_settings_else_the_clients(
    make: Make,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
    auth: str,
    api_key: str,
    headers: Headers,
    sent: bytes,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    upstream.answer_with(says.whole(says.CHAT))
    await ask(make(auth=auth, api_key=api_key), {"model": OPENAI, "messages": ASKED}, headers=headers)
    assert upstream.requests[0].find(b"authorization") == sent


async def test_a_key_of_the_settings_is_in_no_error(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.whole(says.openai_error("bad key sk-own-secret"), status="401 Unauthorized"))
    _, value = await ask(make(api_key="sk-own-secret"), {"model": OPENAI, "messages": ASKED})
    assert "bad key [api_key]" in value["error"]["message"]


@pytest.mark.parametrize("target", [CHAT, RESPONSES, MESSAGES])
async def test_no_request_can_choose_how_litellm_makes_the_call(
    make: Make, upstream: ScriptedUpstream, target: bytes
) -> None:
    asked = {"input": "hi"} if target == RESPONSES else {"messages": ASKED}
    with pytest.raises(BadRequest, match="kind litellm does not take: api_base, mock_response; leave it out"):
        await send(make(), {"model": OPENAI, **asked, "api_base": "http://x", "mock_response": "x"}, target)
    assert upstream.accepted == 0


async def test_a_model_of_another_upstream_is_refused(make: Make, upstream: ScriptedUpstream) -> None:
    with pytest.raises(BadRequest, match="no upstream takes the model 'groq/x'"):
        await send(make(models=("openai/*",), api_key="sk-own"), {"model": "groq/x", "messages": ASKED})
    with pytest.raises(BadRequest, match="names no model"):
        await send(make(), {"messages": ASKED})
    assert upstream.accepted == 0


async def test_a_model_of_no_provider_is_the_clients_mistake(make: Make) -> None:
    status, value = await ask(make(), {"model": "nobodys", "messages": ASKED})
    assert (status, value["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_object_is_refused(make: Make, body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body is not"):
        await send(make(), body)


async def test_a_body_in_pieces_or_compressed_is_read(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.whole(says.CHAT))
    content = json.dumps({"model": OPENAI, "messages": ASKED}).encode()
    await ask(make(), upload(content[:9], content[9:]))
    await ask(make(), gzip.compress(content), headers=(*KEY, (b"content-encoding", b"gzip")))
    with pytest.raises(BadRequest, match="cannot be decoded"):
        await send(make(), b"x", headers=((b"content-encoding", b"sealed"),))
    assert [json.loads(asked.body)["messages"] for asked in upstream.requests] == [ASKED, ASKED]


async def test_a_body_in_pieces_has_a_limit(make: Make) -> None:
    with pytest.raises(TooLarge, match="67108864 bytes at most"):
        await send(make(), upload(*[b" " * 2**20] * 65))


@pytest.mark.parametrize("target", [CHAT, RESPONSES, MESSAGES])
async def test_a_wire_that_litellm_lacks_is_named(make: Make, target: bytes) -> None:
    async def close() -> None:
        """Nothing is open."""

    client = make(library=SimpleNamespace(close_litellm_async_clients=close))
    asked = {"input": "hi"} if target == RESPONSES else {"messages": ASKED}
    with pytest.raises(BadRequest, match=f"litellm has no .*{target.decode()[3:]} for the upstream 'u'"):
        await send(client, {"model": OPENAI, **asked}, target)


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", b"/v1/embeddings"), ("POST", b"/v1/messages/count_tokens"), ("GET", CHAT), ("GET", b"/v1/files")],
)
async def test_a_path_that_no_function_serves_is_named(make: Make, method: str, target: bytes) -> None:
    with pytest.raises(NotFound, match=f"not {target.decode()}"):
        await make().send(method, target, (), b"{}")


async def test_the_models_are_those_that_the_settings_name(make: Make) -> None:
    client = make(models=("azure/mine", "azure/gpt-*", "azure/other"))
    response = await client.send("GET", b"/v1/models?limit=1000", (), b"")
    listed = json.loads(await read_all(response))["data"]
    assert [each["id"] for each in listed] == ["azure/mine", "azure/other"]
    assert response.is_ended
    with pytest.raises(NotFound, match="name no model, only patterns"):
        await make(models=("azure/*",)).send("GET", b"/v1/models", (), b"")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC, GEMINI])
async def test_a_provider_that_is_not_there_is_unreachable(make: Make, model: str, is_stream: bool) -> None:
    client = make(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UpstreamUnreachable, match="litellm got no answer from the upstream 'u': ") as caught:
        await read_all(await send(client, {"model": model, "messages": ASKED, "stream": is_stream}))
    assert caught.value.status == 502
    assert "hi" not in str(caught.value).split("'u': ")[1].split()


async def test_a_provider_that_says_nothing_is_given_up(make: Make, upstream: ScriptedUpstream) -> None:
    with pytest.raises(UpstreamUnreachable, match="did not answer litellm in time") as caught:
        await send(make(idle_timeout=0.3), {"model": OPENAI, "messages": ASKED})
    assert caught.value.status == 504


async def test_a_provider_whose_code_knows_no_time_limit_is_given_up(make: Make) -> None:
    async def wait(**_: object) -> None:
        await asyncio.Event().wait()

    async def close() -> None:
        """Nothing is open."""

    client = make(library=SimpleNamespace(acompletion=wait, close_litellm_async_clients=close), idle_timeout=0.1)
    with pytest.raises(UpstreamUnreachable, match="did not answer litellm in time"):
        await send(client, {"model": OPENAI, "messages": ASKED})


async def test_a_stream_that_falls_silent_breaks_off(make: Make, upstream: ScriptedUpstream) -> None:
    client = make(idle_timeout=30.0)
    sending = asyncio.ensure_future(send(client, {"model": OPENAI, "messages": ASKED, "stream": True}))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(says.CHAT_EVENTS[0]))
    response = await sending
    async with asyncio.timeout(LIMIT):
        assert b"hel" in await response.read()
    reading = asyncio.ensure_future(read_all(response))
    await asyncio.sleep(0)
    await put_forward(31.0)
    with pytest.raises(UpstreamUnreachable):
        await reading


async def test_a_stream_that_breaks_off_upstream_breaks_off_here(make: Make, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(make(), {"model": OPENAI, "messages": ASKED, "stream": True}))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(says.CHAT_EVENTS[0]))
    response = await sending
    async with asyncio.timeout(LIMIT):
        assert b"hel" in await response.read()
    wire.reset()
    with pytest.raises(UpstreamUnreachable):
        await read_all(response)


async def test_pieces_come_as_the_provider_sends_them(make: Make, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(make(), {"model": OPENAI, "messages": ASKED, "stream": True}))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(says.CHAT_EVENTS[0]))
    response = await sending
    async with asyncio.timeout(LIMIT):
        assert b"hel" in await response.read()
        wire.send(chunk(says.CHAT_EVENTS[1]))
        assert b"lo" in await response.read()
    response.close()


@pytest.mark.parametrize(
    ("model", "target", "first"),
    [
        (OPENAI, CHAT, says.CHAT_EVENTS[0]),
        (OPENAI, RESPONSES, says.RESPONSE_EVENTS[0]),
        (ANTHROPIC, MESSAGES, b"".join(says.MESSAGE_EVENTS[:3])),
        ("hosted_vllm/m", MESSAGES, says.CHAT_EVENTS[0]),
        (ANTHROPIC, CHAT, b"".join(says.MESSAGE_EVENTS[:7])),
        (ANTHROPIC, RESPONSES, b"".join(says.MESSAGE_EVENTS[:7])),
    ],
)
async def test_a_client_that_has_gone_ends_the_call(
    make: Make, upstream: ScriptedUpstream, tasks: TaskRunner, model: str, target: bytes, first: bytes
) -> None:
    asked = {"input": "hi"} if target == RESPONSES else {"messages": ASKED, "max_tokens": 9}
    sending = asyncio.ensure_future(send(make(), {"model": model, **asked, "stream": True}, target))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(first))
    response = await sending
    async with asyncio.timeout(LIMIT):
        assert await response.read()
    response.close()
    assert await wire.read_to_end() == b""
    assert await tasks.finish(LIMIT)


async def test_a_client_that_goes_while_much_is_unread_ends_the_call(
    make: Make, upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    sending = asyncio.ensure_future(send(make(), {"model": OPENAI, "messages": ASKED, "stream": True}))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(says.data(says.chat_chunk({"content": "x" * 2**20}))) * 2)
    response = await sending
    await asyncio.sleep(0.5)  # by then it reads no more; if not, the call ends all the same
    response.close()
    assert await tasks.finish(LIMIT)
    assert await wire.read_to_end() == b""


async def test_a_client_that_goes_before_the_response_ends_the_call(make: Make, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(make(), {"model": OPENAI, "messages": ASKED}))
    wire, _ = await upstream.accept_request()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await wire.read_to_end() == b""


async def test_an_error_in_the_middle_of_a_stream_is_an_event(make: Make, upstream: ScriptedUpstream) -> None:
    late = says.data(says.openai_error(says.OPENAI_TOO_LONG, "context_length_exceeded"))
    upstream.answer_with(says.stream([says.CHAT_EVENTS[0], late]))
    content = await read_all(await send(make(), {"model": OPENAI, "messages": ASKED, "stream": True}))
    *_, last = read_events(content)
    assert "error" in last
    assert b"[DONE]" not in content


async def test_an_error_at_the_beginning_of_a_stream_is_an_error_response(
    make: Make, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(says.stream([says.data(says.openai_error(says.OPENAI_TOO_LONG, "context_length_exceeded"))]))
    response = await send(make(), {"model": OPENAI, "messages": ASKED, "stream": True})
    content = await read_all(response)
    assert response.status == 400
    assert read_overflow(response.status, response.headers, content) is not None


async def test_a_slow_stream_begins_before_its_first_piece(make: Make, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(make(), {"model": OPENAI, "messages": ASKED, "stream": True}))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head())
    while not sending.done():
        await asyncio.sleep(0.05)
        await put_forward(1)
    response = await sending
    assert (response.status, response.is_received) == (200, False)
    refusal = says.data(says.openai_error(says.OPENAI_TOO_LONG, "context_length_exceeded"))
    wire.send(chunk(refusal) + LAST_CHUNK)
    assert read_stream_start(await read_all(response)) == "refused"


async def test_a_near_provider_is_told_through_which_servers_the_call_came(
    make: Make, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(says.whole(says.CHAT))
    headers = (*KEY, (b"x-palimpsest-hop", b"before"))
    await ask(make(hop_id="me"), {"model": OPENAI, "messages": ASKED}, headers=headers)
    assert upstream.requests[0].find(b"x-palimpsest-hop") == b"before, me"


async def test_what_the_provider_lacks_is_left_out(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(says.whole(says.MESSAGE))
    client = make(base_url=upstream.url.removesuffix("/v1"))
    body = {"model": ANTHROPIC, "messages": ASKED, "frequency_penalty": 1, "metadata": {"a": "b"}, "session_id": "s"}
    assert (await ask(client, body))[0] == 200
    assert not {"frequency_penalty", "metadata", "session_id"} & set(json.loads(upstream.requests[0].body))


async def test_an_unexpected_exception_says_only_its_name(make: Make) -> None:
    async def fail(**_: object) -> None:
        raise KeyError("a secret of the conversation")

    async def close() -> None:
        """Nothing is open."""

    client = make(library=SimpleNamespace(acompletion=fail, close_litellm_async_clients=close))
    with pytest.raises(UpstreamUnreachable, match=r"'u': KeyError$"):
        await send(client, {"model": OPENAI, "messages": ASKED})


async def test_an_answer_that_is_no_json_is_an_error(make: Make, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"not json", says.JSON))
    status, value = await ask(make(), {"model": OPENAI, "messages": ASKED})
    assert (status, value["error"]["type"]) == (500, "api_error")


async def test_litellm_says_that_it_compacts_nothing(make: Make, upstream: ScriptedUpstream) -> None:
    """As docs/providers.md has it of a request that is not managed since it asks for a compaction."""
    upstream.answer_with(says.whole(says.CHAT))
    edits = [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]
    asked = {"messages": [{"role": "user", "content": "word " * 60_000}], "max_tokens": 9}
    body = {"model": "hosted_vllm/m", **asked, "context_management": {"edits": edits}}
    status, value = await ask(make(), body, MESSAGES)
    assert status == 200
    told = {"type": "compact_20260112", "error": "summary_model_not_configured"}
    assert value["context_management"] == {"applied_edits": [told]}
    assert len(upstream.requests) == 1
