"""Questions of our own: what is sent for one, byte for byte, and what its answer says."""

import json
from typing import Any

import pytest

from proxy.model.exchange import Answer, Usage
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import SplitBody, count_shared, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from proxy.wire.streams import read_events
from proxy.wire.summary_request import (
    OutputLimit,
    SummaryAnswer,
    begins_with_thoughts,
    find_form,
    make_target,
    raise_output_limit,
    read_piece,
    read_summary,
    write_compact,
    write_warm,
)
from tests.support.managing import make_history, spell

CHAT, RESPONSES, MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()
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
    body = write_warm(CHAT, split(*messages, **members), "Report.", ROOM, is_alternating=is_alternating)
    return None if body is None else json.loads(body)


def test_a_warm_call_is_the_last_request_with_one_message_behind_it() -> None:
    history = make_history(60, 2000)
    sent = split_body(
        json.dumps({"model": "m", "tools": [1], "stream": True, "messages": history}).encode(), "messages"
    )
    assert sent is not None
    asked = write_warm(CHAT, sent, "Report ü.", ROOM)
    assert asked is not None
    added = ',{"role":"user","content":"Report ü."}'.encode()
    assert asked == sent.content[:-2] + added + b"]}"
    assert (len(sent.content) - 2) / len(asked) >= 0.95
    assert count_shared(asked, sent) == len(sent.items)


def test_wherever_the_messages_stand_all_else_keeps_its_bytes() -> None:
    text = b'{ "max_tokens" : 7,"messages":[ {"role":"user","content":"a"} ] , "n":3, "x":1e400,"tools":[ ]}'
    sent = split_body(text, "messages")
    assert sent is not None
    assert write_warm(CHAT, sent, "R", ROOM) == (
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
    assert json.loads(write_compact(CHAT, "m", "You report.", "What \ud800?", ROOM)) == {
        "model": "m",
        "messages": [{"role": "system", "content": "You report."}, {"role": "user", "content": "What \ud800?"}],
        "max_tokens": 120,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("model", ["o3-mini", "gpt-5.1", "openai/o1", "gpt-10"])
def test_models_that_think_are_limited_in_their_own_words(model: str) -> None:
    assert json.loads(write_compact(CHAT, model, "s", "u", ROOM))["max_completion_tokens"] == 120


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-4", "olmo", "gpt-oss-120b"])
def test_others_by_the_old_word(model: str) -> None:
    assert json.loads(write_compact(CHAT, model, "s", "u", ROOM))["max_tokens"] == 120


def test_a_limit_can_be_raised_where_there_is_one() -> None:
    assert raise_output_limit(b'{"max_tokens": 5,"x":1}') == b'{"max_tokens": 10,"x":1}'
    assert raise_output_limit(b'{"max_completion_tokens":5}', 3) == b'{"max_completion_tokens":15}'
    assert raise_output_limit(b'{"x":1}') is None


def read(*chunks: Any) -> SummaryAnswer:
    stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return read_summary(CHAT, CHAT.read_events(read_events(stream)))


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
    assert read_summary(CHAT, Answer({"choices": [{"message": {"content": content}}]})).text == text


@pytest.mark.parametrize("value", [{}, {"choices": []}, {"choices": [{"message": 1}]}])
def test_an_answer_that_says_nothing_is_empty(value: dict[str, object]) -> None:
    assert read_summary(CHAT, Answer(value)) == SummaryAnswer("")


def test_thinking_aloud_is_heard_from_the_first_words() -> None:
    assert begins_with_thoughts("\n<think>So")
    assert not begins_with_thoughts("Goal: <think>")


ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]}
REPORTED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Report."}]}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "out"}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
RETURNED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "out"}]}
REMARK = {"role": "system", "content": "The date is 5."}


def ask(form: Format, *items: dict[str, Any], is_alternating: bool = False, **members: Any) -> Any:
    body = split_body(json.dumps({"model": "m", **members, form.items_key: items}).encode(), form.items_key)
    assert body is not None
    told = write_warm(form, body, "Report.", ROOM, is_alternating=is_alternating)
    return None if told is None else json.loads(told)


@pytest.mark.parametrize(
    ("form", "items", "added"),
    [
        (RESPONSES, [ITEM], REPORTED),
        (RESPONSES, [ITEM, CALLED, OUTPUT], REPORTED),
        (MESSAGES, [ASKED], {"role": "user", "content": "Report."}),
        (MESSAGES, [ASKED, USED, RETURNED], {"role": "user", "content": "Report."}),
    ],
)
def test_on_every_wire_the_instruction_is_one_more_message(form: Format, items: Any, added: Any) -> None:
    assert ask(form, *items)[form.items_key] == [*items, added]


@pytest.mark.parametrize(
    ("form", "items"),
    [(RESPONSES, [ITEM, CALLED]), (MESSAGES, [ASKED, USED]), (MESSAGES, [ASKED, REMARK]), (MESSAGES, [])],
)
def test_on_every_wire_what_only_the_model_or_a_tool_may_follow_gets_none(form: Format, items: Any) -> None:
    assert ask(form, *items) is None


@pytest.mark.parametrize(
    ("form", "members", "may_be"),
    [
        (RESPONSES, {"tool_choice": "auto"}, True),
        (RESPONSES, {"tool_choice": "required"}, False),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, False),
        (RESPONSES, {"text": {"verbosity": "low"}}, True),
        (RESPONSES, {"text": {"format": {"type": "text"}}}, True),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, False),
        (MESSAGES, {"tool_choice": {"type": "auto"}}, True),
        (MESSAGES, {"tool_choice": {"type": "none"}}, True),
        (MESSAGES, {"tool_choice": {"type": "any"}}, False),
        (MESSAGES, {"output_config": {"effort": "high"}}, True),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, False),
        (MESSAGES, {"output_format": {"type": "json_schema"}}, False),
    ],
)
def test_on_every_wire_only_what_leads_to_plain_words_is_used(form: Format, members: Any, may_be: bool) -> None:
    item = ITEM if form is RESPONSES else ASKED
    assert (ask(form, item, **members) is not None) == may_be


