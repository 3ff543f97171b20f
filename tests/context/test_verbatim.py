"""What stays word for word, and which messages can only be removed together."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.verbatim import (
    Group,
    find_turn_start,
    find_unanswered,
    find_verbatim,
    iterate_groups,
    split_groups,
)
from proxy.model.messages import MessageStructure

USER, SAID, SYSTEM = (MessageStructure(role) for role in ("user", "assistant", "system"))


def call(*ids: str) -> MessageStructure:
    return MessageStructure("assistant", ids)


def answer(*ids: str) -> MessageStructure:
    return MessageStructure("tool", (), ids)


def test_parallel_calls_go_with_all_their_results() -> None:
    assert split_groups([USER, call("a", "b"), answer("a"), answer("b"), call("c"), answer("c"), USER]) == [
        Group(0, 1, "user", has_calls=False),
        Group(1, 4, "step", has_calls=True),
        Group(4, 6, "step", has_calls=True),
        Group(6, 7, "user", has_calls=False),
    ]


@pytest.mark.parametrize(
    ("history", "start"),
    [
        ([USER, call("a"), answer("a")], {1}),
        ([USER, SAID, USER, call("a"), answer("a"), call("b"), answer("b")], {3}),
        ([USER, call("a"), answer("a"), SAID, USER], set()),
        ([USER, SYSTEM], set()),
        ([call("a"), answer("a")], set()),
        ([], set()),
    ],
)
def test_a_turn_under_way_starts_behind_the_newest_message_of_the_user(
    history: list[MessageStructure], start: set[int]
) -> None:
    assert find_turn_start(history) == start


def test_reasoning_goes_with_what_it_led_to() -> None:
    thought = MessageStructure("assistant", reasoning=b"x")
    assert split_groups([thought, call("a"), answer("a"), thought, SAID]) == [
        Group(0, 3, "step", has_calls=True),
        Group(3, 5, "step", has_calls=False),
    ]


def test_a_result_far_behind_its_call_holds_what_is_between() -> None:
    groups = split_groups([call("a"), USER, call("b"), answer("a"), USER, answer("b"), USER])
    assert groups == [Group(0, 6, "user", has_calls=True), Group(6, 7, "user", has_calls=False)]


def test_a_message_that_has_to_stand_before_an_answer_goes_with_it() -> None:
    leading = MessageStructure("system", is_leading=True)
    assert split_groups([USER, leading, call("a"), answer("a"), SAID, USER, leading]) == [
        Group(0, 1, "user", has_calls=False),
        Group(1, 4, "system", has_calls=True),
        Group(4, 5, "step", has_calls=False),
        Group(5, 6, "user", has_calls=False),
        Group(6, 7, "system", has_calls=False),
    ]
    assert len(split_groups([USER, SYSTEM, call("a"), answer("a")])) == 3


def test_an_id_used_again_is_answered_behind_its_newest_use() -> None:
    groups = split_groups([call("a"), answer("a"), USER, call("a"), USER, answer("a")])
    assert [group.start for group in groups] == [0, 2, 3]


def test_a_result_without_a_call_goes_with_what_it_stands_behind() -> None:
    assert split_groups([answer("x"), USER, answer("y")]) == [
        Group(0, 1, "step", has_calls=True),
        Group(1, 3, "user", has_calls=True),
    ]


_ids = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
_messages = st.lists(
    st.builds(MessageStructure, st.sampled_from(["user", "assistant", "tool", "system"]), _ids, _ids), max_size=12
)


@given(_messages)
def test_groups_cover_everything_once_and_part_no_call_from_its_result(messages: list[MessageStructure]) -> None:
    groups = split_groups(messages)
    assert [place for group in groups for place in range(group.start, group.stop)] == list(range(len(messages)))
    for place, message in enumerate(messages):
        for answered in message.results:
            callers = [i for i in range(place + 1) if answered in messages[i].calls]
            if callers:
                assert sum(group.start <= callers[-1] and place < group.stop for group in groups) == 1


def test_a_group_is_of_the_strictest_of_its_messages_and_a_machine_s_words_are_no_user_s() -> None:
    assert [group.kind for group in split_groups([SYSTEM, USER, call("a"), SYSTEM, answer("a")])] == [
        "system", "user", "system",
    ]  # fmt: skip
    assert [group.kind for group in split_groups([USER, USER], frozenset({1}))] == ["user", "step"]


TALK = [USER, USER, SAID, USER, SAID, USER, USER]


WORK = [
    USER, call("a"), answer("a"), USER, call("b", "c"), answer("b"), answer("c"),
    SAID, USER, call("d"), answer("d"), call("e"), answer("e"),
]  # fmt: skip


def stay(
    messages: list[MessageStructure], groups: int = 3, turns: int = 2, sent: int | None = None, *, pin: int = -1
) -> list[int]:
    """The places of what stays."""
    pinned = frozenset({pin} - {-1})
    verbatim = find_verbatim(iterate_groups(messages), find_unanswered(messages, sent), groups, turns, pinned)
    earlier = [place for places in verbatim.list_earlier() for place in places]
    assert len(earlier) == len(set(earlier))
    return sorted([*earlier, *range(verbatim.tail, len(messages))])


def test_what_no_model_has_answered_and_the_newest_turns_stay() -> None:
    assert stay(TALK) == [3, 5, 6]
    assert stay(TALK, turns=1) == [5, 6]
    assert stay(TALK, turns=3) == [0, 1, 3, 5, 6]
    assert stay(TALK, turns=0) == [5, 6]
    assert stay([]) == []


def test_the_beginning_of_an_answer_answers_nothing() -> None:
    """A client has the model go on with it: what it is to answer stays with it."""
    assert stay([*TALK, SAID], turns=0) == [5, 6, 7]
    assert stay([*TALK, SAID, SAID], turns=0) == [5, 6, 7, 8]
    assert stay([*WORK, SAID], groups=0, turns=0) == [11, 12, 13]
    assert stay([SAID, SAID], turns=0) == [0, 1]
    assert stay([*WORK, call("f")], groups=1, turns=0) == [13]


def test_calls_beside_each_other_are_one_group() -> None:
    assert stay(WORK) == [3, *range(4, 13)]
    assert stay(WORK, groups=2) == [3, *range(8, 13)]
    assert stay(WORK, groups=1) == [3, 8, 11, 12]
    assert stay(WORK, groups=0, turns=1) == [8, 11, 12]
    apart = [USER, call("a"), call("b"), answer("a"), answer("b"), SAID, USER]
    assert stay(apart, groups=1, turns=1) == [1, 2, 3, 4, 5, 6]


def test_where_there_are_fewer_groups_all_of_them_stay_and_no_more() -> None:
    assert stay([USER, SAID, USER, SAID, USER, SAID, *WORK[4:7]]) == [2, 4, 5, 6, 7, 8]


def test_a_turn_is_all_that_the_user_says_in_a_row() -> None:
    assert stay([USER, SAID, USER, USER, USER, SAID, USER]) == [2, 3, 4, 6]


def test_what_was_not_sent_yet_stays() -> None:
    assert stay(WORK, groups=1, turns=1, sent=5) == list(range(4, 13))
    assert stay(WORK, groups=1, turns=1, sent=13) == [8, 11, 12]


def test_what_is_pinned_stays_with_its_group() -> None:
    assert stay(WORK, groups=1, turns=1, pin=5) == [4, 5, 6, 8, 11, 12]
    assert stay(WORK, groups=1, turns=1, pin=8) == [8, 11, 12]
    assert stay(WORK, groups=1, turns=1, pin=0) == [0, 8, 11, 12]


@pytest.mark.no_cover
@pytest.mark.parametrize("recent", [0, 1, 3])
@pytest.mark.parametrize("turns", [0, 1, 2])
@given(messages=_messages, pinned=st.frozensets(st.integers(0, 11), max_size=2))
def test_the_groups_that_are_not_read_change_nothing(
    messages: list[MessageStructure], pinned: frozenset[int], recent: int, turns: int
) -> None:
    groups, unanswered = split_groups(messages), find_unanswered(messages)
    verbatim = find_verbatim(reversed(groups), unanswered, recent, turns, pinned)
    calling = [group.start for group in groups if group.has_calls][-recent:] if recent else []
    fresh = [group.start for group in groups if group.stop > unanswered]
    assert verbatim.tail == min([*fresh, *calling], default=len(messages))
    said: list[list[range]] = []
    for before, group in zip([None, *groups], groups, strict=False):
        if group.kind == "user":
            is_one = before is not None and before.kind == "user" and not group.has_calls
            said += [] if is_one else [[]]
            said[-1].append(range(group.start, group.stop))
    assert list(verbatim.turns) == [places for turn in said[::-1][:turns] for places in turn[::-1]]
    holding = [range(group.start, group.stop) for group in groups if pinned & set(range(group.start, group.stop))]
    assert list(verbatim.pinned) == holding[::-1]


def test_no_more_of_a_long_history_is_read_than_needed() -> None:
    history = [USER, *(message for i in range(500) for message in (call(str(i)), answer(str(i)), SAID, USER))]
    read: list[Group] = []

    def read_groups() -> Iterator[Group]:
        for group in iterate_groups(history):
            read.append(group)
            yield group

    find_verbatim(read_groups(), find_unanswered(history))
    assert len(read) < 12


@pytest.mark.parametrize("acting", [[], [call("a"), answer("a")]])
def test_of_a_long_chat_no_more_is_read_than_its_newest_turns(acting: list[MessageStructure]) -> None:
    history = [*[USER, SAID] * 500, *acting, USER]
    first = 1000 if acting else len(history)
    groups = list(iterate_groups(history))
    read: list[Group] = []

    def read_groups() -> Iterator[Group]:
        for group in groups:
            read.append(group)
            yield group

    found = find_verbatim(read_groups(), find_unanswered(history), first_acting=first)
    assert found == find_verbatim(groups, find_unanswered(history))
    assert len(read) < 12
