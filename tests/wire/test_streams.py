"""Server-sent events, and what fragments and errors in them add up to."""

import json
import math
import re
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Usage
from proxy.wire.json_values import MAX_DEPTH, read_count, read_object, read_objects, read_text
from proxy.wire.streams import (
    DATA_LINE,
    EVENT_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    finish,
    finish_object,
    merge,
    read_error,
    read_events,
    read_kind,
    set_members,
)


def test_an_event_is_its_name_and_its_data() -> None:
    stream = b"event: message_stop\ndata: {}\n\ndata: next\n\n"
    assert list(read_events(stream)) == [ServerEvent("message_stop", "{}", {}), ServerEvent("", "next")]


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_with_cr_lf_or_both(line_end: bytes) -> None:
    stream = b"event: a\ndata: 1\ndata: 2\n\ndata: 3\n\n".replace(b"\n", line_end)
    assert list(read_events(stream)) == [ServerEvent("a", "1\n2"), ServerEvent("", "3")]


def test_one_space_after_the_colon_is_not_part_of_the_value() -> None:
    assert list(read_events(b"event:a\ndata:  b\n\n")) == [ServerEvent("a", " b")]


def test_comments_and_other_fields_are_passed_over() -> None:
    stream = b": OPENROUTER PROCESSING\n\nid: 7\nretry: 3\ndata: x\n: ping\ndatax: y\n\n"
    assert list(read_events(stream)) == [ServerEvent("", "x")]


def test_an_event_without_data_is_none_and_leaves_no_name_behind() -> None:
    assert list(read_events(b"event: ping\n\ndata: x\n\n")) == [ServerEvent("", "x")]


def test_a_data_line_without_a_value_counts_as_empty_data() -> None:
    assert list(read_events(b"data\n\ndata:\ndata:\n\n")) == [ServerEvent("", ""), ServerEvent("", "\n")]


def test_a_last_event_without_its_blank_line_counts() -> None:
    stream = b"data: a\n\nevent: b\ndata: 1\ndata: cut of"
    assert list(read_events(stream)) == [ServerEvent("", "a"), ServerEvent("b", "1\ncut of")]


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_the_first_line() -> None:
    assert list(read_events("\ufeffdata: a\ufeff\n\n".encode())) == [ServerEvent("", "a\ufeff")]


def test_separators_that_only_unicode_calls_line_ends_stay_inside_the_data() -> None:
    text = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg"
    assert list(read_events(f"data: {text}\n\n".encode())) == [ServerEvent("", text)]


def test_broken_utf8_is_replaced_and_does_not_swallow_the_line_end() -> None:
    assert list(read_events(b"data: \xe2\x82\ndata: \xff\n\n")) == [ServerEvent("", "\ufffd\n\ufffd")]


def test_a_line_of_many_fields_takes_no_longer_than_others() -> None:
    """Looked for at each place of the line, an event would be looked for until the end of the line each time."""
    assert [len(event.data) for event in read_events(b"data: " * 100_000)] == [6 * 99_999]


@given(st.binary())
def test_any_bytes_can_be_read(stream: bytes) -> None:
    for event in read_events(stream):
        assert "\r" not in event.data + event.name


_texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(_texts, st.lists(_texts, min_size=1))), st.sampled_from(["\n", "\r", "\r\n"]))
def test_what_was_written_is_read_back(events: list[tuple[str, list[str]]], line_end: str) -> None:
    written = [[f"event: {name}", *(f"data: {line}" for line in data), ""] for name, data in events]
    stream = "".join(line + line_end for lines in written for line in lines).encode()
    assert [(event.name, event.data) for event in read_events(stream)] == [
        (name, "\n".join(data)) for name, data in events
    ]


_odd_texts = st.sampled_from(
    [
        "",
        "[DONE]",
        "oops",
        "7",
        ' {"a":1}',
        '{"a":1',
        '{"a":1}{',
        '{"a":"\\ud800"}',
        f'{{"a":{"9" * 40}}}',
        '{"a":1e400}',
    ]
    + ['{"a":' * depth + "1" + "}" * depth for depth in (MAX_DEPTH, MAX_DEPTH + 1, 300)]
)


@given(
    st.lists(st.dictionaries(_texts, st.integers() | st.floats(allow_nan=False) | _texts).map(json.dumps) | _odd_texts)
)
def test_each_event_has_the_object_in_its_data(texts: list[str]) -> None:
    events = read_events("".join(f"data: {text}\n\n" for text in texts).encode())
    assert repr([(event.data, event.value) for event in events]) == repr([(text, read_object(text)) for text in texts])


