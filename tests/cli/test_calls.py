"""A call as text: its request and its answer, in every wire format."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from proxy.cli.inspection.calls import load_call_text
from proxy.cli.terminal import PLAIN
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog

Json = dict[str, Any]
CHAT = "chat_completions"
LONG = "\n".join(f"line {n}" for n in range(100))


async def tell(request: Json, answer: Json, base: int = 0, wire: str = CHAT, *, is_whole: bool = False) -> str:
    rounds = (replace(ROUND, answer=json.dumps(answer).encode()),)
    row = replace(EXCHANGE, wire=wire, base=base, rounds=rounds)
    log = FakeLog(bodies={"x1": json.dumps(request).encode()})
    return "\n".join(await load_call_text(log, row, PLAIN, is_whole=is_whole))


def say(text: str, *calls: tuple[str, str]) -> Json:
    """A whole answer with a text and calls of tools."""
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": text, "tool_calls": made}}]}


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
    added = "\n\nuser\n    two\n\nanswer\n    three"
    assert (
        await tell(request_, answer, 1, wire)
        == f"… 2 messages before these, the system prompt included; --all shows them{added}"
    )
    whole = await tell(request_, answer, 1, wire, is_whole=True)
    assert whole == f"\nsystem\n    be kind\n\nuser\n    one{added}"


async def test_an_input_that_is_a_string_is_one_message() -> None:
    assert (await tell({"input": "one"}, {}, wire="responses")).startswith("\nuser\n    one\n")


async def test_a_repeated_request_still_shows_its_newest_message() -> None:
    told = await tell({"messages": [ONE, TWO]}, {}, base=2)
    assert told.startswith("… 1 message before these")
    assert "\nuser\n    two\n" in told
    assert told.endswith("no answer was recorded")


async def test_a_long_output_is_cut_and_says_how_to_see_it_all() -> None:
    outputs = [{"role": "tool", "tool_call_id": "c", "content": text} for text in (LONG, "x" * 9000)]
    told = await tell({"messages": outputs}, say(""))
    assert "    line 39\n    … 60 more lines; --all shows them\n" in told
    assert "x" * 4000 + "…\n" in told
    assert "x" * 4001 not in told
    whole = await tell({"messages": outputs}, say(""), is_whole=True)
    assert "    line 99\n" in whole
    assert "x" * 9000 in whole


async def test_calls_of_tools_media_and_names_are_shown() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = {"role": "user", "name": "ada", "content": [{"type": "text", "text": "see"}, image]}
    answer = say("", ("bash", '{"command": "ls"}'), ("write", '"' + "y" * 5000 + '"'))
    told = await tell({"messages": [asked]}, answer)
    assert re.search(r"\nuser \(ada\)\n    see\n    \[image.*\]\n", told)
    assert '\nanswer\n    → bash {"command": "ls"}\n    → write …' in told
    assert "y" * 5000 in await tell({"messages": [asked]}, answer, is_whole=True)


async def test_a_call_that_cannot_be_read_says_why() -> None:
    told = await tell({}, say("three"), wire="")
    assert told == "The request cannot be shown: it is in no known wire format; --raw request writes its bytes."


async def test_a_message_cannot_move_the_cursor() -> None:
    bad = "\x1b[2J\u202e"
    told = await tell({"messages": [{"role": bad, "name": bad, "content": bad}]}, say(bad, (bad, bad)))
    assert "answer" in told
    assert not [c for c in told if not c.isprintable() and c != "\n"]


async def test_of_a_call_that_was_erased_nothing_is_said_of_its_answer() -> None:
    bare = replace(EXCHANGE, rounds=(replace(ROUND, answer=b""),))
    lines = await load_call_text(FakeLog(bodies={}), bare, PLAIN, is_whole=False)
    assert lines == ["The request cannot be shown: this content was erased."]
    assert (await load_call_text(FakeLog(bodies={}), EXCHANGE, PLAIN, is_whole=False))[:2] == [*lines, ""]
