"""Recorded chat messages are on each wire what its client sends, and are read back as they were."""

import json
from typing import Any

import pytest

from benchmarks.chat_wires import WIRES, ChatMessage, Spelling, make_call, strip
from proxy.wire import FORMATS
from proxy.wire.streams import read_events

TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "description": "Run it.", "parameters": {"type": "object", "properties": {}}},
    }
]
SPACED = '{"command":  "ls",  "n": 1}'
MESSAGES: list[ChatMessage] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "Mend it."},
    {"role": "assistant", "content": "Looking.", "tool_calls": [make_call("a", "bash", "{}")]},
    {"role": "tool", "tool_call_id": "a", "content": "out"},
    {"role": "assistant", "content": None, "tool_calls": [make_call(name, "bash", SPACED) for name in "bc"]},
    {"role": "tool", "tool_call_id": "b", "content": ""},
    {"role": "tool", "tool_call_id": "c", "content": "two\nlines"},
    {"role": "user", "content": "Now the other thing."},
    {"role": "user", "content": "And this."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
]
NAMES = {"chat": "chat_completions", "responses": "responses"}


def know() -> Spelling:
    spelling = Spelling()
    for message in MESSAGES:
        spelling.note_message(message)
    spelling.note_tools(TOOLS)
    return spelling


def plain(messages: list[ChatMessage]) -> list[ChatMessage]:
    return [{**strip(message), "content": message.get("content") or ""} for message in messages]


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_is_read_back_as_it_was_recorded(wire: str) -> None:
    for stop in range(2, len(MESSAGES) + 1):
        body = json.loads(json.dumps(WIRES[wire].write(MESSAGES[:stop], TOOLS)))
        assert plain(WIRES[wire].read(body, know())) == plain(MESSAGES[:stop])
        assert list(map(know().spell_tool, WIRES[wire].read_tools(body))) == TOOLS


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("place", [2, 4, 9])
def test_an_answer_is_read_back_by_the_client_and_by_us(wire: str, place: int) -> None:
    events = list(WIRES[wire].list_events(MESSAGES[place], (10, 5)))
    (got,) = plain([WIRES[wire].read_events(events)])
    for call in got.get("tool_calls") or ():
        call["function"]["arguments"] = know().spell(call["id"], call["function"]["arguments"])
    assert got == plain([MESSAGES[place]])[0]
    form = FORMATS[NAMES.get(wire, "anthropic_messages")]
    answer = form.read_events(read_events("".join(f"data: {json.dumps(each)}\n\n" for each in events).encode()))
    assert answer.usage is not None and (answer.usage.input, answer.usage.output) == (10, 5)
    assert answer.usage.cached is None and answer.finish


def test_claude_code_puts_words_behind_results_and_marks_its_last_two_messages() -> None:
    body: dict[str, Any] = WIRES["messages"].write(MESSAGES[:9], TOOLS)
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    kinds = [block["type"] for block in body["messages"][-1]["content"]]
    assert kinds == ["tool_result", "tool_result", "text", "text"]
    marked = [[*("cache_control" in block for block in each["content"])] for each in body["messages"]]
    assert marked == [[False], [False, False], [False], [False, True], [False, False, False, True]]
    assert "cache_control" in body["system"][-1]
    apart = WIRES["messages-apart"].write(MESSAGES[:9], TOOLS)["messages"]
    assert [each["content"][0]["type"] for each in apart[-3:]] == ["tool_result", "text", "text"]
