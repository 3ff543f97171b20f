"""What is stitched is a stream that a provider could send, and the check of that rejects whatever none would send."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.rounds import make_stitcher
from proxy.wire.streams import read_events
from tests.support.examples import examples
from tests.support.rounds import SPEAKERS, TOOL, Call, Speaker, Text, Thought, Turn, number, play
from tests.support.valid_streams import find_faults

CHAT, MESSAGES, RESPONSES = SPEAKERS
_MANY = examples(120)

_texts, _thoughts = st.builds(Text, st.text("ab é\n", min_size=1, max_size=9)), st.builds(Thought, st.just("a b"))
_names = st.sampled_from([TOOL, f"functions.{TOOL}", f"default_api.{TOOL}", f"functions/{TOOL}", f"tools:{TOOL}"])
_own = st.builds(Call, st.sampled_from(['{"q":"é"}', "{}"]), _names)
_foreign = st.builds(Call, st.just('{"path":"a"}'), st.sampled_from(["read", f"my_{TOOL}", f"{TOOL}s", "context_"]))
_said = st.lists(_texts | _thoughts, max_size=3)
_hidden = st.builds(
    lambda before, calls, more, behind: [*before, *calls, *more, *behind],
    _said,
    st.lists(_own, min_size=1, max_size=3),
    _said,
    _said,
)
_last = st.builds(
    lambda before, calls, behind: [*before, *calls, *behind], _said, st.lists(_foreign | _own, max_size=3), _said
)
_turns = st.builds(lambda hidden, last: number(*hidden, last), st.lists(_hidden, max_size=2), _last)
_sizes = st.lists(st.integers(1, 300), max_size=4)


@_MANY
@given(st.sampled_from(SPEAKERS), _turns, _sizes, st.booleans())
def test_what_is_stitched_could_be_a_providers(
    speaker: Speaker, turns: tuple[Turn, ...], sizes: list[int], binds: bool
) -> None:
    streams = [speaker.stream(turn) for turn in turns]
    assert [find_faults(speaker.form.name, stream) for stream in streams] == [[]] * len(streams)
    written, ends = play(speaker.form, streams, sizes, binds=binds)
    assert find_faults(speaker.form.name, written) == []
    assert [end.can_continue for end in ends] == [turn.is_hidden for turn in turns]
    assert not any(re.search(rb"[./:]context_recall", raw) for end in ends for raw in end.answer)


def _cut_names(events: list[bytes], at: int) -> list[bytes]:
    """The events of a Chat Completions stream with the names of calls in two pieces, as some servers send them."""
    cut: list[bytes] = []
    for event in events:
        chunk = json.loads(event[6:]) if b'"name"' in event else None
        if chunk is None:
            cut.append(event)
            continue
        [call] = chunk["choices"][0]["delta"]["tool_calls"]
        name = call["function"]["name"]
        call["function"]["name"] = name[:at]
        cut.append(b"data: %b\n\n" % Speaker.spell(chunk))
        chunk["choices"][0]["delta"]["tool_calls"] = [{"index": call["index"], "function": {"name": name[at:]}}]
        cut.append(b"data: %b\n\n" % Speaker.spell(chunk))
    return cut


@pytest.mark.parametrize("name", [TOOL, f"functions.{TOOL}", f"default_api.{TOOL}"])
@pytest.mark.parametrize("line", [b"", b": ping\n\n"])
def test_a_name_in_pieces_is_ours_as_soon_as_it_can_be(name: str, line: bytes) -> None:
    hidden = number([Text("a"), Call('{"q":1}', name), Call("{}", name)], [Text("b"), Call('{"p":1}', "context_read")])
    whole, _ = play(CHAT.form, [CHAT.stream(turn) for turn in hidden])
    for at in range(1, len(name)):
        streams = [line.join(_cut_names(CHAT.list_events(turn), at)) for turn in hidden]
        for sizes in ((), (40,)):
            written, ends = play(CHAT.form, streams, sizes)
            assert TOOL.encode() not in written and ends[0].can_continue and len(ends[0].own) == 2
            assert find_faults(CHAT.form.name, written) == []
            read = CHAT.form.read_events(read_events(written)).value
            assert read == CHAT.form.read_events(read_events(whole)).value


def test_a_name_that_may_become_ours_waits_no_longer_than_it_may() -> None:
    for name, more in (("context_", "read"), ("functions.", "read"), ("default", ""), (TOOL[:-1], "s")):
        [turn] = number([Call('{"p":1}', name + more)])
        events = _cut_names(CHAT.list_events(turn), len(name)) if more else CHAT.list_events(turn)
        starts: list[tuple[Turn, ...]] = [(), number([Call()])]
        for first in starts:
            stitcher = make_stitcher(CHAT.form, TOOL, is_stream=True)
            for each in first:
                stitcher.feed(CHAT.stream(each))
                stitcher.end_round()
            passed = [stitcher.feed(event) for event in events]
            assert passed[1] == b"" and b'"name"' in passed[2] and all(passed[2:])
            assert not stitcher.is_withholding
    stitcher = make_stitcher(CHAT.form, TOOL, is_stream=True)
    assert all(map(stitcher.feed, CHAT.list_events(number([Call("{}", "read")])[0])))


def test_a_stream_that_breaks_off_inside_a_name_passes_what_came() -> None:
    [turn] = number([Call('{"p":1}', TOOL)])
    begun = b"".join(_cut_names(CHAT.list_events(turn), 4)[:2])
    assert play(CHAT.form, [begun])[0] == begun
    written, _ = play(CHAT.form, [CHAT.stream(turn), begun])
    assert b'"cont"' in written


Edit = Callable[[list[bytes]], list[bytes]]


def _without(sign: bytes) -> Edit:
    return lambda events: [event for event in events if sign not in event]


def _twice(sign: bytes) -> Edit:
    return lambda events: [each for event in events for each in [event] * (1 + (sign in event))]


def _change(old: bytes, new: bytes, place: int = -1) -> Edit:
    def edit(events: list[bytes]) -> list[bytes]:
        found = [at for at, event in enumerate(events) if old in event][place]
        return [event.replace(old, new) if at == found else event for at, event in enumerate(events)]

    return edit


BROKEN: list[tuple[Speaker, Edit, str]] = [
    (CHAT, _without(b"[DONE]"), "there is no [DONE]"),
    (CHAT, _twice(b"[DONE]"), "[DONE] is not the last event"),
    (CHAT, _change(b'"id":"c0"', b'"id":"c1"'), "chunks differ in id"),
    (CHAT, _change(b'"model":"m0"', b'"model":"m1"'), "chunks differ in model"),
    (CHAT, _twice(b'"role"'), "the role is not told once"),
    (CHAT, _twice(b'"finish_reason":"tool_calls"'), "2 reasons to finish"),
    (CHAT, _without(b'"finish_reason":"tool_calls"'), "0 reasons to finish"),
    (CHAT, _change(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"'), "does not fit the calls"),
    (CHAT, _twice(b'"usage"'), "usage stands elsewhere"),
    (CHAT, _change(b'"tool_calls":[{"index":0,"id"', b'"tool_calls":[{"index":1,"id"', 0), "calls have the indexes"),
    (CHAT, _without(b'"name"'), "begins without id or name"),
    (CHAT, _change(b'"index":0,"function"', b'"index":0,"id":"other","function"'), "changes its id"),
    (CHAT, _change(b'"arguments":":1}"', b'"arguments":":1"'), "are not whole"),
    (CHAT, lambda events: [*events[:2], b'data: {"error":{"message":"no"}}\n\n', *events[2:]], "follows an error"),
    (CHAT, lambda events: [*events[:-1], events[-1][:-1]], "the last event has no end"),
    (MESSAGES, _without(b"message_start"), "does not begin once"),
    (MESSAGES, _twice(b"message_stop"), "does not end once"),
    (MESSAGES, _without(b"message_delta"), "0 reasons to stop"),
    (MESSAGES, _change(b'"stop_reason":"tool_use"', b'"stop_reason":"end_turn"'), "does not fit the calls"),
    (MESSAGES, _change(b'"usage":{"output_tokens":7}', b'"usage":{}'), "no usage"),
    (MESSAGES, _change(b'"index":1', b'"index":2', 0), "begins as number"),
    (MESSAGES, _twice(b"content_block_stop"), "which is not open"),
    (MESSAGES, _without(b"content_block_stop"), "with [0] open"),
    (MESSAGES, _change(b"event: ping", b"event: pong"), "is not named as its type"),
    (
        MESSAGES,
        lambda events: [events[0], b'event: error\ndata: {"type":"error"}\n\n', *events[1:]],
        "follows an error",
    ),
    (RESPONSES, _without(b"response.created"), "does not begin once"),
    (RESPONSES, _twice(b"response.completed"), "does not end once"),
    (RESPONSES, _without(b"response.completed"), "does not end once"),
    (RESPONSES, _change(b'"sequence_number":3', b'"sequence_number":2', 0), "the events are numbered"),
    (RESPONSES, _change(b'"id":"resp_0"', b'"id":"resp_1"'), "has the ids"),
    (RESPONSES, _change(b'"usage":{', b'"used":{'), "no usage"),
    (RESPONSES, _without(b'output_item.done\ndata: {"type":"response.output_item.done","sequence_number":6'), "never"),
    (RESPONSES, _without(b"output_item.added"), "which is not open"),
    (RESPONSES, _twice(b"output_item.done"), "which is not open"),
    (RESPONSES, _change(b'"output_index":1', b'"output_index":2', 0), "is announced as number"),
    (RESPONSES, _change(b'"item":{"id":"msg_', b'"item":{"id":"m_', 1), "ends as another one"),
    (RESPONSES, _change(b'"item_id":"msg_', b'"item_id":"m_', 0), "names another item"),
    (RESPONSES, _change(b'"output":[{"id":"rs_', b'"output":[{"id":"x_'), "are not those of the events"),
    (RESPONSES, _without(b"content_part.done"), "closed as []"),
    (RESPONSES, _change(b"event: response.in_progress", b"event: response"), "is not named as its type"),
]


@pytest.mark.parametrize(("speaker", "edit", "told"), BROKEN)
def test_a_broken_stream_is_rejected(speaker: Speaker, edit: Edit, told: str) -> None:
    [turn] = number([Thought(), Text("so"), Call('{"a":1}', "read")])
    events = speaker.list_events(turn)
    assert find_faults(speaker.form.name, b"".join(events)) == []
    broken = edit(events)
    assert broken != events
    assert any(told in fault for fault in find_faults(speaker.form.name, b"".join(broken))), broken


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
def test_an_error_that_follows_a_hidden_round_has_the_next_number(speaker: Speaker) -> None:
    [turn] = number([Text("a"), Call()])
    stitcher = make_stitcher(speaker.form, TOOL, is_stream=True)
    written = stitcher.feed(speaker.stream(turn))
    stitcher.end_round()
    error = speaker.form.spell_error({"type": "server_error", "message": "busy"}, stitcher.next_number)
    assert stitcher.has_call and find_faults(speaker.form.name, written + error) == []


def test_the_end_may_name_another_response_that_is_stored() -> None:
    turns = number([Text("a"), Call()], [Text("b")])
    written, _ = play(RESPONSES.form, [RESPONSES.stream(turn) for turn in turns], is_stored=True)
    assert find_faults("responses", written) == ["the response has the ids ['resp_0', 'resp_1']"]
    assert find_faults("responses", written, is_stored=True) == []
