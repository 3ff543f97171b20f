"""Lineage in the engine: answers become nodes in time, and nothing is left in mind."""

import asyncio
import json
from typing import Any

import pytest

from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import ClientRequest, Reading, SessionKey
from proxy.model.lineage import CallFingerprint, Lineage, Reply
from tests.engine.lineage.talk import CHAIN, KEEP, SHORT, Message, Setup, bot, user
from tests.support.engine import JSON, Engine, RecordingClient, ScriptedResponse, wait_out


async def test_an_answer_that_waits_to_be_read_is_read_when_a_request_shows_it() -> None:
    setup = Setup()
    await setup.send(user("hi"))
    first = setup.session
    assert setup.engine.archive.of(Reply) == []
    step = await setup.send(user("hi"), bot(SHORT), user("more"))
    assert (setup.session, step.relation, step.base) == (first, "append", 2)
    (reply,) = setup.engine.archive.of(Reply)
    assert [(row.parent, row.is_answer) for row in reply.nodes] == [(setup.engine.archive.of(Lineage)[0].tip, True)]
    await setup.settle()
    setup.assert_nothing_in_mind()


async def test_an_answer_that_waits_is_read_when_it_may_be_shown_elsewhere() -> None:
    setup = Setup()
    await setup.send(user("hi"), answer=KEEP)
    first = setup.session
    await setup.send(user("sum"), KEEP, user("more"))
    assert setup.session == first


async def test_an_answer_to_no_messages_is_found() -> None:
    setup = Setup()
    await setup.send()
    first = setup.session
    await setup.send(bot(SHORT), user("more"))
    assert setup.session == first


async def test_each_alternative_of_an_answer_is_an_answer_and_equal_ones_are_one() -> None:
    setup = Setup()
    choices = [{"index": i, "message": bot(text)} for i, text in enumerate(("a", "b", "a"))]
    await setup.send(user("hi"), choices=choices)
    first = setup.session
    await setup.settle()
    (reply,) = setup.engine.archive.of(Reply)
    assert len(reply.nodes) == 2
    for text in "ab":
        await setup.send(user("hi"), bot(text), user("more"))
        assert setup.session == first


async def test_an_answer_that_was_given_before_is_not_told_again() -> None:
    setup = Setup()
    for _ in range(2):
        await setup.send(user("hi"), name="n")
        await setup.settle()
    assert [len(reply.nodes) for reply in setup.engine.archive.of(Reply)] == [1, 0]


@pytest.mark.parametrize("fields", [{"status": 429}, {"status": 500}, {"ending": "cut"}])
async def test_a_call_that_came_to_nothing_is_tried_again(fields: dict[str, Any]) -> None:
    setup = Setup()
    await setup.send(user("hi"), **fields)
    first = setup.session
    await setup.settle()
    step = await setup.send(user("hi"))
    assert (setup.session, step.relation, step.nodes) == (first, "retry", ())
    await setup.settle()
    await setup.send(user("hi"))
    assert setup.session != first
    await setup.settle()
    setup.assert_nothing_in_mind()


async def test_a_call_that_failed_or_was_left_is_tried_again() -> None:
    setup = Setup()
    setup.upstream.answer(UpstreamUnreachable("nobody there"))
    await setup.call([user("hi")])
    first = setup.session
    left = Setup()
    task = asyncio.create_task(left.call([user("hi")]))
    await left.upstream.called.wait()
    task.cancel()
    await wait_out(task)
    left.upstream.calls.clear()
    for each, session in ((setup, first), (left, left.session)):
        each.assert_nothing_in_mind()
        assert (await each.send(user("hi"))).relation == "retry"
        assert each.session == session


async def test_an_answer_that_cannot_be_read_leaves_nothing_in_mind() -> None:
    setup = Setup()
    setup.upstream.answer(ScriptedResponse(b"no JSON", headers=JSON, ending="whole"))
    await setup.call([user("hi")])
    await setup.settle()
    setup.assert_nothing_in_mind()
    assert (setup.engine.archive.of(Reading), setup.engine.archive.of(Reply)) == ([], [])


async def test_a_rotated_credential_says_where_it_comes_from_once_it_is_accepted() -> None:
    setup = Setup()
    await setup.send(user("a"))
    await setup.send(*CHAIN)
    first, tip = setup.session, setup.lineage.tip
    await setup.send(*CHAIN, status=401, key="new")
    other = setup.session
    await setup.settle()
    assert (other != first, setup.adoptions) == (True, [])
    for _ in range(2):
        await setup.send(*CHAIN, key="new", ending="cut")
        await setup.settle()
    (adoption,) = setup.adoptions
    assert (adoption.session, adoption.origin, adoption.node) == (other, first, tip)
    assert adoption.at_ms == setup.engine.clock.now_ms()
    assert setup.session == other


async def test_a_rotated_credential_is_known_again_after_a_restart() -> None:
    setup = Setup()
    await setup.send(user("a"))
    await setup.send(*CHAIN)
    first = setup.session
    await setup.settle()
    setup = Setup(setup)
    await setup.send(*CHAIN, bot(SHORT), user("c"), key="new", name="n")
    await setup.settle()
    assert [adoption.origin for adoption in setup.adoptions] == [first]


@pytest.mark.parametrize("chain", [CHAIN, (user("x"), bot("other"), user("b"), bot(SHORT))])
async def test_nothing_is_adopted_from_too_short_a_chain_or_a_strangers(chain: tuple[Message, ...]) -> None:
    setup = Setup()
    await setup.send(user("a"))
    await setup.settle()
    await setup.send(*chain, key="new")
    await setup.settle()
    assert setup.adoptions == []


@pytest.mark.parametrize("messages", [[], [user("hi")]])
async def test_a_mark_stands_at_a_node_of_its_session(messages: list[Message]) -> None:
    setup = Setup()
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    setup.upstream.answer(ScriptedResponse(json.dumps({"output": [reasoning]}).encode(), headers=JSON, ending="whole"))
    request = ClientRequest("POST", b"/v1/responses", (), json.dumps({"input": messages}).encode())
    await setup.engine.exchanges.carry(request, "responses", RecordingClient())
    await setup.settle()
    (reply,) = setup.engine.archive.of(Reply)
    assert [fingerprint.node for fingerprint in reply.fingerprints] == [setup.lineage.tip for _ in messages]


async def test_a_stored_answer_belongs_to_its_upstream_and_tenant() -> None:
    engine = Engine(is_instant=True)
    lineage, tenant = engine.lineage, b"t" * 16
    key = SessionKey("s", tenant, "main", "")
    lineage.index.open(key)
    lineage.index.add("s", (), [CallFingerprint("response:r", b"n" * 16, b"f")])
    assert await lineage.find_response(key, "r") == b"n" * 16
    for other in (SessionKey("u", tenant, "other", ""), SessionKey("u", b"u" * 16, "main", "")):
        assert await lineage.find_response(other, "r") == b""
    second = SessionKey("v", tenant, "main", "")
    lineage.index.open(second)
    lineage.index.add("v", (), [CallFingerprint("response:r", b"m" * 16, b"f")])
    assert await lineage.find_response(key, "r") == b""  # one id, two answers


async def test_anothers_deeper_answer_does_not_hide_ones_own_after_a_restart() -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    await setup.send(*CHAIN, key="new")
    await setup.settle()
    setup = Setup(setup)
    await setup.send(*CHAIN, bot(SHORT), user("c"))
    assert setup.session == first
