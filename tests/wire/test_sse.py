"""Server-sent events: any bytes give some events, and the same ones however lines end."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.streams import DATA_LINE, EVENT_LINE, ServerEvent, read_events


def test_an_event_is_its_name_and_its_data() -> None:
    stream = b"event: message_stop\ndata: {}\n\ndata: next\n\n"
    assert list(read_events(stream)) == [ServerEvent("message_stop", "{}"), ServerEvent("", "next")]


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


@given(st.binary())
def test_any_bytes_can_be_read(stream: bytes) -> None:
    for event in read_events(stream):
        assert "\r" not in event.data + event.name


_texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(_texts, st.lists(_texts, min_size=1))), st.sampled_from(["\n", "\r", "\r\n"]))
def test_what_was_written_is_read_back(events: list[tuple[str, list[str]]], line_end: str) -> None:
    written = [[f"event: {name}", *(f"data: {line}" for line in data), ""] for name, data in events]
    stream = "".join(line + line_end for lines in written for line in lines).encode()
    assert list(read_events(stream)) == [ServerEvent(name, "\n".join(data)) for name, data in events]


@pytest.mark.parametrize(("field", "beginning"), [(b"data:", DATA_LINE), (b"event:", EVENT_LINE)])
def test_the_beginnings_of_lines_match_nowhere_else(field: bytes, beginning: bytes) -> None:
    pattern = re.compile(beginning + b"x")
    assert all(pattern.search(before + field + b" x") for before in (b"", b"\n", b"\r", b"\r\n", b"data: \n"))
    assert not any(pattern.search(before + field + b" x") for before in (b" ", b"a", b"\\n", b"\na", b"\x00"))
    assert pattern.search(b"\n" + field + b"x", 1)
    assert not pattern.search(b"a" + field + b"x", 1)
