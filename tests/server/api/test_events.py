"""`/-/api/events` over sockets: what readers are told of the calls that the server carries, and how streams end."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.events.calls import OpenCalls
from proxy.engine.models import PriceList
from proxy.model.card import Card
from proxy.model.events import (
    AgentNudgedEvent,
    CallCompletedEvent,
    DoomLoopDetectedEvent,
    EpochOpened,
    ExchangeRecorded,
    RungFailedEvent,
    SessionIdleEvent,
)
from proxy.model.exchange import Opening
from tests.server.api.test_sessions import BEARER, ReadableArchive, say, turn
from tests.store.samples import make_epoch, make_plan
from tests.support.loops import put_forward
from tests.support.scripted import LIMIT, Message, ScriptedUpstream, Wire, answer, request
from tests.support.serving import Plan, Served, serving

EVENTS = "/-/api/events"
USAGE = {"prompt_tokens": 17, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
ANSWER = {"choices": [{"message": say("4"), "finish_reason": "stop"}], "usage": USAGE}
ASKED = {"role": "user", "content": "2+2?"}

_SAID = ("MESSAGE_CREATED", "PART_CREATED")
FIRST_CALL = ("SESSION_CREATED", "CALL_STARTED", *_SAID, *_SAID, "CALL_COMPLETED")


class Follower:
    """A client of the stream: what it has read of it."""

    def __init__(self, wire: Wire, head: Message) -> None:
        self.wire = wire
        self.head = head
        self.last_id = ""
        self.is_ended = False
        self._text = ""

    async def read_block(self) -> dict[str, str]:
        """The fields of the next block, a comment's under the name of it."""
        async with asyncio.timeout(LIMIT):
            while "\n\n" not in self._text:
                size = int((await self.wire.read_until(b"\r\n")).strip(), 16)
                content = await self.wire.read(size + 2)
                if not size:
                    self.is_ended = True
                    return {}
                self._text += content[:-2].decode()
        block, _, self._text = self._text.partition("\n\n")
        found = {name: text.strip() for name, _, text in (line.partition(":") for line in block.splitlines())}
        self.last_id = found.get("id", self.last_id)
        return found

    async def read(self, *types: str) -> list[dict[str, Any]]:
        """The next events, which have these types."""
        found: list[dict[str, Any]] = []
        while len(found) < len(types):
            block = await self.read_block()
            assert block, f"the stream ended after {found}"
            if "data" in block:
                event = json.loads(block["data"])
                assert event["type"] == block["event"]
                found.append(event)
        assert [event["type"] for event in found] == list(types)
        return found


@contextlib.asynccontextmanager
async def following(served: Served, query: str = "", *fields: str) -> AsyncIterator[Follower]:
    async with await served.connect() as wire:
        wire.send(request("GET", EVENTS + query, BEARER, *fields))
        head = await wire.read_head()
        assert (head.status, head.find(b"content-type")) == (200, b"text/event-stream; charset=utf-8")
        follower = Follower(wire, head)
        assert "retry" in await follower.read_block()
        yield follower


@pytest.fixture
def archive() -> ReadableArchive:
    return ReadableArchive()


@pytest.fixture
async def talked(plan: Plan, upstream: ScriptedUpstream, archive: ReadableArchive) -> AsyncIterator[Served]:
    upstream.answer_with(answer(json.dumps(ANSWER).encode(), "Content-Type: application/json"))
    async with serving(plan, archive) as served:
        yield served


async def ask(served: Served, *messages: dict[str, Any], name: str = "talk") -> None:
    content = json.dumps({"model": "gpt-5", "messages": messages or [ASKED]}).encode()
    path = "/v1/chat/completions"
    got = await served.ask(
        request("POST", path, f"x-palimpsest-session: {name}", "authorization: Bearer k", body=content)
    )
    assert got.status == 200


