"""Clearing that a client asks of a provider which cannot do it: our epochs do it, and the answer says so (P26).

The upstream refuses the member as one that it does not know, and checks all else.
"""

import json
from typing import Any

import pytest

from proxy.engine.context.client_orders import count_cleared
from proxy.engine.policy import Provider
from proxy.model.epoch import Kept, Plan, Replaced
from proxy.model.events import CeilingExceededEvent, CeilingUnreachable
from proxy.model.exchange import ClientRequest, Headers
from proxy.model.messages import LEDGER_HEAD
from tests.support.compacting import Workshop
from tests.support.engine import JSON, RecordingClient, ScriptedResponse, Sent, wait_out
from tests.support.managing import make_history
from tests.support.manual_compaction import compact
from tests.support.message_sessions import MessageSession
from tests.support.strict_messages import StrictMessages
from tests.support.talking import NAME

LACKING = Provider(edits_context=False)
BETA: Headers = ((b"anthropic-beta", b"context-management-2025-06-27,other-2026-01-01"),)
USES: dict[str, Any] = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 12_000}}
THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
TOLD = b"x-palimpsest-notice"


class ClearingSession(MessageSession):
    """A session whose client asks for clearing with each request."""

    counted = (*MessageSession.counted, "context_management")

    def __init__(self, *edits: dict[str, Any], ceiling: int = 1_000_000, **options: Any) -> None:
        options = {"provider": LACKING, "model": "claude-sonnet-4-5", "often": 0, "size": 1_500, **options}
        super().__init__(ceiling, body={"context_management": {"edits": list(edits)}}, **options)
        self.headers: Headers = BETA

    async def call(self, mode: str = "", *, keeps: bool = True, is_pinned: bool = False) -> RecordingClient:
        client, self.sent = RecordingClient(), self.write()
        headers = (*NAME, *self.headers, *(((b"x-palimpsest-mode", mode.encode()),) if mode else ()))
        request = ClientRequest("POST", self.target, headers, self.sent)
        await wait_out(self.talk.engine.begin(request, self.wire, client))
        self.talk.session = dict(client.labels).get(b"x-palimpsest-session", b"").decode()
        if client.status == 200 and keeps:
            self.go_on(self.read(client.body))
        return client

    async def grow(self, epochs: int = 1) -> RecordingClient:
        """Call until so many epochs have been opened. Return the last answer."""
        for _ in range(200):
            client = await self.call()
            if len(await self.talk.log.list_epochs(self.talk.session)) >= epochs:
                return client
        raise AssertionError("no epoch was opened")

    @property
    def asked(self) -> dict[str, Any]:
        """What the upstream got last."""
        value: dict[str, Any] = json.loads(self.upstream.calls[-1].body)
        return value


def read_applied(client: RecordingClient) -> list[dict[str, Any]] | None:
    """The edits that an answer says were applied, None if it says nothing."""
    body = client.body
    if body.startswith(b"event:"):
        lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
        events = [json.loads(line) for line in lines]
        [value] = [event for event in events if event["type"] == "message_delta"]
        assert events[-1] == {"type": "message_stop"}
    else:
        value = json.loads(body)
    told = value.get("context_management")
    return told["applied_edits"] if told is not None else None


def list_notices(client: RecordingClient) -> list[str]:
    return [value.decode() for name, value in client.labels if name == TOLD]


def count_outputs(session: ClearingSession) -> tuple[int, int]:
    """How many outputs the client sent last, and how many of them the upstream got word for word."""
    theirs, ours = (read_outputs(messages["messages"]) for messages in (json.loads(session.sent), session.asked))
    return len(theirs), sum(ours.get(id) == output for id, output in theirs.items())


