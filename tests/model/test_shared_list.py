"""Sequences that share what they begin with: each sees its own elements, whoever goes on from where."""

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.shared_list import SharedList, count_common, extend_shared

steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(), max_size=4)), max_size=12)


@given(steps)
def test_nobody_sees_what_another_has_added(steps: list[tuple[int, int, list[int]]]) -> None:
    made: list[tuple[Sequence[int], list[int]]] = [((7, 8), [7, 8])]
    for whose, kept, more in steps:
        growing, expected = made[whose % len(made)]
        count = kept % (len(expected) + 1)
        made.append((extend_shared(growing, count, more), [*expected[:count], *more]))
    for growing, expected in made:
        assert list(growing) == list(growing[:]) == expected
        assert list(reversed(growing)) == expected[::-1]


@given(steps)
def test_what_is_held_but_once_is_the_same(steps: list[tuple[int, int, list[int]]]) -> None:
    made: list[Sequence[int]] = [(7, 8)]
    for whose, kept, more in steps:
        known = made[whose % len(made)]
        made.append(extend_shared(known, kept % (len(known) + 1), more))
    for one in made:
        for other in made:
            count = count_common(one, other)
            assert count == count_common(other, one) <= min(len(one), len(other))
            assert list(one[:count]) == list(other[:count])


def test_what_goes_on_in_place_has_all_of_it_in_common_and_a_copy_nothing() -> None:
    first = SharedList(list(range(9)))
    second = first.extend(9, [9])
    assert (count_common(first, second), count_common(second, first), count_common(first, first)) == (9, 9, 9)
    assert count_common(first, second.extend(8, [7])) == 0
    assert (count_common(known := (1, 2), known), count_common((1, 2), [1, 2]), count_common(first, range(9))) == (
        2,
        0,
        0,
    )


@given(st.lists(st.integers(), max_size=6), st.slices(6), st.integers(-8, 8))
def test_it_is_read_like_a_list_that_ends_where_it_does(elements: list[int], part: slice, at: int) -> None:
    growing = SharedList(list(elements))
    growing.extend(len(elements), [1, 2, 3])
    assert (len(growing), bool(growing), growing[part]) == (len(elements), bool(elements), elements[part])
    if -len(elements) <= at < len(elements):
        assert growing[at] == elements[at]
    else:
        with pytest.raises(IndexError):
            growing[at]


def test_what_goes_on_from_the_end_shares_the_list_and_what_goes_on_beside_it_does_not() -> None:
    first = SharedList([1])
    made = [first, first.extend(1, [2]), first.extend(1, [3])]
    assert [a._shared is b._shared for a, b in pairwise(made)] == [True, False]


def test_equal_are_those_of_equal_elements() -> None:
    one = SharedList([1])
    one.extend(1, [2])
    assert one == SharedList([1]) != SharedList([1, 2])
    assert [1] == one == (1,)
    assert one not in ([2], 1)
    assert repr(one) == "SharedList([1])"


def test_whoever_keeps_a_short_beginning_does_not_keep_a_long_end() -> None:
    class Element:
        pass

    beginning = SharedList([Element()])
    elements = [Element() for _ in range(100)]
    gone = weakref.ref(elements[-1])
    longer = beginning.extend(1, elements)
    assert len(longer) == 101
    del elements, longer
    gc.collect()
    assert gone() is None
