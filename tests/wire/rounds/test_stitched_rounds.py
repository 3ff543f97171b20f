"""Several rounds of a model as one response: what the client gets, in all formats, however the bytes are cut."""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.rounds import (
    OwnResult,
    PlayedRound,
    RoundEnd,
    RoundStitcher,
    continue_request,
    make_stitcher,
    restore_answer,
)
from proxy.wire.streams import read_events
from tests.support.examples import examples
from tests.support.rounds import (
    SPEAKERS,
    TOOL,
    Call,
    Part,
    PlainResponsesSpeaker,
    Speaker,
    Text,
    Thought,
    Turn,
    number,
    play,
)

GARBAGE = ("", "{", "no json", '{"a": 1', "[1]", '"x"', "null", '{"query": "\\ud800"}')
SPEAKING = pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
PLAIN = (*SPEAKERS[:2], PlainResponsesSpeaker())


MANY = examples(60)


def read_stream(speaker: Speaker, stream: bytes) -> dict[str, Any]:
    events = read_events(stream)
    answer = speaker.form.read_events(events)
    assert answer.is_ended
    # An item that was begun and is withheld is not in the object that ends the response.
    return clean(json.loads(events[-1].data)["response"] if speaker.form.is_itemised else answer.value)


def clean(value: dict[str, Any]) -> dict[str, Any]:
    """A response without our name where the provider repeats it."""
    value = json.loads(json.dumps(value))
    if "tools" in value:
        value["tools"] = [tool for tool in value["tools"] if tool["name"] != TOOL]
    return value


def expect_stream(speaker: Speaker, turns: Sequence[Turn], *, binds: bool = True) -> dict[str, Any]:
    return read_stream(speaker, speaker.stream(speaker.join(turns, binds=binds)))


_texts = st.builds(Text, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9))
_thoughts = st.builds(Thought, st.text("ab \n", max_size=9))
_own = st.builds(Call, st.sampled_from(['{"action":"search","query":"é"}', "{}"]))
_foreign = st.builds(Call, st.just('{"path":"a"}'), st.just("read"))
_hidden = st.lists(_texts | _thoughts | _own, max_size=4).flatmap(
    lambda parts: st.builds(lambda call, at: [*parts[:at], call, *parts[at:]], _own, st.integers(0, 4))
)
_plain = st.lists(_texts | _thoughts | _foreign, max_size=4)
_mixed = st.lists(_texts | _thoughts | _own | _foreign, max_size=3).flatmap(
    lambda parts: st.builds(lambda own, other: [own, *parts, other], _own, _foreign)
)
_turns = st.builds(lambda hidden, last: number(*hidden, last), st.lists(_hidden, max_size=3), _plain | _mixed)
_sizes = st.lists(st.integers(1, 200), max_size=4)
_speakers = st.sampled_from(SPEAKERS)


@MANY
@given(_speakers, _turns, _sizes, st.booleans())
def test_a_client_gets_one_response_without_our_tool(
    speaker: Speaker, turns: tuple[Turn, ...], sizes: list[int], binds: bool
) -> None:
    streams = [speaker.stream(turn) for turn in turns]
    written, ends = play(speaker.form, streams, sizes, binds=binds)
    assert read_stream(speaker, written) == expect_stream(speaker, turns, binds=binds)
    assert TOOL.encode() not in written
    assert [end.can_continue for end in ends] == [turn.is_hidden for turn in turns]
    assert written == play(speaker.form, streams, binds=binds)[0]


@MANY
@given(_speakers, _turns, _sizes, st.booleans())
def test_a_body_is_one_response_without_our_tool(
    speaker: Speaker, turns: tuple[Turn, ...], sizes: list[int], binds: bool
) -> None:
    bodies = [speaker.spell_body(turn) for turn in turns]
    written, ends = play(speaker.form, bodies, sizes, is_stream=False, binds=binds)
    expected = json.loads(speaker.spell_body(speaker.join(turns, binds=binds)))
    assert clean(json.loads(written)) == clean(expected)
    assert TOOL.encode() not in written
    assert [end.can_continue for end in ends] == [turn.is_hidden for turn in turns]


