"""Which reports become one."""

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.compaction.condensing import MergeCandidate, choose_run, is_progress, list_nodes
from proxy.context.compaction.graph import expand, find_live, measure_ranks
from proxy.model.summary import Summary
from tests.support.summaries import make_summary


def make_nodes(*ranks: int, leaves: int = 0) -> list[MergeCandidate]:
    return [MergeCandidate(f"{i}", i, i + 1, 100, rank, leaves or 4**rank) for i, rank in enumerate(ranks)]


def choose(nodes: list[MergeCandidate], room: int = 0) -> list[str]:
    return [node.id for node in choose_run(nodes, room)]


def test_nothing_is_merged_while_all_have_room() -> None:
    assert choose(make_nodes(0, 0, 0, 0), 400) == []
    assert choose(make_nodes(0, 0, 0, 0), 399) == ["0", "1", "2", "3"]
    assert choose([]) == [] and choose(make_nodes(0)) == []


def test_four_of_the_lowest_rank_are_merged_the_oldest_first() -> None:
    assert choose(make_nodes(1, 1, 1, 1, 0, 0, 0, 0, 0)) == ["4", "5", "6", "7"]
    assert choose(make_nodes(1, 1, 1, 1, 0, 0, 0)) == ["0", "1", "2", "3"]


def test_where_four_are_not_at_hand_others_may_do() -> None:
    assert choose(make_nodes(0, 0)) == ["0", "1"]
    assert choose(make_nodes(2, 0, 0, 0)) == ["1", "2", "3"]
    assert choose(make_nodes(1, 0)) == ["0", "1"]


def test_nothing_is_merged_deeper_than_its_leaves_justify() -> None:
    assert choose(make_nodes(3, 0, leaves=1)) == []
    assert choose(make_nodes(3, 0, leaves=8)) == ["0", "1"]


def test_only_neighbours_are_merged() -> None:
    nodes = make_nodes(0, 0, 0, 0)
    assert choose([nodes[0], nodes[2], nodes[3]]) == ["2", "3"]
    assert choose([nodes[0], nodes[2]]) == []


@pytest.mark.parametrize(("tokens", "is_one"), [(199, True), (200, False), (500, False)])
def test_progress_is_to_be_smaller_than_all_together(tokens: int, is_one: bool) -> None:
    assert is_progress(make_nodes(0, 0), tokens) == is_one


def grow(sizes: list[int], room: int, ratio: float) -> list[Summary]:
    """A session with leaves of such sizes, condensed after each as far as its room needs it."""
    made: list[Summary] = []
    at = 0
    for size in sizes:
        made.append(make_summary(f"leaf{at}", at, at + size, tokens=100))
        at += size
        while run := choose_run(list_nodes(find_live(made), {each.id: each for each in made}), room):
            tokens = int(ratio * sum(node.tokens for node in run))
            assert is_progress(run, tokens)
            parents = tuple(node.id for node in run)
            made.append(make_summary(f"node{len(made)}", run[0].start, run[-1].stop, parents, tokens))
    return made


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(3, 50), min_size=1, max_size=60), st.sampled_from([0, 150, 450, 1500]), st.floats(0.1, 0.9))
def test_every_node_expands_to_exactly_the_messages_it_covers(sizes: list[int], room: int, ratio: float) -> None:
    made = grow(sizes, room, ratio)
    known = {each.id: each for each in made}
    for each in made:
        leaves = expand(each, known)
        assert [leaf.start for leaf in leaves[1:]] == [leaf.stop for leaf in leaves[:-1]]
        assert (leaves[0].start, leaves[-1].stop) == (each.start, each.stop)
    live = find_live(made)
    assert [each.start for each in live] == [0, *(each.stop for each in live[:-1])]
    assert live[-1].stop == sum(sizes)


@pytest.mark.parametrize(("leaves", "room"), [(500, 450), (200, 0), (200, 1500)])
def test_the_depth_grows_with_the_logarithm_of_the_leaves(leaves: int, room: int) -> None:
    made = grow([3] * leaves, room, 0.4)
    assert max(measure_ranks(made).values()) <= log(leaves, 4) + 2
    assert len(find_live(made)) <= 30


def test_one_whose_parents_nobody_knows_counts_as_a_leaf() -> None:
    lost = make_summary("c", 0, 9, ("a", "b"))
    (node,) = list_nodes([lost], {"c": lost})
    assert (node.rank, node.leaves) == (1, 1)