@pytest.mark.parametrize(("field", "beginning"), [(b"data:", DATA_LINE), (b"event:", EVENT_LINE)])
def test_the_beginnings_of_lines_match_nowhere_else(field: bytes, beginning: bytes) -> None:
    pattern = re.compile(beginning + b"x")
    assert all(pattern.search(before + field + b" x") for before in (b"", b"\n", b"\r", b"\r\n", b"data: \n"))
    assert not any(pattern.search(before + field + b" x") for before in (b" ", b"a", b"\\n", b"\na", b"\x00"))
    assert pattern.search(b"\n" + field + b"x", 1)
    assert not pattern.search(b"a" + field + b"x", 1)


def put_together(*fragments: dict[str, object]) -> dict[str, object]:
    held: dict[str, object] = {}
    for fragment in deepcopy(fragments):
        merge(held, fragment)
    return finish_object(held)


@pytest.mark.parametrize(
    ("fragments", "whole"),
    [
        (["a", "b", "c"], "abc"),
        ([None, "a", None, "b"], "ab"),
        (["", None], ""),
        ([None, None], None),
        ([1, 2], 2),
        ([True, False], False),
        ([["a"], ["b", 1]], ["a", "b", 1]),
        ([{"b": "x"}, {"b": "y", "c": 1}], {"b": "xy", "c": 1}),
        ([{"b": {"c": "x"}}, {"b": {"c": "y"}}], {"b": {"c": "xy"}}),
        (["a", 1], 1),
        (["a", "b", {"c": "x"}], {"c": "x"}),
        ([{"c": "x"}, "a"], "a"),
        ([["a"], 1], 1),
        ([1, ["a"]], ["a"]),
        ([["a"], ""], ["a"]),
        ([["a"], "b", "c"], ["a", {"type": "text", "text": "bc"}]),
        (["a", "b", [{"type": "image"}]], [{"type": "text", "text": "ab"}, {"type": "image"}]),
        (["", [{"type": "text", "text": "a"}], "b"], [{"type": "text", "text": "ab"}]),
    ],
)
def test_a_member_grows_by_its_kind(fragments: list[object], whole: object) -> None:
    assert put_together(*({"a": fragment} for fragment in fragments)) == {"a": whole}


def test_elements_of_the_same_index_are_one() -> None:
    first: list[object] = [{"index": 0, "t": "a"}, {"index": 1, "t": "x"}, {"index": 0, "t": "b"}]
    assert put_together({"l": first}, {"l": [{"index": 1, "t": "y"}, {"t": "no index"}]}) == {
        "l": [{"index": 0, "t": "ab"}, {"index": 1, "t": "xy"}, {"t": "no index"}]
    }


def test_elements_of_the_same_index_and_another_type_are_two() -> None:
    fragments: list[object] = [{"index": 0, "type": kind, "t": kind} for kind in "aabb"]
    untyped = {"index": 0, "t": "!"}
    assert put_together({"l": [untyped]}, {"l": [{"index": 0, "type": "a", "t": "a"}]}) == {
        "l": [{"index": 0, "type": "a", "t": "!a"}]
    }
    assert put_together({"l": fragments}, {"l": [untyped]}) == {
        "l": [{"index": 0, "type": "a", "t": "aa"}, {"index": 0, "type": "b", "t": "bb!"}]
    }


def test_an_index_that_is_no_number_places_nothing() -> None:
    assert put_together({"l": [{"index": True}, {"index": True}]}) == {"l": [{"index": True}, {"index": True}]}


def test_a_list_that_was_held_whole_goes_on() -> None:
    held: dict[str, object] = {"l": [{"index": 0, "t": "a"}], "m": ["a"]}
    merge(held, {"l": [{"index": 0, "t": "b"}], "m": "b"})
    assert finish(held) == {"l": [{"index": 0, "t": "ab"}], "m": ["a", {"type": "text", "text": "b"}]}


def test_identifying_members_are_taken_once() -> None:
    known: dict[str, object] = {"id": "a", "type": "b", "role": "c", "name": "d", "format": "e"}
    empty: dict[str, object] = dict.fromkeys(known, "")
    assert put_together(empty, dict.fromkeys(known), known, known, empty) == known


def test_the_last_member_that_says_something_is_kept() -> None:
    held: dict[str, object] = {"a": "x", "b": 1, "c": {"d": 1}}
    set_members(held, {"a": "", "b": 0, "c": {}, "e": None})
    assert held == {"a": "x", "b": 0, "c": {"d": 1}, "e": None}
    set_members(held, {"a": "y", "b": False, "e": "z"})
    assert held == {"a": "y", "b": False, "c": {"d": 1}, "e": "z"}


