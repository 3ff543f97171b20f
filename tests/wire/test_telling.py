"""What messages say, on each wire and in every spelling that clients use."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.model.messages import Message, ToolCall
from proxy.wire import FORMATS
from tests.support.echoes import values
from tests.support.valid_histories import WIRES, steps, write

CHAT, ANTHROPIC, RESPONSES = WIRES
PNG = "iVBORw0KGgoAAAANSUhEUgAAAoAAAAHgCAYAAAA="
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.py"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def text(said: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": said}


def tell(wire: str, message: Any) -> Message:
    return FORMATS[wire].parse_message(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "developer", "content": "Be good."}, Message("system", "Be good.")),
        (
            {"role": "user", "content": [text("see"), PICTURE, text("it")]},
            Message("user", "see\nit", media=("image 640x480",)),
        ),
        ({"role": "tool", "tool_call_id": "a", "content": "out"}, Message("tool", "out", results=("a",))),
        (
            {"role": "tool", "tool_call_id": "a", "content": [text("o"), text("ut")]},
            Message("tool", "o\nut", results=("a",)),
        ),
        ({"role": "tool", "tool_call_id": "a", "content": {"code": 0}}, Message("tool", '{"code":0}', results=("a",))),
        ({"role": "tool", "content": [{"code": 0}, 7, None]}, Message("tool", '{"code":0}\n7')),
        ({"role": "function", "name": "f", "content": "out"}, Message("tool", "out")),
        ({"role": "assistant", "content": [THOUGHT, text("done")]}, Message("assistant", "done")),
        ({"role": "assistant", "reasoning_content": "hm", "content": None}, Message("assistant", "")),
        ({"role": "assistant", "content": "", "refusal": "no"}, Message("assistant", "no")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}, {}]},
            Message("assistant", "", (ToolCall("a", "f", '{"x":1}'),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            Message("assistant", "", (ToolCall("a", "f", "x"),)),
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": {"x": 1}}},
            Message("assistant", "", (ToolCall("", "f", '{"x":1}'),)),
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, Message("assistant", "", (ToolCall("", "f", ""),))),
    ],
)
def test_a_chat_message(message: dict[str, Any], told: Message) -> None:
    assert tell(CHAT, message) == told


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": "hi"}, Message("user", "hi")),
        (
            {"role": "assistant", "content": [THOUGHT, text("I look."), USE]},
            Message("assistant", "I look.", (ToolCall("t1", "read", '{"path":"a.py"}'),)),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "out"}, text("go on")],
            },
            Message("tool", "out\ngo on", results=("t1",)),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [text("out"), SOURCE]}],
            },
            Message("tool", "out", results=("t1",), media=("image 640x480",)),
        ),
        ({"role": "user", "content": [{"type": "tool_result"}]}, Message("tool", "")),
        (
            {
                "role": "user",
                "content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}],
            },
            Message("user", "T\nwords"),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "document", "source": {"type": "content", "content": [text("words")]}}],
            },
            Message("user", "words"),
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "server_tool_use", "id": "s", "name": "find", "input": {"q": "x"}}],
            },
            Message("assistant", '{"name":"find","input":{"q":"x"}}'),
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "web_search_tool_result",
                        "content": [{"type": "r", "title": "T", "encrypted_content": "…"}],
                    },
                    {"type": "redacted_thinking", "data": "…"},
                    {"type": "of the future"},
                ],
            },
            Message("assistant", '{"title":"T"}'),
        ),
    ],
)
def test_an_anthropic_message(message: dict[str, Any], told: Message) -> None:
    assert tell(ANTHROPIC, message) == told


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"role": "user", "content": [text("hi", "input_text")]}, Message("user", "hi")),
        (
            {"type": "message", "role": "assistant", "content": [text("done", "output_text")]},
            Message("assistant", "done"),
        ),
        (
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            Message("assistant", "", (ToolCall("a", "f", "{}"),)),
        ),
        (
            {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "***"},
            Message("assistant", "", (ToolCall("a", "patch", "***"),)),
        ),
        (
            {"type": "local_shell_call", "call_id": "a", "action": {"command": ["ls"]}},
            Message("assistant", "", (ToolCall("a", "local_shell", '{"command":["ls"]}'),)),
        ),
        (
            {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "found"},
            Message("assistant", "found", (ToolCall("", "f", "{}"),)),
        ),
        (
            {"type": "image_generation_call", "result": PNG},
            Message("assistant", "", (ToolCall("", "image_generation", ""),), media=("image 640x480",)),
        ),
        ({"type": "function_call_output", "call_id": "a", "output": "out"}, Message("tool", "out", results=("a",))),
        (
            {
                "type": "function_call_output",
                "call_id": "a",
                "output": [text("out", "input_text"), {"type": "input_image", "image_url": PICTURE["image_url"]}],
            },
            Message("tool", "out", results=("a",), media=("image 640x480",)),
        ),
        (
            {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "out"}]},
            Message("tool", '{"stdout":"out"}', results=("a",)),
        ),
        ({"type": "mcp_approval_response", "approve": True}, Message("tool", '{"approve":true}')),
        ({"type": "reasoning", "summary": [text("hm")]}, Message("assistant", "")),
        ({"type": "compaction", "encrypted_content": "…"}, Message("assistant", "")),
        ({"type": "of the future", "words": "w"}, Message("assistant", '{"words":"w"}')),
    ],
)
def test_a_responses_item(item: dict[str, Any], told: Message) -> None:
    assert tell(RESPONSES, item) == told


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", ""),
        (b"no json", "no json"),
        (b"\xff", "\ufffd"),
        (b'"words"', "words"),
        (b"[1]", "[1]"),
        (b"null", "null"),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_what_cannot_be_read_is_its_own_text(wire: str, raw: bytes, said: str) -> None:
    assert FORMATS[wire].parse_message(raw) == Message("", said)


@pytest.mark.parametrize("wire", WIRES)
def test_of_what_is_too_deep_the_role_is_known(wire: str) -> None:
    raw = b'{"role":"user","content":%b"x"%b}' % (b"[" * 300, b"]" * 300)
    assert FORMATS[wire].parse_message(raw) == Message("user", raw.decode())


_keys = st.sampled_from(
    ["role", "content", "tool_calls", "type", "id", "call_id", "output", "refusal", "function_call"]
)
_kinds = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "tool_result", "text"])
_parts = st.lists(st.dictionaries(_keys, values, max_size=4), max_size=3)


@settings(max_examples=300)
@given(st.sampled_from(WIRES), st.dictionaries(_keys, values | _kinds | _parts))
def test_reading_is_total_and_gives_the_role_of_the_shape(wire: str, message: dict[str, Any]) -> None:
    raw = json.dumps(message).encode()
    assert FORMATS[wire].parse_message(raw).role == FORMATS[wire].parse_structure(raw).role


@given(st.sampled_from(WIRES), steps)
def test_calls_and_answers_are_those_of_the_shape(wire: str, plan: list[str | int]) -> None:
    for message in write(wire, plan):
        raw = json.dumps(message).encode()
        told, shape = FORMATS[wire].parse_message(raw), FORMATS[wire].parse_structure(raw)
        assert tuple(call.id for call in told.calls) == shape.calls
        assert (told.role, told.results) == (shape.role, shape.results)
