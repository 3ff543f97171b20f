"""What messages say, and how they hang together, in every format."""

import json
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import Message, MessageStructure
from proxy.wire import FORMATS
from proxy.wire.messages import read_markers
from tests.support.echoes import values
from tests.support.examples import examples
from tests.support.valid_histories import WIRES, steps, write
from tests.wire.cases import load_cases

CHAT, ANTHROPIC, RESPONSES = WIRES
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def text(said: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": said}


def tell(wire: str, message: Any) -> Message:
    return FORMATS[wire].parse_message(json.dumps(message).encode())


@pytest.mark.parametrize(("message", "told"), load_cases("parsed_chat.jsonl"))
def test_a_chat_message(message: dict[str, Any], told: Any) -> None:
    assert tell(CHAT, message) == msgspec.convert(told, Message)


@pytest.mark.parametrize(("message", "told"), load_cases("parsed_messages.jsonl"))
def test_an_anthropic_message(message: dict[str, Any], told: Any) -> None:
    assert tell(ANTHROPIC, message) == msgspec.convert(told, Message)


@pytest.mark.parametrize(("item", "told"), load_cases("parsed_items.jsonl"))
def test_a_responses_item(item: dict[str, Any], told: Any) -> None:
    assert tell(RESPONSES, item) == msgspec.convert(told, Message)


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


@pytest.mark.no_cover
@examples(300)
@given(st.sampled_from(WIRES), st.dictionaries(_keys, values | _kinds | _parts))
def test_reading_is_total_and_gives_the_role_of_the_shape(wire: str, message: dict[str, Any]) -> None:
    raw = json.dumps(message).encode()
    assert FORMATS[wire].parse_message(raw).role == FORMATS[wire].parse_structure(raw).role


@given(st.sampled_from(WIRES), steps)
def test_calls_and_answers_are_those_of_the_shape(wire: str, plan: list[str | int]) -> None:
    for message in write(wire, plan):
        raw = json.dumps(message).encode()
        told, structure = FORMATS[wire].parse_message(raw), FORMATS[wire].parse_structure(raw)
        assert tuple(call.id for call in told.calls) == structure.calls
        assert (told.role, told.results) == (structure.role, structure.results)


TEXT = {"type": "text", "text": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
MARKED = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [MARKED]}


def read(wire: str, message: dict[str, Any]) -> MessageStructure:
    return FORMATS[wire].parse_structure(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("wire", "message", "structure"),
    [
        (CHAT, {"role": "developer", "content": "x"}, MessageStructure("system", reminder=sha256(b"x").digest()[:8])),
        (CHAT, {"role": "user", "content": [MARKED, IMAGE]}, MessageStructure("user", markers=("1h",))),
        (CHAT, {"role": "user", "content": "as JSON"}, MessageStructure("user", says_json=True)),
        (
            CHAT,
            {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
            MessageStructure("assistant", ("a", "b")),
        ),
        (CHAT, {"role": "assistant", "content": None, "function_call": {"name": "f"}}, MessageStructure("assistant")),
        (CHAT, {"role": "tool", "tool_call_id": "a", "content": "x"}, MessageStructure("tool", (), ("a",))),
        (ANTHROPIC, {"role": "assistant", "content": [TEXT, CALL]}, MessageStructure("assistant", ("t1",))),
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
        (
            RESPONSES,
            {"type": "function_call", "call_id": "a"},
            MessageStructure("assistant", ("a",), stays="unanswered"),
        ),
        (
            RESPONSES,
            {"type": "function_call_output", "call_id": "a", "output": ""},
            MessageStructure("tool", (), ("a",)),
        ),
        (RESPONSES, {"type": "mcp_approval_response"}, MessageStructure("tool")),
        (RESPONSES, {"type": "web_search_call", "id": "w"}, MessageStructure("assistant")),
        (RESPONSES, {"id": "m"}, MessageStructure("assistant", stays="always")),
    ],
)
def test_messages_and_their_shapes(wire: str, message: dict[str, Any], structure: MessageStructure) -> None:
    assert read(wire, message) == structure


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
        (ANTHROPIC, {"role": "assistant", "content": [CALL, THOUGHT]}, {"thinking behind a call"}),
        (ANTHROPIC, {"role": "assistant", "content": [{**CALL, "id": "a:0"}]}, {"id"}),
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
        (ANTHROPIC, {"content": [THOUGHT, CALL]}, {"content": [{**THOUGHT, "thinking": ""}, CALL]}),
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


_structure_keys = st.sampled_from(
    ["role", "content", "tool_calls", "type", "id", "call_id", "tool_call_id", "cache_control", "text"]
)


@given(st.sampled_from(WIRES), st.dictionaries(_structure_keys, values))
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
    assert read(wire, {"role": "user", "content": [CALL, {"type": []}]}).role == "user"


@pytest.mark.parametrize(
    ("message", "signed"),
    [
        ({"content": "x", "thinking_blocks": [THOUGHT]}, 2),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}, 2),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.encrypted", "data": "s"}]}, 1),
        ({"content": [THOUGHT, TEXT]}, 2),
        ({"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, 0),
        ({"content": "x", "reasoning_content": "hm"}, 0),
        ({"content": "x", "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s"}]}, 1),
        ({"content": "x"}, 0),
    ],
)
def test_reasoning_is_signed_where_a_provider_could_check_it(message: dict[str, Any], signed: int) -> None:
    assert read(CHAT, {"role": "assistant", **message}).signed == signed


@pytest.mark.parametrize(
    ("content", "signed"),
    [
        ([THOUGHT, TEXT], 2),
        ([THOUGHT | {"thinking": ""}, TEXT], 1),
        ([{"type": "redacted_thinking", "data": "abc"}, CALL], 3),
        ([{"type": "thinking", "thinking": "hm"}, TEXT], 0),
        ([TEXT], 0),
        ("thinking", 0),
    ],
)
def test_thinking_blocks_are_signed(content: Any, signed: int) -> None:
    assert read(ANTHROPIC, {"role": "assistant", "content": content}).signed == signed


@pytest.mark.parametrize("wire", WIRES)
def test_only_anthropic_s_system_messages_have_to_stand_before_an_answer(wire: str) -> None:
    assert read(wire, {"role": "system", "content": "x"}).is_leading == (wire == ANTHROPIC)
    assert not read(wire, {"role": "user", "content": "x"}).is_leading
