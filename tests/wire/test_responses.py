"""Responses: the final object is the answer; a cut stream is what its events add up to."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Answer, Usage
from proxy.wire.responses import Responses
from proxy.wire.streams import read_events

WIRE = Responses()

USAGE = {
    "input_tokens": 80,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 120,
}
BEGUN: dict[str, object] = {
    "id": "resp_1",
    "object": "response",
    "status": "in_progress",
    "error": None,
    "incomplete_details": None,
    "model": "gpt-5",
    "output": [],
    "usage": None,
}
REASONING: dict[str, object] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "**Looking**"}, {"type": "summary_text", "text": "**Found**"}],
    "encrypted_content": "gAAAA",
}
MESSAGE: dict[str, object] = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [
        {"type": "output_text", "annotations": [], "logprobs": [], "text": "It is 42 €."},
        {"type": "refusal", "refusal": "No more."},
    ],
}
CALL: dict[str, object] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "shell",
    "arguments": '{"cmd":"ls"}',
}


def write(*events: dict[str, object]) -> bytes:
    stream = ""
    for number, sent in enumerate(events):
        data = json.dumps({**sent, "sequence_number": number, "obfuscation": "x"}, ensure_ascii=False)
        stream += f"event: {sent['type']}\ndata: {data}\n\n"
    return stream.encode()


def read(*events: dict[str, object]) -> Answer:
    return WIRE.read_events(read_events(write(*events)))


def event(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", **fields}


def output(answer: Answer) -> list[Any]:
    items = answer.value["output"]
    assert isinstance(items, list)
    return items


REASONING_EVENTS = [
    event("output_item.added", output_index=0, item={"id": "rs_1", "type": "reasoning", "summary": []}),
    *[
        made
        for index, word in enumerate(["Looking", "Found"])
        for at in [{"item_id": "rs_1", "output_index": 0, "summary_index": index}]
        for made in [
            event("reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""}),
            event("reasoning_summary_text.delta", **at, delta="**"),
            event("reasoning_summary_text.delta", **at, delta=f"{word}**"),
            event("reasoning_summary_text.done", **at, text=f"**{word}**"),
            event("reasoning_summary_part.done", **at, part={"type": "summary_text", "text": f"**{word}**"}),
        ]
    ],
    event("output_item.done", output_index=0, item=REASONING),
]
TEXT_AT: dict[str, object] = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
REFUSAL_AT: dict[str, object] = {"item_id": "msg_1", "output_index": 1, "content_index": 1}
CALL_AT: dict[str, object] = {"item_id": "fc_1", "output_index": 2}
OPEN_TEXT = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
MESSAGE_EVENTS = [
    event("output_item.added", output_index=1, item={**MESSAGE, "status": "in_progress", "content": []}),
    event("content_part.added", **TEXT_AT, part=OPEN_TEXT),
    event("output_text.delta", **TEXT_AT, delta="It is ", logprobs=[]),
    event("output_text.delta", **TEXT_AT, delta="42 €.", logprobs=[]),
    event("content_part.added", **REFUSAL_AT, part={"type": "refusal", "refusal": ""}),
    event("refusal.delta", **REFUSAL_AT, delta="No "),
    event("refusal.delta", **REFUSAL_AT, delta="more."),
]
CALL_EVENTS = [
    event("output_item.added", output_index=2, item={**CALL, "status": "in_progress", "arguments": ""}),
    event("function_call_arguments.delta", **CALL_AT, delta='{"cmd"'),
    event("function_call_arguments.delta", **CALL_AT, delta=':"ls"}'),
]
STREAM = [
    event("created", response=BEGUN),
    event("in_progress", response=BEGUN),
    *REASONING_EVENTS,
    *MESSAGE_EVENTS,
    *CALL_EVENTS,
]
WHOLE = {**BEGUN, "status": "completed", "output": [REASONING, MESSAGE, CALL], "usage": USAGE}


def test_a_stream_that_ended_is_the_object_it_ended_with() -> None:
    answer = read(*STREAM, event("completed", response=WHOLE))
    assert answer == WIRE.read_answer(WHOLE)
    assert answer == Answer(
        value=WHOLE, usage=Usage(input=80, output=40, cached=64, written=16, reasoning=30), finish="completed"
    )


def test_a_cut_stream_is_its_items_as_far_as_they_came() -> None:
    answer = read(*STREAM)
    open_items = [REASONING, {**MESSAGE, "status": "in_progress"}, {**CALL, "status": "in_progress"}]
    assert answer == Answer(value={**BEGUN, "output": open_items}, finish="", is_ended=False)


@pytest.mark.parametrize("line_end", [b"\r", b"\r\n"])
def test_line_ends_do_not_matter(line_end: bytes) -> None:
    assert WIRE.read_events(read_events(write(*STREAM).replace(b"\n", line_end))) == read(*STREAM)


def test_a_stream_cut_inside_a_character_loses_that_event_only() -> None:
    stream = write(*STREAM)
    answer = WIRE.read_events(read_events(stream[: stream.index("€".encode()) + 1]))
    assert output(answer)[1]["content"] == [{**OPEN_TEXT, "text": "It is "}]


def test_an_item_that_is_done_replaces_what_was_put_together() -> None:
    done = {**MESSAGE, "content": [{"type": "output_text", "text": "It is 43."}]}
    assert output(read(*STREAM, event("output_item.done", output_index=1, item=done)))[1] == done


def test_a_stream_that_ends_without_its_items_is_given_those_that_came() -> None:
    bare = {**WHOLE, "output": []}
    answer = read(*STREAM, event("output_item.done", output_index=1, item=MESSAGE), event("completed", response=bare))
    assert answer.is_ended
    assert output(answer)[:2] == [REASONING, MESSAGE]


def test_an_output_that_is_null_is_an_empty_one() -> None:
    assert output(read(event("completed", response={**WHOLE, "output": None}))) == []


def test_an_output_that_came_with_the_beginning_stays_where_no_item_follows() -> None:
    begun = event("created", response={**BEGUN, "output": [CALL]})
    assert output(read(begun)) == [CALL]
    assert output(read(begun, *REASONING_EVENTS)) == [REASONING]


def test_an_end_without_its_object_is_an_end() -> None:
    answer = read(*STREAM, event("incomplete"))
    assert (answer.is_ended, answer.value["id"]) == (True, "resp_1")
    assert output(answer)[0] == REASONING


def test_nothing_that_comes_after_the_end_replaces_it() -> None:
    answer = read(event("completed", response=WHOLE), event("in_progress", response=BEGUN))
    assert answer == WIRE.read_answer(WHOLE)


@pytest.mark.parametrize(
    ("fields", "finish", "error"),
    [
        ({"status": "completed"}, "completed", ""),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens", ""),
        ({"status": "incomplete", "incomplete_details": "odd"}, "incomplete", ""),
        ({"status": "failed", "error": {"code": "server_error", "message": "It broke"}}, "failed", "It broke"),
        ({"status": "queued"}, "", ""),
        ({"status": None}, "", ""),
    ],
)
def test_the_finish_is_the_reason_or_the_status(fields: dict[str, object], finish: str, error: str) -> None:
    answer = WIRE.read_answer({**BEGUN, **fields})
    assert (answer.finish, answer.error, answer.usage) == (finish, error, None)


@pytest.mark.parametrize("kind", ["completed", "failed", "incomplete"])
def test_each_of_three_events_ends_a_stream(kind: str) -> None:
    assert read(event(kind, response=WHOLE)).is_ended
    assert not read(event(f"{kind}_partly", response=WHOLE)).is_ended


def test_a_failure_says_why() -> None:
    failed = {**BEGUN, "status": "failed", "error": {"code": "context_length_exceeded", "message": "Too long"}}
    assert read(event("created", response=BEGUN), event("failed", response=failed)).error == "Too long"


def test_an_error_event_is_no_end() -> None:
    answer = read(*STREAM, {"type": "error", "code": "ERR", "message": "Broken", "param": None})
    assert (answer.error, answer.is_ended) == ("Broken", False)
    assert output(answer)[0] == REASONING


def test_an_error_inside_another_event_is_not_the_answers() -> None:
    assert read(event("mcp_call.failed", output_index=0, error={"message": "tool down"})).error == ""


def test_events_without_a_type_are_what_their_name_says() -> None:
    data = json.dumps({"output_index": 0, "item": CALL}).encode()
    events = read_events(b"event: response.output_item.done\ndata: %b\n\n" % data)
    assert output(WIRE.read_events(events)) == [CALL]


@pytest.mark.parametrize(
    ("kind", "fields", "item"),
    [
        ("output_text", {"content_index": 0}, {"type": "message", "content": [{"type": "output_text", "text": "ab"}]}),
        ("refusal", {"content_index": 0}, {"type": "message", "content": [{"type": "refusal", "refusal": "ab"}]}),
        (
            "reasoning_text",
            {"content_index": 0},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "ab"}]},
        ),
        (
            "reasoning_summary_text",
            {"summary_index": 0},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ab"}]},
        ),
        ("function_call_arguments", {}, {"type": "function_call", "arguments": "ab"}),
        ("mcp_call_arguments", {}, {"type": "mcp_call", "arguments": "ab"}),
        ("custom_tool_call_input", {}, {"type": "custom_tool_call", "input": "ab"}),
        ("code_interpreter_call_code", {}, {"type": "code_interpreter_call", "code": "ab"}),
    ],
)
def test_deltas_whose_beginning_is_missing_begin_an_item(
    kind: str, fields: dict[str, object], item: dict[str, object]
) -> None:
    sent = [event(f"{kind}.delta", item_id="x", output_index=0, **fields, delta=letter) for letter in "ab"]
    assert output(read(*sent)) == [{**item, "id": "x"}]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("function_call_arguments", "arguments"),
        ("custom_tool_call_input", "input"),
        ("code_interpreter_call_code", "code"),
    ],
)
def test_a_text_that_is_done_replaces_its_deltas(kind: str, key: str) -> None:
    sent = [event(f"{kind}.delta", output_index=0, delta="a"), event(f"{kind}.done", output_index=0, **{key: "all"})]
    assert output(read(*sent))[0][key] == "all"
    assert output(read(*sent, event(f"{kind}.paused", output_index=0, **{key: "x"})))[0][key] == "all"


def test_logprobs_and_annotations_are_put_into_their_part() -> None:
    # Two citations at one place in the text are two, though their `index` is the same.
    citation = {"type": "file_citation", "index": 992, "file_id": "file_1"}
    other = {**citation, "file_id": "file_2"}
    answer = read(
        event("output_text.delta", **TEXT_AT, delta="a", logprobs=[{"token": "a"}]),
        event("output_text.annotation.added", **TEXT_AT, annotation_index=0, annotation=citation),
        event("output_text.delta", **TEXT_AT, delta="b", logprobs=[{"token": "b"}]),
        event("output_text.annotation.added", **TEXT_AT, annotation_index=1, annotation=other),
    )
    assert output(answer)[0]["content"] == [
        {
            "type": "output_text",
            "text": "ab",
            "logprobs": [{"token": "a"}, {"token": "b"}],
            "annotations": [citation, other],
        }
    ]


def test_a_part_that_is_done_replaces_its_deltas() -> None:
    part = {"type": "output_text", "text": "whole", "annotations": []}
    answer = read(
        event("output_text.delta", **TEXT_AT, delta="a"),
        event("content_part.done", **TEXT_AT, part=part),
        event("content_part.done", **TEXT_AT, part=None),
    )
    assert output(answer)[0]["content"] == [part]


@pytest.mark.parametrize(
    ("kind", "index", "parts", "part_type"),
    [
        ("content_part", "content_index", "content", "output_text"),
        ("reasoning_part", "content_index", "content", "reasoning_text"),  # vLLM's name
        ("reasoning_summary_part", "summary_index", "summary", "summary_text"),
    ],
)
def test_parts_are_added_and_done_by_index(kind: str, index: str, parts: str, part_type: str) -> None:
    answer = read(
        event(f"{kind}.added", output_index=0, **{index: 1}, part={"type": part_type, "text": ""}),
        event(f"{kind}.done", output_index=0, **{index: 1}, part={"type": part_type, "text": "b"}),
        event(f"{kind}.done", output_index=0, **{index: 0}, part={"type": part_type, "text": "a"}),
    )
    assert output(answer)[0][parts] == [{"type": part_type, "text": "a"}, {"type": part_type, "text": "b"}]


def test_a_stream_without_its_beginning_is_still_a_response() -> None:
    assert read(*REASONING_EVENTS).value == {"object": "response", "output": [REASONING]}


def test_parts_that_came_with_their_item_go_on() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "a"}, "odd"]}
    answer = read(
        event("output_item.added", output_index=0, item=item),
        event("output_text.delta", output_index=0, content_index=0, delta="b"),
    )
    assert output(answer) == [{"type": "message", "content": [{"type": "output_text", "text": "ab"}]}]


def test_items_without_an_index_are_told_apart_by_id() -> None:
    answer = read(
        event("output_item.added", item={"id": "a", "type": "function_call", "arguments": ""}),
        event("output_item.added", item={"id": "b", "type": "function_call", "arguments": ""}),
        event("function_call_arguments.delta", item_id="a", delta="1"),
        event("function_call_arguments.delta", item_id="b", delta="2"),
        event("function_call_arguments.delta", item_id="c", delta="3"),
        event("function_call_arguments.delta", delta="4"),
    )
    assert [(item["id"], item["arguments"]) for item in output(answer)] == [("a", "1"), ("b", "2"), ("c", "34")]


def test_ids_that_change_with_every_event_do_not_matter_where_there_is_an_index() -> None:
    answer = read(
        event("output_item.added", output_index=0, item={**CALL, "id": "x1", "arguments": ""}),
        event("function_call_arguments.delta", output_index=0, item_id="x2", delta="{}"),
        event("output_item.done", output_index=0, item={**CALL, "id": "x3", "arguments": "{}"}),
    )
    assert output(answer) == [{**CALL, "id": "x3", "arguments": "{}"}]


def test_a_second_item_at_an_index_stands_behind_the_first() -> None:
    answer = read(
        event("output_item.added", output_index=1, item={"id": "c"}),
        event("output_item.added", output_index=0, item={"id": "a"}),
        event("output_item.added", output_index=0, item={"id": "b"}),
        event("output_item.added", output_index=0, item={"id": "b", "type": "message"}),
    )
    assert output(answer) == [{"id": "a"}, {"id": "b", "type": "message"}, {"id": "c"}]


def test_events_of_other_kinds_and_of_odd_types_are_passed_over() -> None:
    odd = [
        event("output_item.added", output_index=1, item=None),
        event("audio.delta", delta="AAAA"),
        event("web_search_call.searching", output_index=1, item_id="ws"),
        event("created", response=7),
    ]
    stream = write(*STREAM, *odd) + b'data: {"type":7}\n\ndata: {cut\n\ndata: [DONE]\n\n'
    assert WIRE.read_events(read_events(stream)) == read(*STREAM)


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=4), min_size=1, max_size=4), st.randoms())
def test_items_taken_apart_and_interleaved_are_put_together_again(items: list[list[str]], random: Random) -> None:
    calls = [{**CALL, "id": f"fc_{index}"} for index in range(len(items))]
    opened = [
        event("output_item.added", output_index=i, item={**call, "arguments": ""}) for i, call in enumerate(calls)
    ]
    order = [index for index, fragments in enumerate(items) for _ in fragments]
    random.shuffle(order)
    queues = [iter(fragments) for fragments in items]
    sent = [event("function_call_arguments.delta", output_index=i, delta=next(queues[i])) for i in order]
    whole = [{**call, "arguments": "".join(fragments)} for call, fragments in zip(calls, items, strict=True)]
    assert output(read(*opened, *sent)) == whole
