"""Summaries as a graph."""

import pytest
from msgspec.structs import replace

from proxy.context.compaction.graph import expand, find_live, measure_ranks, says_more
from tests.support.summaries import make_summary

A, B, C = (make_summary(name, i * 10, i * 10 + 10) for i, name in enumerate("abc"))
AB = make_summary("ab", 0, 20, ("a", "b"))
ABC = make_summary("abc", 0, 30, ("ab", "c"))


def list_live(*summaries: object) -> list[str]:
    return [each.id for each in find_live(summaries)]  # type: ignore[arg-type]


def test_parents_give_way_to_what_was_made_of_them() -> None:
    assert list_live(A, B, C) == ["a", "b", "c"]
    assert list_live(A, B, C, AB) == ["ab", "c"]
    assert list_live(A, B, C, AB, ABC) == ["abc"]
    assert list_live() == []


def test_a_better_one_of_the_same_span_stands_in_its_place() -> None:
    assert list_live(A, B, make_summary("a2", 0, 10, supersedes=("a",))) == ["a2", "b"]
    assert list_live(A, B, make_summary("a2", 0, 10)) == ["a2", "b"]
    assert list_live(make_summary("wide", 0, 30), make_summary("x", 0, 20, supersedes=("wide",))) == ["x"]


def test_one_that_lies_within_another_does_not_stand_beside_it() -> None:
    assert list_live(A, B, AB, make_summary("a2", 0, 10, supersedes=("a",))) == ["ab"]
    assert list_live(A, make_summary("x", 5, 12), C) == ["a", "c"]


def test_it_expands_to_its_leaves_in_order() -> None:
    known = {each.id: each for each in (A, B, C, AB, ABC)}
    assert expand(ABC, known) == [A, B, C] and expand(A, known) == [A]
    with pytest.raises(KeyError):
        expand(ABC, {})


def test_ranks_count_the_rounds() -> None:
    assert measure_ranks([A, B, C, AB, ABC]) == {"a": 0, "b": 0, "c": 0, "ab": 1, "abc": 2}


def test_only_what_no_model_made_of_messages_says_no_more_than_a_ledger() -> None:
    assert [says_more(replace(A, level=level)) for level in (1, 2, 3)] == [True, True, False]
    assert says_more(replace(AB, level=3))
