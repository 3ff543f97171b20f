"""Calls of our tool in Responses: tied reasoning, numbers of events, what providers repeat, odd streams."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.rounds import OwnCall, make_stitcher, read_round
from proxy.wire.streams import read_events
from tests.support.rounds import TOOL, Call, ResponsesSpeaker, Text, Thought, Turn, loosen, number, play

FORM = FORMATS["responses"]
SPEAKER = ResponsesSpeaker()

Fields = Mapping[str, Any]
RECALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": TOOL, "arguments": "{}"}
READ = {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "read", "arguments": "{}"}
LOOSE = loosen(READ)  # what it is tied to is withheld
TIED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "é=="}
WORDS = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}


def speak(*sent: tuple[str, Fields]) -> bytes:
    return b"".join(
        b"data: %b\n\n" % SPEAKER.spell({"type": f"response.{kind}", "sequence_number": i, **fields})
        for i, (kind, fields) in enumerate(sent)
    )


def items(*output: Fields, **response: Any) -> bytes:
    """A stream of whole items."""
    sent: list[tuple[str, Fields]] = [("created", {"response": {"id": "r"}})]
    for index, item in enumerate(output):
        sent += [(f"output_item.{act}", {"output_index": index, "item": item}) for act in ("added", "done")]
    return speak(*sent, ("completed", {"response": {"id": "r", "status": "completed", "output": output, **response}}))


def list_sent(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in read_events(stream) if event.data != "[DONE]"]


def list_done(stream: bytes) -> list[dict[str, Any]]:
    return [each["item"] for each in list_sent(stream) if each["type"] == "response.output_item.done"]


def list_output(stream: bytes) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = list_sent(stream)[-1]["response"]["output"]
    return output


def test_events_and_items_are_numbered_without_gaps() -> None:
    turns = number([Thought(), Text("a"), Call()], [Call(), Text("b"), Call()], [Text("c"), Call(), Call("{}", "read")])
    written, _ = play(FORM, [SPEAKER.stream(turn) for turn in turns])
    sent = list_sent(written)
    assert [each["sequence_number"] for each in sent] == list(range(len(sent)))
    added = [each["output_index"] for each in sent if each["type"] == "response.output_item.added"]
    assert added == list(range(5))
    assert {each["output_index"] for each in sent if "output_index" in each} == set(added)
    assert [each["type"] for each in sent].count("response.created") == 1


def test_numbers_go_on_behind_comments_and_events_without_one() -> None:
    [turn] = number([Text("abcdefgh"), Call()])
    events = SPEAKER.list_events(turn)
    opened = next(i for i, event in enumerate(events) if TOOL.encode() in event and b"output_item" in event)
    events.insert(opened, b': ping\n\ndata: {"type":"keepalive"}\n\n: ping\n\n')
    for sizes in ((), (1,), (500,)):
        sent = list_sent(play(FORM, [b"".join(events)], sizes)[0])
        numbers = [each["sequence_number"] for each in sent if "sequence_number" in each]
        assert numbers == list(range(len(sent) - 1))


def test_numbers_go_on_from_those_that_have_passed() -> None:
    begun = speak(
        ("created", {"response": {"id": "r"}}), ("queued", {}), ("new", {}), ("output_item.added", {"item": RECALL})
    )
    for i in range(3, -1, -1):
        begun = begun.replace(b'"sequence_number":%d' % i, b'"sequence_number":%d' % (2 * i + 5))
    written, _ = play(FORM, [begun, items(WORDS)])
    assert [each["sequence_number"] for each in list_sent(written)] == [5, 7, 9, 10, 11, 12]


def test_items_are_sent_back_as_they_came() -> None:
    spelled = items(WORDS, TIED, RECALL)
    item = b'{ "type":"reasoning", "id":"rs_1", "summary":[], "encrypted_content":"\\u00e9=="}'
    spelled = spelled.replace(b'"item":' + SPEAKER.spell(TIED), b'"item":' + item)
    _, [end] = play(FORM, [spelled])
    assert end.answer == (SPEAKER.spell(WORDS), item, SPEAKER.spell(RECALL))


@pytest.mark.parametrize("is_stream", [True, False])
def test_tools_that_were_sent_shortened_are_repeated_as_the_client_has_them(is_stream: bool) -> None:
    [turn] = number([Text("a")])
    client = b'[{"type":"function","name":"read","description":"Reads. At length."}]'
    stitcher = make_stitcher(FORM, TOOL, is_stream=is_stream, echo=client)
    written = stitcher.feed(SPEAKER.stream(turn) if is_stream else SPEAKER.spell_body(turn))
    stitcher.end_round()
    written += stitcher.finish()
    assert TOOL.encode() not in written
    bodies = (
        [each["response"] for each in list_sent(written) if "response" in each] if is_stream else [json.loads(written)]
    )
    assert [each["tools"] for each in bodies] == [json.loads(client)] * len(bodies) and bodies


def test_the_tools_that_the_provider_repeats_are_the_clients() -> None:
    [turn] = number([Text("a")])
    written, _ = play(FORM, [SPEAKER.stream(turn)])
    assert TOOL.encode() not in written
    responses = [each["response"]["tools"] for each in list_sent(written) if "response" in each]
    assert [[tool["name"] for tool in tools] for tools in responses] == [["read"]] * 3
    assert written == SPEAKER.stream(turn).replace(
        b',{"type":"function","name":"%b","parameters":{},"strict":false}' % TOOL.encode(), b""
    )
    tailless = SPEAKER.stream(turn)[:-2]
    assert play(FORM, [tailless])[0] == written[:-2]
    body = SPEAKER.spell_body(turn).replace(b",", b", ")
    stripped = play(FORM, [body], is_stream=False)[0]
    assert TOOL.encode() not in stripped
    assert stripped.count(b", ") > 10


def test_what_the_provider_repeats_is_of_the_first_round() -> None:
    turns = number([Text("a"), Call()], [Text("b")])
    written, _ = play(FORM, [SPEAKER.stream(turn) for turn in turns])
    response = list_sent(written)[-1]["response"]
    assert (response["id"], response["model"], response["created_at"]) == ("resp_0", "m0", 10)
    assert response["max_output_tokens"] == 50
    body = json.loads(play(FORM, [SPEAKER.spell_body(turn) for turn in turns], is_stream=False)[0])
    assert (body["id"], body["max_output_tokens"]) == ("resp_0", 50)


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ([TIED, RECALL], []),
        ([TIED, WORDS, RECALL], [TIED, WORDS]),
        ([TIED, RECALL, READ], [LOOSE]),
        ([TIED, RECALL, READ, TIED, READ], [LOOSE, TIED, READ]),
        ([TIED, READ, RECALL], [TIED, READ]),
        ([READ, TIED, RECALL], [READ]),
        ([TIED, TIED, RECALL], [TIED]),
        ([RECALL, TIED, WORDS], [TIED, WORDS]),
        ([{**TIED, "encrypted_content": None, "content": ["said"]}, RECALL], None),
        ([{"type": "reasoning", "id": "rs"}, RECALL], []),
    ],
)
def test_reasoning_that_is_tied_to_our_call_is_withheld(output: list[Fields], kept: list[Fields] | None) -> None:
    stream, expected = items(*output), output[:1] if kept is None else kept
    for sizes in ((), (9,)):
        written, [end] = play(FORM, [stream], sizes)
        assert list_done(written) == expected
        assert list_output(written) == expected
        assert [json.loads(each) for each in end.answer] == output
    last = items(WORDS)
    if end.can_continue:
        assert list_output(play(FORM, [stream, last])[0]) == [*expected, WORDS]
        bodies = [json.dumps({"output": each}).encode() for each in (output, [WORDS])]
        assert json.loads(play(FORM, bodies, is_stream=False)[0])["output"] == [*expected, WORDS]


def test_reasoning_waits_for_what_follows_and_no_longer() -> None:
    stitcher = make_stitcher(FORM, TOOL, is_stream=True)
    blocks = [b"%b\n\n" % block for block in items(TIED, WORDS).split(b"\n\n")[:-1]]
    assert stitcher.feed(blocks[0]) == blocks[0] and not stitcher.is_withholding
    assert [stitcher.feed(block) for block in blocks[1:3]] == [b"", b""] and stitcher.is_withholding
    assert stitcher.feed(b": ping\n\n: more\n") == b""
    assert stitcher.feed(blocks[3]) == b"".join(blocks[1:3]) + b": ping\n\n: more\n" + blocks[3]
    assert stitcher.feed(blocks[4]) == blocks[4] and not stitcher.is_withholding


def test_reasoning_that_is_told_in_plain_text_passes_as_it_comes() -> None:
    plain = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    added = ("output_item.added", {"output_index": 0, "item": {**plain, "content": []}})
    said = ("reasoning_text.delta", {"output_index": 0, "item_id": "rs_1", "content_index": 0, "delta": "hm"})
    done = ("output_item.done", {"output_index": 0, "item": plain})
    sent: list[tuple[str, Fields]] = [("created", {"response": {"id": "r"}}), added, said, said, done]
    stream = speak(*sent, ("output_item.added", {"output_index": 1, "item": RECALL}))
    blocks = [b"%b\n\n" % block for block in stream.split(b"\n\n")[:-1]]
    for first in (b"", items(RECALL)):
        stitcher = make_stitcher(FORM, TOOL, is_stream=True)
        stitcher.feed(first)
        stitcher.end_round()
        written = [stitcher.feed(block) for block in blocks]
        assert written[1] == written[5] == b"" and all([written[2], written[3], written[4]])
        kinds = ["added", "text.delta", "text.delta", "done"]
        sent_kinds = [each["type"] for each in list_sent(b"".join(written)) if "created" not in each["type"]]
        assert [kind.endswith(end) for kind, end in zip(sent_kinds, kinds, strict=True)] == [True] * 4


@pytest.mark.parametrize("told", ["done", "end"])
def test_items_that_are_told_late_are_ours_all_the_same(told: str) -> None:
    """Some gateways stream only whole items, some only the whole response."""

    def tell(*output: Fields) -> bytes:
        sent: list[tuple[str, Fields]] = [("created", {"response": {"id": "r"}})]
        for index, item in enumerate(output if told == "done" else ()):
            sent.append(("output_item.done", {"output_index": index, "item": item}))
        return speak(*sent, ("completed", {"response": {"id": "r", "status": "completed", "output": output}}))

    for sizes in ((), (7,)):
        written, [end, _] = play(FORM, [tell(TIED, RECALL), tell(WORDS)], sizes)
        assert end.can_continue and TOOL.encode() not in written
        assert list_output(written) == [WORDS]
        written, [end, _] = play(FORM, [tell(WORDS, RECALL), items(WORDS)], sizes)
        assert list_output(written) == [WORDS, WORDS]
        assert {each["output_index"] for each in list_sent(written)[-3:-1]} == {1}
        written, [end] = play(FORM, [tell(WORDS, RECALL, READ)], sizes)
        assert list_output(written) == [WORDS, READ] and end.has_client_calls


def test_a_client_may_go_on_from_the_last_response_of_a_provider_that_stores_all() -> None:
    turns = number([Text("a"), Call()], [Text("b")])
    streams, bodies = [SPEAKER.stream(turn) for turn in turns], [SPEAKER.spell_body(turn) for turn in turns]
    assert list_sent(play(FORM, streams, is_stored=True)[0])[-1]["response"]["id"] == "resp_1"
    assert json.loads(play(FORM, bodies, is_stream=False, is_stored=True)[0])["id"] == "resp_1"
    for is_stored in (True, False):
        stitcher = make_stitcher(FORM, TOOL, is_stream=True, binds_reasoning=True, is_stored=is_stored)
        stitcher.feed(streams[0])
        assert stitcher.begun_as == ("resp_0" if is_stored else "")


def test_a_broken_stream_passes_the_reasoning_that_waits() -> None:
    stream = items(TIED, WORDS)
    cut = stream[: stream.index(b"data: ", stream.index(b"output_item.done")) + 9]
    assert play(FORM, [cut]) == (cut, [play(FORM, [b""])[1][0]])
    begun = stream[: cut.rindex(b"data: ")]
    assert play(FORM, [begun])[0] == begun


def test_events_behind_reasoning_wait_with_it() -> None:
    keep: tuple[str, Fields] = ("keepalive", {})
    done = ("output_item.done", {"output_index": 1, "item": TIED})
    opened = ("output_item.added", {"output_index": 2, "item": RECALL})
    begun = ("created", {"response": {"id": "r"}}), ("output_item.added", {"output_index": 0, "item": RECALL})
    for withheld in (speak(*begun, done, keep, opened), speak(begun[0], done, keep, opened)):
        written, _ = play(FORM, [withheld])
        assert [each["type"] for each in list_sent(written)] == ["response.created", "response.keepalive"]
    plain = speak(begun[0], done, keep)
    assert play(FORM, [plain])[0] == plain


def test_an_empty_output_of_a_backend_stays_empty() -> None:
    """ChatGPT's own backend sends items before, and not again."""
    first = items(WORDS, RECALL).replace(b'"output":[{', b'"output":[],"sent":[{')
    last = items(READ).replace(b'"output":[{', b'"output":[],"sent":[{')
    written, [end, _] = play(FORM, [first, last])
    assert end.own == (OwnCall("c1", "{}"),)
    assert list_output(written) == []
    assert list_done(written) == [WORDS, READ]
    assert list_output(play(FORM, [items(WORDS, RECALL), items()])[0]) == [WORDS]


