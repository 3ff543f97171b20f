"""Reading what a provider sent: every digit where it can be read, nothing where it cannot, and never an exception."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Usage
from proxy.wire.json_values import MAX_DEPTH, read_count, read_object, read_objects, read_text
from proxy.wire.streams import ServerEvent, UsageNames, read_error, read_fields, read_kind


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
    read_object(text)


def test_the_plain_text_of_an_error_event_is_its_message() -> None:
    assert read_fields(ServerEvent("error", "oops")) == {"message": "oops"}
    assert read_fields(ServerEvent("error", '{"code": 1}')) == {"code": 1}
    assert read_fields(ServerEvent("ping", "oops")) is None


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
