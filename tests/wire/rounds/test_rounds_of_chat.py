"""Calls of our tool in Chat Completions as various servers send them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.rounds import OwnCall, make_stitcher
from proxy.wire.streams import ServerEvent, read_events
from tests.support.rounds import TOOL, play

FORM = FORMATS["chat_completions"]
DONE = b"data: [DONE]\n\n"
READ = {"name": "read", "arguments": "{}"}
RECALL = {"name": TOOL, "arguments": "{}"}

Fields = Mapping[str, Any]


def chunk(delta: Fields | None, finish: str | None = None, k: int = 0, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return spell({"id": f"c{k}", "created": k, "model": f"m{k}", "choices": choices, **more})


def spell(value: Fields) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def call(function: Fields, index: int | None = None, id: str | None = None, **more: Any) -> Fields:
    placed = {} if index is None else {"index": index}
    named = {} if id is None else {"id": id}
    return {"tool_calls": [{**placed, **named, "function": function, **more}]}


def stitch(*streams: bytes) -> list[dict[str, Any]]:
    """The data of what the client gets, read as JSON."""
    written, _ = play(FORM, streams)
    return [json.loads(event.data) for event in read_events(written) if event.data != "[DONE]"]


def read_data(event: ServerEvent) -> dict[str, Any]:
    """The chunk in an event; empty if it has no choices."""
    value: dict[str, Any] = {} if event.data == "[DONE]" else json.loads(event.data)
    return value if value.get("choices") else {}


def assemble(*streams: bytes) -> dict[str, Any]:
    written, _ = play(FORM, streams)
    answer = FORM.read_events(read_events(written))
    assert answer.is_ended
    return answer.value


LAST = chunk({"role": "assistant", "content": ""}, k=1) + chunk({"content": "Found."}, k=1)


def test_a_call_in_the_one_chunk_of_a_round_leaves_nothing() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    begun = {"role": "assistant", "content": None, **call(RECALL, 0, "a")}
    first = chunk(begun, "tool_calls", usage=usage) + DONE
    stitcher = make_stitcher(FORM, TOOL, is_stream=True)
    assert stitcher.feed(first) == b""
    assert stitcher.end_round().own == (OwnCall("a", "{}"),)
    sent = stitch(first, LAST)
    assert [each["id"] for each in sent] == ["c0"] * 4
    assert {(each["created"], each["model"]) for each in sent} == {(0, "m0")}
    assert sent[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert sent[-1]["usage"] == {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


def test_the_role_is_sent_once() -> None:
    first = (
        chunk({"role": "assistant", "content": "Wait. "}) + chunk(call(RECALL, 0, "a")) + chunk({}, "tool_calls") + DONE
    )
    assert [each["choices"][0]["delta"] for each in stitch(first, LAST)[:3]] == [
        {"role": "assistant", "content": "Wait. "},
        {"content": ""},
        {"content": "Found."},
    ]


LAST += (
    chunk({}, "stop", k=1)
    + chunk(None, k=1, usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11})
    + DONE
)


def test_of_a_delta_with_both_calls_the_client_gets_its_own() -> None:
    mixed = {"content": "Both.", "tool_calls": [*call(RECALL, 0, "a")["tool_calls"], *call(READ, 1, "b")["tool_calls"]]}
    [sent, end] = stitch(chunk(mixed) + chunk({}, "tool_calls") + DONE)
    assert sent["choices"][0]["delta"] == {"content": "Both.", **call(READ, 0, "b")}
    assert end["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("indexes", [(0, 1), (0, 0), (None, None), (1, 2)])
@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
def test_calls_are_told_apart_as_servers_index_and_name_them(
    own_first: bool, indexes: tuple[int | None, int | None], ids: tuple[str | None, str | None]
) -> None:
    if ids[0] is None and indexes[0] == indexes[1]:
        return  # nothing tells them apart
    functions = ({**RECALL, "arguments": ""}, {**READ, "arguments": ""})
    stream = chunk({"role": "assistant", "content": None})
    for function, index, id in zip(functions if own_first else functions[::-1], indexes, ids, strict=True):
        stream += (
            chunk(call(function, index, id))
            + chunk(call({"arguments": '{"a"'}, index))
            + chunk(call({"arguments": ":1}"}, index))
        )
    _, [end] = play(FORM, [stream + chunk({}, "tool_calls") + DONE])
    assert [each.arguments for each in end.own] == ['{"a":1}']
    assert end.has_client_calls
    [got] = assemble(stream + chunk({}, "tool_calls") + DONE)["choices"][0]["message"]["tool_calls"]
    assert got["function"] == {"name": "read", "arguments": '{"a":1}'}
    assert not json.dumps(got).count(TOOL)


def test_ids_invented_for_each_fragment_begin_no_other_call() -> None:
    stream = chunk(call({**RECALL, "arguments": ""}, 0, "a")) + chunk(call({"arguments": "{}"}, 0, "b"))
    assert stitch(stream + chunk({}, "tool_calls") + DONE, LAST)[0]["choices"][0]["delta"]["content"] == ""


def test_a_name_that_comes_late_begins_no_call_of_ours() -> None:
    """What has passed to the client stays the client's."""
    stream = chunk(call({"arguments": ""}, 0, "a")) + chunk(call(RECALL, 0)) + chunk({}, "tool_calls") + DONE
    assert play(FORM, [stream])[0] == stream


