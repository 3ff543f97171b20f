"""The scripted model's answers, read by the readers of the wire formats: streamed and whole, they say the same."""

import json
from typing import Any

import pytest

from proxy.model.exchange import Answer
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from proxy.wire.streams import read_events
from tests.clients.answers import WRITERS
from tests.clients.script import Call, Turn

TURN = Turn("Hello, world", (Call("read", {"path": "é.txt"}), Call("list", {})))
FORMATS: dict[str, tuple[Format, str]] = {
    "/v1/chat/completions": (ChatCompletions(), "tool_calls"),
    "/v1/responses": (Responses(), "completed"),
    "/v1/messages": (AnthropicMessages(), "tool_use"),
}


def read(path: str, *, is_streamed: bool) -> Answer:
    asked = {"model": "m", "stream": is_streamed, "stream_options": {"include_usage": True}}
    content = b"".join(WRITERS[path](TURN, 3, asked))
    form, _ = FORMATS[path]
    return form.read_events(read_events(content)) if is_streamed else form.read_answer(json.loads(content))


def find_values(value: Any, names: tuple[str, ...]) -> list[Any]:
    """The values under some names, anywhere in a document, in order."""
    if isinstance(value, list):
        return [found for each in value for found in find_values(each, names)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in names if isinstance(value.get(name), str)]
    return own + [found for each in value.values() for found in find_values(each, names)]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", FORMATS)
def test_an_answer_is_understood(path: str, is_streamed: bool) -> None:
    answer = read(path, is_streamed=is_streamed)
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.output) == (7, 11)
    assert (answer.finish, answer.is_ended, answer.error) == (FORMATS[path][1], True, "")
    assert "Hello, world" in find_values(answer.value, ("content", "text"))
    assert find_values(answer.value, ("name",)) == ["read", "list"]
    for name in ("id", "call_id"):
        ids = find_values(answer.value, (name,))
        assert len(ids) == len(set(ids)), "each has its own"


def test_an_answer_of_calls_alone_has_no_text_block() -> None:
    value = json.loads(b"".join(WRITERS["/v1/messages"](Turn("", TURN.calls), 3, {})))
    assert [block["type"] for block in value["content"]] == ["tool_use", "tool_use"]


def test_an_answer_to_gemini_is_a_stream_of_parts() -> None:
    content = b"".join(WRITERS["/v1beta/models/scripted:streamGenerateContent"](TURN, 3, {}))
    events = [json.loads(line.removeprefix(b"data: ")) for line in content.split(b"\n\n") if line]
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    assert [sorted(part) for part in parts] == [["text"], ["functionCall"], ["functionCall"]]
    assert parts[1]["functionCall"] == {"name": "read", "args": {"path": "é.txt"}}
    assert [event["candidates"][0].get("finishReason") for event in events] == [None, None, "STOP"]
    assert events[-1]["usageMetadata"] == {"promptTokenCount": 7, "candidatesTokenCount": 11, "totalTokenCount": 18}


@pytest.mark.parametrize("path", FORMATS)
def test_a_streamed_answer_says_what_a_whole_one_says(path: str) -> None:
    whole, streamed = (read(path, is_streamed=is_streamed).value for is_streamed in (False, True))
    for names in (("name",), ("id",), ("call_id",), ("arguments",), ("path",), ("content", "text")):
        assert find_values(streamed, names) == find_values(whole, names)
