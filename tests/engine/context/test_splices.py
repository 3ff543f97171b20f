"""What an epoch replaces, as the judge of validity takes it, and what it finds."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from proxy.engine.context.rewriter import find_problem, list_splices
from proxy.engine.conversations.bodies import MeasuredHistory, PromptPrefix
from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.rendering import render
from proxy.wire.validity import Rules, Splice, judge_history

CHAT = "chat_completions"
OURS = MessageStructure("user")
RULES = Rules()


def user(text: str = "do") -> Mapping[str, Any]:
    return {"role": "user", "content": text}


def call(number: int) -> Mapping[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


def result(number: int) -> Mapping[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": "done"}


HISTORY = [user(), call(1), result(1), user("and"), call(2), result(2)]


def spell(messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def make_path(messages: Sequence[Mapping[str, Any]]) -> MeasuredHistory:
    structures = [FORMATS[CHAT].parse_structure(raw) for raw in spell(messages)]
    return MeasuredHistory([], structures, [], judge_history(structures), PromptPrefix(b"", b"", 0), (), 0)


def splice(
    edits: Sequence[Edit],
    through: int,
    messages: Sequence[Mapping[str, Any]] = HISTORY,
    *,
    is_alternating: bool = False,
) -> tuple[Splice, ...]:
    """The splices of edits as they are really rendered."""
    rendered = render(FORMATS[CHAT], edits, spell(messages), is_alternating=is_alternating)
    return list_splices(CHAT, edits, rendered, make_path(messages).structures, through)


def judge(
    edits: Sequence[Edit],
    through: int,
    messages: Sequence[Mapping[str, Any]] = HISTORY,
    protected: Sequence[int] = (),
    *,
    is_alternating: bool = False,
) -> str:
    """What is wrong with that."""
    splices = splice(edits, through, messages, is_alternating=is_alternating)
    return find_problem(make_path(messages), splices, Rules(is_alternating=is_alternating), protected)


LEDGER = Written("a ledger", 0, 3)
SPLICES: list[tuple[tuple[Edit, ...], int, tuple[Splice, ...]]] = [
    ((), 0, ()),
    ((), 2, (Splice(0, 2),)),
    ((Kept(0), Kept(1)), 2, ()),
    ((LEDGER,), 3, (Splice(0, 3, (OURS,)),)),
    ((LEDGER, Kept(0)), 3, (Splice(0, 0, (OURS,)), Splice(1, 3))),
    ((Kept(0), LEDGER), 3, (Splice(1, 3, (OURS,)),)),
    ((Kept(0), LEDGER), 1, (Splice(1, 1, (OURS,)),)),
    ((LEDGER, LEDGER, Kept(3)), 4, (Splice(0, 3, (OURS, OURS)),)),
    ((Kept(0), Kept(3)), 4, (Splice(1, 3),)),
    ((Replaced(0, "so", "shortened"), Kept(3)), 4, (Splice(0, 1, (OURS,)), Splice(1, 3))),
    ((LEDGER, Replaced(3, "so", "shortened")), 4, (Splice(0, 3, (OURS,)), Splice(3, 4, (OURS,)))),
]


@pytest.mark.parametrize(("edits", "through", "splices"), SPLICES)
def test_all_that_does_not_stay_is_replaced(edits: tuple[Edit, ...], through: int, splices: tuple[Splice, ...]) -> None:
    assert splice(edits, through) == splices


@pytest.mark.parametrize(
    ("edits", "through"),
    [
        ((Kept(1), Kept(0)), 2),
        ((Kept(1), Kept(1)), 2),
        ((Kept(2),), 2),
        ((Replaced(3, "so", "shortened"),), 2),
        ((Replaced(3, "so", "shortened"), Kept(0)), 4),
    ],
)
def test_what_stays_is_in_the_clients_order(edits: tuple[Edit, ...], through: int) -> None:
    with pytest.raises(ValueError, match="behind a later one"):
        splice(edits, through)


def test_each_message_has_its_edit() -> None:
    structures = make_path(HISTORY).structures
    with pytest.raises(ValueError, match="zip"):
        list_splices(CHAT, (LEDGER,), spell([user(), user()]), structures, 3)
    with pytest.raises(ValueError, match="zip"):
        list_splices(CHAT, (LEDGER, Kept(1)), spell([user()]), structures, 3)


JOINED: list[tuple[tuple[Edit, ...], int, tuple[Splice, ...]]] = [
    ((LEDGER, Kept(0), Kept(1), Kept(2)), 3, (Splice(0, 1, (OURS,), (0,)),)),
    ((LEDGER, Kept(3)), 4, (Splice(0, 4, (OURS,), (3,)),)),
    ((Kept(0), LEDGER, Kept(3)), 4, (Splice(0, 4, (OURS,), (0, 3)),)),
    ((LEDGER, Replaced(0, "so", "shortened"), Kept(3)), 4, (Splice(0, 4, (OURS,), (3,), (0,)),)),
    ((Kept(0), Kept(1), Kept(2), LEDGER, Kept(3)), 4, (Splice(3, 4, (OURS,), (3,)),)),
]


@pytest.mark.parametrize(("edits", "through", "splices"), JOINED)
def test_messages_that_became_one_stand_for_all_of_them(
    edits: tuple[Edit, ...], through: int, splices: tuple[Splice, ...]
) -> None:
    assert splice(edits, through, is_alternating=True) == splices
    assert judge(edits, through, is_alternating=True) == ""


def test_users_who_stand_apart_from_ours_stay_apart() -> None:
    messages = [user(), user("more"), call(1), result(1), user("and"), call(2), result(2)]
    edits = (Kept(0), Kept(1), Written("a ledger", 2, 4), Kept(4))
    assert splice(edits, 5, messages, is_alternating=True) == (Splice(1, 5, (OURS,), (1, 4)),)


def test_joined_messages_keep_their_order() -> None:
    structures = make_path(HISTORY).structures
    with pytest.raises(ValueError, match="behind a later one"):
        list_splices(CHAT, (LEDGER, Kept(3), Kept(0)), spell([user()]), structures, 4)


def test_the_newest_words_of_the_user_must_be_there_if_only_in_short() -> None:
    shortened = (LEDGER, Replaced(3, "so", "shortened"))
    for is_alternating in (False, True):
        assert judge((LEDGER, Kept(3)), 4, is_alternating=is_alternating) == ""
        assert judge(shortened, 4, is_alternating=is_alternating) == ""
        assert judge((LEDGER,), 4, is_alternating=is_alternating) == "protected"
    assert judge((LEDGER, Kept(3)), 4, protected=[0]) == judge((LEDGER, Kept(3)), 4, protected=[1]) == "protected"
    assert judge((LEDGER, Kept(0), Kept(3)), 4, protected=[0], is_alternating=True) == ""


def test_a_fault_is_told_in_a_few_words() -> None:
    assert judge((Kept(0), Kept(1)), 3) == "missing c1"
    assert judge((LEDGER, Kept(3)), 4, [user("x"), *HISTORY[1:]], is_alternating=False) == ""


def test_two_of_a_role_in_a_row_are_a_fault_where_the_upstream_refuses_that() -> None:
    path, splices = make_path(HISTORY), splice((LEDGER, Kept(0)), 3)
    assert find_problem(path, splices, RULES) == ""
    assert find_problem(path, splices, Rules(is_alternating=True)) == "alternation user"


def test_a_marker_that_is_put_back_is_not_lost() -> None:
    part = {"type": "text", "text": "do", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part]}, *HISTORY[1:]]
    path, splices = make_path(messages), splice((LEDGER,), 3, messages)
    assert find_problem(path, splices, RULES) == "markers lost"
    assert find_problem(path, splices, RULES, is_marked=True) == ""
    assert find_problem(path, splice((Kept(0), Kept(1)), 3, messages), RULES, is_marked=True) == "missing c1"
