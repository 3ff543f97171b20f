"""What of a message costs tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import CountedContent, Medium
from proxy.wire import FORMATS
from proxy.wire.messages import read_counted_tools

CHAT = FORMATS["chat_completions"]
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def read(value: object) -> CountedContent:
    return CHAT.decode_message(json.dumps(value).encode()).content


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": "hello"}, "user\nhello"),
        (
            {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "x"}}]},
            "user\nhello",
        ),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 'assistant\nc\nf\n{"a":1}'),
        ({"role": "tool", "tool_call_id": "c", "content": "done"}, "tool\nc\ndone"),
        ({"type": "function_call_output", "call_id": "c", "output": "done"}, "c\ndone"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, "é"]}}]},
            'assistant\nt\nf\n{"a":[1,"é"]}',
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"text": "done"}]}]},
            "user\nt\ndone",
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "sss"}]},
            "assistant\nhm",
        ),
        ({"role": "user", "content": 5, "strange": [True, 1.5]}, "user\n5\ntrue\n1.5"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "d"}}]}, "user\nd"),
        ("text", "text"),
    ],
)
def test_what_a_model_reads_is_counted_and_nothing_else(message: object, text: str) -> None:
    assert read(message) == CountedContent(text, (), 3)


def test_a_name_costs_a_token_more() -> None:
    assert read({"role": "user", "name": "ann", "content": "x"}) == CountedContent("user\nann\nx", (), 4)


def test_media_are_no_text() -> None:
    found = read({"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE, IMAGE]})
    assert found == CountedContent("user\nsee", (Medium("image"), Medium("image")), 3)


@pytest.mark.parametrize("raw", [b"no json", b'{"a":' * 500 + b"1" + b"}" * 500, b"\xff"])
def test_what_is_no_json_or_too_deep_counts_as_it_stands(raw: bytes) -> None:
    assert CHAT.decode_message(raw).content.text == raw.decode(errors="replace")
    assert read_counted_tools(raw) == CountedContent("")


def test_numbers_no_float_holds_are_counted() -> None:
    assert "1e400" in CHAT.decode_message(b'{"content":1e400}').content.text.lower()


NAMES = st.text(max_size=8) | st.sampled_from(["type", "input", "properties"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_reading_is_total(value: object) -> None:
    read(value)
    read_counted_tools(json.dumps(value).encode())
    read_counted_tools(json.dumps([{"type": "function", "function": {"name": value, "parameters": value}}]).encode())


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where"},
                "unit": {"type": ["string", "null"], "enum": ["c", "f", None]},
            },
        },
    },
}


def test_tools_cost_by_openais_rule() -> None:
    found = read_counted_tools(json.dumps([WEATHER]).encode())
    assert found.text.splitlines() == [
        "get_weather:Get the weather",
        "place:string:Where",
        'unit:["string","null"]:',
        *("c", "f", "null"),
    ]
    assert found.frame == 7 + 3 + 3 + 3 + (-3 + 3 * 3) + 12


def test_schemas_inside_schemas_count_too() -> None:
    inner = {"properties": {"x": {"type": "number"}}}
    schema = {
        "properties": {"list": {"type": "array", "items": inner}, "any": True},
        "$defs": {"d": inner},
        "anyOf": [inner],
    }
    found = read_counted_tools(json.dumps([{"name": "f", "description": "d", "input_schema": schema}]).encode())
    assert found.text.count("x:number:") == 3
    assert "any:true" in found.text
    assert found.frame == 7 + 3 + 2 * 3 + 3 * (3 + 3) + 12


def test_a_tool_without_a_schema_counts_as_its_json() -> None:
    assert read_counted_tools(b'[{"type":"web_search"}]') == CountedContent('{"type":"web_search"}', (), 19)


def test_no_tools_cost_nothing() -> None:
    assert read_counted_tools(b"[]") == CountedContent("")