def test_an_own_call_without_an_id_gets_one() -> None:
    _, [end, _] = play(FORM, [chunk(call(RECALL, 0)) + chunk({}, "tool_calls") + DONE, LAST])
    assert len(end.own[0].id) == 9
    assert end.own[0].id.isalnum()
    assert json.loads(end.answer[0])["tool_calls"][0]["id"] == end.own[0].id


def test_words_and_the_end_in_one_chunk_are_told_apart() -> None:
    first = chunk({"role": "assistant", **call(RECALL, 0, "a")})
    first += chunk({"content": "Wait."}, "stop", usage={"completion_tokens": 3}) + DONE
    sent = stitch(first, LAST)
    assert sent[0] == {
        "id": "c0",
        "created": 0,
        "model": "m0",
        "choices": [{"index": 0, "delta": {"content": "Wait."}, "finish_reason": None}],
    }
    assert assemble(first, LAST)["choices"][0]["message"]["content"] == "Wait.Found."
    assert assemble(first)["choices"][0]["message"]["content"] == "Wait."


def test_a_round_whose_calls_are_ignored_ends_as_one_without() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    hidden = (
        chunk({"role": "assistant", **call(RECALL, 0, "a")}) + chunk({}, "tool_calls") + chunk(None, usage=usage) + DONE
    )
    value = assemble(hidden, hidden)
    assert value["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in value["choices"][0]["message"]
    assert value["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_a_call_that_the_output_limit_has_cut_is_not_answered() -> None:
    stream = chunk({"role": "assistant", "content": "x"}) + chunk(call({**RECALL, "arguments": '{"a'}, 0, "a"))
    stream += chunk({}, "length") + DONE
    written, [end] = play(FORM, [stream])
    assert not end.can_continue
    assert end.finish == "length"
    assert b'"length"' in written
    assert written.endswith(DONE)


def test_an_error_inside_a_hidden_round_passes_and_ends_it() -> None:
    error = spell({"error": {"message": "overloaded"}})
    written, [end] = play(FORM, [chunk(call(RECALL, 0, "a")) + error + chunk({}, "tool_calls") + DONE])
    assert error in written
    assert (end.error, end.can_continue) == ("overloaded", False)


def test_usage_stands_where_servers_put_it() -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 3}

    def speak(k: int, delta: Fields, finish: str) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "usage": counts}
        return (
            spell({"id": f"c{k}", "choices": [choice], "x_groq": {"id": f"q{k}", "usage": counts}, "usage": None})
            + DONE
        )

    [sent] = stitch(speak(0, call(RECALL, 0, "a"), "tool_calls"), speak(1, {"content": "x"}, "stop"))
    assert sent["choices"][0]["usage"]["completion_tokens"] == 6
    assert sent["x_groq"] == {"id": "q1", "usage": {"prompt_tokens": 5, "completion_tokens": 6}}
    assert sent["usage"] is None
    said = {"role": "assistant", "content": "x", **call(RECALL, 0, "a")}
    [sent] = stitch(speak(0, said, "tool_calls"))[:1]
    assert "usage" not in sent["choices"][0]


