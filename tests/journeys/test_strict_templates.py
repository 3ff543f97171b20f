"""A local server whose chat template refuses roles that do not alternate, by OpenAI's SDK through a running proxy.

Rule: the client's own history is always accepted, so no call of its may fail, whatever status a refusal comes with.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.upstream import ScriptedCall
from tests.clients.script import Call, Turn
from tests.journeys.running import TOKEN, Running, run_proxy
from tests.support.answers import STREAM, Tokens, reply, serve_answers

ADMIN = {"authorization": f"Bearer {TOKEN}"}
CALLS = 22
SAID = (
    "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n...\nError: Jinja Exception: "
    "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
    "calls and results."
)
# How it refuses, by model: with a status, or with 200 and an event of the stream.
WAYS = {"llama-400": 400, "llama-500": 500, "gateway-502": 502, "studio-200": 200}
Message = dict[str, Any]


def breaks_template(messages: list[Message]) -> bool:
    """Whether the template of Mistral's models raises: tools aside, users and assistants take turns."""
    asides = [each["role"] == "tool" or bool(each.get("tool_calls")) for each in messages]
    roles = [each["role"] for each, is_aside in zip(messages, asides, strict=True) if not is_aside]
    spoken = roles[1:] if roles and roles[0] == "system" else roles
    return any((role == "user") != (place % 2 == 0) for place, role in enumerate(spoken))


class TemplateServer:
    """Answers every call with one of a tool, unless its template refuses."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        self.accepted: list[tuple[str, int]] = []  # model and size

    async def answer(self, call: ScriptedCall) -> WholeResponse:
        """The answer to a chat completion."""
        asked = json.loads(call.body)
        model, status = asked["model"], WAYS.get(asked["model"], 500)
        if breaks_template(asked["messages"]):
            self.refused[model] = self.refused.get(model, 0) + 1
            error = json.dumps({"error": {"code": status, "message": SAID, "type": "server_error"}}).encode()
            if status != 200:
                return WholeResponse(status, (), error)
            return WholeResponse(200, STREAM, b"event: error\ndata: %b\n\n" % error)
        size = len(json.dumps(asked["messages"]))
        self.accepted.append((model, size))
        number = len(self.accepted)
        turn = Turn("", (Call("read", {"path": f"src/file_{number}.py"}),))
        return reply(call, turn, Tokens(size // 4, answer=9), number)


@pytest.fixture(scope="module")
def server() -> TemplateServer:
    return TemplateServer()


@pytest.fixture(scope="module")
def proxy(server: TemplateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with (
        serve_answers(server.answer) as url,
        run_proxy(tmp_path_factory.mktemp("data"), url, "--ceiling", "8000") as running,
    ):
        yield running


def converse(proxy: Running, model: str, session: str, *, is_stream: bool) -> list[Message]:
    """Play an agent's turn of many calls; every one must be answered. The history at its end."""
    client = openai.OpenAI(
        base_url=proxy.base_url, api_key="sk-0123456789", max_retries=0, default_headers={"x-session-id": session}
    )
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
    messages: list[Message] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": f"Fix the bug in the parser of {session}."},
    ]
    for number in range(CALLS):
        asked: dict[str, Any] = {"model": model, "messages": messages, "tools": [tool]}
        if is_stream:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        assert message.tool_calls, "each call is answered with a call"
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True, mode="json"))
        for call in messages[-1]["tool_calls"]:
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        text = "\n".join(f"{number}:{line} def function_{number}_{line}(): return {line * 7}" for line in range(70))
        messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": text})
    return messages


def list_reasons(proxy: Running, session: str) -> list[str]:
    """Why the epochs of a session were opened."""
    listed = httpx.get(f"{proxy.origin}/-/api/sessions/x-session-id:{session}/epochs", headers=ADMIN, timeout=30)
    return [each["why"] for each in listed.json()["items"]]


@pytest.mark.parametrize(
    ("model", "is_stream"),
    [
        ("llama-400", True),
        ("llama-500", True),
        ("llama-500 whole", False),
        ("gateway-502", False),
        ("studio-200", True),
    ],
)
def test_a_refusal_by_the_template_is_answered_inside_the_call_and_learned(
    proxy: Running, server: TemplateServer, model: str, *, is_stream: bool
) -> None:
    name = model.replace(" ", "-")
    history = converse(proxy, model, f"{name}-1", is_stream=is_stream)
    assert not breaks_template(history)
    assert server.refused[model] == 1, "what it wants is learned from one refusal"
    assert "alternating" in list_reasons(proxy, f"{name}-1")
    sizes = [size for each, size in server.accepted if each == model]
    assert len(sizes) == CALLS
    assert sizes[-1] < 0.7 * len(json.dumps(history)), "calls are managed after the refusal, too"
    converse(proxy, model, f"{name}-2", is_stream=is_stream)
    assert server.refused[model] == 1, "it is learned for the model, not for the session"
    assert "alternating" not in list_reasons(proxy, f"{name}-2")
