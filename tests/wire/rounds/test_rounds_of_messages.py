"""Calls of our tool in Anthropic Messages: bound thinking, usage, odd streams."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.rounds import OwnCall, make_stitcher
from proxy.wire.streams import read_events
from tests.support.rounds import TOOL, MessagesSpeaker, play, slice_body

FORM = FORMATS["anthropic_messages"]
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

Fields = Mapping[str, Any]


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), MessagesSpeaker.spell({"type": kind, **fields}))


def start(k: int = 0, **usage: int) -> bytes:
    return event("message_start", message={"id": f"m{k}", "model": f"x{k}", "content": [], "usage": usage})


def block(index: int, begun: Fields, *deltas: Fields) -> bytes:
    pieces = b"".join(event("content_block_delta", index=index, delta=delta) for delta in deltas)
    return (
        event("content_block_start", index=index, content_block=begun)
        + pieces
        + event("content_block_stop", index=index)
    )


def recall(index: int, arguments: str = "{}", name: str = TOOL) -> bytes:
    begun = {"type": "tool_use", "id": f"t{index}", "name": name, "input": {}}
    return block(index, begun, {"type": "input_json_delta", "partial_json": arguments})


def text(index: int, said: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": said})


def thinking(index: int, signature: str) -> bytes:
    deltas = ({"type": "thinking_delta", "thinking": "h m"}, {"type": "signature_delta", "signature": signature})
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def end(reason: str, **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage) + STOP


def assemble(stream: bytes) -> dict[str, Any]:
    answer = FORM.read_events(read_events(stream))
    assert answer.is_ended
    return answer.value


HIDDEN = start(0, input_tokens=5, output_tokens=1) + thinking(0, "s0") + recall(1) + end("tool_use", output_tokens=3)
AGAIN = start(1, input_tokens=7, output_tokens=1) + thinking(0, "s1") + recall(1) + end("tool_use", output_tokens=4)
LAST = start(2, input_tokens=9, cache_read_input_tokens=2, output_tokens=1) + thinking(0, "s2") + text(1, "Found.")
LAST += end("end_turn", output_tokens=5)


def test_bound_thinking_of_later_rounds_is_withheld_and_sent_back() -> None:
    written, ends = play(FORM, [HIDDEN, AGAIN, LAST])
    value = assemble(written)
    assert [each["type"] for each in value["content"]] == ["thinking", "text"]
    assert value["content"][0]["signature"] == "s0"
    for k, each in enumerate(ends):
        content = json.loads(each.answer[0])["content"]
        assert content[0] == {"type": "thinking", "thinking": "h m", "signature": f"s{k}"}


def test_other_thinking_passes() -> None:
    written, _ = play(FORM, [HIDDEN, AGAIN, LAST], binds=False)
    assert [each.get("signature") for each in assemble(written)["content"]] == ["s0", "s1", "s2", None]


def test_the_client_gets_the_prompt_of_the_last_round_and_the_output_of_all() -> None:
    written, _ = play(FORM, [HIDDEN, AGAIN, LAST])
    usage = {"input_tokens": 9, "cache_read_input_tokens": 2, "output_tokens": 12}
    assert assemble(written)["usage"] == usage
    assert written.count(b"message_start") == 2  # its event's name, and its type
    told = LAST.replace(b'"usage":{"output_tokens":5}', b'"usage":{"output_tokens":5,"input_tokens":8}')
    assert assemble(play(FORM, [HIDDEN, told])[0])["usage"]["input_tokens"] == 8
    untold = LAST.replace(b'"usage":{"output_tokens":5}', b'"usage":null')
    assert assemble(play(FORM, [HIDDEN, untold])[0])["usage"]["input_tokens"] == 5


def test_blocks_of_both_are_numbered_without_gaps() -> None:
    mixed = start() + text(0, "a") + recall(1) + recall(2, name="read") + recall(3) + text(4, "b") + end("tool_use")
    written, [read] = play(FORM, [mixed])
    value = assemble(written)
    assert [each["type"] for each in value["content"]] == ["text", "tool_use", "text"]
    assert value["stop_reason"] == "tool_use"
    indexes = [json.loads(each.data).get("index") for each in read_events(written)]
    assert [index for index in indexes if index is not None] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (len(read.own), read.has_client_calls, read.can_continue) == (2, True, False)


def test_calls_of_the_provider_are_no_calls_of_the_client() -> None:
    served = block(1, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})
    _, [read] = play(FORM, [start() + recall(0) + served + end("tool_use")])
    assert read.can_continue


def test_a_round_whose_calls_are_ignored_ends_the_turn() -> None:
    written, _ = play(FORM, [HIDDEN, AGAIN])
    value = assemble(written)
    assert value["stop_reason"] == "end_turn"
    assert value["usage"] == {"input_tokens": 7, "output_tokens": 7}


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "pause_turn"])
def test_another_end_stays_as_it_is(reason: str) -> None:
    written, [read] = play(FORM, [start() + recall(0, '{"a') + end(reason)])
    assert not read.can_continue
    assert assemble(written)["stop_reason"] == reason


def test_an_error_inside_a_hidden_round_passes() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    written, [read] = play(FORM, [start() + recall(0) + error])
    assert written == start() + error
    assert (read.error, read.can_continue, read.is_ended) == ("Overloaded", False, False)


def test_what_is_not_understood_passes() -> None:
    odd = b"event: ping\ndata: {}\n\ndata: x\n\n" + event("new_kind", a=1)
    lost = event("content_block_delta", index=6, delta={"type": "text_delta", "text": "y"})
    written, _ = play(FORM, [start() + odd + recall(0) + odd + end("tool_use"), start(1) + lost + end("end_turn")])
    assert written.count(odd) == 2
    assert assemble(written)["content"] == [{"type": "text", "text": "y"}]


@pytest.mark.parametrize("arguments", ["", "{", "no", "[1]", "null", '"x"', '{"q":"\\ud800"}'])
def test_eight_calls_with_any_arguments_are_sent_back_as_objects(arguments: str) -> None:
    stream = (
        start()
        + text(0, "I see")
        + text(1, "")
        + b"".join(recall(i, arguments) for i in range(2, 10))
        + end("tool_use")
    )
    for sizes in ((), (7, 50)):
        _, [read] = play(FORM, [stream], sizes)
        assert len(read.own) == 8
        said = read.own[0].arguments
        assert said == (arguments or "{}") or json.loads(said) == json.loads(arguments)
        content = json.loads(read.answer[0])["content"]
        assert len(content) == 9  # an empty text is refused in requests
        assert all(isinstance(each["input"], dict) for each in content[1:])


def test_a_last_event_without_its_blank_line_counts() -> None:
    for cut_off in (1, 2):
        written, [read, _] = play(FORM, [HIDDEN[:-cut_off], LAST[:-cut_off]])
        assert read.can_continue
        assert assemble(written)["stop_reason"] == "end_turn"
    words = start() + recall(0) + text(1, "a")
    written, _ = play(FORM, [words[:-2], LAST])
    assert [each.get("text") for each in assemble(written)["content"]] == ["a", "Found."]


def test_a_call_in_a_last_event_without_its_blank_line_is_ours() -> None:
    opened = event(
        "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": TOOL, "input": {}}
    )
    written, [read] = play(FORM, [start() + opened[:-2]])
    assert written == start()
    assert read.own == (OwnCall("t", "{}"),)
    assert not read.can_continue
    cut = opened[: opened.index(b'"id"')]
    assert play(FORM, [start() + cut])[0] == start() + cut
    assert play(FORM, [start() + recall(0) + cut])[0] == start()


def test_comments_pass_at_once_and_whole() -> None:
    stitcher = make_stitcher(FORM, TOOL, is_stream=True)
    stitcher.feed(start())
    assert stitcher.feed(b": pi") == b""
    assert stitcher.feed(b"ng\nevent: p") == b": ping\n"
    assert stitcher.feed(b'ing\ndata: {"type":"ping"}\n\n' + recall(0)) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert stitcher.feed(b": still here\n") == b": still here\n"
    assert stitcher.feed(b"\n: and here\r") == b"\n: and here\r"


def test_a_byte_order_mark_is_only_at_the_beginning() -> None:
    mark = b"\xef\xbb\xbf"
    for sizes in ((), (1,)):
        written, _ = play(FORM, [mark + HIDDEN, mark + LAST], sizes)
        assert written.startswith(mark)
        assert written.count(mark) == 1


def test_a_first_round_that_is_very_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.wire.rounds.stitching.MOST_READ", 1000)
    long = start() + b"".join(text(i, "word") for i in range(9)) + recall(9) + end("tool_use")
    for sizes in ((), (1,), (400,), (999,)):
        written, [read] = play(FORM, [long], sizes)
        assert written == long
        assert read.own == ()
    pieces = [*(text(i, "word") for i in range(9)), recall(9)]
    stitcher = make_stitcher(FORM, TOOL, is_stream=True)
    assert b"".join(map(stitcher.feed, pieces)) == b"".join(pieces)
    body = b'{"content":[' + b" " * 1000 + b"]}"
    assert play(FORM, [body], (300,), is_stream=False) == (body, [read])


def test_a_long_round_with_a_call_of_ours_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.wire.rounds.stitching.MOST_READ", 1000)
    stream = start() + recall(0) + b"".join(text(i, "word") for i in range(1, 9)) + end("tool_use")
    _, [read] = play(FORM, [stream], (100,))
    assert read.can_continue


# Bodies


def body(*content: Fields, reason: str = "tool_use", **more: Any) -> bytes:
    return json.dumps({"id": "m", "content": content, "stop_reason": reason, **more}).encode()


CALL = {"type": "tool_use", "id": "t", "name": TOOL, "input": {"a": 1}}


def test_a_body_that_is_no_answer_passes() -> None:
    for error in (b'{"type": "error", "error": {"message": "context_recall"}}', b"context_recall", b""):
        written, [read, last] = play(FORM, [body(CALL), error], is_stream=False)
        assert written == error
        assert (read.can_continue, last.can_continue) == (True, False)
    assert play(FORM, [], is_stream=False)[0] == b""


def test_bound_thinking_of_later_bodies_is_withheld() -> None:
    thought = {"type": "thinking", "thinking": "x", "signature": "s"}
    said = body(thought, {"type": "text", "text": "x"}, reason="end_turn")
    for binds, kinds in ((True, ["thinking", "text"]), (False, ["thinking", "thinking", "text"])):
        written, _ = play(FORM, [body(thought, CALL), said], is_stream=False, binds=binds)
        assert [each["type"] for each in json.loads(written)["content"]] == kinds


def test_a_body_whose_calls_are_ignored_ends_the_turn() -> None:
    written, _ = play(FORM, [body({"type": "text", "text": "x"}, CALL, usage=None)], is_stream=False)
    value = {"id": "m", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": None}
    assert json.loads(written) == value


def test_a_body_that_only_speaks_of_our_tool_passes_byte_by_byte() -> None:
    said = body({"type": "text", "text": TOOL}, reason="end_turn").replace(b",", b" , ")
    assert play(FORM, [said], is_stream=False)[0] == said


def test_a_body_in_pieces_is_one_body() -> None:
    assert b"".join(slice_body(b"abcde", (2,))) == b"abcde"
    assert play(FORM, [body(CALL), body(reason="end_turn")], (3,), is_stream=False)[1][0].own == (
        OwnCall("t", '{"a":1}'),
    )