DETAILS = [{"type": "reasoning.text", "text": "hm é", "signature": "sIg==", "index": 0}]


def test_signed_reasoning_of_later_rounds_is_withheld_and_sent_back() -> None:
    first = chunk({"role": "assistant", "reasoning": "hm", "reasoning_details": DETAILS}) + chunk(call(RECALL, 0, "a"))
    first += chunk({}, "tool_calls") + DONE
    written, [end, last, _] = play(FORM, [first, first, LAST])
    message = assemble(first, first, LAST)["choices"][0]["message"]
    assert message["reasoning"] == "hmhm"
    assert message["reasoning_details"] == DETAILS
    for each in (end, last):
        assert json.loads(each.answer[0])["reasoning_details"] == DETAILS
        assert json.loads(each.answer[0])["reasoning"] == "hm"
    assert written.count(b"sIg") == 1


def test_fragments_of_thinking_blocks_are_sent_back_as_whole_blocks() -> None:
    """LiteLLM sends them without an index, and the signature last."""
    sent = [{"type": "thinking", "thinking": "h", "signature": None}, {"type": "thinking", "thinking": "m"}]
    sent += [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    sent += [{"type": "thinking", "thinking": "x", "signature": "t"}]
    stream = b"".join(chunk({"role": None, "thinking_blocks": [block]}) for block in sent)
    _, [end] = play(FORM, [stream + chunk(call(RECALL, 0, "a")) + chunk({}, "tool_calls") + DONE])
    assert json.loads(end.answer[0])["thinking_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        sent[3],
        sent[4],
    ]


def test_a_whole_message_in_place_of_a_delta_is_read() -> None:
    message = {"role": "assistant", "content": None, **call(RECALL, 0, "a")}
    first = spell({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}) + DONE
    assert assemble(first, LAST)["choices"][0]["message"]["content"] == "Found."
    assert assemble(first)["choices"][0]["finish_reason"] == "stop"


def test_what_is_not_understood_passes() -> None:
    odd = b"event: note\ndata: hello\n\ndata: [1]\n\nid: 7\n\n" + spell({"choices": [], "prompt_filter_results": []})
    written, _ = play(FORM, [odd + chunk(call(RECALL, 0, "a")) + odd + chunk({}, "tool_calls") + DONE, odd + LAST])
    assert written.count(b"data: hello\n\ndata: [1]\n\nid: 7\n\n") == 3
    assert written.count(b"prompt_filter_results") == 3


def test_data_in_several_lines_is_written_in_several() -> None:
    first = chunk(call(RECALL, 0, "a")) + chunk({}, "tool_calls") + DONE
    last = b'id: 1\r\ndata: {"id":"c1",\r\ndata: "choices":[{"index":0,\r\ndata:  "delta":{"content":"x"}}]}\r\n'
    last += b": more\r\n\r\n"
    written, _ = play(FORM, [first, last])
    assert written.startswith(b"id: 1\r\ndata: {")
    assert written.endswith(b"\r\n: more\r\n\r\n")
    [event] = read_events(written)
    assert json.loads(event.data) == {"id": "c0", "choices": [{"index": 0, "delta": {"content": "x"}}]}


@pytest.mark.parametrize("arguments", ["", "{", "no", "[1]", "null", '{"q":"\\ud800"}', "\ud800"])
def test_eight_calls_with_any_arguments_are_read_and_sent_back_as_json(arguments: str) -> None:
    calls = [call({**RECALL, "arguments": arguments}, i, f"a{i}")["tool_calls"][0] for i in range(8)]
    stream = chunk({"role": "assistant", "content": "I see "}) + b"".join(
        chunk({"tool_calls": [each]}) for each in calls
    )
    written, [end, _] = play(FORM, [stream + chunk({"content": "nothing. "}) + chunk({}, "tool_calls") + DONE, LAST])
    said = "".join(
        each["choices"][0]["delta"].get("content", "") for each in map(read_data, read_events(written)) if each
    )
    assert said == "I see nothing. Found."
    assert [each.id for each in end.own] == [f"a{i}" for i in range(8)]
    assert {each.arguments for each in end.own} == {arguments}
    for each in json.loads(end.answer[0])["tool_calls"]:
        assert isinstance(json.loads(each["function"]["arguments"]), dict)


# Bodies


def body(message: Fields, finish: str = "tool_calls", **more: Any) -> bytes:
    return json.dumps(
        {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}
    ).encode()


def stitch_bodies(*bodies: bytes) -> Any:
    return json.loads(play(FORM, bodies, is_stream=False)[0])


def test_content_of_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}]
    first = body({"role": "assistant", "content": parts, "reasoning_details": DETAILS, **call(RECALL, id="a")})
    last = body({"role": "assistant", "content": "b", "reasoning_details": DETAILS}, "stop")
    message = stitch_bodies(first, last)["choices"][0]["message"]
    assert message["content"] == [*parts, {"type": "text", "text": "b"}]
    assert message["reasoning_details"] == DETAILS


