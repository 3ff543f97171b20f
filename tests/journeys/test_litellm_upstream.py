"""A server process with an upstream of kind litellm beside one that is asked directly."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.assembly import open_log
from proxy.config import Settings
from tests.support import provider_answers as says
from tests.support.scripted import LIMIT, ScriptedUpstream, request
from tests.support.server_process import CHAT, LEAN, SCRIPT, Process, launch, running

MODEL = "openai/gpt-4.1"
MESSAGES = "/v1/messages?beta=true"
KEY = "Authorization: Bearer sk-client"


def configure(provider: ScriptedUpstream, direct: ScriptedUpstream, **values: object) -> list[dict[str, object]]:
    """One upstream of each kind, each with its own key."""
    named = {"kind": "litellm", "base_url": provider.url, "models": ["openai/*"], "api_key": "sk-litellm"}
    return [
        {"name": "litellm", **named, **values},
        {"name": "direct", "base_url": direct.url, "api_key": "sk-direct"},
    ]


async def ask(server: Process, body: object, *fields: str) -> tuple[int, bytes]:
    client = await server.connect()
    client.send(request("POST", CHAT, KEY, *fields, body=json.dumps(body).encode()))
    answer = await client.read_answer()
    assert answer.is_whole
    return answer.status, answer.body


async def read_ready(server: Process) -> dict[str, Any]:
    client = await server.connect()
    client.send(request("GET", "/-/ready"))
    value: dict[str, Any] = json.loads((await client.read_answer()).body)
    return value


async def read_rounds(settings: Settings) -> list[tuple[int, str, bytes]]:
    """Status, completeness and sent bytes of each round in the log."""
    reader = open_log(settings)
    try:
        sessions = await reader.list_sessions()
        rows = [row for session in sessions for row in await reader.list_exchanges(session.id)]
        return [
            (each.status, each.completeness, await reader.load_sent(row.id, each.k))
            for row in rows
            for each in row.rounds
        ]
    finally:
        await reader.close()


async def test_calls_go_by_their_model_each_with_its_upstreams_key(tmp_path: Path) -> None:
    async with ScriptedUpstream() as provider, ScriptedUpstream() as direct:
        provider.answer_with(says.stream(says.CHAT_EVENTS))
        direct.answer_with(says.whole(says.CHAT))
        async with running(direct, tmp_path, upstreams=configure(provider, direct)) as server:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
            status, streamed = await ask(server, body, "X-Session-Id: test")
            assert (status, streamed.count(b"[DONE]"), b'"hel"' in streamed) == (200, 1, True)
            assert (await ask(server, {**body, "model": "other"}))[0] == 200
            assert (await read_ready(server))["upstreams"] == {
                "litellm": {"circuit": "closed"},
                "direct": {"circuit": "closed"},
            }
            assert "upstream  litellm: litellm http" in server.announced
            server.tell()
            code, said = await server.end()
        assert (code, said) == (0, "")
        assert provider.requests[0].find(b"authorization") == b"Bearer sk-litellm"
        assert direct.requests[0].find(b"authorization") == b"Bearer sk-direct"
        rounds = await read_rounds(server.settings)
        assert sorted((status, how) for status, how, _ in rounds) == [(200, "complete")] * 2
        assert json.dumps(body).encode() in [sent for _, _, sent in rounds]


async def test_a_context_that_litellms_provider_refuses_is_sent_again_shorter(tmp_path: Path) -> None:
    async with ScriptedUpstream() as provider, ScriptedUpstream() as direct:
        too_long = says.OPENAI_TOO_LONG.replace("8192", "20000").replace("9000", "60000")
        answers = [says.whole(says.openai_error(too_long), status="400 Bad Request"), says.whole(says.CHAT)]

        async def play(wire: Any) -> None:
            while answers:
                provider.requests.append(await wire.read_request())
                wire.send(answers.pop(0))

        provider.script = play
        async with running(direct, tmp_path, upstreams=configure(provider, direct)) as server:
            status, _ = await ask(server, {"model": MODEL, "messages": make_conversation()}, "X-Session-Id: test")
            assert status == 200
        first, second = (json.loads(asked.body) for asked in provider.requests)
        assert len(json.dumps(second)) < len(json.dumps(first)) / 2
        assert second["messages"][-1] == first["messages"][-1]
        rounds = await read_rounds(server.settings)
        assert [(status, how) for status, how, _ in rounds] == [(400, "complete"), (200, "complete")]
        sent = json.loads(rounds[1][2])["messages"]
        assert [{k: v for k, v in each.items() if v is not None} for each in sent] == second["messages"]


USES = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9_000}}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_a_client_asks_to_be_cleared_is_cleared_for_a_provider_that_cannot(
    tmp_path: Path, is_stream: bool
) -> None:
    async with ScriptedUpstream() as provider, ScriptedUpstream() as direct:
        provider.answer_with(says.stream(says.CHAT_EVENTS) if is_stream else says.whole(says.CHAT))
        upstreams = configure(provider, direct, models=["hosted_vllm/*"])
        async with running(direct, tmp_path, upstreams=upstreams) as server:
            asked = {"model": "hosted_vllm/m", "max_tokens": 99, "messages": make_messages(), "stream": is_stream}
            body = {**asked, "context_management": {"edits": [USES]}}
            client = await server.connect()
            fields = (KEY, "X-Session-Id: test", "anthropic-beta: context-management-2025-06-27")
            client.send(request("POST", MESSAGES, *fields, body=json.dumps(body).encode()))
            answer = await client.read_answer()
            assert (answer.status, answer.is_whole) == (200, True)
        value = read_message(answer.body) if is_stream else json.loads(answer.body)
        [applied] = value["context_management"]["applied_edits"]
        assert applied["type"] == USES["type"]
        assert 0 < applied["cleared_tool_uses"] <= 37
        assert applied["cleared_input_tokens"] > 20_000
        (sent,) = provider.requests
        assert b"Cleared by context management" not in sent.body
        outputs = [each["content"] for each in json.loads(sent.body)["messages"] if each["role"] == "tool"]
        whole = [output for output in outputs if json.dumps(output).count("of the file") > 200]
        assert len(whole) == 40 - applied["cleared_tool_uses"]
        [(_, _, logged)] = await read_rounds(server.settings)
        assert b"context_management" not in logged


def read_message(stream: bytes) -> dict[str, Any]:
    """The event of a stream that ends its message."""
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]
    value: dict[str, Any]
    [value] = [event for event in map(json.loads, lines) if event["type"] == "message_delta"]
    return value


async def test_an_upstream_that_is_not_there_opens_its_own_circuit_alone(tmp_path: Path) -> None:
    async with ScriptedUpstream() as provider, ScriptedUpstream() as direct:
        direct.answer_with(says.whole(says.CHAT))
        upstreams = configure(provider, direct, base_url="http://127.0.0.1:9/v1")
        async with running(direct, tmp_path, upstreams=upstreams) as server:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            assert [(await ask(server, body))[0] for _ in range(3)] == [502] * 3
            assert (await ask(server, {**body, "model": "other"}))[0] == 200
            ready = await read_ready(server)
            assert ready["upstreams"] == {
                "litellm": {"circuit": "open", "failures": 3, "last": "no response"},
                "direct": {"circuit": "closed"},
            }
            async with asyncio.timeout(LIMIT):
                while ready["status"] == "starting":  # the tokenizer is being loaded
                    ready = await read_ready(server)
            assert ready["status"] == "ready"


async def test_a_request_that_chooses_an_address_goes_nowhere(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream() as provider,
        ScriptedUpstream() as direct,
        running(direct, tmp_path, upstreams=configure(provider, direct)) as server,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "api_base": direct.url}
        status, told = await ask(server, body)
        assert (status, b"does not take: api_base" in told) == (400, True)
        assert provider.accepted + direct.accepted == 0
        assert (await read_ready(server))["upstreams"]["litellm"] == {"circuit": "closed"}


async def test_without_the_extra_the_server_does_not_start_and_says_how_to_install_it(tmp_path: Path) -> None:
    async with ScriptedUpstream() as provider:
        flags = {"upstreams": configure(provider, provider), "data": str(tmp_path), "server.port": 0}
        process = await launch(flags, script=LEAN + SCRIPT)
        _, said = await process.communicate()
    assert process.returncode == 1
    assert "make install EXTRAS=providers, or pip install '.[providers]'" in said.decode()


def make_conversation() -> list[dict[str, object]]:
    """A conversation whose older tool outputs can be cut."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Fix the tests."}]
    for i in range(40):
        call = {"id": f"call_{i}", "type": "function", "function": {"name": "read", "arguments": f'{{"path":"f{i}"}}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": f"line {i} of the file\n" * 250})
    return messages


def make_messages() -> list[dict[str, object]]:
    """The same in Anthropic's words."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Fix the tests."}]
    for i in range(40):
        call = {"type": "tool_use", "id": f"toolu_{i}", "name": "read", "input": {"path": f"f{i}"}}
        content = f"line {i} of the file\n" * 250
        messages.append({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": content}
        messages.append({"role": "user", "content": [result]})
    return messages
