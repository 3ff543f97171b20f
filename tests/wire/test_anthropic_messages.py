"""Anthropic messages: what a stream adds up to is the message it would have been without streaming."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Answer, Usage
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.streams import read_events

WIRE = AnthropicMessages()

COUNTS: dict[str, object] = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 100,
    "output_tokens": 1,
    "service_tier": "standard",
}
BEGUN: dict[str, object] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": COUNTS,
}
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0}
WHOLE: dict[str, object] = {
    **BEGUN,
    "content": [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmF0dXJl"},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "text", "text": "It is 42 €.", "citations": [CITATION, CITATION]},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls", "n": 12345678901234567890123}},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "usage": {**COUNTS, "output_tokens": 89},
}


def write(*events: dict[str, object]) -> bytes:
    return "".join(
        f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n" for each in events
    ).encode()


def read(*events: dict[str, object]) -> Answer:
    return WIRE.read_events(read_events(write(*events)))


def start(index: int, **block: object) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **fields}}


def stop(index: int) -> dict[str, object]:
    return {"type": "content_block_stop", "index": index}


def content(answer: Answer) -> list[Any]:
    blocks = answer.value["content"]
    assert isinstance(blocks, list)
    return blocks


MESSAGE_START: dict[str, object] = {"type": "message_start", "message": BEGUN}
PING: dict[str, object] = {"type": "ping"}
MESSAGE_DELTA: dict[str, object] = {
    "type": "message_delta",
    "delta": {"stop_reason": "tool_use", "stop_sequence": None},
    "usage": {"output_tokens": 89, "cache_read_input_tokens": None},
}
MESSAGE_STOP: dict[str, object] = {"type": "message_stop"}
STREAM = [
    MESSAGE_START,
    start(0, type="thinking", thinking="", signature=""),
    PING,
    delta(0, "thinking", thinking="Let me "),
    delta(0, "thinking", thinking="see."),
    delta(0, "signature", signature="c2lnbmF0dXJl"),
    stop(0),
    start(1, type="redacted_thinking", data="AAAA"),
    stop(1),
    start(2, type="text", text="", citations=[]),
    delta(2, "text", text="It is "),
    delta(2, "citations", citation=CITATION),
    delta(2, "text", text="42 €."),
    delta(2, "citations", citation=CITATION),
    stop(2),
    start(3, type="tool_use", id="toolu_1", name="Bash", input={}),
    delta(3, "input_json", partial_json=""),
    delta(3, "input_json", partial_json='{"command":"l'),
    delta(3, "input_json", partial_json='s","n":12345678901234567890123}'),
    stop(3),
    start(4, type="server_tool_use", id="srvtoolu_1", name="now", input={}),
    delta(4, "input_json", partial_json=""),
    stop(4),
    MESSAGE_DELTA,
    MESSAGE_STOP,
]


def test_a_stream_equals_the_message_without_streaming() -> None:
    answer = read(*STREAM)
    assert answer == WIRE.read_answer(WHOLE)
    assert answer == Answer(value=WHOLE, usage=Usage(input=123, output=89, cached=100, written=20), finish="tool_use")


@pytest.mark.parametrize("line_end", [b"\r", b"\r\n"])
def test_line_ends_do_not_matter(line_end: bytes) -> None:
    assert WIRE.read_events(read_events(write(*STREAM).replace(b"\n", line_end))) == WIRE.read_answer(WHOLE)


def test_events_are_known_by_their_name_where_they_have_no_type() -> None:
    events = [(str(each["type"]), {key: each[key] for key in each if key != "type"}) for each in STREAM]
    stream = "".join(f"event: {name}\ndata: {json.dumps(each)}\n\n" for name, each in events)
    assert WIRE.read_events(read_events(stream.encode())) == WIRE.read_answer(WHOLE)


def test_a_cut_stream_is_what_had_come() -> None:
    stream = write(*STREAM)
    answer = WIRE.read_events(read_events(stream[: stream.index("€".encode()) + 1]))
    assert content(answer)[2] == {"type": "text", "text": "It is ", "citations": [CITATION]}
    assert (answer.is_ended, answer.finish, answer.error) == (False, "", "")
    assert answer.usage == Usage(input=123, output=1, cached=100, written=20)


@pytest.mark.parametrize(
    ("fragments", "parsed"),
    [
        (['{"a":', "1}"], {"a": 1}),
        (['{"a":', '"cut'], '{"a":"cut'),
        (["[1]"], "[1]"),
        (["{" * 500], "{" * 500),
        ([""], {"from": "start"}),
    ],
)
def test_an_input_is_parsed_or_kept_as_it_came(fragments: list[str], parsed: object) -> None:
    deltas = [delta(0, "input_json", partial_json=fragment) for fragment in fragments]
    block = {"type": "tool_use", "id": "t", "name": "f"}
    answer = read(MESSAGE_START, start(0, **block, input={"from": "start"}), *deltas)
    assert content(answer) == [{**block, "input": parsed}]


@pytest.mark.parametrize(
    ("sent", "block"),
    [
        (delta(0, "text", text="a"), {"type": "text", "text": "a"}),
        (delta(0, "thinking", thinking="a"), {"type": "thinking", "thinking": "a"}),
        (delta(0, "signature", signature="a"), {"type": "thinking", "signature": "a"}),
        (delta(0, "input_json", partial_json="{}"), {"type": "tool_use", "input": {}}),
        (delta(0, "citations", citation=CITATION), {"type": "text", "citations": [CITATION]}),
        (delta(0, "compaction", content="a"), {"type": "compaction", "content": "a"}),
        ({"type": "content_block_delta", "delta": {"text": "a"}}, {"type": "", "text": "a"}),
    ],
)
def test_a_delta_whose_beginning_is_missing_begins_a_block(sent: dict[str, object], block: dict[str, object]) -> None:
    assert content(read(sent)) == [block]


def test_deltas_of_unknown_kinds_are_continued() -> None:
    answer = read(
        start(0, type="compaction", content=None, level=1),
        delta(0, "compaction", content="The user", level=2),
        delta(0, "compaction", content=" asked", level=3),
    )
    assert content(answer) == [{"type": "compaction", "content": "The user asked", "level": 3}]


def test_blocks_are_in_the_order_of_their_indexes() -> None:
    answer = read(start(1, type="text", text="b"), start(0, type="text", text=""), delta(0, "text", text="a"))
    assert [block["text"] for block in content(answer)] == ["a", "b"]


def test_deltas_go_to_the_block_of_their_index() -> None:
    opened = [start(0, type="text", text="a"), start(1, type="text", text="b")]
    answer = read(*opened, delta(0, "text", text="a"), delta(1, "text", text="b"), delta(0, "text", text="a"))
    assert [block["text"] for block in content(answer)] == ["aaa", "bb"]


def test_deltas_without_an_index_go_to_the_last_block() -> None:
    sent: dict[str, object] = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "!"}}
    assert content(read(start(3, type="text", text="a"), sent)) == [{"type": "text", "text": "a!"}]


def test_what_a_message_delta_brings_is_the_messages() -> None:
    context: dict[str, object] = {"applied_edits": []}
    answer = read(MESSAGE_START, {**MESSAGE_DELTA, "context_management": context, "usage": {"input_tokens": 0}})
    assert answer.value["context_management"] == context
    assert answer.value["usage"] == {**COUNTS, "input_tokens": 0}


def test_a_stream_without_its_beginning_is_still_a_message() -> None:
    answer = read(delta(0, "text", text="a"), MESSAGE_DELTA, MESSAGE_STOP)
    assert answer.value == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"output_tokens": 89, "cache_read_input_tokens": None},
    }
    assert answer.usage == Usage(output=89)


def test_content_that_came_with_the_message_stays_where_no_block_follows() -> None:
    message = {**BEGUN, "content": [{"type": "text", "text": "all"}]}
    assert content(read({"type": "message_start", "message": message}, MESSAGE_STOP)) == message["content"]


@pytest.mark.parametrize(
    ("usage", "read_as"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, Usage(input=5, output=2)),
        ({"input_tokens": 5, "cache_read_input_tokens": 0}, Usage(input=5, cached=0)),
        ({"cache_creation_input_tokens": 7}, Usage(input=7, written=7)),
        ({"input_tokens": "5"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_input_counts_what_the_cache_read_and_wrote(usage: object, read_as: Usage | None) -> None:
    assert WIRE.read_answer({"usage": usage}).usage == read_as


def test_an_error_event_is_kept_beside_what_had_come() -> None:
    errors: list[dict[str, object]] = [
        {"type": "error", "error": {"type": "overloaded_error", "message": message}}
        for message in ("Overloaded", "Again")
    ]
    answer = read(MESSAGE_START, delta(0, "text", text="half"), *errors)
    assert (answer.error, answer.is_ended) == ("Overloaded", False)
    assert content(answer) == [{"type": "text", "text": "half"}]


def test_events_of_other_kinds_and_of_odd_types_are_passed_over() -> None:
    odd: list[dict[str, object]] = [
        {"type": "message_start", "message": 7},
        {"type": "content_block_start", "index": 0, "content_block": None},
        {"type": "content_block_delta", "index": 0, "delta": []},
        {"type": "message_delta", "delta": "x", "usage": 7},
        {"type": "content_block_paused", "index": 0, "error": {"message": "not the message's"}},
    ]
    stream = write(MESSAGE_START, *odd, *STREAM[1:]) + b"data: {cut\n\ndata: 7\n\n"
    assert WIRE.read_events(read_events(stream)) == WIRE.read_answer(WHOLE)


@given(st.lists(st.tuples(st.sampled_from(["text", "thinking"]), st.text(max_size=20), st.lists(st.integers(0, 20)))))
def test_blocks_taken_apart_anywhere_are_put_together_again(blocks: list[tuple[str, str, list[int]]]) -> None:
    events = [MESSAGE_START]
    for index, (kind, text, cuts) in enumerate(blocks):
        fragments = [text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text) + 20])]
        events += [start(index, type=kind, **{kind: ""}), *(delta(index, kind, **{kind: part}) for part in fragments)]
    whole = {**BEGUN, "content": [{"type": kind, kind: text} for kind, text, _ in blocks]}
    assert read(*events, MESSAGE_STOP) == WIRE.read_answer(whole)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.integers(0, 60)))
def test_an_input_taken_apart_anywhere_is_put_together_again(value: dict[str, object], cuts: list[int]) -> None:
    written = json.dumps(value)
    fragments = [written[a:b] for a, b in pairwise([0, *sorted(cuts), len(written) + 60])]
    deltas = [delta(0, "input_json", partial_json=fragment) for fragment in fragments]
    answer = read(MESSAGE_START, start(0, type="tool_use", input={}), *deltas, MESSAGE_STOP)
    assert content(answer) == [{"type": "tool_use", "input": value}]