@pytest.mark.parametrize("nothing", [None, "", []])
def test_content_that_says_nothing_in_any_round_stays_what_the_last_one_has(nothing: object) -> None:
    first = body({"role": "assistant", "content": "", **call(RECALL, id="a")})
    last = body({"role": "assistant", "content": nothing, **call(READ, id="b")}, "tool_calls")
    assert stitch_bodies(first, last)["choices"][0]["message"]["content"] == nothing


def test_a_body_that_is_no_answer_passes() -> None:
    hidden = body({"role": "assistant", "content": None, **call(RECALL, id="a"), "annotations": [], "refusal": None})
    for error in (b'{"error": {"message": "context_recall is full"}}', b"context_recall", b"", b'{"choices":[1]}'):
        written, [end, last] = play(FORM, [hidden, error], is_stream=False)
        assert written == error
        assert (end.can_continue, last.can_continue) == (True, False)
    assert play(FORM, [], is_stream=False)[0] == b""
    assert json.loads(end.answer[0]) == {"role": "assistant", "content": None, **call(RECALL, id="a")}


def test_a_body_that_only_speaks_of_our_tool_passes_byte_by_byte() -> None:
    said = body({"role": "assistant", "content": f"I know {TOOL}."}, "stop").replace(b",", b" , ")
    assert play(FORM, [said], is_stream=False)[0] == said


def test_arguments_that_are_no_string_are_read() -> None:
    """Some local servers answer with an object."""
    _, [end] = play(
        FORM, [body({"role": "assistant", **call({"name": TOOL, "arguments": {"a": 1}}, id="a")})], is_stream=False
    )
    assert end.own == (OwnCall("a", '{"a":1}'),)
    assert json.loads(end.answer[0])["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_every_fragment_of_a_clients_call_behind_ours_has_the_clients_index() -> None:
    """SDKs look calls up by index, in the order in which they came."""
    begun = chunk({"role": "assistant", **call(RECALL, 0, "a")})
    parts = [chunk(call({"name": "read", "arguments": ""}, 1, "b")), chunk(call({"arguments": "{}"}, 1))]
    parts += [chunk(call({"name": "read", "arguments": "{}"}, 2, "c"))]
    sent = stitch(begun + b"".join(parts) + chunk({}, "tool_calls") + DONE)
    calls = [each["choices"][0]["delta"].get("tool_calls") for each in sent]
    assert [made[0]["index"] for made in calls if made] == [0, 0, 1]
