"""Messages as shapes: what each wire calls a call, a result, reasoning and a marker, and what is wrong with one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.messages import read_markers
from tests.support.echoes import values
from tests.support.valid_histories import WIRES

CHAT, ANTHROPIC, RESPONSES = WIRES
TEXT = {"type": "text", "text": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
MARKED = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [MARKED]}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def read(wire: str, message: dict[str, Any]) -> MessageStructure:
    return FORMATS[wire].parse_structure(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("wire", "message", "shape"),
    [
        (CHAT, {"role": "developer", "content": "x"}, MessageStructure("system")),
        (CHAT, {"role": "user", "content": [MARKED, IMAGE]}, MessageStructure("user", markers=("1h",))),
        (CHAT, {"role": "user", "content": "as JSON"}, MessageStructure("user", says_json=True)),
        (
            CHAT,
            {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
            MessageStructure("assistant", ("a", "b")),
        ),
        (CHAT, {"role": "assistant", "content": None, "function_call": {"name": "f"}}, MessageStructure("assistant")),
        (CHAT, {"role": "tool", "tool_call_id": "a", "content": "x"}, MessageStructure("tool", (), ("a",))),
        (ANTHROPIC, {"role": "assistant", "content": [TEXT, USE]}, MessageStructure("assistant", ("t1",))),
        (
            ANTHROPIC,
            {"role": "user", "content": [RESULT, TEXT]},
            MessageStructure("tool", (), ("t1",), markers=("1h",)),
        ),
        (ANTHROPIC, {"role": "user", "content": "x", "cache_control": {}}, MessageStructure("user", markers=("5m",))),
        (RESPONSES, {"role": "user", "content": "x"}, MessageStructure("user")),
        (RESPONSES, {"type": "message", "role": "assistant", "content": [TEXT]}, MessageStructure("assistant")),
        (
            RESPONSES,
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            MessageStructure("assistant"),
        ),
        (RESPONSES, {"type": "function_call", "call_id": "a"}, MessageStructure("assistant", ("a",))),
        (
            RESPONSES,
            {"type": "function_call_output", "call_id": "a", "output": ""},
            MessageStructure("tool", (), ("a",)),
        ),
        (RESPONSES, {"type": "mcp_approval_response"}, MessageStructure("tool")),
        (RESPONSES, {"type": "web_search_call", "id": "w"}, MessageStructure("assistant")),
        (RESPONSES, {"id": "m"}, MessageStructure("assistant")),
    ],
)
def test_messages_and_their_shapes(wire: str, message: dict[str, Any], shape: MessageStructure) -> None:
    assert read(wire, message) == shape


@pytest.mark.parametrize(
    ("wire", "message", "flaws"),
    [
        (CHAT, {"role": "assistant", "content": None}, {"empty"}),
        (CHAT, {"role": "assistant", "content": None, "tool_calls": []}, {"empty", "no calls"}),
        (CHAT, {"role": "user", "content": " "}, {"empty"}),
        (CHAT, {"role": "user", "content": [TEXT, {"type": "text", "text": ""}]}, {"empty"}),
        (CHAT, {"role": "system", "content": [TEXT, IMAGE]}, {"not text"}),
        (CHAT, {"role": "tool", "content": "x"}, {"id"}),
        (CHAT, {"role": "tool", "content": "x", "tool_call_id": "a" * 41}, {"id"}),
        (CHAT, {"role": "assistant", "tool_calls": [{"id": "a" * 41}]}, {"id"}),
        (ANTHROPIC, {"role": "assistant", "content": []}, {"empty"}),
        (ANTHROPIC, {"role": "user", "content": [TEXT, RESULT]}, {"result behind text"}),
        (ANTHROPIC, {"role": "assistant", "content": [USE, THOUGHT]}, {"thinking behind a call"}),
        (ANTHROPIC, {"role": "assistant", "content": [{**USE, "id": "a:0"}]}, {"id"}),
        (RESPONSES, {"role": "system", "content": [IMAGE]}, {"not text"}),
        (RESPONSES, {"role": "user", "content": ""}, {"empty"}),
        (RESPONSES, {"type": "function_call", "call_id": "a" * 65}, {"id"}),
        (RESPONSES, {"type": "function_call_output", "output": "x"}, set()),
    ],
)
def test_what_is_wrong_with_a_message_by_itself(wire: str, message: dict[str, Any], flaws: set[str]) -> None:
    assert set(read(wire, message).flaws) == flaws


@pytest.mark.parametrize(
    ("wire", "message", "changed"),
    [
        (CHAT, {"role": "assistant", "reasoning_content": "a"}, {"role": "assistant", "reasoning_content": "b"}),
        (CHAT, {"role": "assistant", "content": [THOUGHT]}, {"role": "assistant", "content": [{**THOUGHT, "x": 1}]}),
        (ANTHROPIC, {"content": [THOUGHT, USE]}, {"content": [{**THOUGHT, "thinking": ""}, USE]}),
        (RESPONSES, {"type": "reasoning", "id": "a"}, {"type": "reasoning", "id": "b"}),
    ],
)
def test_reasoning_is_known_by_what_it_is(wire: str, message: dict[str, Any], changed: dict[str, Any]) -> None:
    assert b"" != read(wire, message).reasoning != read(wire, changed).reasoning != b""


def test_reasoning_that_has_no_spelling_is_some() -> None:
    raw = b'{"role":"assistant","content":"x","reasoning_content":["\\ud800",1e400]}'
    assert FORMATS[CHAT].parse_structure(raw).reasoning


def test_an_empty_thought_is_none() -> None:
    assert read(CHAT, {"role": "assistant", "content": "x", "reasoning_content": None}) == MessageStructure("assistant")


@pytest.mark.parametrize("raw", [b"", b"1", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"null"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_cannot_be_read_is_a_flaw(wire: str, raw: bytes) -> None:
    assert FORMATS[wire].parse_structure(raw) == MessageStructure("", flaws=("unreadable",))


_keys = st.sampled_from(
    ["role", "content", "tool_calls", "type", "id", "call_id", "tool_call_id", "cache_control", "text"]
)


@given(st.sampled_from(WIRES), st.dictionaries(_keys, values))
def test_reading_is_total(wire: str, message: dict[str, Any]) -> None:
    assert isinstance(read(wire, message), MessageStructure)


def test_markers_are_found_to_the_depth_that_a_wire_has() -> None:
    deep: dict[str, Any] = {"cache_control": {}}
    for _ in range(500):
        deep = {"content": [deep]}
    assert read_markers([deep, MARKED, {"content": [{"content": [MARKED]}]}, {"cache_control": None}]) == ("1h", "1h")
    assert read_markers("x") == ()


@pytest.mark.parametrize("wire", WIRES)
def test_a_part_whose_type_is_no_word_is_of_no_kind(wire: str) -> None:
    assert read(wire, {"role": "system", "content": [{"type": []}, {"type": {}}]}).role == "system"
    assert read(wire, {"role": "user", "content": [USE, {"type": []}]}).role == "user"


@pytest.mark.parametrize(
    ("message", "is_signed"),
    [
        ({"content": "x", "thinking_blocks": [THOUGHT]}, True),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}, True),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.encrypted", "data": "s"}]}, True),
        ({"content": [THOUGHT, TEXT]}, True),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, False),
        ({"content": "x", "reasoning_content": "hm"}, False),
        ({"content": "x"}, False),
    ],
)
def test_reasoning_is_signed_where_a_provider_could_check_it(message: dict[str, Any], *, is_signed: bool) -> None:
    assert read(CHAT, {"role": "assistant", **message}).is_signed == is_signed
