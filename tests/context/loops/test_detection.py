"""When an agent goes round in circles: the same call again and again, whatever its arguments are spelt like."""

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.context.loops.detection import MOST_COUNTED, RepeatedCall, find_repeated_call, follow_run, write_note
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


# --- what the model is told ------------------------------------------------------------------------------------------


def loop(count: int, output: str = "same") -> list[Message]:
    return [each for n in range(count) for each in (ask(str(n)), give(str(n), output))]


def tell(messages: list[Message], least: int = 3) -> str:
    return write_note(reversed(messages), least)


def test_a_loop_is_told_when_it_is_one_and_whenever_it_has_doubled() -> None:
    told = [count for count in range(1, 60) if tell([USER, *loop(count)])]
    assert told == [3, 6, 12, 24, 48]
    assert tell([USER, *loop(3)]).startswith(
        "[This call was made 3 times in a row, with the same arguments and the same"
    )
    assert [count for count in range(1, 9) if tell(loop(count), 1)] == [2, 4, 8], "one call is no loop"


def test_only_equal_outputs_that_are_all_there_are_told() -> None:
    assert not tell([*loop(2), ask("x"), give("x", "other")])
    assert not tell([*loop(2), ask("x")])
    assert not tell([])
    assert not tell([USER])
    assert not tell([*loop(2), USER, ask("x"), give("x", "same")])


def test_of_several_calls_at_once_the_last_output_tells() -> None:
    several = Message(
        "assistant", "", calls=tuple(ToolCall(f"s{n}", "bash", '{"cmd": "ls", "n": 1}') for n in range(4))
    )
    outputs = [give(f"s{n}", "same") for n in range(4)]
    assert not tell([*loop(1), several, *outputs[:3]])
    assert "5 times" in tell([*loop(1), several, *outputs]), "the third was within"
    together = Message("user", "same", results=("s0", "s1", "s2", "s3"), outputs=("same",) * 4)
    assert "4 times" in tell([several, together])
    assert not tell([*loop(3), several, *outputs][:-4])
    assert "7 times" in tell([*loop(3), several, *outputs])


def test_a_loop_longer_than_is_counted_is_told_no_more() -> None:
    assert not tell(loop(MOST_COUNTED), 25)
    assert not tell(loop(MOST_COUNTED + 30), 25)
    assert tell(loop(50), 25)


# --- what answers alone tell -----------------------------------------------------------------------------------------


def test_a_run_goes_on_from_answer_to_answer_and_ends_with_another_call() -> None:
    first = follow_run([ask("1")], None)
    assert first is not None
    assert (first.count, first.reach) == (1, 2)
    second = follow_run([ask("2", arguments='{"n": 1, "cmd": "ls"}')], first)
    assert second is not None
    assert second.count == 2
    assert follow_run([ask("3", name="other")], second) == follow_run([ask("3", name="other")], None)
    assert follow_run([Message("assistant", "done")], second) is None
    assert follow_run([], second) is None


def test_of_an_answer_with_several_calls_only_the_last_equal_ones_count() -> None:
    calls = (ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}"), ToolCall("3", "b", "{}"))
    before = follow_run([ask("0", name="b", arguments="{}")], None)
    found = follow_run([Message("assistant", "", calls=calls)], before)
    assert found is not None
    assert (found.count, found.reach) == (2, 4)
    found = follow_run([Message("assistant", "", calls=calls[1:])], before)
    assert found is not None
    assert found.count == 3
