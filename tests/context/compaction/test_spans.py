"""Which messages a report is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.compaction.spans import MessageRange, choose_span, find_most
from proxy.context.findings import study
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import Survey, survey
from tests.support.views import Message, act, call, result, said, user, view


def look(messages: list[Message]) -> Survey:
    return survey(view(messages, 10_000), BuilderPolicy(), study)


def work(n: int, output: str = "x" * 40) -> list[Message]:
    """So many groups of a call and its result."""
    return [message for i in range(n) for message in act(f"{i}", f"ls {i}", output)]


def choose(messages: list[Message], begin: int = 0, most: int = 10**6) -> tuple[int, int] | None:
    span = choose_span(look(messages), begin, most)
    return (span.start, span.stop) if span else None


TURNS = [user("one"), *work(3), user("two"), *work(3), user("three"), *work(3), user("four"), *work(4)]


def test_finished_turns_are_taken_whole() -> None:
    assert choose(TURNS) == (0, 14)
    assert choose(TURNS, most=120) == (0, 7)
    assert choose_span(look(TURNS), 0, 120) == MessageRange(0, 7, sum(seen.tokens for seen in look(TURNS).messages[:7]))


def test_the_next_one_begins_where_the_last_one_ended() -> None:
    assert choose(TURNS, 7) == (7, 14)


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
    assert find_most(100_000, 20_000) == 60_000
    assert find_most(1000, 8000) == 0


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
