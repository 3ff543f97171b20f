"""What a message says is a value; most say nothing but text."""

import pytest

from proxy.model.messages import Message, ToolCall


def test_a_message_says_no_more_than_it_is_given() -> None:
    told = Message("user", "hello")
    assert (told.calls, told.results, told.media) == ((), (), ())
    assert told == Message("user", "hello") != Message("assistant", "hello")


def test_a_call_cannot_be_changed() -> None:
    call = ToolCall("c1", "read", '{"path":"a.py"}')
    with pytest.raises(AttributeError):
        call.arguments = "{}"  # type: ignore[misc]