def test_a_stream_without_whole_items_is_read_from_its_deltas() -> None:
    bare = {"output_index": 0, "item_id": "fc_1"}
    sent: list[tuple[str, Fields]] = [
        ("created", {"response": {"id": "r"}}),
        ("output_item.added", {"output_index": 0, "item": {**RECALL, "arguments": ""}}),
        ("function_call_arguments.delta", {**bare, "delta": '{"a"'}),
        ("function_call_arguments.delta", {**bare, "delta": ":1}"}),
        ("completed", {"response": {"id": "r", "status": "completed", "output": []}}),
    ]
    written, [end] = play(FORM, [speak(*sent)])
    assert end.own == (OwnCall("c1", '{"a":1}'),)
    assert [each["type"] for each in list_sent(written)] == ["response.created", "response.completed"]


def test_items_are_known_by_their_ids_where_they_have_no_index() -> None:
    sent: list[tuple[str, Fields]] = [
        ("created", {"response": {"id": "r"}}),
        ("output_item.added", {"item": RECALL}),
        ("function_call_arguments.delta", {"item_id": "fc_1", "delta": "{}"}),
        ("output_item.done", {"item": RECALL}),
        ("output_item.done", {"item": READ}),
        ("completed", {"response": {"id": "r", "output": [RECALL, READ]}}),
    ]
    written, [end] = play(FORM, [speak(*sent)])
    assert [each["type"] for each in list_sent(written)[1:]] == ["response.output_item.done", "response.completed"]
    assert end.has_client_calls


