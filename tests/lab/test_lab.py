"""The scripted session and upstream: an agent in each format, and an upstream in memory and on the loopback alike."""

import json

import httpx
import pytest

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.session import ScriptedAgent, ScriptedStep
from proxy.lab.upstream import ScriptedCall, ScriptedUpstream, serve_upstream
from proxy.wire import CHAT, FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.rounds import OwnTool

READ = OwnTool("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


@pytest.mark.parametrize("form", FORMATS.values(), ids=[*FORMATS])
def test_an_agent_runs_what_is_called_and_each_request_begins_with_the_last(form: Format) -> None:
    agent = ScriptedAgent(form, "m", lambda tool, arguments: f"{tool} {arguments['path']} é")
    agent.ask("What does a.py do?")
    before = agent.write([READ])
    agent.take(ScriptedStep("I read it.", "read", {"path": "a.py"}).write("call_1"))
    agent.take(ScriptedStep("It adds.").write(""))
    after = agent.write([READ])
    assert after.startswith(before[: -len(b"]}")]) and "read a.py é".encode() in after
    split = split_body(after, form.items_key)
    assert split is not None
    read = [form.parse_message(after[span.start : span.end]) for span in split.items]
    called = [(call.id, call.name) for message in read for call in message.calls]
    assert called == [("call_1", "read")] and read[-1].text == "It adds."


async def answer(call: ScriptedCall) -> WholeResponse | None:
    """Say what came; an empty object is not expected."""
    told = {"upstream": call.upstream, "wire": call.form.name, "key": dict(call.headers).get(b"x-key", b"").decode()}
    return WholeResponse(201, (), json.dumps(told).encode()) if call.body != b"{}" else None


async def test_an_upstream_answers_by_its_rule_and_nothing_else() -> None:
    upstream = ScriptedUpstream("lab", answer, "gpt-5")
    calls = [
        ("POST", "/v1/chat/completions", b"[1]", 201, {"upstream": "lab", "wire": "chat_completions", "key": "k"}),
        ("POST", "/v1/messages", b"[1]", 201, {"upstream": "lab", "wire": "anthropic_messages", "key": "k"}),
        ("POST", "/v1/chat/completions", b"{}", 404, {}),
        ("POST", "/v1/embeddings", b"[1]", 404, {}),
        ("GET", "/v1/files", b"", 404, {}),
    ]
    with serve_upstream(upstream) as url:
        async with httpx.AsyncClient(trust_env=False) as client:
            for method, path, body, status, told in calls:
                there = await client.request(
                    method, url.removesuffix("/v1") + path, content=body, headers={"x-key": "k"}
                )
                here = await upstream.send(method, path.encode(), ((b"x-key", b"k"),), body)
                content = await here.read()
                assert (there.status_code, there.content) == (here.status, content) and here.status == status
                assert told.items() <= json.loads(content).items()
            listed = (await client.get(f"{url}/models")).json()
    assert [each["id"] for each in listed["data"]] == ["gpt-5"]
    assert (await ScriptedUpstream("lab", answer).send("GET", b"/v1/models", (), b"")).status == 404


def test_a_step_calls_a_tool_only_if_it_names_one() -> None:
    message = ScriptedStep("", "read", {"path": "a"}).write("call_1")
    assert message["content"] is None and message["tool_calls"][0]["id"] == "call_1"
    assert CHAT.parse_message(json.dumps(message).encode()).calls[0].name == "read"
    assert "tool_calls" not in ScriptedStep("Done.").write("call_2")
