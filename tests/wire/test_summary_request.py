"""Questions of our own: what is sent for one, byte for byte, and what its answer says."""

import json
from typing import Any

import pytest

from proxy.model.exchange import Answer, Usage
from proxy.wire.body import SplitBody, count_shared, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.streams import read_events
from proxy.wire.summary_request import (
    OutputLimit,
    SummaryAnswer,
    begins_with_thoughts,
    raise_output_limit,
    read_summary,
    write_compact,
    write_warm,
)
from tests.support.managing import make_history, spell

ROOM = OutputLimit(100, 20)
SYSTEM = {"role": "system", "content": "s"}
ASKED = {"role": "user", "content": "Do it."}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "out"}
SAID = {"role": "assistant", "content": "Done."}


def split(*messages: dict[str, Any], **members: Any) -> SplitBody:
    found = split_body(spell(messages, **members), "messages")
    assert found is not None
    return found


def warm(*messages: dict[str, Any], is_alternating: bool = False, **members: Any) -> Any:
    body = write_warm(split(*messages, **members), "Report.", ROOM, is_alternating=is_alternating)
    return None if body is None else json.loads(body)


def test_a_warm_call_is_the_last_request_with_one_message_behind_it() -> None:
    history = make_history(60, 2000)
    sent = split_body(
        json.dumps({"model": "m", "tools": [1], "stream": True, "messages": history}).encode(), "messages"
    )
    assert sent is not None
    asked = write_warm(sent, "Report ü.", ROOM)
    assert asked is not None
    added = ',{"role":"user","content":"Report ü."}'.encode()
    assert asked == sent.content[:-2] + added + b"]}"
    assert (len(sent.content) - 2) / len(asked) >= 0.95
    assert count_shared(asked, sent) == len(sent.items)


def test_wherever_the_messages_stand_all_else_keeps_its_bytes() -> None:
    text = b'{ "max_tokens" : 7,"messages":[ {"role":"user","content":"a"} ] , "n":3, "x":1e400,"tools":[ ]}'
    sent = split_body(text, "messages")
    assert sent is not None
    assert write_warm(sent, "R", ROOM) == (
        b'{ "max_tokens" : 120,"messages":[ {"role":"user","content":"a"},{"role":"user","content":"R"} ] ,'
        b' "n":1, "x":1e400,"tools":[ ]}'
    )


def test_the_limit_of_the_answer_is_set_where_the_request_has_one() -> None:
    assert "max_tokens" not in warm(ASKED)
    assert warm(ASKED, max_tokens=5)["max_tokens"] == 120
    assert warm(ASKED, max_completion_tokens=5)["max_completion_tokens"] == 120
    assert warm(ASKED, max_tokens=None)["max_tokens"] is None


def test_a_request_that_thinks_may_go_on_thinking_as_much() -> None:
    told = warm(ASKED, max_tokens=9, thinking={"type": "enabled", "budget_tokens": 5000})
    assert told["max_tokens"] == 5100


@pytest.mark.parametrize(
    "members",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}},
        {"audio": {"voice": "v"}},
    ],
)
def test_what_cannot_be_answered_in_plain_words_is_not_asked(members: dict[str, Any]) -> None:
    assert warm(ASKED, **members) is None


@pytest.mark.parametrize(
    "members", [{"tool_choice": "auto"}, {"tool_choice": "none"}, {"response_format": {"type": "text"}}, {"n": None}]
)
def test_what_asks_for_nothing_else_is_no_obstacle(members: dict[str, Any]) -> None:
    assert len(warm(ASKED, **members)["messages"]) == 2


def test_without_messages_or_between_call_and_result_nothing_is_asked() -> None:
    assert warm() is None
    assert warm(ASKED, CALLING) is None


@pytest.mark.parametrize("messages", [(SYSTEM, ASKED, SAID), (SYSTEM,)])
def test_where_roles_must_alternate_the_user_may_speak_after_the_assistant(messages: Any) -> None:
    assert warm(*messages, is_alternating=True)["messages"][-1] == {"role": "user", "content": "Report."}


