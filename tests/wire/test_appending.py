"""A text behind the output of a tool, in the shape that each API has it; all else stays byte for byte."""

import json
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.json_values import encode_text

LINE = encode_text("\n\nagain")
PART = {"type": "text", "text": "\n\nagain"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def append(wire: str, message: Any) -> Any:
    return json.loads(FORMATS[wire].append_output(json.dumps(message).encode(), LINE))


def tool(content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("out\n", "out\n\n\nagain"),
        ("", "\n\nagain"),
        ('a "quoted" \\ é', 'a "quoted" \\ é\n\nagain'),
        ([{"type": "text", "text": "out"}], [{"type": "text", "text": "out"}, PART]),
        ([], [PART]),
        (None, None),
        (7, 7),
    ],
)
def test_chat_completions(content: Any, expected: Any) -> None:
    assert append("chat_completions", tool(content)) == tool(expected)


def test_the_rest_of_a_message_stays_as_it_was_spelt() -> None:
    raw = b'{ "role":"tool",\n "content" : "out" , "x":1.50,"tool_call_id":"c1"}'
    appended = FORMATS["chat_completions"].append_output(raw, LINE)
    assert appended == raw.replace(b'"out"', b'"out\\n\\nagain"')
    assert FORMATS["chat_completions"].append_output(b'{"role":"tool"}', LINE) == b'{"role":"tool"}'


def give(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([give("1", content="a"), give("2", content="b")], [give("1", content="a"), give("2", content="b\n\nagain")]),
        (
            [give("1", content="a"), {"type": "text", "text": "go"}],
            [give("1", content="a\n\nagain"), {"type": "text", "text": "go"}],
        ),
        ([give("1", content=[IMAGE], is_error=True)], [give("1", content=[IMAGE, PART], is_error=True)]),
        ([give("1")], [give("1")]),
        ([{"type": "text", "text": "go"}], [{"type": "text", "text": "go"}]),
        ("words", "words"),
    ],
)
def test_anthropic_messages(content: Any, expected: Any) -> None:
    said = append("anthropic_messages", {"role": "user", "content": content})
    assert said == {"role": "user", "content": expected}


@pytest.mark.parametrize(
    ("kind", "output", "expected"),
    [
        ("function_call_output", "out", "out\n\nagain"),
        ("custom_tool_call_output", "out", "out\n\nagain"),
        (
            "function_call_output",
            [{"type": "input_text", "text": "out"}],
            [{"type": "input_text", "text": "out"}, {"type": "input_text", "text": "\n\nagain"}],
        ),
        ("shell_call_output", [{"stdout": "out", "stderr": ""}], [{"stdout": "out", "stderr": ""}]),
        ("computer_call_output", {"type": "computer_screenshot"}, {"type": "computer_screenshot"}),
    ],
)
def test_responses(kind: str, output: Any, expected: Any) -> None:
    item = {"type": kind, "call_id": "c1", "output": output}
    assert append("responses", item) == {**item, "output": expected}


@pytest.mark.parametrize("wire", ["chat_completions", "anthropic_messages", "responses"])
@pytest.mark.parametrize("raw", [b"7", b"null", b"[]", b'"x"', b"{}"])
def test_what_is_no_message_stays_as_it_is(wire: str, raw: bytes) -> None:
    assert FORMATS[wire].append_output(raw, LINE) == raw
