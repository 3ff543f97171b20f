"""Summaries in sessions of each wire: who is asked on which, and what comes of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.policy import Provider
from proxy.engine.request_resolver import Route
from proxy.model.exchange import Opening
from proxy.wire import FORMATS
from proxy.wire.summary_request import make_target
from tests.support.compacting import (
    FREE,
    REPORT,
    WIRES,
    Model,
    Reply,
    Workshop,
    give_report,
    list_reports,
    read_request,
    say,
)
from tests.support.managing import Message, make_history

HISTORY = make_history(60, 1600)
ABOVE = 14
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
LIMITS = {
    "chat_completions": "max_tokens",
    "responses": "max_output_tokens",
    "anthropic_messages": "max_tokens",
}

pytestmark = pytest.mark.parametrize("wire", list(WIRES))


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


def first(reply: Reply) -> Callable[[bytes], Reply]:
    """A model that answers so once, and then as it should."""
    left = [reply]
    return lambda body: left.pop() if left else give_report(body)


def list_openings(shop: Workshop) -> list[Any]:
    return [opening for opening in shop.log.of(Opening) if opening.kind == "auxiliary"]


async def test_a_report_is_asked_for_behind_the_last_request_and_shown_by_the_next_epoch(wire: str) -> None:
    shop = Workshop(wire=wire)
    sent = 0
    while not shop.summaries:
        sent += 1
        await shop.ask(until(sent))
    (body,) = shop.model.asked
    assert [call.target for call in shop.model.calls if call.body == body] == [make_target(FORMATS[wire])]
    asked, before = read_request(wire, body), read_request(wire, shop.model.sent[-1])
    assert asked[: len(before)] == before
    assert [each["role"] for each in asked[len(before) :]] == ["user"]
    assert shop.summaries[0].level == 1 and shop.summaries[0].wire == wire
    (own,) = list_openings(shop)
    assert own.wire == wire
    shown: list[Message] = []
    for steps in range(sent + 1, 60):
        shown = list_reports(await shop.ask(until(steps)))
        if shown:
            break
    assert shown and "The tests of the parser are to be mended." in str(shown[0]["content"])


async def test_what_calls_a_tool_is_asked_again_with_a_transcript(wire: str) -> None:
    shop = Workshop(first(say(None, tool_calls=[CALL])), wire=wire)
    await shop.ask(until(ABOVE))
    warm, compact = shop.model.asked
    assert len(compact) < len(warm)
    system, asked = read_request(wire, compact)
    assert (system["role"], asked["role"]) == ("system", "user")
    assert str(system["content"]).startswith("You write a report")
    assert json.loads(compact)[LIMITS[wire]] > 1000
    assert [each.level for each in shop.summaries] == [1]


async def test_reasoning_that_took_all_tokens_gets_more_of_them(wire: str) -> None:
    shop = Workshop(first(say(None, finish="length")), wire=wire)
    limit: Any = {LIMITS[wire]: 4000}
    await shop.ask(until(ABOVE), **limit)
    limits = [json.loads(body)[LIMITS[wire]] for body in shop.model.asked]
    assert len(limits) == 2 and limits[1] == 2 * limits[0]
    assert [each.level for each in shop.summaries] == [1]


@pytest.mark.parametrize(
    ("host", "target", "has_version"),
    [("api.anthropic.com", b"/v1/messages", True), ("api.openai.com", b"/v1/chat/completions", False)],
)
async def test_another_upstream_is_asked_on_its_own_wire(
    wire: str, host: str, target: bytes, has_version: bool
) -> None:
    spoken = "anthropic_messages" if has_version else "chat_completions"
    other = Model(name="other", wire=spoken)
    policy, theirs = replace(FREE, model="theirs", may_receive=("other",)), {"other": Provider(host, has_own_key=True)}
    shop = Workshop(policy=policy, providers=theirs, wire=wire)
    shop.summarizer.routes = [Route(shop.model), Route(other, ("their*",))]
    await shop.ask(until(ABOVE))
    (call,) = other.calls
    assert (call.target, shop.model.asked) == (target, [])
    assert ((b"anthropic-version", b"2023-06-01") in call.headers) == has_version
    assert (b"authorization", b"Bearer k") not in call.headers
    assert read_request(spoken, other.asked[0])[0]["role"] == "system"
    assert [each.level for each in shop.summaries] == [1]
    (own,) = list_openings(shop)
    assert own.wire == spoken


async def test_a_response_that_is_refused_is_no_report(wire: str) -> None:
    shop = Workshop(first(say("No.")), wire=wire)
    await shop.ask(until(ABOVE))
    assert len(shop.model.asked) == 2
    assert REPORT not in json.dumps([each.text for each in shop.summaries])
