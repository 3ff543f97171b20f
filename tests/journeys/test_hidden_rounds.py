"""Rounds in which a model recalls, over sockets: what the SDKs' stream helpers read of them, and how they fail."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.journeys.running import Running, run_command, run_proxy
from tests.support.rounds import SPEAKERS, TOOL, Call, Part, Speaker, Text, Thought, number
from tests.support.valid_streams import find_faults

CHAT, MESSAGES, RESPONSES = SPEAKERS
PATHS = {"chat_completions": "chat/completions", "anthropic_messages": "messages", "responses": "responses"}
ITEMS = {"chat_completions": "messages", "anthropic_messages": "messages", "responses": "input"}
FIELDS = {
    "x-palimpsest-session": "agent",
    "x-palimpsest-ceiling": "6000",
    "authorization": "Bearer sk-agent-0123456789",
}
QUERY = '{"action":"search","query":"module_3"}'
REFUSED = b'{"error":{"type":"invalid_request_error","message":"item 31: unexpected"}}'
LIMITED = b'{"error":{"message":"Rate limit reached","type":"rate_limit_error","code":"rate_limit_exceeded"}}'
STREAM = {"content-type": "text/event-stream"}
FAILURES = (openai.APIError, anthropic.APIError, httpx.HTTPError, httpx2.HTTPError)

Answer = tuple[int, dict[str, str], bytes]


class ScriptedProvider:
    """Answers with what is in `next`, else with a word, and keeps the bodies that came."""

    def __init__(self, speaker: Speaker) -> None:
        self.next: list[Answer] = []
        self.sent: list[dict[str, Any]] = []
        self._word = speaker.stream(number([Text("word")])[0])
        self.app = Starlette(routes=[Route("/v1/{path:path}", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        self.sent.append(await request.json())
        status, headers, body = self.next.pop(0) if self.next else (200, STREAM, self._word)
        return StreamingResponse(iter([body[:40], body[40:]]), status, headers)

    def say(self, speaker: Speaker, *rounds: list[Part], headers: dict[str, str] = STREAM) -> None:
        """Answer in these rounds."""
        self.next += [(200, headers, speaker.stream(turn)) for turn in number(*rounds)]


def list_steps(wire: str, count: int) -> Iterator[dict[str, Any]]:
    """A task and an agent's steps, as items of the wire."""
    yield {"role": "user", "content": "Mend the tests of the parser."}
    for n in range(count):
        said, id, given = f"Looking at part {n}.", f"call_{n:024x}", {"command": f"sed -n {n}p src/module_{n}.py"}
        output = f"def function_{n}(value_{n}):\n    return other_{n}.path\n" * 60
        if wire == "chat_completions":
            function = {"name": "bash", "arguments": json.dumps(given)}
            call = {"id": id, "type": "function", "function": function}
            yield {"role": "assistant", "content": said, "tool_calls": [call]}
            yield {"role": "tool", "tool_call_id": id, "content": output}
        elif wire == "anthropic_messages":
            use = {"type": "tool_use", "id": id, "name": "bash", "input": given}
            yield {"role": "assistant", "content": [{"type": "text", "text": said}, use]}
            yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": output}]}
        else:
            yield {"role": "assistant", "content": said}
            yield {"type": "function_call", "call_id": id, "name": "bash", "arguments": json.dumps(given)}
            yield {"type": "function_call_output", "call_id": id, "output": output}


