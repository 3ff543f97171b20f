"""When an agent goes round in circles: the same call again and again, whatever its arguments are spelt like."""

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.context.loops.detection import MOST_COUNTED, RepeatedCall, find_repeated_call
from proxy.model.messages import Message, ToolCall


def ask(id: str, name: str = "bash", arguments: str = '{"cmd": "ls", "n": 1}', text: str = "") -> Message:
    return Message("assistant", text, calls=(ToolCall(id, name, arguments),))


def give(id: str, text: str = "a b") -> Message:
    return Message("tool", text, results=(id,))


USER = Message("user", "list it")
LOOP = [USER, ask("1"), give("1"), ask("2"), give("2"), ask("3")]


def find(messages: list[Message], least: int = 3) -> RepeatedCall | None:
    return find_repeated_call(reversed(messages), least)


def test_the_same_call_three_times_in_a_row_is_a_loop() -> None:
    assert find(LOOP) == RepeatedCall("bash", 3, has_same_output=True)
    assert find([*LOOP, give("3"), ask("4")]) == RepeatedCall("bash", 4, has_same_output=True)
    assert find(LOOP, 4) is None
    assert find([]) is None
    assert find([USER]) is None


@pytest.mark.parametrize("arguments", ['{"n":1,"cmd":"ls"}', ' { "cmd" : "l\\u0073" , "n": 1 }'])
def test_arguments_may_be_spelt_in_any_way(arguments: str) -> None:
    assert find([*LOOP[:-1], ask("3", arguments=arguments)]) is not None


@pytest.mark.parametrize(
    "last", [ask("3", "other"), ask("3", arguments='{"cmd": "ls", "n": 2}'), ask("3", arguments=""), USER]
)
def test_another_call_or_words_of_the_user_make_none(last: Message) -> None:
    assert find([*LOOP[:-1], last]) is None
    assert find([*LOOP[:3], last, *LOOP[3:]]) is None


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    assert find([ask(str(n), arguments="{") for n in range(3)]) is not None
    assert find([ask("1", arguments="{"), *(ask(str(n), arguments="{ ") for n in range(2))]) is None
    assert find([ask(str(n), arguments="[" * 100_000) for n in range(3)]) is not None
    assert find([ask("1", arguments=""), ask("2", arguments="{}"), ask("3", arguments="{}")]) is not None


def test_what_the_model_says_beside_its_calls_breaks_no_loop() -> None:
    assert find([USER, ask("1", text="once"), Message("assistant", "again"), ask("2"), give("2", ""), ask("3")])


def test_a_model_that_waits_gets_other_outputs() -> None:
    found = find([USER, ask("1"), give("1", "10 %"), ask("2"), give("2", "20 %"), ask("3")])
    assert found == RepeatedCall("bash", 3, has_same_output=False)
    found = find([USER, ask("1"), ask("2"), ask("3"), give("1")])
    assert found == RepeatedCall("bash", 3, has_same_output=False), "one output is the same as none other"


def test_calls_and_results_may_stand_in_one_message_each() -> None:
    calls = tuple(ToolCall(id, "bash", "{}") for id in "123")
    results: dict[str, Any] = {"results": ("1", "2", "3"), "outputs": ("x", "x", "x")}
    found = find([USER, Message("assistant", "", calls=calls), Message("user", "x x x", **results)])
    assert found == RepeatedCall("bash", 3, has_same_output=True)
    mixed = (*calls[:1], ToolCall("9", "other", "{}"), *calls[1:])
    assert find([USER, ask("0"), Message("assistant", "", calls=mixed)]) is None


def test_messages_are_read_only_as_far_as_it_takes() -> None:
    read = 0

    def play() -> Iterator[Message]:
        nonlocal read
        for n in range(10_000):
            read += 1
            yield ask(str(n))

    found = find_repeated_call(play(), 3)
    assert (found, read) == (RepeatedCall("bash", MOST_COUNTED, has_same_output=False), MOST_COUNTED)
