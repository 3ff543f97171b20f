"""Whatever a server sends, reading it gives an answer that is JSON and raises nothing."""

import functools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Answer
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from proxy.wire.streams import ServerEvent, read_events

FORMATS: list[Format] = [ChatCompletions(), Responses(), AnthropicMessages()]

STREAMS: dict[str, bytes] = {
    "chat_completions": b"""\
data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"\xe2\x82\xac"},"logprobs":{"content":[]}}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"stop"}]}

data: {"choices":[{"message":{"content":[{"type":"text"}]},"error":{"message":"x"}}],"x_groq":{"usage":{}},"error":{}}

data: {"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1}},"detail":[{"msg":"y"}]}

data: [DONE]

""",
    "responses": b"""\
event: response.created
data: {"type":"response.created","response":{"id":"r","status":"in_progress","output":[]}}

data: {"type":"response.output_item.added","output_index":0,"item":{"id":"m","type":"message","content":[]}}

data: {"type":"response.content_part.added","item_id":"m","content_index":0,"part":{"type":"output_text","text":""}}

data: {"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"\xe2\x82\xac"}

data: {"type":"response.output_text.annotation.added","item_id":"m","content_index":0,"annotation":{"index":1}}

data: {"type":"response.output_text.done","item_id":"m","content_index":0,"text":"\xe2\x82\xac","logprobs":[]}

data: {"type":"response.reasoning_summary_text.delta","item_id":"s","summary_index":0,"delta":"x"}

data: {"type":"response.output_item.done","output_index":2,"item":{"type":"reasoning","summary":[{"text":"x"}]}}

data: {"type":"response.function_call_arguments.delta","output_index":1,"delta":"{}"}

data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":1}}}

""",
    "anthropic_messages": b"""\
event: message_start
data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\xe2\x82\xac"}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"title":"t"}}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"thinking_delta","thinking":"x"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

""",
}


def list_members(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from list_members(inner)


def list_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from list_strings(inner)


def check(wire: Format, answer: Answer) -> None:
    assert isinstance(json.loads(json.dumps(answer.value)), dict)
    again = wire.read_answer(answer.value)
    assert (again.usage, again.finish) == (answer.usage, answer.finish)


@functools.cache
def list_events(wire: str) -> st.SearchStrategy[list[tuple[str, dict[str, object]]]]:
    """Events with the members, the kinds and the words of a wire, put together at random."""
    known = [json.loads(event.data) for event in read_events(STREAMS[wire]) if event.data != "[DONE]"]
    outer, inner = sorted({key for event in known for key in event}), sorted(set(list_members(known)))
    said = sorted(set(list_strings(known)))
    leaves = st.sampled_from([None, True, -1, 0, 1, 2**70, 0.5, float("inf"), "", "\ud800", *said])
    values = st.recursive(
        leaves,
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(inner), each, max_size=3),
        max_leaves=12,
    )
    objects = st.dictionaries(st.sampled_from(inner), values, max_size=4)
    likely = values | objects | st.lists(objects, max_size=3)
    events = st.dictionaries(st.sampled_from(outer), likely, max_size=5)
    return st.lists(st.tuples(st.sampled_from(["", "error", *said]), events), max_size=6)


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
@given(st.data())
def test_events_whose_members_are_of_any_kind(wire: Format, data: st.DataObject) -> None:
    sent = data.draw(list_events(wire.name))
    check(wire, wire.read_events(ServerEvent(kind, json.dumps(event)) for kind, event in sent))
    for _, event in sent:
        wire.read_answer(event)


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
@given(st.binary())
def test_any_bytes(wire: Format, stream: bytes) -> None:
    check(wire, wire.read_events(read_events(stream)))


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60), st.binary(max_size=6)), max_size=6))
def test_a_garbled_stream(wire: Format, changes: list[tuple[int, int, bytes]]) -> None:
    stream = STREAMS[wire.name]
    for start, length, put in changes:
        stream = stream[:start] + put + stream[start + length :]
    check(wire, wire.read_events(read_events(stream)))


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
@given(st.permutations(range(16)))
def test_a_stream_in_another_order(wire: Format, order: list[int]) -> None:
    events = list(read_events(STREAMS[wire.name]))
    check(wire, wire.read_events(events[i] for i in order if i < len(events)))


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
def test_a_stream_cut_at_any_byte_says_less_than_the_whole_and_has_not_ended(wire: Format) -> None:
    stream = STREAMS[wire.name]
    sizes = [len(str(wire.read_events(read_events(stream[:cut])).value)) for cut in range(len(stream) + 1)]
    assert sizes[-1] == max(sizes) > min(sizes) == sizes[0]
    ended = [wire.read_events(read_events(stream[:cut])).is_ended for cut in range(len(stream) + 1)]
    assert ended == sorted(ended)
    assert ended[-1]
