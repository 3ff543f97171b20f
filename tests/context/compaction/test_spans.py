from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.context.compaction.spans import (
    MergeCandidate,
    MessageRange,
    choose_merge,
    choose_span,
    compute_max_span,
    compute_ranks,
    is_merge_smaller,
    is_worth_sending,
    list_live_summaries,
    list_merge_candidates,
)
from proxy.context.conversation import BuilderPolicy, ConversationIndex, index_conversation
from proxy.context.message_features import extract_features
from proxy.model.epoch import Summary
from tests.support.examples import examples
from tests.support.summaries import list_leaves, make_summary
from tests.support.views import RawMessage, act, call, result, said, user, view


def look(messages: list[RawMessage]) -> ConversationIndex:
    return index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)


def work(n: int, output: str = "x" * 40) -> list[RawMessage]:
    """So many groups of a call and its result."""
    return [message for i in range(n) for message in act(f"{i}", f"ls {i}", output)]


def choose(
    messages: list[RawMessage], begin: int = 0, most: int = 10**6, end: int | None = None
) -> tuple[int, int] | None:
    span = choose_span(look(messages), begin, most, end)
    return (span.start, span.stop) if span else None


TURNS = [user("one"), *work(3), user("two"), *work(3), user("three"), *work(3), user("four"), *work(4)]
LONG_TURNS = [user("one"), *work(9), user("two"), *work(14), user("three"), *work(1), user("four"), *work(4)]


def test_finished_turns_are_taken_whole() -> None:
    assert choose(LONG_TURNS) == (0, 48)
    assert choose(TURNS, most=120) == (0, 10)
    assert choose_span(look(TURNS), 0, 120) == MessageRange(
        0, 10, sum(each.tokens for each in look(TURNS).messages[:10])
    )


def test_where_too_little_of_it_is_finished_groups_are_taken_beyond() -> None:
    assert choose(TURNS) == (0, 24)


def test_the_next_one_begins_where_the_last_one_ended() -> None:
    assert choose(LONG_TURNS, 19) == (19, 48)
    assert choose(TURNS, 7) == (7, 24)


def test_it_ends_where_it_is_told_to_and_splits_no_group() -> None:
    assert choose(TURNS, end=16) == (0, 14)
    assert choose(TURNS, end=7) == (0, 7)
    assert choose(TURNS, end=10**6) == choose(TURNS)
    assert choose(TURNS, 7, end=9) == (7, 10)
    assert choose(TURNS, 7, end=8) is None


def test_a_long_turn_gives_its_groups_though_it_is_the_newest() -> None:
    messages = [user("go"), *work(10)]
    assert choose(messages) == (0, 15)
    assert choose(messages, 9) == (9, 15)
    assert choose(messages, 13) is None
    messages = [user("one"), said("yes"), user("two"), *work(10)]
    assert choose(messages) == (0, 17)


def test_a_small_turn_is_not_taken_alone_where_groups_are_worth_more() -> None:
    old = [user("one"), said("a"), user("two"), said("b"), said("c")]
    assert choose([*old, user("three"), said("d"), user("four"), *work(20)]) == (0, 42)


def test_in_a_conversation_without_calls_the_two_newest_turns_are_out_of_scope() -> None:
    chat = [message for i in range(4) for message in (user(f"q{i}"), said("a" * 900))]
    assert choose(chat) == (0, 4)
    assert choose(chat[2:]) is None


def test_what_is_fresh_and_the_newest_three_groups_stay() -> None:
    assert choose([user("go"), *work(4)]) == (0, 3)
    assert choose([user("go"), *work(3)]) is None
    assert choose([]) is None
    assert choose(TURNS, 10**6) is None


def test_three_messages_at_least_are_taken_however_large() -> None:
    messages = [user("go"), *work(10, "x" * 4000)]
    assert choose(messages, most=10) == (0, 3)
    assert choose(messages, most=2200) == (0, 5)


def test_a_quarter_of_the_window_less_output_is_kept_free() -> None:
    assert compute_max_span(100_000, 20_000) == 60_000
    assert compute_max_span(1000, 8000) == 0


_steps = st.lists(st.tuples(st.sampled_from(["user", "said", "call", "calls"]), st.integers(1, 400)), max_size=30)


@given(_steps, st.integers(0, 40), st.integers(0, 3000))
def test_no_group_is_split_and_nothing_new_is_taken(steps: list[tuple[str, int]], begin: int, most: int) -> None:
    messages = [user("begin")]
    for i, (kind, size) in enumerate(steps):
        text = "x" * size
        if kind == "user":
            messages.append(user(text))
        elif kind == "said":
            messages.append(said(text))
        elif kind == "call":
            messages += act(f"c{i}", "ls", text)
        else:
            messages.append(call(f"c{i}", text))
            messages[-1]["tool_calls"] += call(f"d{i}", "ls")["tool_calls"]
            messages += [result(f"c{i}", text), result(f"d{i}", f"{i}")]
    seen = look(messages)
    span = choose_span(seen, begin, most)
    if span is None:
        return
    edges = {step.start for step in seen.steps} | {step.stop for step in seen.steps}
    calling = [step for step in seen.steps if step.has_calls]
    assert {span.start, span.stop} <= edges and span.start >= begin
    assert span.stop - span.start >= 3
    assert all(span.stop <= step.start for step in calling[-3:])
    assert seen.fresh == len(seen.steps) or span.stop <= seen.steps[seen.fresh].start
    assert span.tokens == sum(each.tokens for each in seen.messages[span.start : span.stop])
    inside = [step for step in seen.steps if span.start <= step.start < span.stop]
    before = sum(step.stop - step.start for step in inside[:-1])
    assert span.tokens <= most or before < 3


