"""What a message says is a value; most say nothing but text."""

import pytest

from proxy.model.told import Told, ToolCall


def test_a_message_says_no_more_than_it_is_given() -> None:
    told = Told("user", "hello")
    assert (told.calls, told.answers, told.media) == ((), (), ())
    assert told == Told("user", "hello") != Told("assistant", "hello")


def test_a_call_cannot_be_changed() -> None:
    call = ToolCall("c1", "read", '{"path":"a.py"}')
    with pytest.raises(AttributeError):
        call.arguments = "{}"  # type: ignore[misc]
