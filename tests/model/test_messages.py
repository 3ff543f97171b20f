"""Messages are values; runs are what the assistant says in one go, and the results behind it."""

import json

import pytest

from proxy.model.messages import (
    LEDGER_HEAD,
    CountedContent,
    Medium,
    Message,
    MessageStructure,
    TokenWeight,
    ToolCall,
    list_run_starts,
)


def test_a_message_says_no_more_than_it_is_given() -> None:
    told = Message("user", "hello")
    assert (told.calls, told.results, told.media) == ((), (), ())
    assert told == Message("user", "hello") != Message("assistant", "hello")


def test_a_call_cannot_be_changed() -> None:
    call = ToolCall("c1", "read", '{"path":"a.py"}')
    with pytest.raises(AttributeError):
        call.arguments = "{}"  # type: ignore[misc]


USER, SAID, CALL, RESULT = (
    MessageStructure("user"),
    MessageStructure("assistant"),
    MessageStructure("assistant", ("a",)),
    MessageStructure("tool", (), ("a",)),
)


def test_what_is_said_in_one_go_and_its_results_are_one_run() -> None:
    assert list_run_starts(
        [MessageStructure("system"), USER, SAID, CALL, RESULT, RESULT, CALL, RESULT, USER, USER]
    ) == [
        0,
        1,
        2,
        6,
        8,
        9,
    ]


def test_results_join_whatever_they_stand_behind() -> None:
    assert list_run_starts([RESULT, USER, RESULT]) == [0, 1]
    assert list_run_starts([]) == []


def test_what_a_request_does_not_tell_of_a_medium_is_0() -> None:
    medium = Medium("image")
    assert (medium.width, medium.height, medium.pages, medium.seconds, medium.size) == (0, 0, 0, 0.0, 0)
    assert not medium.is_low


def test_text_alone_has_neither_media_nor_frame_and_its_weight_is_counted() -> None:
    assert CountedContent("a") == CountedContent("a", (), 0)
    assert TokenWeight(1) == TokenWeight(1, (), is_estimate=False)


def test_the_head_of_a_ledger_is_the_same_in_json() -> None:
    assert json.dumps(LEDGER_HEAD) == f'"{LEDGER_HEAD}"'
    assert len(LEDGER_HEAD) >= 16
    assert LEDGER_HEAD.isascii()