@MANY
@given(st.sampled_from(PLAIN), _plain, _sizes, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_a_stream_without_our_call_passes_byte_by_byte(
    speaker: Speaker, parts: list[Part], sizes: list[int], line_end: bytes
) -> None:
    [turn] = number([*parts, Text(f"I could use {TOOL}.")])
    stream = b": comment\n".join([b"", *speaker.list_events(turn), b"\n\n"])
    stream = stream.replace(b"\n", line_end)
    assert play(speaker.form, [stream], sizes) == (stream, [RoundEnd()])


EXAMPLE = number(
    [Thought("hm"), Text("é"), Call('{"a":"ü"}'), Call("{}")],
    [Thought("and"), Call("{}")],
    [Thought("now"), Text("So"), Call('{"p":1}', "read"), Call("{}"), Call("{}", "write")],
)


def list_states(speaker: Speaker, streams: Sequence[bytes]) -> list[RoundStitcher]:
    """What stitches these rounds, as it is before each of them."""
    stitcher, states = make_stitcher(speaker.form, TOOL, is_stream=True), []
    for stream in streams:
        states.append(deepcopy(stitcher))
        stitcher.feed(stream)
        stitcher.end_round()
    return states


@SPEAKING
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_it_is_the_same_wherever_the_bytes_are_cut(speaker: Speaker, line_end: bytes) -> None:
    """Cuts inside a line are all alike, so that only some of them are tried; but the first line is cut everywhere."""
    step = 29 if line_end == b"\n" else 290  # inside a line nobody knows how it will end
    streams = [(b": a\n: b\n" + speaker.stream(turn)).replace(b"\n", line_end) for turn in EXAMPLE]
    for state, stream in zip(list_states(speaker, streams), streams, strict=True):
        uncut = deepcopy(state)
        whole = uncut.feed(stream), uncut.end_round(), uncut.finish()
        ends = {found.start() + i for found in re.finditer(rb"[\r\n]", stream) for i in range(3)}
        for at in sorted({*ends, *range(1, 60), *range(0, len(stream), step)}):
            stitcher = deepcopy(state)
            written = stitcher.feed(stream[:at]) + stitcher.feed(stream[at:])
            assert (written, stitcher.end_round(), stitcher.finish()) == whole
        written = b"".join([state.feed(bytes([byte])) for byte in stream])
        assert (written, state.end_round(), state.finish()) == whole


@SPEAKING
def test_what_has_gone_out_of_a_broken_stream_is_its_beginning(speaker: Speaker) -> None:
    streams = [speaker.stream(turn) for turn in EXAMPLE]
    whole, _ = play(speaker.form, streams)
    before = b""
    for state, stream in zip(list_states(speaker, streams), streams, strict=True):
        ends = {found.start() + i for found in re.finditer(rb"[\r\n]", stream) for i in range(2)}
        for at in sorted({*ends, *range(0, len(stream), 13)}):
            stitcher = deepcopy(state)
            broken, end = before + stitcher.feed(stream[:at]), stitcher.end_round()
            if before and not end.is_ended:  # what is held of a first round without our call passes as it is
                broken += stitcher.finish()
            assert whole.startswith(broken)
            assert TOOL.encode() not in broken
        before += deepcopy(state).feed(stream)


_JUNK: tuple[Any, ...] = (None, 1, -1, 1.5, 10**30, True, "", "x", TOOL, [], [1], [[]], {}, {"a": 1}, {"name": TOOL})


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the members and elements of a value are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in inner:
        yield (*path, key)
        yield from list_paths(member, (*path, key))


def spoil(raw: bytes, place: int, junk: Any) -> bytes:
    """A JSON text with something else in one place."""
    value = json.loads(raw)
    paths = list(list_paths(value))
    *outer, last = paths[place % len(paths)]
    holder = value
    for key in outer:
        holder = holder[key]
    holder[last] = junk
    return json.dumps(value).encode()


@MANY
@given(
    _speakers,
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.sampled_from(_JUNK)), min_size=1, max_size=4),
    st.booleans(),
)
def test_values_of_any_kind_stop_nothing(speaker: Speaker, spoilt: list[tuple[int, int, Any]], is_stream: bool) -> None:
    bodies = []
    for turn in EXAMPLE:
        events = [event for event in speaker.list_events(turn) if b"{" in event] if is_stream else []
        for at, place, junk in spoilt if is_stream else ():
            name, _, data = events[at % len(events)].partition(b"data: ")
            events[at % len(events)] = b"%bdata: %b\n\n" % (name, spoil(data, place, junk))
        bodies.append(b"".join(events) if is_stream else spoil(speaker.spell_body(turn), *spoilt[0][1:]))
    _, ends = play(speaker.form, bodies, (97,), is_stream=is_stream)
    played = [PlayedRound(end.answer, tuple(OwnResult(call.id, "x") for call in end.own[1:])) for end in ends]
    assert isinstance(restore_answer(speaker.form, TOOL, played, (b'{"role":"user"}',)), tuple)
    for end in ends:
        continue_request(speaker.form, b'{"messages":[],"input":[]}', end, played[0].results)