def test_on_every_wire_the_limit_has_its_own_name() -> None:
    assert ask(RESPONSES, ITEM, max_output_tokens=5)["max_output_tokens"] == 120
    assert "max_output_tokens" not in ask(RESPONSES, ITEM)
    thinking = {"type": "enabled", "budget_tokens": 5000}
    assert ask(MESSAGES, ASKED, max_tokens=9, thinking=thinking)["max_tokens"] == 5100
    assert raise_output_limit(b'{"max_output_tokens":5}') == b'{"max_output_tokens":10}'


def test_where_roles_must_alternate_a_message_with_results_goes_on() -> None:
    told = ask(MESSAGES, ASKED, USED, RETURNED, is_alternating=True)["messages"]
    assert told == [ASKED, USED, {**RETURNED, "content": [*RETURNED["content"], {"type": "text", "text": "Report."}]}]
    parts = ask(RESPONSES, ITEM, is_alternating=True)["input"]
    assert parts == [{**ITEM, "content": [*ITEM["content"], *REPORTED["content"]]}]


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (
            RESPONSES,
            {
                "model": "m",
                "instructions": "You report.",
                "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What?"}]}],
                "max_output_tokens": 120,
                "store": False,
                "stream": True,
            },
        ),
        (
            MESSAGES,
            {
                "model": "m",
                "max_tokens": 120,
                "system": "You report.",
                "messages": [{"role": "user", "content": "What?"}],
                "stream": True,
            },
        ),
    ],
)
def test_a_compact_request_is_written_on_every_wire(form: Format, body: Any) -> None:
    assert json.loads(write_compact(form, "m", "You report.", "What?", ROOM)) == body


def make_stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events)


def spell_message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def respond(kind: str, *items: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"output": list(items), "status": kind, **members}}


CREATED = respond("in_progress")
DELTAS = [
    {"type": "response.output_item.added", "output_index": 0, "item": spell_message("")},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Goal: "},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x"},
]
DONES = [
    {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Goal: x"},
    {"type": "response.output_item.done", "output_index": 0, "item": spell_message("Goal: x")},
]
BLOCKS = [
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "What is it?"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Goal: "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "x"}},
]


def stop(reason: str) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]


RESPONSE_STREAM = [CREATED, *DELTAS, *DONES, respond("completed", spell_message("Goal: x"))]
MESSAGE_STREAM = [*BLOCKS, *stop("end_turn")]


@pytest.mark.parametrize(("form", "events"), [(RESPONSES, RESPONSE_STREAM), (MESSAGES, MESSAGE_STREAM)])
def test_a_response_is_read_on_every_wire_and_each_piece_of_it_once(form: Format, events: Any) -> None:
    whole = read_summary(form, form.read_events(read_events(make_stream(*events))))
    assert (whole.text, whole.is_tool_call, whole.refusal) == ("Goal: x", False, "")
    pieces = [read_piece(form, make_stream(each)) for each in events]
    assert "".join(piece.said for piece, _ in pieces) == "Goal: x"
    assert [is_ended for _, is_ended in pieces] == [False] * (len(events) - 1) + [True]


def test_events_without_names_are_known_by_their_type() -> None:
    stream = "".join(f"data: {json.dumps(each)}\n\n" for each in DONES)
    assert read_piece(RESPONSES, f"{stream}data: no JSON\n\n".encode())[0].said == ""


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (RESPONSES, {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}),
        (MESSAGES, {"stop_reason": "max_tokens", "content": []}),
    ],
)
def test_that_the_limit_was_reached_is_said_alike(form: Format, value: dict[str, object]) -> None:
    assert read_summary(form, form.read_answer(value)).finish == "length"


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (RESPONSES, {"output": [CALLED]}),
        (MESSAGES, {"content": USED["content"]}),
        (MESSAGES, {"content": [{"type": "server_tool_use", "id": "c"}]}),
    ],
)
def test_a_call_is_seen_on_every_wire(form: Format, value: dict[str, object]) -> None:
    assert read_summary(form, Answer(value)).is_tool_call


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (RESPONSES, {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "I will not."}]}]}),
        (MESSAGES, {"content": [], "stop_reason": "refusal"}),
    ],
)
def test_a_refusal_is_seen_on_every_wire(form: Format, value: dict[str, object]) -> None:
    told = read_summary(form, Answer(value))
    assert told.text == "" and told.refusal


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("api.anthropic.com", MESSAGES),
        ("anthropic.com", MESSAGES),
        ("notanthropic.com", CHAT),
        ("api.openai.com", CHAT),
        ("", CHAT),
    ],
)
def test_a_provider_that_no_client_has_called_is_asked_on_its_own_wire(host: str, form: Format) -> None:
    assert find_form(host).name == form.name


def test_what_a_wire_needs_beside_a_body_is_known() -> None:
    targets = [make_target(form) for form in (CHAT, RESPONSES, MESSAGES)]
    assert targets == [b"/v1/chat/completions", b"/v1/responses", b"/v1/messages"]
    assert [form.own_headers for form in (CHAT, MESSAGES)] == [(), ((b"anthropic-version", b"2023-06-01"),)]