def test_things_are_in_the_order_of_their_places_and_the_newest_is_found() -> None:
    places = IndexedSlots[str]()
    for index, thing in [(2, "c"), (0, "a"), (2, "d")]:
        assert places.put(index, thing) == thing
    assert places.ordered() == ["a", "c", "d"]
    assert (places.get(2), places.get(0), places.get(1)) == ("d", "a", None)


def test_a_missing_index_is_the_last_one_again() -> None:
    places = IndexedSlots[str]()
    assert [places.locate(index) for index in (None, 3, None, "x", True, 0, None)] == [0, 3, 3, 3, 3, 0, 0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("ab"), JSON))
def test_one_fragment_is_itself(fragment: dict[str, object]) -> None:
    assert put_together(fragment) == fragment


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "index", "type"]), JSON), max_size=4))
def test_what_is_settled_stays_as_it_is(fragments: list[dict[str, object]]) -> None:
    whole = put_together(*fragments)
    assert finish(whole) == whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": 1e400}', {"a": math.inf}),
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
        ('{"a": "\ud800"}', {"a": "\ud800"}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ("[1]", None),
        ("null", None),
        ('"{}"', None),
        ("{} {}", None),
        ("", None),
        ('{"a": ' + "9" * 5000 + "}", None),
    ],
)
def test_an_object_is_read_as_it_stands(text: str, value: object) -> None:
    assert read_object(text) == value


def nest(depth: int, left: str, right: str) -> str:
    return '{"a":' + left * (depth - 1) + right * (depth - 1) + "}"


def test_an_object_is_read_up_to_a_depth_that_renderers_bear() -> None:
    assert read_object(nest(MAX_DEPTH, "[", "]")) is not None
    assert read_object(nest(MAX_DEPTH + 1, "[", "]")) is None
    assert read_object('{"b":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH) is not None
    assert read_object('{"b":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)) is None
    assert read_object(nest(100_000, "[", "]")) is None


def test_brackets_side_by_side_or_in_strings_make_no_depth() -> None:
    assert read_object(json.dumps({"a": "[" * 500, "b": [[], {}] * 500})) == {"a": "[" * 500, "b": [[], {}] * 500}


values = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_any_object_is_read_as_the_standard_library_reads_it(value: dict[str, object]) -> None:
    assert read_object(json.dumps(value)) == value


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(read_object(text), dict | None)


def test_the_plain_text_of_an_error_event_is_its_message() -> None:
    assert [event.value for event in read_events(b"event: error\ndata: oops\n\n")] == [{"message": "oops"}]
    assert [event.value for event in read_events(b'event: error\ndata: {"code": 1}\n\n')] == [{"code": 1}]
    assert [event.value for event in read_events(b"event: ping\ndata: oops\n\n")] == [None]


def test_an_event_is_of_its_type_or_else_of_its_name() -> None:
    assert read_kind(ServerEvent("name", ""), {"type": "type"}) == "type"
    assert read_kind(ServerEvent("name", ""), {"type": None}) == "name"


def test_what_is_of_another_kind_says_nothing() -> None:
    assert read_objects([{"a": 1}, 7, None, []]) == [{"a": 1}]
    assert read_objects({"a": 1}) == []
    assert (read_text("a"), read_text(None), read_text(7)) == ("a", "", "")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (7, 7),
        (7.0, 7),
        (2**63 - 1, 2**63 - 1),
        (2**63, None),
        (1e300, None),
        (-1, None),
        (7.5, None),
        (math.inf, None),
        (math.nan, None),
        (True, None),
        ("7", None),
        (None, None),
    ],
)
def test_a_count_is_a_whole_number_that_a_database_can_hold(value: object, count: int | None) -> None:
    assert read_count(value) == count


def test_a_count_is_taken_from_the_first_name_that_has_one() -> None:
    names = UsageNames(input=("in.all", "in"), output=("out",))
    assert names.read({"in": {"all": 3}, "out": 4}) == Usage(input=3, output=4)
    assert names.read({"in": 5}) == Usage(input=5)
    assert names.read({"in": {"all": 0}}) == Usage(input=0)
    assert names.read({"in": {"all": None}}) is None
    assert names.read([]) is None


def test_an_object_known_to_be_an_error_says_what_it_can() -> None:
    assert read_error({"message": "m"}) == ""
    assert read_error({"message": "m"}, is_error=True) == "m"
    assert read_error({"message": "", "code": 0}, is_error=True) == "0"
    assert read_error({}, is_error=True) == "error without a message"
