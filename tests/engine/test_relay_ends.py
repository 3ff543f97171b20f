"""How a response ends: the body that ends during a commit, and the client that leaves at the last event."""

import asyncio

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.exchange import ClientRequest, Opening, Outcome
from tests.support.engine import LIMIT, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream, wait_out

REQUEST = ClientRequest("POST", b"/v1/chat/completions", (), b'{"model":"m","messages":[]}')
FIRST, DONE, BYE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n", b": bye\n\n"


@pytest.mark.parametrize("behind", [(), (BYE,)])
async def test_a_body_that_ends_during_the_commit_ends_for_the_client(behind: tuple[bytes, ...]) -> None:
    response = ScriptedResponse(FIRST, DONE)
    engine, client = Engine(ScriptedUpstream(answer=response), EnginePolicy(commit_wait_ms=60_000)), RecordingClient()
    task = engine.begin(REQUEST, "chat_completions", client)
    (await engine.archive.wait_until_awaited(Opening)).set_result(True)
    commit = await engine.archive.wait_until_awaited(Outcome)  # nothing of its end came while it was waited for
    assert client.body == FIRST
    response.is_received = response.is_ended = not behind  # as a connection that has read the last chunk says
    response.feed(*behind, ending="eof")
    commit.set_result(True)
    await wait_out(task)
    assert await engine.tasks.finish(LIMIT)
    assert (client.body, client.is_whole, client.is_aborted) == (b"".join((FIRST, DONE, *behind)), True, False)


async def test_a_body_that_ends_while_a_slow_client_takes_what_follows_the_end_marker_ends_for_it() -> None:
    response = ScriptedResponse(FIRST, DONE)
    engine, client = Engine(ScriptedUpstream(answer=response), is_instant=True), RecordingClient()
    task = engine.begin(REQUEST, "chat_completions", client)
    await client.wait_for_body(len(FIRST + DONE))
    client.can_take.clear()
    response.feed(BYE)
    async with asyncio.timeout(LIMIT):
        await client.stalled.wait()
    response.is_received = response.is_ended = True
    response.feed(ending="eof")
    client.can_take.set()
    await wait_out(task)
    assert (client.body, client.is_whole) == (FIRST + DONE + BYE, True)