def read_outputs(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The outputs in messages, by their calls."""
    parts = [part for each in messages if isinstance(each["content"], list) for part in each["content"]]
    return {part["tool_use_id"]: part["content"] for part in parts if part["type"] == "tool_result"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_epoch_clears_in_the_providers_place_and_the_answer_says_what(is_stream: bool) -> None:
    session = ClearingSession(USES, THINKING, is_stream=is_stream)
    first = await session.call()
    assert (first.status, read_applied(first)) == (200, [])
    assert "context_management" not in session.asked
    last = await session.grow()
    assert last.status == 200
    assert "context_management" not in session.asked
    assert dict(session.upstream.calls[-1].headers)[b"anthropic-beta"] == b"other-2026-01-01"
    applied = {each["type"]: each for each in read_applied(last) or ()}
    tokens = dict(last.labels)[b"x-palimpsest-tokens"].decode()
    client, upstream = (int(each.split("=")[1]) for each in tokens.split(","))
    assert sum(each["cleared_input_tokens"] for each in applied.values()) == client - upstream
    thinking, uses = applied[THINKING["type"]], applied[USES["type"]]
    assert 0 < thinking["cleared_thinking_turns"] < sum(each["role"] == "assistant" for each in session.history)
    sent, standing = count_outputs(session)
    assert sent - uses["cleared_tool_uses"] == standing > 0
    await session.talk.close()


async def test_the_log_has_the_clients_request_as_it_came_and_what_was_sent_without_the_member() -> None:
    session = ClearingSession(USES)
    client = await session.call()
    exchange = dict(client.labels)[b"x-palimpsest-exchange"].decode()
    assert await session.talk.engine.tasks.finish(5)
    assert await session.talk.log.load_request(exchange) == session.sent
    assert await session.talk.log.load_sent(exchange, 0) == session.upstream.calls[-1].body
    assert b"context_management" not in session.upstream.calls[-1].body
    received = await session.talk.log.load_received(exchange, 0)
    assert b"context_management" not in received
    assert b"context_management" in client.body
    await session.talk.close()


async def test_the_trigger_is_the_mark_at_which_an_epoch_opens() -> None:
    session = ClearingSession(USES)
    tokens = []
    for _ in range(60):
        client = await session.call()
        if label := dict(client.labels).get(b"x-palimpsest-tokens"):
            tokens.append(int(label.decode().split("upstream=")[1]))
        if await session.talk.log.list_epochs(session.talk.session):
            break
    [epoch] = await session.talk.log.list_epochs(session.talk.session)
    assert epoch.why == "hard"
    assert epoch.tokens_before >= 12_000
    assert max(tokens) < 12_000
    await session.talk.close()


async def test_what_tools_give_that_are_excluded_stays() -> None:
    named = {"name": "bash", "description": "Run a command.", "input_schema": {"type": "object"}}
    told = []
    for edit in (USES, USES | {"exclude_tools": [named["name"]]}):
        session = ClearingSession(edit, size=300)
        last = await session.grow()
        [applied] = read_applied(last) or [{"cleared_tool_uses": 0}]
        sent, standing = count_outputs(session)
        assert applied["cleared_tool_uses"] == sent - standing
        told.append(applied["cleared_tool_uses"])
        await session.talk.close()
    assert told[0] > told[1] == 0


@pytest.mark.parametrize(
    ("edit", "notice", "is_at_once"),
    [
        (USES, "", True),
        (USES | {"trigger": {"type": "tool_uses", "value": 9}}, "trigger of 9 tool uses: tokens count", True),
        (USES | {"trigger": {"type": "input_tokens", "value": 500}}, "trigger of 500 tokens: taken as ", True),
        (THINKING | {"keep": {"type": "thinking_turns", "value": 2}}, "keep of 2 thinking turns: reasoning goes", True),
        (USES | {"a\r\nb: c": "red", "keep": "all"}, r"unknown: 'keep', 'a\r\nb: c'", True),
        (USES | {"keep": {"type": "tool_uses", "value": 1}}, "keep of 1 tool uses: the newest 3 steps with", False),
        (USES | {"clear_at_least": {"type": "input_tokens", "value": 90_000}}, "clear_at_least of 90000 token", False),
        (USES | {"clear_tool_inputs": True}, "clear_tool_inputs: the calls stay", False),
    ],
)
async def test_what_is_not_done_as_asked_is_told(edit: dict[str, Any], notice: str, is_at_once: bool) -> None:
    session = ClearingSession(edit, ceiling=12_000)
    first, last = await session.call(), await session.grow()
    told = [
        [each for each in list_notices(client) if each.startswith("context_management: ")] for client in (first, last)
    ]
    assert [bool(each) for each in told] == [is_at_once and bool(notice), bool(notice)]
    assert not notice or notice in told[1][0]
    assert await session.talk.engine.tasks.finish(5)
    plan = [record for record in session.plans if isinstance(record, Plan)][-1]
    assert (notice in plan.reason) == (plan.epoch != "")
    await session.talk.close()


COMPACT = {"type": "compact_20260112"}


@pytest.mark.parametrize(
    ("edits", "options", "mode"),
    [
        ([USES, COMPACT], {}, ""),
        ([USES], {"provider": Provider()}, ""),
        ([USES], {}, "observe"),
        ([USES], {}, "bypass"),
    ],
)
async def test_what_is_not_ours_to_clear_passes_as_it_came(edits: Any, options: dict[str, Any], mode: str) -> None:
    session = ClearingSession(*edits, **options)
    client = await session.call(mode)
    [sent] = session.upstream.calls
    assert sent.body == session.sent
    assert dict(sent.headers)[b"anthropic-beta"] == BETA[0][1]
    assert (client.status, read_applied(client)) == (200, None)
    await session.talk.close()


async def test_after_a_restart_the_answer_says_the_same() -> None:
    session = ClearingSession(USES)
    last = await session.grow()
    await session.restart()
    session.history = session.history[: -2 - bool(session.history[-1]["role"] == "system")]
    again = await session.call(keeps=False)
    assert [each["cleared_tool_uses"] for each in read_applied(again) or ()] == [
        each["cleared_tool_uses"] for each in read_applied(last) or ()
    ]
    assert await session.talk.log.list_epochs(session.talk.session)
    await session.talk.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_count_of_tokens_has_that_of_the_clients_request_beside_it(is_known: bool) -> None:
    session = ClearingSession(USES)
    if is_known:
        await session.grow()
    client = await session.count()
    told = json.loads(client.body)
    assert "context_management" not in session.asked
    original = told["context_management"]["original_input_tokens"]
    assert original > told["input_tokens"] + 4000 if is_known else original == told["input_tokens"]
    assert b"context-management" not in dict(session.upstream.calls[-1].headers).get(b"anthropic-beta", b"")
    await session.talk.close()


async def test_a_count_passes_as_it_came_where_the_provider_clears() -> None:
    session = ClearingSession(USES, provider=Provider())
    client = await session.count()
    assert session.asked["context_management"] == {"edits": [USES]}
    assert "context_management" not in json.loads(client.body)
    await session.talk.close()


async def test_a_body_that_cannot_be_read_is_counted_as_it_came() -> None:
    session, client = ClearingSession(USES), RecordingClient()
    request = ClientRequest("POST", session.count_target, NAME, b'{"context_management":{"edits":[]}')
    with pytest.raises(json.JSONDecodeError):
        await session.talk.engine.begin_count(request, session.wire, client)
    assert session.upstream.calls[-1].body == request.body
    await session.talk.close()


@pytest.mark.parametrize("said", ["prompt is too long", "the form of it is wrong"])
async def test_what_is_sent_after_a_refusal_lacks_the_member_too_and_the_answer_tells_of_that(said: str) -> None:
    """Too long a request is shortened; one whose form is refused goes as the client sent it, with nothing cleared."""
    session, send, refused = ClearingSession(USES), StrictMessages.send, list[Sent]()
    is_form = "form" in said

    async def refuse_once(self: StrictMessages, *asked: Any) -> ScriptedResponse:
        if refused or (LEDGER_HEAD.encode() not in asked[3] if is_form else len(self.calls) < 14):
            return await send(self, *asked)
        refused.append(Sent(*asked))
        self.calls.append(refused[0])
        told = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
        return ScriptedResponse(json.dumps(told).encode(), status=400, headers=JSON, ending="whole")

    session.upstream.send = refuse_once.__get__(session.upstream)
    while not refused:
        client = await session.call()
    assert await session.talk.engine.tasks.finish(5)
    exchange = dict(client.labels)[b"x-palimpsest-exchange"].decode()
    sent = [call.body for call in session.upstream.calls[-2:]]
    assert [await session.talk.log.load_sent(exchange, k) for k in (0, 1)] == sent
    assert not any(b"context_management" in body for body in sent)
    all_sent, standing = count_outputs(session)
    assert [each["cleared_tool_uses"] for each in read_applied(client) or ()] == (
        [] if is_form else [all_sent - standing]
    )
    assert (all_sent > standing) == (not is_form)
    await session.talk.close()


@pytest.mark.parametrize(
    ("edit", "cleared"),
    [
        (Kept(3), 0),
        (None, 2),
        (Replaced(3, "", "tombstone"), 2),
        (Replaced(3, "", "tombstone", (("b", "[tool: b]"), ("other", "x"))), 1),
        (Replaced(3, "", "shortened", (("a", "x"),)), 0),
    ],
)
def test_a_result_is_cleared_that_a_tombstone_or_the_ledger_stands_for(
    edit: Kept | Replaced | None, cleared: int
) -> None:
    assert count_cleared(("a", "b"), edit) == cleared


async def test_what_was_cleared_is_counted_from_the_request_where_memory_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = ClearingSession(USES)
    await session.grow()
    caches = session.talk.engine.controller.states.caches
    context = caches.contexts.get(session.talk.session)
    assert context is not None
    context.cleared.clear()
    monkeypatch.setattr(caches.histories, "find", lambda request: (None, 0))
    [applied] = read_applied(await session.call()) or [{}]
    sent, standing = count_outputs(session)
    assert applied["cleared_tool_uses"] == sent - standing > 0
    await session.talk.close()


class LadenSession(ClearingSession):
    """A session whose system prompt has more tokens than its trigger leaves room for."""

    def write(self) -> bytes:
        body = json.loads(super().write())
        body["system"] = [{"type": "text", "text": "You are a careful agent. " * 1_600}]
        return json.dumps(body).encode()


async def test_what_must_stay_does_not_give_way_for_a_trigger() -> None:
    session = LadenSession(USES, size=3_000)
    session.history[0] = {"role": "user", "content": "Look at all parts of it, one after the other. " * 30}
    last = await session.grow(2)
    assert any(each.startswith("context_management: trigger of 12000 tokens: taken as ") for each in list_notices(last))
    assert not any(isinstance(event, CeilingUnreachable | CeilingExceededEvent) for event in session.talk.engine.events)
    [asked] = [each for each in session.asked["messages"][:3] if "Look at all parts" in json.dumps(each)]
    assert asked in session.history
    await session.talk.close()


@pytest.mark.parametrize("is_by_hand", [False, True])
async def test_what_models_are_asked_for_a_summary_lacks_the_member_and_its_beta(is_by_hand: bool) -> None:
    shop = Workshop(wire="anthropic_messages", provider=LACKING)
    history, steps = make_history(60, 1600), 4
    while not shop.summaries:
        await shop.call(history[: 2 + 2 * steps], BETA, context_management={"edits": [THINKING]})
        await shop.settle()
        if is_by_hand:
            await compact(shop)
        steps += 1
    assert shop.model.asked
    for call in shop.model.calls:
        assert isinstance(call.body, bytes)
        assert b"context_management" not in call.body
        assert b"context-management" not in dict(call.headers).get(b"anthropic-beta", b"")