async def test_a_call_is_told_from_its_session_to_its_row_of_the_timeline(
    talked: Served, archive: ReadableArchive
) -> None:
    async with following(talked) as follower:
        await ask(talked)
        created, started, asked, said, answered, told, row = await follower.read(*FIRST_CALL)
        session, exchange = archive.opening.session.id, archive.opening.exchange
        assert {each["session"] for each in (created, started, asked, answered, row)} == {session}
        assert (created["name"], created["model"], created["upstream"]) == ("talk", "gpt-5", "scripted")
        named = {"exchange": exchange, "n": 1}
        assert named.items() <= started.items() and started["is_side"] is False
        assert (asked["role"], asked["place"], answered["role"], answered["place"]) == ("user", 0, "assistant", None)
        assert asked["message"] != answered["message"]
        assert (said["message"], said["part"]) == (asked["message"], {"type": "text", "text": "2+2?"})
        assert (told["message"], told["part"]) == (answered["message"], {"type": "text", "text": "4"})
        expected = {**named, "status": 200, "completeness": "complete", "error": "", "kind": "managed", "epoch": ""}
        assert expected.items() <= row.items()
        assert (row["client"], row["sent"], row["input"], row["read"], row["output"]) == (17, 17, 17, 5, 2)
        assert 0 <= row["seconds"] < LIMIT
        assert 0 < row["overhead_seconds"] < LIMIT
        await ask(talked, ASKED, say("4"), ASKED)
        started, asked, *_, row = await follower.read(*FIRST_CALL[1:])
        assert (started["n"], asked["place"], row["n"]) == (2, 2, 2)


async def test_a_call_that_fails_and_one_that_is_not_read_are_told(plan: Plan, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"{}", status="400 Bad Request"))
    async with serving(plan, ReadableArchive()) as served, following(served, "?type=CALL_COMPLETED") as follower:
        await served.ask(turn(ASKED))
        await served.ask(request("PUT", "/v1/files", "x-palimpsest-session: talk", body=b"\xfe"))
        refused, unread = await follower.read("CALL_COMPLETED", "CALL_COMPLETED")
        assert (refused["status"], refused["client"], refused["money"]) == (400, None, None)
        assert (unread["status"], unread["kind"], unread["wire"], unread["n"]) == (400, "passthrough", "", 2)


async def test_a_response_that_cannot_be_read_is_told(plan: Plan, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"\xff"))
    async with serving(plan, ReadableArchive()) as served, following(served) as follower:
        await served.ask(turn(ASKED))
        await follower.read(*FIRST_CALL[:4], "CALL_UNREADABLE", "CALL_COMPLETED")


async def test_messages_of_a_caller_who_claims_to_be_somebody_are_told_once_the_upstream_has_accepted_it(
    plan: Plan, upstream: ScriptedUpstream
) -> None:
    claims = base64.urlsafe_b64encode(b'{"iss":"https://issuer","sub":"somebody"}').decode().rstrip("=")
    call = request(
        *("POST", "/v1/chat/completions", f"authorization: Bearer eyJhbGciOiJub25lIn0.{claims}.c2ln"),
        body=json.dumps({"model": "gpt-5", "messages": [ASKED]}).encode(),
    )
    upstream.close_after(answer(b"{}", "connection: close", status="401 Unauthorized"))
    async with serving(plan, ReadableArchive()) as served, following(served) as follower:
        assert (await served.ask(call)).status == 401
        await follower.read("SESSION_CREATED", "CALL_STARTED", "CALL_COMPLETED")
        upstream.answer_with(answer(json.dumps(ANSWER).encode()))
        assert (await served.ask(call)).status == 200
        _, _, asked, _, answered, *_ = await follower.read(*FIRST_CALL)
        assert (asked["role"], answered["role"]) == ("user", "assistant")


