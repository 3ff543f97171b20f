"""Responses written from known answers: what is read of them is what was given."""

from typing import get_args

import pytest

from proxy.model.exchange import Usage
from proxy.model.results import FinishReason
from proxy.wire import CHAT, FORMATS
from proxy.wire.format import Format
from proxy.wire.json_values import read_object
from proxy.wire.translation.conversations import translate
from proxy.wire.translation.responses import write_response

COUNTED = Usage(100, 7)
SAID = b'{"role":"assistant","content":"Done."}'
CALLED = (
    b'{"role":"assistant","content":"I read it.","tool_calls":'
    b'[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]}'
)
FINISHES = {
    "chat_completions": {"stop": "stop", "max_tokens": "length", "tool_use": "tool_calls", "error": "error"},
    "responses": {
        "stop": "completed",
        "max_tokens": "max_output_tokens",
        "tool_use": "completed",
        "error": "completed",
    },
    "anthropic_messages": {
        "stop": "end_turn",
        "max_tokens": "max_tokens",
        "tool_use": "tool_use",
        "error": "error",
    },
}


def write(form: Format, raw: bytes, finish: FinishReason | None = None, usage: Usage = COUNTED) -> bytes:
    """Return a response whose answer is a message of Chat Completions, as the format has it."""
    answer = translate(CHAT, form, [raw]).items[-2 if raw is CALLED and form.is_itemised else -1 :]
    return write_response(
        form, answer, number="1", model="m", usage=usage, finish=finish, more={"palimpsest": {"a": 1}}
    )


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("raw", [SAID, CALLED])
def test_the_answer_is_read_as_it_was_given(form: Format, raw: bytes) -> None:
    content = write(form, raw)
    echoed = [form.parse_message(each) for each in form.list_echoes(content)]
    assert "".join(each.text for each in echoed) == CHAT.parse_message(raw).text
    assert [call.name for each in echoed for call in each.calls] == (["read"] if raw is CALLED else [])
    value = read_object(content.decode()) or {}
    assert (value["model"], value["palimpsest"]) == ("m", {"a": 1})
    assert form.read_answer(value).finish == FINISHES[form.name]["tool_use" if raw is CALLED else "stop"]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("finish", get_args(FinishReason))
def test_it_ends_as_it_is_told(form: Format, finish: FinishReason) -> None:
    answer = form.read_answer(read_object(write(form, SAID, finish).decode()) or {})
    assert answer.finish == FINISHES[form.name][finish]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("usage", [Usage(100, 7), Usage(100, 7, 64, 0), Usage(100, 7, 64, 16), Usage()])
def test_its_usage_is_read_as_it_was_given(form: Format, usage: Usage) -> None:
    told = form.read_answer(read_object(write(form, SAID, usage=usage).decode()) or {}).usage
    assert told is not None
    counts = [(each.input or 0, each.output or 0, each.cached or 0, each.written or 0) for each in (told, usage)]
    assert counts[0] == counts[1]


def test_a_text_is_a_block_and_no_answer_is_none() -> None:
    form = FORMATS["anthropic_messages"]
    content = write_response(form, [SAID], number="1", model="m", usage=Usage())
    assert b'"content":[{"type":"text","text":"Done."}]' in content
    for each in FORMATS.values():
        assert read_object(write_response(each, (), number="1", model="m", usage=Usage()).decode())
