"""Requests that their client got wrong: it gets what the upstream says of its own bytes, word for word."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from proxy.engine.ports import RequestBody
from proxy.model.exchange import ClientRequest, Headers
from tests.support.engine import JSON, RecordingClient, ScriptedResponse, ScriptedUpstream, Sent, wait_out
from tests.support.message_sessions import MessageSession
from tests.support.response_sessions import ResponseSession
from tests.support.talking import NAME, Talk
from tests.support.wire_sessions import WireSession

Change = Callable[[list[Any]], None]


class RefusingUpstream(ScriptedUpstream):
    """Refuses every request, with a word about its bytes."""

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        self.calls.append(Sent(method, target, headers, body))
        return ScriptedResponse(refuse(body), status=400, headers=JSON, ending="whole")


def refuse(body: bytes) -> bytes:
    return json.dumps({"type": "error", "error": {"message": f"not {sha256(body).hexdigest()}"}}).encode()


LONG = [{"role": "user", "content": "Mend it."}, {"role": "assistant", "content": "Part. " * 4_000}] * 4
OF_CHAT = {"model": "gpt-5.6", "messages": [{"role": "system", "content": "x"}, *LONG, LONG[0]]}
OF_RESPONSES = {"model": "gpt-5.6", "instructions": "x", "input": [*LONG, LONG[0]]}
OF_MESSAGES = {"model": "claude-sonnet-4-5", "max_tokens": 99, "system": [{"type": "text", "text": "x"}], **OF_CHAT}


@pytest.mark.parametrize(
    ("path", "wire", "body"),
    [
        (b"/v1/messages", "anthropic_messages", OF_RESPONSES),
        (b"/v1/messages", "anthropic_messages", OF_CHAT),
        (b"/v1/responses", "responses", OF_CHAT),
        (b"/v1/responses", "responses", OF_MESSAGES),
        (b"/v1/chat/completions", "chat_completions", OF_RESPONSES),
        (b"/v1/chat/completions", "chat_completions", OF_MESSAGES),
        (b"/v1/responses", "responses", OF_RESPONSES | {"input": {"role": "user"}}),
        (b"/v1/messages", "anthropic_messages", OF_CHAT | {"messages": ["x" * 70_000, 7, None, [LONG]]}),
        (b"/v1/responses", "responses", OF_RESPONSES | {"input": [{"type": 7, "call_id": []}, "x" * 70_000, {}]}),
    ],
)
async def test_a_body_of_another_wire_is_the_upstreams_to_refuse(path: bytes, wire: str, body: Any) -> None:
    talk = Talk(4_000, RefusingUpstream())
    content, client = json.dumps(body).encode(), RecordingClient()
    await wait_out(talk.engine.begin(ClientRequest("POST", path, NAME, content), wire, client))
    assert (client.status, client.body) == (400, refuse(content))
    await talk.close()


async def grow(session: WireSession) -> WireSession:
    """A session with an epoch that has just been called, at an end of a turn or not."""
    while session.counts["managed"] < 12:
        await session.call()
    return session


async def check_refused(session: WireSession, told: str) -> None:
    """The client gets what its own request gets without the proxy."""
    client = await session.call()
    own = json.loads(session.sent)
    assert told in await session.try_direct(own)
    response = await session.upstream.send("POST", session.target, (), session.sent)
    assert (client.status, client.body) == (response.status, response.pieces[0])
    assert session.counts["refused"] == 1


def answer_nobody(history: list[Any]) -> None:
    """An output whose call there never was."""
    history.append({"type": "function_call_output", "call_id": "call_none", "output": "x"})


def repeat_item(history: list[Any]) -> None:
    """The newest item that has an id, twice."""
    history.append(next(item for item in reversed(history) if item.get("id")))


def leave_out_output(history: list[Any]) -> None:
    """The newest call without its output."""
    history.pop(next(i for i in reversed(range(len(history))) if history[i].get("type", "").endswith("_output")))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (answer_nobody, "No tool call found for function call output with call_id call_none"),
        (repeat_item, "Duplicate item found with id "),
        (leave_out_output, "No tool output found for "),
    ],
)
async def test_items_that_do_not_go_together_are_refused_as_without_us(change: Change, told: str) -> None:
    session = await grow(ResponseSession(8_000, size=1_500, often=0))
    change(session.history)
    await check_refused(session, told)
    await session.talk.close()


def answer_none(history: list[Any]) -> None:
    """A result whose call there never was."""
    result = {"type": "tool_result", "tool_use_id": "toolu_none", "content": "x"}
    history.append({"role": "user", "content": [result]})


def call_twice(history: list[Any]) -> None:
    """The newest answer, and what followed it, twice."""
    place = next(i for i in reversed(range(len(history))) if history[i]["role"] == "assistant")
    history += history[place:]


def leave_out_results(history: list[Any]) -> None:
    """The newest results are not there."""
    history.pop(next(i for i in reversed(range(len(history))) if "tool_result" in json.dumps(history[i])))
    if history[-1]["role"] == "assistant":
        history.append({"role": "user", "content": "Go on."})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (answer_none, "unexpected `tool_use_id`"),
        (call_twice, "ids must be unique"),
        (leave_out_results, "without `tool_result` blocks immediately after"),
    ],
)
async def test_blocks_that_do_not_go_together_are_refused_as_without_us(change: Change, told: str) -> None:
    session = await grow(MessageSession(8_000, size=1_500, often=0, model="claude-sonnet-4-5", other="x"))
    while session.history[-1]["role"] != "user" or "tool_result" not in json.dumps(session.history[-1]):
        await session.call()
    change(session.history)
    await check_refused(session, told)
    await session.talk.close()


CLEARING = {"edits": [{"type": "clear_tool_uses_20250919"}]}
BINDING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize("more", [{"context_management": CLEARING}, {"thinking": BINDING}])
async def test_half_a_pair_of_beta_and_member_is_refused_as_without_us(more: dict[str, Any]) -> None:
    session = await grow(MessageSession(8_000, size=1_500, often=0, model="claude-sonnet-4-5", other="x"))
    session.more = more
    await check_refused(session, "Extra inputs are not permitted")
    await session.talk.close()


async def test_a_gap_in_thinking_that_the_client_made_is_refused_as_without_us() -> None:
    session = MessageSession(1_000_000, size=1_500, often=0)
    await session.run(12)
    place = next(i for i, message in enumerate(session.history) if message["role"] == "assistant")
    answer = session.history[place]
    session.history[place] = {**answer, "content": answer["content"][1:] or [{"type": "text", "text": "Hm."}]}
    await check_refused(session, "bound to a different conversation")
    await session.talk.close()
