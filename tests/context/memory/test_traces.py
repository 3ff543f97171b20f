"""Turns of conversations, and the traces of what was said and done in them."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.conversation import CountedMessage, list_turn_starts
from proxy.context.memory.traces import (
    LONGEST_RESULT,
    MessageOrigin,
    Turn,
    encode_arguments,
    list_covered,
    list_traces,
    list_turns,
    pair_calls,
    read_turn_number,
)
from proxy.model.memory import RawTrace, TraceMedia
from proxy.model.messages import Message, MessageStructure, ToolCall
from tests.support.views import RawMessage, act, call, result, said, see, user


def look(*messages: RawMessage) -> list[CountedMessage]:
    return [see(message) for message in messages]


def trace(*messages: CountedMessage) -> tuple[RawTrace, ...]:
    return list_traces(messages, [MessageOrigin(n + 0.5, f"x{n}", bytes([n]) * 16) for n in range(len(messages))])


def make(role: str, text: str = "", **given: object) -> CountedMessage:
    results = given.get("results", ())
    return CountedMessage(Message(role, text, **given), MessageStructure(role, results=results), 0)  # type: ignore[arg-type]


DAY = look(
    user("Fix it."),
    *act("a", "cat x", "text"),
    said("Done."),
    user("And"),
    user("now the tests."),
    said("Ok."),
    user("Bye"),
)


def test_a_turn_is_a_message_of_the_user_and_all_up_to_the_next() -> None:
    assert list_turns(DAY) == (Turn(1, 0, 4), Turn(2, 4, 7), Turn(3, 7, 8))
    assert [turn.id for turn in list_turns(DAY)] == ["turn_0001", "turn_0002", "turn_0003"]
    assert list_turns([]) == ()


def test_what_precedes_the_first_message_of_the_user_is_a_turn_too() -> None:
    assert list_turns(look(result("a", "orphan"), said("hm"), user("go"))) == (Turn(1, 0, 2), Turn(2, 2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "<system-reminder>\nThe list is empty.\n</system-reminder>",
        "Called the Read tool with the following input: {}",
    ],
)
def test_what_a_client_writes_in_the_user_s_role_begins_no_turn(text: str) -> None:
    assert list_turns(look(user("go"), *act("a", "ls", "x"), user(text), said("on"), user("next"))) == (
        Turn(1, 0, 5),
        Turn(2, 5, 6),
    )


def test_a_long_reminder_begins_a_turn_once() -> None:
    reminder = user("You have not updated your list of tasks for a while now. Please think about doing so if it helps.")
    messages = look(user("go"), *act("a", "ls", "x"), reminder, *act("b", "ls", "x"), reminder, *act("c", "ls", "x"))
    assert [turn.start for turn in list_turns(messages)] == [0, 3]


def test_outputs_in_the_user_s_role_begin_no_turn() -> None:
    action = said("I look.\n```bash\nls\n```")
    observed = user("Observation:\n<output>\nsetup.py\n</output>")
    assert list_turn_starts(look(user("go"), action, observed, action, observed, said("done"), user("more"))) == [0, 6]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["user", "said", "act", "late", "long"]), max_size=14))
def test_numbers_never_change_while_a_conversation_grows(kinds: list[str]) -> None:
    messages: list[CountedMessage] = []
    for n, kind in enumerate(kinds):
        messages += {
            "user": look(user(f"say {n}")),
            "said": look(said(f"answer {n}")),
            "act": look(*act(f"c{n}", "ls", "out")),
            "late": look(result("c0", "late")),
            "long": look(user("the same long text of a client that comes again and again, word for word, and again")),
        }[kind]
    whole = trace(*messages)
    assert [each.id for each in whole] == [f"rt_{n:04}" for n in range(1, len(whole) + 1)]
    for stop in range(len(messages)):
        part = trace(*messages[:stop])
        assert part == whole[: len(part)]
        assert list_turn_starts(messages[:stop]) == [start for start in list_turn_starts(messages) if start < stop]


def test_traces_say_who_said_what_when_and_where() -> None:
    found = trace(*DAY[:4])
    assert [(each.id, each.seq, each.trace_type, each.content) for each in found] == [
        ("rt_0001", 1, "user", "Fix it."),
        ("rt_0002", 2, "tool_call", ""),
        ("rt_0003", 3, "tool_result", "text"),
        ("rt_0004", 4, "assistant", "Done."),
    ]
    assert json.loads(msgspec.json.encode(found[1])) == {
        "id": "rt_0002", "ts": 1.5, "turn_id": "turn_0001", "seq": 2, "trace_type": "tool_call", "content": "",
        "source_event": "x1", "tool_name": "shell", "tool_call_id": "a", "tool_args": {"command": "cat x"},
        "correlation_id": "a",
    }  # fmt: skip
    assert json.loads(msgspec.json.encode(found[2])) == {
        "id": "rt_0003", "ts": 2.5, "turn_id": "turn_0001", "seq": 3, "trace_type": "tool_result", "content": "text",
        "source_event": "x2", "tool_name": "shell", "tool_call_id": "a", "tool_result": "text", "correlation_id": "a",
    }  # fmt: skip


def test_a_late_result_keeps_the_turn_of_its_call() -> None:
    found = trace(
        *look(user("go"), call("a", "sleep"), user("meanwhile"), said("yes"), result("a", "slept"), said("ok"))
    )
    late = found[4]
    assert (late.turn_id, late.seq, late.tags, late.tool_name) == ("turn_0001", 3, ("late",), "shell")
    assert [(each.turn_id, each.seq) for each in found[2:4]] == [("turn_0002", 1), ("turn_0002", 2)]
    assert (found[5].turn_id, found[5].seq) == ("turn_0002", 3)


def test_a_long_result_is_there_once_and_a_failed_one_says_how() -> None:
    long, failed = trace(*look(*act("a", "cat", "x" * (LONGEST_RESULT + 1)), *act("b", "ls", "Error: no such file")))[
        1::2
    ]
    assert (long.tool_result, long.tool_result_ref) == (None, "01" * 16)
    assert len(long.content) == LONGEST_RESULT + 1
    assert failed.tool_error and failed.tool_result == failed.content and failed.tool_result_ref == ""


def test_results_in_one_message_are_traces_of_their_own_and_words_beside_them_are_the_user_s() -> None:
    calls = (ToolCall("a", "read", "{}"), ToolCall("b", "read", "{}"))
    asked = CountedMessage(Message("assistant", "", calls), MessageStructure("assistant", ("a", "b")), 0)
    several = make("tool", "one\ntwo", results=("a", "b"), outputs=("one", "two"), beside=("but stop",))
    found = trace(asked, several)
    assert [(each.trace_type, each.content) for each in found[2:]] == [
        ("tool_result", "one"), ("tool_result", "two"), ("user", "but stop"),
    ]  # fmt: skip
    joined = trace(asked, make("tool", "one\ntwo", results=("a", "b")))
    assert [each.content for each in joined[2:]] == ["one\ntwo", ""]


def test_media_are_listed_by_kind_and_documents_stay_in_the_text() -> None:
    media = ("image 640x480", "audio, 12 seconds", "video, 3 seconds", "PDF, 3 pages", "image, 10 bytes")
    (found,) = trace(make("user", "look", media=media))
    assert found.media == TraceMedia(
        ("image 640x480", "image, 10 bytes"), ("audio, 12 seconds",), ("video, 3 seconds",)
    )
    assert found.content == "look\n(PDF, 3 pages)"
    (only,) = trace(make("user", "", media=("PDF, 1 page",)))
    assert (only.content, only.media) == ("(PDF, 1 page)", None)


def test_other_roles_are_tagged_and_what_says_nothing_is_no_trace() -> None:
    system, empty, unknown = make("system", "be brief"), make("assistant"), make("\ud800", "hm")
    assert [(each.trace_type, each.tags) for each in trace(system, empty, unknown)] == [
        ("user", ("system",)), ("user", ("\ufffd",)),
    ]  # fmt: skip
    assert [each.content for each in trace(make("user", "\ud800"), make("user"))] == ["\ufffd", ""]


def test_calls_are_paired_with_results() -> None:
    messages = look(
        user("go"),
        *act("a", "ls", "fine"),
        *act("b", "cat", "Error: no such file"),
        call("c", "wait"),
        result("z", "x"),
    )
    found = pair_calls(trace(*messages))
    assert [(each.tool_call_id, each.status, each.result) for each in found] == [
        ("a", "SUCCESS", "fine"), ("b", "ERROR", "Error: no such file"), ("c", "PENDING", None),
    ]  # fmt: skip
    assert found[1].error and found[0].error is None and found[2].error is None
    again = pair_calls(trace(*look(*act("a", "ls", "one"), *act("a", "ls", "two"))))
    assert [each.result for each in again] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ('{"a":\n 1.50}', b'{"a":1.50}'),
        ('{"a": "x\\ud83d"}', b'"{\\"a\\": \\"x\\\\ud83d\\"}"'),
        ("", b'""'),
        ("*** Begin Patch\nx", b'"*** Begin Patch\\nx"'),
        ("\ud800", '"\ufffd"'.encode()),
        ("[" * 5000, b'"' + b"[" * 5000 + b'"'),
    ],
)
def test_arguments_are_json_in_one_line_or_a_string(text: str, encoded: bytes) -> None:
    assert bytes(encode_arguments(text)) == encoded
    assert b"\n" not in encoded


def test_turns_are_known_by_their_ids_and_covered_as_a_whole() -> None:
    assert [read_turn_number(id) for id in ("turn_0012", "turn_12345", "turn_12", "ep_0001", "", "turn_0000")] == [
        12, 12345, 0, 0, 0, 0,
    ]  # fmt: skip
    turns = list_turns(DAY)
    assert list_covered(turns, [(0, 4), (4, 6)]) == {1}
    assert list_covered(turns, [(0, 5), (5, 8)]) == {1, 2, 3}