def make_body(wire: str, steps: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    function: dict[str, Any] = {"name": "bash", "parameters": schema}
    tool: dict[str, Any] = {"type": "function", "function": function}
    if wire == "anthropic_messages":
        tool = {"name": "bash", "input_schema": schema}
    elif wire == "responses":
        tool = {"type": "function", "strict": False, **function}
    return {"model": "m", ITEMS[wire]: [*list_steps(wire, steps)], "tools": [tool]}


def read_in_sdk(proxy: Running, wire: str, body: dict[str, Any]) -> str:
    """The text that the SDK's own stream helper reads."""
    given: Any = {**body, "extra_headers": FIELDS}
    if wire == "anthropic_messages":
        anthropics = anthropic.Anthropic(base_url=proxy.origin, api_key="k", max_retries=0, timeout=60)
        with anthropics as client, client.messages.stream(max_tokens=900, **given) as stream:
            return "".join(block.text for block in stream.get_final_message().content if block.type == "text")
    with openai.OpenAI(base_url=proxy.base_url, api_key="sk-agent-0123456789", max_retries=0, timeout=60) as sdk:
        if wire == "chat_completions":
            with sdk.chat.completions.stream(**given) as chat:
                return chat.get_final_completion().choices[0].message.content or ""
        with sdk.responses.stream(**given, store=False) as response:
            return response.get_final_response().output_text


def read_raw(proxy: Running, wire: str, body: dict[str, Any]) -> bytes:
    more = {"max_tokens": 900} if wire == "anthropic_messages" else {"store": False} if wire == "responses" else {}
    url = f"{proxy.base_url}/{PATHS[wire]}"
    response = httpx.post(url, json={**body, **more, "stream": True}, headers=FIELDS, timeout=60)
    assert response.status_code == 200
    return response.content


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
def test_the_sdks_read_what_is_stitched_and_are_told_what_fails(tmp_path: Path, speaker: Speaker) -> None:
    wire, provider = speaker.form.name, ScriptedProvider(speaker)
    with serve_application(provider.app) as port, run_proxy(tmp_path, f"http://127.0.0.1:{port}/v1") as proxy:
        for steps in (4, 14, 15):
            assert read_in_sdk(proxy, wire, make_body(wire, steps)) == "word"
        assert TOOL in json.dumps(provider.sent[-1]["tools"])

        names = (TOOL, f"functions.{TOOL}", f"default_api.{TOOL}")
        for steps, headers, name in zip((16, 17, 18), (STREAM, {}, {"content-type": "text/plain"}), names, strict=True):
            rounds: list[list[Part]] = [[Thought(), Call(QUERY, name)], [Thought(), Text("FOUND")]]
            provider.say(speaker, *rounds, headers=headers)
            assert read_in_sdk(proxy, wire, make_body(wire, steps)) == "FOUND"
            call, result = provider.sent[-1][ITEMS[wire]][-2:]
            assert f'"{TOOL}"' in json.dumps(call) and "module_3" in json.dumps(result)
            provider.say(speaker, *rounds, headers=headers)
            assert find_faults(wire, read_raw(proxy, wire, make_body(wire, steps))) == []

        hidden = (200, STREAM, speaker.stream(number([Text("So. "), Call(QUERY)])[0]))
        limited: Answer = (429, {"content-type": "application/json"}, LIMITED)
        failures: list[Answer] = [limited, (200, STREAM, b""), (200, STREAM, b": p\n\n")]
        for broken in failures:
            provider.next = [hidden, broken]
            with pytest.raises(FAILURES) as raised:
                read_in_sdk(proxy, wire, make_body(wire, 19))
            assert broken[0] == 200 or "Rate limit reached" in str(raised.value)
        provider.next = [hidden, limited]
        assert find_faults(wire, read_raw(proxy, wire, make_body(wire, 20))) == []

        refused = (400, {"content-type": "application/json"}, REFUSED)
        provider.next = [hidden, refused]
        assert read_in_sdk(proxy, wire, make_body(wire, 21)) == "So. word"
        assert TOOL not in json.dumps(provider.sent[-1]["tools"])
        assert read_in_sdk(proxy, wire, make_body(wire, 22)) == "word"
        assert TOOL not in json.dumps(provider.sent[-1]["tools"])
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0


def test_a_stored_answer_is_continued_by_whichever_of_its_ids_the_client_has_kept(tmp_path: Path) -> None:
    provider = ScriptedProvider(RESPONSES)
    hidden: list[Part] = [Text("So. "), Call(QUERY)]
    given = {"model": "m", "stream": True}
    with serve_application(provider.app) as port:
        upstream = f"http://127.0.0.1:{port}/v1"
        with run_proxy(tmp_path, upstream) as proxy:
            assert read_in_sdk(proxy, "responses", make_body("responses", 14)) == "word"
            provider.say(RESPONSES, hidden, [Text("FOUND")])
            body: Any = {**make_body("responses", 15), "extra_headers": FIELDS}
            with (
                openai.OpenAI(base_url=proxy.base_url, api_key="sk-agent-0123456789", max_retries=0, timeout=60) as sdk,
                sdk.responses.stream(**body) as stream,
            ):
                begun = next(event.response.id for event in stream if event.type == "response.created")
                final = stream.get_final_response()
            assert (begun, final.id, final.output_text) == ("resp_0", "resp_1", "So. FOUND")
            observed = {"x-palimpsest-mode": "observe"}
            continue_by(proxy, provider, begun, {**given, "input": "And now?"}, final.id, observed)
            continue_shortened(proxy, provider, begun, {**given, "input": "And now?"})
        with run_proxy(tmp_path, upstream) as proxy:
            items = [{"role": "user", "content": "And now?"}]
            continue_by(proxy, provider, begun, {**given, "input": items, "metadata": {"n": "1"}}, final.id, observed)
            for n, response in enumerate((begun, final.id)):
                continue_shortened(proxy, provider, response, {**given, "input": items, "metadata": {"n": f"{n}"}})
            continue_by(proxy, provider, "resp_unknown", {**given, "input": "x"}, "resp_unknown")
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0


def continue_by(
    proxy: Running,
    provider: ScriptedProvider,
    response: str,
    body: dict[str, Any],
    expected: str,
    headers: dict[str, str] | None = None,
) -> None:
    """Continue a response, whose id comes first in the body; the provider has to be asked for the expected one."""
    asked = {"previous_response_id": response, **body}
    answered = httpx.post(f"{proxy.base_url}/responses", json=asked, headers={**FIELDS, **(headers or {})}, timeout=60)
    assert answered.status_code == 200
    assert provider.sent[-1] == {**asked, "previous_response_id": expected}


def continue_shortened(proxy: Running, provider: ScriptedProvider, response: str, body: dict[str, Any]) -> None:
    """Continue a response of a session that is shortened: what it goes on from, rounds included, is written out."""
    asked = {"previous_response_id": response, **body, "tools": make_body("responses", 0)["tools"]}
    answered = httpx.post(f"{proxy.base_url}/responses", json=asked, headers=FIELDS, timeout=60)
    assert answered.status_code == 200
    sent = provider.sent[-1]
    assert "previous_response_id" not in sent and len(sent["input"]) < len(make_body("responses", 15)["input"])
    told = [json.dumps(item) for item in sent["input"][-5:]]
    expected = ("So. ", TOOL, "function_call_output", "FOUND", "And now?")
    assert all(word in item for word, item in zip(expected, told, strict=True)), told