def test_a_failure_inside_a_hidden_round_passes() -> None:
    failed = {"id": "r", "status": "failed", "error": {"message": "overloaded"}, "output": []}
    stream = speak(("created", {"response": {"id": "r"}}), ("output_item.added", {"output_index": 0, "item": RECALL}))
    stream += speak(("failed", {"response": failed}))
    written, [end] = play(FORM, [stream])
    assert [each["type"] for each in list_sent(written)] == ["response.created", "response.failed"]
    assert (end.error, end.can_continue) == ("overloaded", False)


def test_an_incomplete_round_with_a_call_of_ours_ends_incomplete() -> None:
    turn = Turn((Text("a", "x"), Call('{"a', id="c")), is_cut=True)
    written, [end] = play(FORM, [SPEAKER.stream(turn)])
    assert (end.finish, end.can_continue) == ("max_output_tokens", False)
    assert [item["type"] for item in list_output(written)] == ["message"]
    assert list_sent(written)[-1]["type"] == "response.incomplete"


def test_what_is_not_understood_passes() -> None:
    odd = b"event: note\ndata: hello\n\n"
    unnumbered = b'data: {"type":"response.new"}\n\n'
    first = items(RECALL).replace(
        b'data: {"type":"response.completed"', odd + unnumbered + b'data: {"type":"response.completed"'
    )
    done = b"data: [DONE]\n\n"
    written, _ = play(FORM, [first + done, odd + items(WORDS) + done])
    assert written.count(odd) == 2
    assert unnumbered in written
    assert written.count(done) == 1
    assert play(FORM, [first + done])[0].endswith(done)
    late = odd + first.replace(b'"r"', b"0")
    assert json.loads(read_events(play(FORM, [late, items(WORDS)])[0])[-1].data)["response"]["output"] == [WORDS]