async def test_what_is_managed_is_told(served: Served) -> None:
    edits = json.dumps(
        [
            ["Kept", 0],
            ["Replaced", 1, "…", "tombstone"],
            ["Replaced", 2, "…", "tombstone"],
            ["Replaced", 3, "…", "file"],
            ["Written", "ledger", 4, 6],
        ]
    ).encode()
    async with following(served) as follower:
        shortening = make_epoch("e1", session="s1", exchange="x1", edits=edits)
        served.bus.publish(EpochOpened(replace(shortening, tokens_before=900, tokens_after=300)))
        served.bus.publish(
            EpochOpened(replace(make_epoch("e2", session="s1", parent="e1"), why="revert", tokens_after=900))
        )
        served.bus.publish(
            EpochOpened(replace(make_epoch("e4", session="s1", parent="e3", exchange="x2"), why="refused"))
        )
        served.bus.publish(RungFailedEvent(exchange="x3", session="s1", rung="plan", error="y" * 9000))
        served.bus.publish(
            DoomLoopDetectedEvent(exchange="x3", session="s1", tool="bash", count=3, has_same_output=True)
        )
        served.bus.publish(AgentNudgedEvent(exchange="x4", session="s1", attempt=2))
        served.bus.publish(SessionIdleEvent(exchange="x4", session="s1", attempts=3))
        types: tuple[str, ...] = ("EPOCH_OPENED", "PRUNE_COMPLETED", "EPOCH_REVERTED", "EPOCH_REVERTED", "RUNG_FAILED")
        types += ("DOOM_LOOP_DETECTED", "AGENT_NUDGED", "SESSION_IDLE")
        opened, pruned, undone, refused, failed, loop, _, idle = await follower.read(*types)
        assert (loop["tool"], loop["count"], loop["has_same_output"]) == ("bash", 3, True)
        assert (opened["epoch"], opened["why"], opened["tokens_before"], opened["tokens_after"]) == (
            *("e1", "hard", 900, 300),
        )
        assert (pruned["tombstones"], pruned["files"], pruned["shortened"]) == (2, 1, 0)
        assert (undone["reverted"], undone["why"], undone["tokens_after"]) == ("e1", "revert", 900)
        assert (refused["reverted"], refused["why"], refused["tokens_after"]) == ("e3", "refused", None)
        assert (failed["n"], len(failed["error"]), idle["attempts"]) == (None, 1000, 3)


def test_a_call_in_which_the_model_recalled_has_the_clients_tokens_of_its_first_round() -> None:
    calls = OpenCalls(PriceList(lambda *_: Card()))
    told = replace(make_plan(epoch="p1"), tokens_client=900, tokens_upstream=300)
    for k, plan in enumerate((told, replace(told, k=1, rung="epoch", tokens_client=0, tokens_upstream=320))):
        ended = ExchangeRecorded(
            "e1", "s1", "managed", "chat", "openai", 200, "complete", 1, 1, 0.1, 0.1, k=k, plan=plan
        )
        call = calls.add_round(ended)
    (row,) = call.describe(7, 1)
    assert isinstance(row, CallCompletedEvent)
    assert (row.client, row.sent, row.overhead_seconds) == (900, 320, None)


async def test_events_are_filtered_by_session_and_type(talked: Served, archive: ReadableArchive) -> None:
    await ask(talked)
    await ask(talked, name="other")
    session = archive.of(Opening)[0].session.id
    for named in (session, session[:5], "talk"):
        async with following(talked, f"?session={named}&type=CALL_COMPLETED,CALL_STARTED&type=RUNG_FAILED") as follower:
            await ask(talked, name="other")
            await ask(talked, {"role": "user", "content": named})
            started, row = await follower.read("CALL_STARTED", "CALL_COMPLETED")
            assert (started["session"], row["session"]) == (session, session)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("?session=nobody", 404, "no session begins with 'nobody'"),
        ("?type=CALL_COMPLETED,X", 400, "'X' is no type of event; there are SESSION_CREATED"),
        ("?limit=3", 400, "this path takes: after, session, type"),
        ("?after=" + "9" * 101, 400, "the id of an event is shorter"),
    ],
)
async def test_a_wrong_request_is_refused(talked: Served, query: str, status: int, text: str) -> None:
    got = await talked.ask(request("GET", EVENTS + query, BEARER))
    assert (got.status, text in json.loads(got.body)["error"]["message"]) == (status, True)


