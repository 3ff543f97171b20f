"""Lineage in the engine: answers become nodes in time, the log is asked once, and nothing is left in mind."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import ClientRequest, Headers, Opening, Reading, SessionKey
from proxy.model.lineage import Adoption, Mark, Reply, Step, StoredSession
from tests.support.engine import JSON, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream, wait_out

Message = dict[str, Any]
SHORT = "Indeed."
KEEP: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_Zk93fQpX", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def bot(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Desk:
    """An engine whose upstream says what it is told to."""

    def __init__(self, after: "Desk | None" = None, **policy: Any) -> None:
        chosen = EnginePolicy(**policy)
        self.upstream = ScriptedUpstream()
        self.engine: Engine = Engine(self.upstream, chosen, is_instant=True, after=after.engine if after else None)

    async def send(
        self, *messages: Message, answer: Message | None = None, key: str = "k", name: str = "", **fields: Any
    ) -> Step:
        """A call that goes all the way. `fields`: status, ending, and what else the body has."""
        status, ending = fields.pop("status", 200), fields.pop("ending", "whole")
        choices = fields.pop("choices", [{"index": 0, "message": answer or bot(SHORT), "finish_reason": "stop"}])
        content = json.dumps({"choices": choices}).encode()
        self.upstream.answer(ScriptedResponse(content, status=status, headers=JSON, ending=ending))
        await self.call(messages, key, name, **fields)
        return self.step

    async def call(self, messages: Sequence[Message], key: str = "k", name: str = "", **fields: Any) -> None:
        headers: Headers = ((b"authorization", f"Bearer {key}".encode()),)
        headers += ((b"x-session-id", name.encode()),) if name else ()
        body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
        request = ClientRequest("POST", b"/v1/chat/completions", headers, body)
        await self.engine.exchanges.carry(request, "chat_completions", RecordingClient())

    @property
    def step(self) -> Step:
        return self.engine.archive.of(Step)[-1]

    @property
    def session(self) -> str:
        return self.engine.archive.of(Opening)[-1].session.id

    @property
    def adoptions(self) -> list[Adoption]:
        return self.engine.archive.of(Adoption)

    async def settle(self) -> None:
        assert await self.engine.tasks.finish(5)

    def assert_nothing_in_mind(self) -> None:
        lineage = self.engine.lineage
        assert (lineage._open, lineage._unread) == ({}, {})


async def test_an_answer_that_waits_to_be_read_is_read_when_a_request_shows_it() -> None:
    desk = Desk()
    await desk.send(user("hi"))
    first = desk.session
    assert desk.engine.archive.of(Reply) == []
    step = await desk.send(user("hi"), bot(SHORT), user("more"))
    assert (desk.session, step.relation, step.base) == (first, "append", 2)
    (reply,) = desk.engine.archive.of(Reply)
    assert [(row.parent, row.is_answer) for row in reply.nodes] == [(desk.engine.archive.of(Step)[0].tip, True)]
    await desk.settle()
    desk.assert_nothing_in_mind()


async def test_an_answer_that_waits_is_read_when_it_may_be_shown_elsewhere() -> None:
    desk = Desk()
    await desk.send(user("hi"), answer=KEEP)
    first = desk.session
    await desk.send(user("sum"), KEEP, user("more"))
    assert desk.session == first


async def test_an_answer_to_no_messages_is_found() -> None:
    desk = Desk()
    await desk.send()
    first = desk.session
    await desk.send(bot(SHORT), user("more"))
    assert desk.session == first


async def test_each_alternative_of_an_answer_is_an_answer_and_equal_ones_are_one() -> None:
    desk = Desk()
    choices = [{"index": i, "message": bot(text)} for i, text in enumerate(("a", "b", "a"))]
    await desk.send(user("hi"), choices=choices)
    first = desk.session
    await desk.settle()
    (reply,) = desk.engine.archive.of(Reply)
    assert len(reply.nodes) == 2
    for text in "ab":
        await desk.send(user("hi"), bot(text), user("more"))
        assert desk.session == first


async def test_an_answer_that_was_given_before_is_not_told_again() -> None:
    desk = Desk()
    for _ in range(2):
        await desk.send(user("hi"), name="n")
        await desk.settle()
    assert [len(reply.nodes) for reply in desk.engine.archive.of(Reply)] == [1, 0]


@pytest.mark.parametrize("fields", [{"status": 429}, {"status": 500}, {"ending": "cut"}])
async def test_a_call_that_came_to_nothing_is_tried_again(fields: dict[str, Any]) -> None:
    desk = Desk()
    await desk.send(user("hi"), **fields)
    first = desk.session
    await desk.settle()
    step = await desk.send(user("hi"))
    assert (desk.session, step.relation, step.nodes) == (first, "retry", ())
    await desk.settle()
    await desk.send(user("hi"))
    assert desk.session != first
    await desk.settle()
    desk.assert_nothing_in_mind()


async def test_a_call_that_failed_or_was_left_is_tried_again() -> None:
    desk = Desk()
    desk.upstream.answer(UpstreamUnreachable("nobody there"))
    await desk.call([user("hi")])
    first = desk.session
    left = Desk()
    task = asyncio.create_task(left.call([user("hi")]))
    await left.upstream.called.wait()
    task.cancel()
    await wait_out(task)
    left.upstream.calls.clear()
    for each, session in ((desk, first), (left, left.session)):
        each.assert_nothing_in_mind()
        assert (await each.send(user("hi"))).relation == "retry"
        assert each.session == session


async def test_an_answer_that_cannot_be_read_leaves_nothing_in_mind() -> None:
    desk = Desk()
    desk.upstream.answer(ScriptedResponse(b"no JSON", headers=JSON, ending="whole"))
    await desk.call([user("hi")])
    await desk.settle()
    desk.assert_nothing_in_mind()
    assert (desk.engine.archive.of(Reading), desk.engine.archive.of(Reply)) == ([], [])


CHAIN = (user("a"), bot(SHORT), user("b"))


async def test_a_rotated_credential_says_where_it_comes_from_once_it_is_accepted() -> None:
    desk = Desk()
    await desk.send(user("a"))
    await desk.send(*CHAIN)
    first, tip = desk.session, desk.step.tip
    await desk.send(*CHAIN, status=401, key="new")
    other = desk.session
    await desk.settle()
    assert (other != first, desk.adoptions) == (True, [])
    for _ in range(2):
        await desk.send(*CHAIN, key="new", ending="cut")
        await desk.settle()
    (adoption,) = desk.adoptions
    assert (adoption.session, adoption.source, adoption.node) == (other, first, tip)
    assert adoption.at_ms == desk.engine.clock.now_ms()
    assert desk.session == other


async def test_a_rotated_credential_is_known_again_after_a_restart() -> None:
    desk = Desk()
    await desk.send(user("a"))
    await desk.send(*CHAIN)
    first = desk.session
    await desk.settle()
    desk = Desk(desk)
    await desk.send(*CHAIN, bot(SHORT), user("c"), key="new", name="n")
    await desk.settle()
    assert [adoption.source for adoption in desk.adoptions] == [first]


@pytest.mark.parametrize("chain", [CHAIN, (user("x"), bot("other"), user("b"), bot(SHORT))])
async def test_nothing_is_adopted_from_too_short_a_chain_or_a_strangers(chain: tuple[Message, ...]) -> None:
    desk = Desk()
    await desk.send(user("a"))
    await desk.settle()
    await desk.send(*chain, key="new")
    await desk.settle()
    assert desk.adoptions == []


@pytest.mark.parametrize("name", ["", "n"])
async def test_a_conversation_goes_on_after_a_restart(name: str) -> None:
    desk = Desk()
    await desk.send(user("a"), name=name)
    first = desk.session
    await desk.settle()
    desk = Desk(desk)
    step = await desk.send(*CHAIN, name=name)
    assert (desk.session, step.relation, step.base) == (first, "append", 2)
    await desk.send(*CHAIN, name=name)
    assert (desk.session, desk.step.relation, desk.step.nodes) == (first, "retry", ())
    assert len(desk.engine.archive.recalled) == 1


async def test_a_named_session_is_remembered_after_a_restart_whatever_is_sent_first() -> None:
    desk = Desk()
    await desk.send(user("a"), name="n")
    await desk.settle()
    desk = Desk(desk)
    step = await desk.send(user("a"), name="n")
    assert (step.relation, step.nodes) == ("retry", ())


async def test_conversations_go_on_in_a_memory_that_holds_but_one() -> None:
    desk = Desk(cache_bytes=400)
    sessions: dict[str, set[str]] = {}
    for turn in range(3):
        for who in "abcd":
            history = [each for i in range(turn) for each in (user(f"{who}{i}"), bot(f"{who} said"))]
            await desk.send(*history, user(f"{who}{turn}"), answer=bot(f"{who} said"))
            sessions.setdefault(who, set()).add(desk.session)
            await desk.settle()
            assert len(desk.engine.lineage._forest) == 1
    assert sorted(map(len, sessions.values())) == [1, 1, 1, 1]
    assert len(set.union(*sessions.values())) == 4


async def test_an_answer_to_a_session_that_was_dropped_meanwhile_is_found() -> None:
    desk = Desk(cache_bytes=400)
    await desk.send(user("a"))
    first = desk.session
    await desk.send(user("b"))
    assert len(desk.engine.lineage._forest) == 1
    await desk.send(*CHAIN)
    assert desk.session == first
    await desk.settle()
    desk.assert_nothing_in_mind()


async def test_what_was_asked_before_is_asked_again_when_memory_was_lost() -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    await desk.settle()
    desk = Desk(desk)
    await desk.send(*CHAIN)
    desk.engine.lineage._forest.clear()
    await desk.send(*CHAIN)
    assert desk.session == first


async def test_where_the_log_cannot_be_read_a_call_goes_on_in_a_session_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    await desk.settle()
    desk = Desk(desk)
    desk.engine.archive.refuses_recall = True
    assert (await desk.send(*CHAIN)).relation == "root"
    assert desk.session != first
    desk.engine.archive.refuses_recall = False
    await desk.settle()
    await desk.send(*CHAIN, bot(SHORT), user("c"))
    assert not caplog.records


async def test_the_log_is_asked_once_about_a_history_that_it_does_not_know() -> None:
    desk = Desk()
    desk.engine.lineage._forest.clear()
    for _ in range(3):
        await desk.send(*CHAIN, status=429)
        await desk.settle()
    assert len(desk.engine.archive.recalled) == 1


async def test_what_the_log_has_lost_is_not_known_any_more() -> None:
    desk = Desk()
    await desk.send(user("a"), name="n")
    await desk.settle()
    desk.engine.archive.health = replace(desk.engine.archive.health, generation=1)
    desk.engine.archive.trees.by_id.clear()
    step = await desk.send(*CHAIN, name="n")
    assert (step.relation, step.base, len(step.nodes)) == ("root", 0, 3)


@pytest.mark.parametrize("messages", [[], [user("hi")]])
async def test_a_mark_stands_at_a_node_of_its_session(messages: list[Message]) -> None:
    desk = Desk()
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    desk.upstream.answer(ScriptedResponse(json.dumps({"output": [reasoning]}).encode(), headers=JSON, ending="whole"))
    request = ClientRequest("POST", b"/v1/responses", (), json.dumps({"input": messages}).encode())
    await desk.engine.exchanges.carry(request, "responses", RecordingClient())
    await desk.settle()
    (reply,) = desk.engine.archive.of(Reply)
    assert [mark.node for mark in reply.marks] == [desk.step.tip for _ in messages]


class Stalling:
    """A log that does not answer before it is told to."""

    def __init__(self, desk: Desk) -> None:
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self._recall = desk.engine.archive.recall
        desk.engine.archive.recall = self.recall  # type: ignore[method-assign]

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        self.asked.set()
        await self.told.wait()
        return await self._recall(nodes, marks, session)


async def test_a_client_that_leaves_while_the_log_is_asked_takes_nothing_along() -> None:
    """What a request brought is not known before it is in the log: the next one brings it."""
    desk = Desk()
    desk.engine.lineage._forest.clear()
    stalling = Stalling(desk)
    body = [*CHAIN, user("x" * 5000)]
    task = asyncio.create_task(desk.call(body))
    await stalling.asked.wait()
    task.cancel()
    await wait_out(task)
    stalling.told.set()
    assert desk.engine.archive.of(Opening) == []
    desk.assert_nothing_in_mind()
    await desk.send(*body)
    assert len(desk.engine.archive.opening.body.slices) == 4


async def test_a_record_that_is_lost_while_the_log_is_asked_is_brought_again() -> None:
    desk = Desk()
    big = user("x" * 5000)
    await desk.send(big)
    desk.engine.lineage._forest.clear()
    stalling = Stalling(desk)
    task = asyncio.create_task(desk.send(big, bot(SHORT), user("b")))
    await stalling.asked.wait()
    desk.engine.archive.health = replace(desk.engine.archive.health, generation=1)
    stalling.told.set()
    await task
    assert len(desk.engine.archive.of(Opening)[-1].body.slices) == 3


async def test_two_requests_that_wait_for_the_log_are_placed_alike() -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    await desk.settle()
    desk = Desk(desk)
    stalling = Stalling(desk)
    tasks = [asyncio.create_task(desk.send(*CHAIN[:2], user(text))) for text in "bc"]
    await stalling.asked.wait()
    stalling.told.set()
    await asyncio.gather(*tasks)
    assert {opening.session.id for opening in desk.engine.archive.of(Opening)} == {first}


async def test_a_stored_answer_belongs_to_its_upstream_and_tenant() -> None:
    engine = Engine(is_instant=True)
    lineage, tenant = engine.lineage, b"t" * 16
    key = SessionKey("s", tenant, "main", "")
    lineage._forest.open(key)
    lineage._forest.add("s", (), [Mark("response:r", b"n" * 16, b"f")])
    assert await lineage.find_response(key, "r") == b"n" * 16
    for other in (SessionKey("u", tenant, "other", ""), SessionKey("u", b"u" * 16, "main", "")):
        assert await lineage.find_response(other, "r") == b""
    second = SessionKey("v", tenant, "main", "")
    lineage._forest.open(second)
    lineage._forest.add("v", (), [Mark("response:r", b"m" * 16, b"f")])
    assert await lineage.find_response(key, "r") == b""  # one id, two answers


async def test_anothers_deeper_answer_does_not_hide_ones_own_after_a_restart() -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    await desk.send(*CHAIN, key="new")
    await desk.settle()
    desk = Desk(desk)
    await desk.send(*CHAIN, bot(SHORT), user("c"))
    assert desk.session == first
