"""Bedrock and Vertex by the real library, against scripted servers: AWS's event streams, and Google's tokens."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from proxy.upstream.litellm_client import LitellmClient
from proxy.wire import FORMATS
from proxy.wire.overflow import read_overflow, read_stream_start
from proxy.wire.streams import read_events
from tests.support import provider_answers as says
from tests.support.scripted import ScriptedUpstream
from tests.upstream.client_contract import read_all
from tests.upstream.test_litellm_client import (
    ASKED,
    CHAT,
    MESSAGES,
    RESPONSES,
    Make,
    make,
    send,
)
from tests.upstream.test_litellm_client import (
    read_events as read_sent,
)

__all__ = ["make"]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

BEDROCK, VERTEX, CLAUDE = (
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
    "vertex_ai/gemini-2.5-pro",
    "vertex_ai/claude-sonnet-4-5@20250929",
)
TOKEN = {"access_token": "ya29.stub", "expires_in": 3600, "token_type": "Bearer"}
CLOUDS = [(BEDROCK, says.CONVERSE_FRAMES), (VERTEX, [says.data(says.GEMINI)]), (CLAUDE, says.MESSAGE_EVENTS)]
STREAMS = {model: says.event_stream(e) if model == BEDROCK else says.stream(e) for model, e in CLOUDS}
TOO_LONG: Mapping[str, Mapping[str, object]] = {
    BEDROCK: {"message": says.BEDROCK_TOO_LONG},
    VERTEX: {"error": {"code": 400, "message": says.GEMINI_TOO_LONG, "status": "INVALID_ARGUMENT"}},
    CLAUDE: says.anthropic_error(says.ANTHROPIC_TOO_LONG),
}


@cache
def make_key() -> str:
    """A private key. To find one takes a second or more."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


@pytest.fixture
def cloud(make: Make, upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LitellmClient:
    """A client with the credentials of the environment. Google's are exchanged for a token at the scripted server."""
    for name, value in {"ACCESS_KEY_ID": "AKIAOWN", "SECRET_ACCESS_KEY": "s", "REGION_NAME": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    account = {
        "type": "service_account",
        "project_id": "ours",
        "private_key": make_key(),
        "client_email": "us@ours.example",
        "token_uri": f"{upstream.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.setenv("VERTEXAI_PROJECT", "ours")
    monkeypatch.setenv("VERTEXAI_LOCATION", "us-central1")
    return make(auth="none", base_url=upstream.url.removesuffix("/v1"))


def play(upstream: ScriptedUpstream, content: bytes) -> None:
    """Let the server give a token to whoever asks for one, and this answer to all else."""

    async def script(wire: Any) -> None:
        while True:
            request = await wire.read_request()
            if request.target.endswith(b"/token"):
                wire.send(says.whole(TOKEN))
                continue
            upstream.requests.append(request)
            wire.send(content)

    upstream.script = script


def ask(model: str, target: bytes, *, is_stream: bool = True) -> dict[str, object]:
    asked = {"input": "hi"} if target == RESPONSES else {"messages": ASKED, "max_tokens": 9}
    more = {"stream_options": {"include_usage": True}} if is_stream and target == CHAT else {}
    return {"model": model, **asked, **more, "stream": is_stream}


@pytest.mark.parametrize("target", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("model", STREAMS)
async def test_a_stream_of_a_cloud_is_read_in_each_wire(
    cloud: LitellmClient, upstream: ScriptedUpstream, model: str, target: bytes
) -> None:
    play(upstream, STREAMS[model])
    content = await read_all(await send(cloud, ask(model, target), target))
    form = next(form for form in FORMATS.values() if target.endswith(form.path_ending.encode()))
    answer = form.read_events(read_events(content))
    assert (answer.is_ended, answer.error) == (True, "")
    assert b"hello" in content
    assert answer.usage is not None
    assert answer.usage.output
    (asked,) = upstream.requests
    if model == BEDROCK:
        assert b"/converse-stream" in asked.target
        assert b"Credential=AKIAOWN/" in asked.find(b"authorization")
    else:
        assert asked.find(b"authorization") == b"Bearer ya29.stub"
        assert b"/projects/ours/" in asked.target


async def test_bedrocks_reasoning_and_calls_come_through(cloud: LitellmClient, upstream: ScriptedUpstream) -> None:
    play(upstream, STREAMS[BEDROCK])
    received = await read_all(await send(cloud, ask(BEDROCK, MESSAGES), MESSAGES))
    answer = FORMATS["anthropic_messages"].read_events(read_events(received))
    content: Any = answer.value["content"]
    thinking, text, call = content
    assert (thinking["thinking"], thinking["signature"], text["text"]) == ("hm", "c2ln", "hello")
    assert (call["name"], call["input"]) == ("read", {"path": "a"})
    assert answer.usage is not None
    assert answer.usage.cached == 100


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("target", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("model", TOO_LONG)
async def test_a_context_that_is_too_long_for_a_cloud_is_recognised(
    cloud: LitellmClient, upstream: ScriptedUpstream, model: str, target: bytes, is_stream: bool
) -> None:
    play(upstream, says.whole(TOO_LONG[model], status="400 Bad Request"))
    response = await send(cloud, ask(model, target, is_stream=is_stream), target)
    found = read_overflow(response.status, response.headers, await read_all(response))
    assert found is not None
    assert (found.window, found.sent) == ((None, None) if model == BEDROCK else (8192, 9000))


@pytest.mark.parametrize("target", [CHAT, MESSAGES])
async def test_bedrocks_refusal_at_the_beginning_of_a_stream_is_recognised(
    cloud: LitellmClient, upstream: ScriptedUpstream, target: bytes
) -> None:
    told = {"message": says.BEDROCK_TOO_LONG}
    play(upstream, says.event_stream([says.frame(told, "exception", exception_type="validationException")]))
    response = await send(cloud, ask(BEDROCK, target), target)
    content = await read_all(response)
    assert read_overflow(response.status, response.headers, content) or read_stream_start(content) == "refused"


@pytest.mark.parametrize("target", [CHAT, MESSAGES])
async def test_bedrocks_exception_in_the_middle_of_a_stream_is_an_error_in_it(
    cloud: LitellmClient, upstream: ScriptedUpstream, target: bytes
) -> None:
    late = says.frame({"message": "too busy"}, "exception", exception_type="throttlingException")
    play(upstream, says.event_stream([*says.CONVERSE_FRAMES[:5], late]))
    content = await read_all(await send(cloud, ask(BEDROCK, target), target))
    assert "too busy" in json.dumps(read_sent(content)[-1])
    assert b"[DONE]" not in content
    assert b"message_stop" not in content
