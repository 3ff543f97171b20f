"""Raw objects and arrays with some of their parts exchanged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.json_values import change_members, encode_text, join_array, list_elements, read_member, set_member
from tests.support.echoes import spell, texts, values

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
    assert read_member(raw, "a") == b""


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