@pytest.mark.parametrize("arguments", ["", "{", "no", "[1]", "null", '"x"', '{"q":"\\ud800"}'])
def test_eight_calls_with_any_arguments_are_sent_back_as_json(arguments: str) -> None:
    calls = [{**RECALL, "id": f"f{i}", "call_id": f"c{i}", "arguments": arguments} for i in range(8)]
    written, [end] = play(FORM, [items(WORDS, *calls[:4], WORDS, *calls[4:])])
    assert list_output(written) == [WORDS, WORDS]
    assert {each.arguments for each in end.own} == {arguments}
    sent_back = [json.loads(each) for each in end.answer]
    assert [each["type"] for each in sent_back].count("function_call") == 8
    assert all(isinstance(json.loads(each.get("arguments", "{}")), dict) for each in sent_back)


# Bodies


def test_a_body_that_is_no_answer_passes() -> None:
    hidden = json.dumps({"output": [RECALL]}).encode()
    for error in (b'{"error": {"message": "context_recall"}}', b"context_recall", b""):
        written, [end, last] = play(FORM, [hidden, error], is_stream=False)
        assert written == error
        assert (bool(end.own), last.can_continue) == (True, False)
    assert play(FORM, [], is_stream=False)[0] == b""


def list_kinds(output: Sequence[Fields]) -> list[str]:
    return [item["type"] for item in output]


