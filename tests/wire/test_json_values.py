"""JSON that others sent: lenient reading, the canonical encoding, and editing raw bytes."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.json_values import (
    JSON_ERRORS,
    MAX_DEPTH,
    change_members,
    drop_markers,
    encode_canonical,
    encode_text,
    join_array,
    list_elements,
    load_json,
    normalize_arguments,
    normalize_object,
    read_member,
    read_object,
    set_member,
)
from tests.support.echoes import inputs, spell, spell_like_javascript, texts, values

randoms = st.randoms(use_true_random=False)


@given(values, randoms)
def test_every_spelling_of_a_value_has_the_same_bytes(value: object, random: Random) -> None:
    assert encode_canonical(load_json(spell_like_javascript(value, random))) == encode_canonical(
        load_json(json.dumps(value))
    )


@given(values, values)
def test_values_that_differ_have_different_bytes(one: object, other: object) -> None:
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (encode_canonical(load_json(json.dumps(one))) == encode_canonical(load_json(json.dumps(other)))) == is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.0", "1"),
        ("1e3", "1000"),
        ("-0.0", "0"),
        ("1e21", "1000000000000000000000"),
        ("0.10", "1e-1"),
        ('{"b":1,"a":[ 2 ]}', '{"a":[2],"b":1.0}'),
        ('"\\u00e9\\/"', '"é/"'),
        ('{"\\ud800":"é","a":1}', '{"a":1.0,"\\ud800":"\\u00e9"}'),
    ],
)
def test_spellings_of_the_same(one: str, other: str) -> None:
    assert encode_canonical(load_json(one)) == encode_canonical(load_json(other.encode()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740993", "9007199254740992"),
        ("1" * 40, "1" * 39 + "2"),
        ("9" * 4000, "9" * 3999 + "8"),
        ("1e400", "null"),
        ("1e400", "-1e400"),
        ("NaN", "null"),
        ("Infinity", '"Infinity"'),
        ("1", "true"),
        ("1", '"1"'),
        ('"\\ud800"', '"\\ud801"'),
        ('"\\ud800"', '"\\\\ud800"'),
        ("{}", "[]"),
        ('"a"', '"a "'),
        ("[[1],2]", "[1,[2]]"),
    ],
)
def test_different_values(one: str, other: str) -> None:
    assert encode_canonical(load_json(one)) != encode_canonical(load_json(other))


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", '"\n"', "1 2", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, b'"\xff"', '["\\ud800",1e400]'],
)
def test_what_has_no_spelling_is_refused_in_one_way(text: str | bytes) -> None:
    with pytest.raises(JSON_ERRORS):
        encode_canonical(load_json(text))


@given(inputs, randoms)
def test_arguments_are_compared_as_json(value: object, random: Random) -> None:
    settled = normalize_arguments(json.dumps(value))
    assert (
        settled
        == normalize_arguments(spell_like_javascript(value, random))
        == normalize_arguments(load_json(json.dumps(value)))
    )
    assert isinstance(settled, bytes)


@pytest.mark.parametrize("end", ["1", '"\\ud800"'])
def test_values_may_be_as_deep_as_answers(end: str) -> None:
    deep = "[" * MAX_DEPTH + end + "]" * MAX_DEPTH
    assert encode_canonical(load_json(deep)) == deep.encode()
    for text in (f"[{deep}]", "[" * 900 + end + "]" * 900):
        with pytest.raises(ValueError, match="too deep"):
            encode_canonical(load_json(text))
    assert encode_canonical("[" * 1000) == b'"%b"' % (b"[" * 1000)


def test_pruning_goes_as_deep_and_no_deeper() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value}
    assert drop_markers(value) == value
    with pytest.raises(ValueError, match="too deep"):
        drop_markers([value])


def test_no_arguments_are_an_empty_object() -> None:
    assert (
        normalize_arguments("")
        == normalize_arguments(None)
        == normalize_arguments("{}")
        == normalize_arguments({})
        == b"{}"
    )


@pytest.mark.parametrize("text", ['{"a": "cut', "ls -la", " ", '{"a":1}}', "[" * 100_000])
def test_arguments_that_are_not_json_stay_a_string(text: str) -> None:
    assert normalize_arguments(text) == text


def test_pruning_takes_markers_and_nulls_except_from_a_tools_input() -> None:
    part = {
        "type": "image",
        "cache_control": {"type": "ephemeral"},
        "detail": None,
        "source": [{"cache_control": None, "data": "x", "list": [None, 1]}],
        "input": {"cache_control": 1, "none": None},
        "arguments": {"cache_control": 2},
    }
    assert drop_markers(part) == {
        "type": "image",
        "source": [{"data": "x", "list": [None, 1]}],
        "input": {"cache_control": 1, "none": None},
        "arguments": {"cache_control": 2},
    }


def test_a_whole_object_is_less_the_named_members_of_its_own() -> None:
    assert normalize_object({"id": 1, "b": {"id": 2}, "status": 3}, "id", "status") == b'{"b":{"id":2}}'
    assert normalize_object(["id"], "id") == b'["id"]'


RAW = b' { "a" : 1.0,"b":[1,  {"c":"x,y"}] , "d\\u0065":null } '
objects = st.dictionaries(texts, values, max_size=4)


def test_members_are_changed_and_left_out_and_the_others_keep_their_bytes() -> None:
    changed = change_members(RAW, lambda name, value: {"a": b"2", "de": None}.get(name, value))
    assert changed == b'{"a" : 2,"b":[1,  {"c":"x,y"}]}'


def test_a_member_is_set_in_its_place_or_at_the_end() -> None:
    assert set_member(RAW, "a", b"2") == RAW.replace(b"1.0", b"2")
    assert set_member(b'{ "a":1 } ', "b", b"2") == b'{ "a":1,"b":2}'
    assert set_member(b"{ }", "b", b"2") == b'{"b":2}'


def test_a_member_is_read() -> None:
    assert (read_member(RAW, "b"), read_member(RAW, "x")) == (b'[1,  {"c":"x,y"}]', b"")


def test_an_array_is_taken_apart() -> None:
    assert list_elements(read_member(RAW, "b")) == [b"1", b'{"c":"x,y"}']
    assert join_array([b"1", b"2"]) == b"[1,2]"
    assert list_elements(b'["%b"]' % (b"," * 2_000_000)) != []


@pytest.mark.parametrize("raw", [b"", b"[1]", b'{"a":1,"a":2}', b"{", b"\xff"])
def test_what_cannot_be_taken_apart_stays_whole(raw: bytes) -> None:
    assert change_members(raw, lambda _name, _value: None) == raw
    assert set_member(raw, "a", b"1") == raw


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"\xff"])
def test_what_is_no_object_has_no_members(raw: bytes) -> None:
    assert read_member(raw, "a") == b""


def test_of_several_members_with_one_name_the_last_is_read() -> None:
    raw = b'{"a":1,"a":2}'
    assert read_object(raw.decode()) == {"a": 2}
    assert read_member(raw, "a") == b"2"


def test_json_that_is_not_strict_is_taken_apart() -> None:
    raw = b'{"a":["\\ud800", NaN]}'
    assert list_elements(read_member(raw, "a")) == [b'"\\ud800"', b"NaN"]


@pytest.mark.parametrize("raw", [b"", b'"x"', b"{}", b"[1", b'1,"a":2'])
def test_what_is_no_array_has_no_elements(raw: bytes) -> None:
    assert list_elements(raw) == []


@given(objects, texts, values, st.randoms())
def test_a_set_member_is_the_only_one_that_differs(value: dict[str, Any], name: str, new: object, random: Any) -> None:
    raw = spell(value, random).encode()
    spelled = json.loads(encode_text(name))
    assert spelled == name
    assert json.loads(set_member(raw, name, json.dumps(new).encode())) == {**value, name: new}


@given(st.lists(values, max_size=4), st.randoms())
def test_an_array_is_the_same_when_put_together(value: list[object], random: Any) -> None:
    assert json.loads(join_array(list_elements(spell(value, random).encode()))) == value


def test_a_text_without_an_encoding_is_spelled_all_the_same() -> None:
    assert encode_text("\ud800é") == b'"\\ud800\\u00e9"'
