"""A call as text: its request and its answer, in every wire format."""

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.cli.inspection.calls import format_call_text, load_call_text
from proxy.cli.terminal import PLAIN
from proxy.model.messages import Message, ToolCall
from proxy.read.dialogue import CallMessages
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog

LONG = "\n".join(f"line {n}" for n in range(100))


def tell(call: CallMessages[Message], *, is_whole: bool = False) -> str:
    return "\n".join(format_call_text(call, PLAIN, is_whole=is_whole))


async def load(wire: str, request: dict[str, Any], answer: dict[str, Any], base: int = 0) -> CallMessages[Message]:
    row = replace(
        EXCHANGE,
        wire=wire,
        base=base,
        rounds=(replace(ROUND, answer=json.dumps(answer).encode()),),
    )
    return await load_call_text(FakeLog(bodies={"x1": json.dumps(request).encode()}), row)


ONE, TWO = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}


@pytest.mark.parametrize(
    ("wire", "request_", "answer"),
    [
        (
            "chat_completions",
            {"messages": [{"role": "system", "content": "be kind"}, ONE, TWO]},
            {"choices": [{"message": {"role": "assistant", "content": "three"}}]},
        ),
        (
            "anthropic_messages",
            {"system": "be kind", "messages": [ONE, TWO]},
            {"content": [{"type": "text", "text": "three"}]},
        ),
        (
            "responses",
            {"input": [{"role": "system", "content": "be kind"}, ONE, TWO]},
            {
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "three"}]}
                ]
            },
        ),
    ],
)
async def test_a_call_shows_what_it_added_and_the_answer(
    wire: str, request_: dict[str, Any], answer: dict[str, Any]
) -> None:
    call = await load(wire, request_, answer, base=1)
    added = "\n\nuser\n    two\n\nanswer\n    three"
    assert tell(call) == f"… 2 messages before these, the system prompt included; --all shows them{added}"
    whole = tell(call, is_whole=True)
    assert whole == f"\nsystem\n    be kind\n\nuser\n    one{added}"


async def test_an_input_that_is_a_string_is_one_message() -> None:
    assert tell(await load("responses", {"input": "one"}, {})).startswith("\nuser\n    one\n")


async def test_a_repeated_request_still_shows_its_newest_message() -> None:
    call = await load("chat_completions", {"messages": [ONE, TWO]}, {}, base=2)
    assert tell(call).startswith("… 1 message before these")
    assert "\nuser\n    two\n" in tell(call)
    assert tell(call).endswith("no answer was recorded")


def test_a_long_output_is_cut_and_says_how_to_see_it_all() -> None:
    call = CallMessages((), (Message("tool", LONG), Message("tool", "x" * 9000)), 0, (Message("assistant", ""),))
    told = tell(call)
    assert "    line 39\n    … 60 more lines; --all shows them\n" in told
    assert "x" * 4000 + "…\n" in told
    assert "x" * 4001 not in told
    assert "    line 99\n" in tell(call, is_whole=True)
    assert "x" * 9000 in tell(call, is_whole=True)


def test_calls_of_tools_media_and_names_are_shown() -> None:
    tools = (ToolCall("c1", "bash", '{"command": "ls"}'), ToolCall("c2", "write", '"' + "y" * 5000 + '"'))
    call = CallMessages(
        (), (Message("user", "see", name="ada", media=("image, 10 KB",)),), 0, (Message("assistant", "", tools),)
    )
    told = tell(call)
    assert "\nuser (ada)\n    see\n    [image, 10 KB]\n" in told
    assert '\nanswer\n    → bash {"command": "ls"}\n    → write …' in told
    assert "y" * 5000 in tell(call, is_whole=True)


async def test_a_call_that_cannot_be_read_says_why() -> None:
    call = await load_call_text(FakeLog(), replace(EXCHANGE, wire=""))
    assert tell(call).startswith("The request cannot be shown: it is in no known wire format; --raw request writes its")


def test_a_message_cannot_move_the_cursor() -> None:
    bad = "\x1b[2J\u202e"
    call = CallMessages((), (Message(bad, bad, (ToolCall("c", bad, bad),), name=bad, media=(bad,)),), 0, ())
    assert not [c for c in tell(call) if not c.isprintable() and c != "\n"]


def test_of_a_call_that_was_erased_nothing_is_said_of_its_answer() -> None:
    told = tell(CallMessages[Message](missing="this call was erased"))
    assert told == "The request cannot be shown: this call was erased."