def test_calls_of_the_provider_are_no_calls_of_the_client() -> None:
    served = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    written, [end] = play(FORM, [items(served, RECALL)])
    assert end.can_continue
    assert list_kinds(list_output(written)) == ["web_search_call"]


def test_a_recorded_stream_without_its_last_line_is_read_alike() -> None:
    stream = items(WORDS, RECALL)
    whole = read_round(FORM, TOOL, stream, is_stream=True)
    assert whole.can_continue
    assert read_round(FORM, TOOL, stream[:-2], is_stream=True) == whole


def test_more_blank_lines_than_needed_pass() -> None:
    stream = items(WORDS, RECALL).replace(b"\n\n", b"\n\n\n")
    for sizes in ((), (1,)):
        written, [end] = play(FORM, [stream], sizes)
        assert end.can_continue
        assert list_output(written) == [WORDS]


def test_reasoning_whose_beginning_was_lost_waits_alike() -> None:
    other = {**TIED, "id": "rs_2"}
    sent: list[tuple[str, Fields]] = [("created", {"response": {"id": "r"}})]
    sent += [("output_item.added", {"output_index": 0, "item": RECALL})]
    sent += [("output_item.done", {"output_index": i, "item": item}) for i, item in ((1, TIED), (2, other))]
    ended = {"id": "r", "status": "completed", "output": [RECALL, TIED, other]}
    written, [end] = play(FORM, [speak(*sent, ("completed", {"response": ended}))])
    assert list_done(written) == list_output(written) == [TIED]
    assert [json.loads(each) for each in end.answer] == [RECALL, TIED, other]


def test_an_event_that_repeats_the_request_and_breaks_off_names_no_tool_of_ours() -> None:
    tools = [{"type": "function", "name": TOOL, "description": "Reads it back."}]
    value = {"type": "response.created", "response": {"id": "resp_1", "tools": tools}}
    raw = b"event: response.created\ndata: " + json.dumps(value).encode() + b"\n\n"
    for cut in range(1, len(raw)):
        stitcher = make_stitcher(FORM, TOOL, is_stream=True)
        passed = stitcher.feed(raw[:cut])
        stitcher.end_round()
        passed += stitcher.finish()
        assert b"Reads" not in passed
        assert TOOL.encode() not in passed
