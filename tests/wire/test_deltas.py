"""Values that grow by fragments."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.streams import IndexedSlots, finish, finish_object, merge, set_members


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