@pytest.mark.parametrize("begin", range(15))
def test_a_place_inside_a_group_counts_as_its_end(begin: int) -> None:
    span = choose([user("go"), *work(10)], begin)
    assert span is None or span[0] == (begin if begin == 0 or begin % 2 else begin + 1)


A, B, C = (make_summary(name, i * 10, i * 10 + 10) for i, name in enumerate("abc"))
AB = make_summary("ab", 0, 20, ("a", "b"))
ABC = make_summary("abc", 0, 30, ("ab", "c"))


def list_live(*summaries: object) -> list[str]:
    return [each.id for each in list_live_summaries(summaries)]  # type: ignore[arg-type]


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


def test_ranks_count_the_rounds() -> None:
    assert compute_ranks([A, B, C, AB, ABC]) == {"a": 0, "b": 0, "c": 0, "ab": 1, "abc": 2}


def test_only_what_no_model_made_of_messages_says_no_more_than_a_ledger() -> None:
    assert [is_worth_sending(replace(A, level=level)) for level in (1, 2, 3)] == [True, True, False]
    assert is_worth_sending(replace(AB, level=3))


def make_nodes(*ranks: int, leaves: int = 0) -> list[MergeCandidate]:
    return [MergeCandidate(f"{i}", i, i + 1, 100, rank, leaves or 4**rank) for i, rank in enumerate(ranks)]


def choose_candidates(nodes: list[MergeCandidate], room: int = 0) -> list[str]:
    return [node.id for node in choose_merge(nodes, room)]


def test_nothing_is_merged_while_all_have_room() -> None:
    assert choose_candidates(make_nodes(0, 0, 0, 0), 400) == []
    assert choose_candidates(make_nodes(0, 0, 0, 0), 399) == ["0", "1", "2", "3"]
    assert choose_candidates([]) == [] and choose_candidates(make_nodes(0)) == []


def test_four_of_the_lowest_rank_are_merged_the_oldest_first() -> None:
    assert choose_candidates(make_nodes(1, 1, 1, 1, 0, 0, 0, 0, 0)) == ["4", "5", "6", "7"]
    assert choose_candidates(make_nodes(1, 1, 1, 1, 0, 0, 0)) == ["0", "1", "2", "3"]


def test_where_four_are_not_at_hand_others_may_do() -> None:
    assert choose_candidates(make_nodes(0, 0)) == ["0", "1"]
    assert choose_candidates(make_nodes(2, 0, 0, 0)) == ["1", "2", "3"]
    assert choose_candidates(make_nodes(1, 0)) == ["0", "1"]


def test_nothing_is_merged_deeper_than_its_leaves_justify() -> None:
    assert choose_candidates(make_nodes(3, 0, leaves=1)) == []
    assert choose_candidates(make_nodes(3, 0, leaves=8)) == ["0", "1"]


def test_only_neighbours_are_merged() -> None:
    nodes = make_nodes(0, 0, 0, 0)
    assert choose_candidates([nodes[0], nodes[2], nodes[3]]) == ["2", "3"]
    assert choose_candidates([nodes[0], nodes[2]]) == []


@pytest.mark.parametrize(("tokens", "is_one"), [(199, True), (200, False), (500, False)])
def test_progress_is_to_be_smaller_than_all_together(tokens: int, is_one: bool) -> None:
    assert is_merge_smaller(make_nodes(0, 0), tokens) == is_one


def grow(sizes: list[int], room: int, ratio: float) -> list[Summary]:
    """A session with leaves of such sizes, condensed after each as far as its room needs it."""
    made: list[Summary] = []
    at = 0
    for size in sizes:
        made.append(make_summary(f"leaf{at}", at, at + size, tokens=100))
        at += size
        while run := choose_merge(
            list_merge_candidates(list_live_summaries(made), {each.id: each for each in made}), room
        ):
            tokens = int(ratio * sum(node.tokens for node in run))
            assert is_merge_smaller(run, tokens)
            parents = tuple(node.id for node in run)
            made.append(make_summary(f"node{len(made)}", run[0].start, run[-1].stop, parents, tokens))
    return made


@examples(25)
@given(st.lists(st.integers(3, 50), min_size=1, max_size=60), st.sampled_from([0, 150, 450, 1500]), st.floats(0.1, 0.9))
def test_every_node_expands_to_exactly_the_messages_it_covers(sizes: list[int], room: int, ratio: float) -> None:
    made = grow(sizes, room, ratio)
    known = {each.id: each for each in made}
    for each in made:
        leaves = list_leaves(each, known)
        assert [leaf.start for leaf in leaves[1:]] == [leaf.stop for leaf in leaves[:-1]]
        assert (leaves[0].start, leaves[-1].stop) == (each.start, each.stop)
    live = list_live_summaries(made)
    assert [each.start for each in live] == [0, *(each.stop for each in live[:-1])]
    assert live[-1].stop == sum(sizes)


@pytest.mark.no_cover
@pytest.mark.parametrize(("leaves", "room"), [(500, 450), (200, 0), (200, 1500)])
def test_the_depth_grows_with_the_logarithm_of_the_leaves(leaves: int, room: int) -> None:
    made = grow([3] * leaves, room, 0.4)
    assert max(compute_ranks(made).values()) <= log(leaves, 4) + 2
    assert len(list_live_summaries(made)) <= 30


def test_one_whose_parents_nobody_knows_counts_as_a_leaf() -> None:
    lost = make_summary("c", 0, 9, ("a", "b"))
    (node,) = list_merge_candidates([lost], {"c": lost})
    assert (node.rank, node.leaves) == (1, 1)