async def test_access_and_methods_are_as_for_the_other_paths(served: Served) -> None:
    assert (await served.ask(request("GET", EVENTS))).status == 401
    assert (await served.ask(request("GET", EVENTS, BEARER, "origin: https://evil.example"))).status == 403
    got = await served.ask(request("POST", EVENTS, BEARER))
    assert (got.status, got.find(b"allow")) == (405, b"GET, HEAD")
    got = await served.ask(request("HEAD", EVENTS, BEARER))
    assert (got.status, got.find(b"content-type"), served.events.readers) == (
        *(200, b"text/event-stream; charset=utf-8", 0),
    )


async def test_a_follower_that_comes_back_misses_nothing(talked: Served) -> None:
    async with following(talked, "?type=CALL_COMPLETED") as follower:
        await ask(talked)
        await follower.read("CALL_COMPLETED")
    await left(talked)
    await ask(talked)
    await left_pending(talked)
    async with following(talked, "?type=CALL_COMPLETED", f"last-event-id: {follower.last_id}") as again:
        (row,) = await again.read("CALL_COMPLETED")
        assert row["n"] == 2
    async with following(talked, f"?type=CALL_COMPLETED&after={follower.last_id}") as again:
        assert (await again.read("CALL_COMPLETED"))[0] == row


async def test_a_follower_of_another_run_of_the_server_is_told_to_load_anew(served: Served) -> None:
    async with following(served, "?session=", "last-event-id: earlier-7") as follower:
        (reset,) = await follower.read("RESET")
        assert (reset["reason"], follower.last_id) == ("restarted", served.events.position)


async def test_a_heartbeat_comes_when_nothing_happens(served: Served) -> None:
    async with following(served) as follower:
        await put_forward(15.0)
        assert await follower.read_block() == {"": "heartbeat", "id": served.events.position}


async def test_a_client_that_leaves_gives_its_place_free(served: Served) -> None:
    async with following(served), following(served):
        assert served.events.readers == 2
    await left(served)
    await served.drained()


async def test_streams_end_at_once_when_the_server_stops(served: Served) -> None:
    async with following(served) as follower:
        served.events.close()
        (ended,) = await follower.read("STREAM_ENDED")
        assert ended["reason"] == "stopping"
        assert await follower.read_block() == {} and follower.is_ended
        got = await served.ask(request("GET", EVENTS, BEARER))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (503, "too_many_streams")


async def test_calls_are_not_watched_while_nobody_follows(talked: Served) -> None:
    assert not talked.events.is_collecting
    async with following(talked):
        assert talked.events.is_collecting
    await left(talked)
    await put_forward(61.0)
    assert not talked.events.is_collecting
    await ask(talked)
    async with following(talked, "?type=CALL_COMPLETED") as follower:
        await ask(talked)
        assert (await follower.read("CALL_COMPLETED"))[0]["n"] == 2


async def left(served: Served) -> None:
    """Return when nobody follows any more."""
    async with asyncio.timeout(LIMIT):
        while served.events.readers:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)


async def left_pending(served: Served) -> None:
    """Return when the stream has told all of a call."""
    async with asyncio.timeout(LIMIT):
        before = ""
        while before != served.events.position:
            before = served.events.position
            await asyncio.sleep(0.3)


async def test_a_result_completes_the_part_of_its_call(talked: Served) -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"ls"}'}}
    async with following(talked, "?type=PART_CREATED,PART_UPDATED,MESSAGE_CREATED") as follower:
        await ask(talked)
        await follower.read(*_SAID, *_SAID)
        called = {"role": "assistant", "content": None, "tool_calls": [made]}
        await ask(talked, ASKED, called, {"role": "tool", "tool_call_id": "c1", "content": "a.py"})
        call, created, _, updated = await follower.read(*_SAID, "MESSAGE_CREATED", "PART_UPDATED")
    assert created["message"] == updated["message"] == call["message"]
    assert (created["part"]["status"]["state"], created["part"]["output"]) == ("pending", None)
    assert (updated["why"], updated["part"]["status"]["state"]) == ("completed", "completed")
    assert (updated["part"]["tool_name"], updated["part"]["output"]) == ("bash", "a.py")