def test_where_roles_must_alternate_the_users_last_message_goes_on() -> None:
    assert warm(ASKED, is_alternating=True)["messages"] == [{"role": "user", "content": "Do it.\n\nReport."}]
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    [told] = warm(parts, is_alternating=True)["messages"]
    assert told["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "Report."}]


@pytest.mark.parametrize("messages", [(ASKED, CALLING, RESULT), ({"role": "user", "content": None},)])
def test_where_that_cannot_be_the_compact_form_is_used(messages: Any) -> None:
    assert warm(*messages, is_alternating=True) is None


def test_without_alternation_an_instruction_may_follow_a_result() -> None:
    assert warm(ASKED, CALLING, RESULT)["messages"][-1] == {"role": "user", "content": "Report."}


def test_a_compact_request_is_small_and_streams() -> None:
    assert json.loads(write_compact("m", "You report.", "What \ud800?", ROOM)) == {
        "model": "m",
        "messages": [{"role": "system", "content": "You report."}, {"role": "user", "content": "What \ud800?"}],
        "max_tokens": 120,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("model", ["o3-mini", "gpt-5.1", "openai/o1", "gpt-10"])
def test_models_that_think_are_limited_in_their_own_words(model: str) -> None:
    assert json.loads(write_compact(model, "s", "u", ROOM))["max_completion_tokens"] == 120


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-4", "olmo", "gpt-oss-120b"])
def test_others_by_the_old_word(model: str) -> None:
    assert json.loads(write_compact(model, "s", "u", ROOM))["max_tokens"] == 120


def test_a_limit_can_be_raised_where_there_is_one() -> None:
    assert raise_output_limit(b'{"max_tokens": 5,"x":1}') == b'{"max_tokens": 10,"x":1}'
    assert raise_output_limit(b'{"max_completion_tokens":5}', 3) == b'{"max_completion_tokens":15}'
    assert raise_output_limit(b'{"x":1}') is None


def read(*chunks: Any) -> SummaryAnswer:
    stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return read_summary(ChatCompletions().read_events(read_events(stream)))


def test_a_report_is_what_was_said_and_how_it_ended() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    told = read(
        {"choices": [{"index": 0, "delta": {"content": "All "}}]},
        {"choices": [{"index": 0, "delta": {"content": "is well. "}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    )
    assert told == SummaryAnswer("All is well.", "stop", Usage(9, 2), said="All is well. ")


def test_the_beginning_of_a_call_is_seen_at_once() -> None:
    assert read({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c"}]}}]}).is_tool_call
    assert read({"choices": [{"delta": {"function_call": {"name": "f"}}}]}).is_tool_call
    assert not read({"choices": [{"delta": {"content": "", "tool_calls": []}}]}).is_tool_call


def test_a_refusal_is_no_text() -> None:
    told = read({"choices": [{"delta": {"refusal": "I will not."}}]})
    assert (told.text, told.refusal) == ("", "I will not.")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>\nhm\n</think>\n\nGoal: x", "Goal: x"),
        ("<think>for ever", ""),
        ("Goal: <think>x</think>", "Goal: <think>x</think>"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (None, ""),
    ],
)
def test_thoughts_spoken_aloud_are_left_out(content: object, text: str) -> None:
    assert read_summary(Answer({"choices": [{"message": {"content": content}}]})).text == text


@pytest.mark.parametrize("value", [{}, {"choices": []}, {"choices": [{"message": 1}]}])
def test_an_answer_that_says_nothing_is_empty(value: dict[str, object]) -> None:
    assert read_summary(Answer(value)) == SummaryAnswer("")


def test_thinking_aloud_is_heard_from_the_first_words() -> None:
    assert begins_with_thoughts("\n<think>So")
    assert not begins_with_thoughts("Goal: <think>")
