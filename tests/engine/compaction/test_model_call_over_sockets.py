"""Calls of our own through the real forwarder: upstreams that hang, fail, babble, break off, or keep the line."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from proxy.engine.compaction.model_call import FailedCall, ModelResponse
from proxy.engine.runtime import TaskRunner
from proxy.upstream.client import DirectClient
from proxy.upstream.policy import UpstreamPolicy
from tests.support.model_calls import ASKING, Setup
from tests.support.scripted import (
    LAST_CHUNK,
    LIMIT,
    ScriptedUpstream,
    answer,
    chunk,
    stream_head,
)


def say(**delta: object) -> bytes:
    return chunk(b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())


DONE = chunk(b"data: [DONE]\n\n")
WHOLE = stream_head() + say(content="Goal: ") + say(content="x") + DONE


@contextlib.asynccontextmanager
async def standing() -> AsyncIterator[tuple[Setup, ScriptedUpstream]]:
    """A setup whose upstream is a server that the test plays."""
    async with ScriptedUpstream() as server:
        tasks = TaskRunner()
        forwarder = DirectClient(UpstreamPolicy("main", base_url=server.url, idle_timeout=LIMIT), tasks.spawn)
        yield Setup(forwarder), server
        forwarder.close()
        assert not len(tasks)


async def test_what_is_sent_is_the_question_and_whose_it_is() -> None:
    async with standing() as (setup, server):
        task = setup.begin()
        wire, request = await server.accept_request()
        wire.send(WHOLE + LAST_CHUNK)
        outcome = await task
        assert isinstance(outcome, ModelResponse)
        assert outcome.text == "Goal: x"
        assert (request.target, request.body) == (b"/v1/chat/completions?k=v", ASKING)
        assert request.find(b"authorization") == b"Bearer sk-a-secret-of-the-client"
        assert request.find(b"accept-encoding") == b"identity"


async def test_nobody_waits_behind_the_end_of_a_stream() -> None:
    async with standing() as (setup, server):
        task = setup.begin()
        wire, _ = await server.accept_request()
        wire.send(WHOLE)  # and no last chunk
        assert isinstance(await task, ModelResponse)
        assert await wire.read_to_end() == b""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (answer(b'{"error":{"message":"broken"}}', status="500 Oops"), "status 500: broken"),
        (answer(b'{"error":{"message":"slow"}}', "Retry-After: 9", status="429 No"), "status 429: slow"),
        (answer(b"", "Content-Type: application/json"), "the answer is not a JSON object"),
        (stream_head() + say(content="Go"), "the response broke off"),
        (b"", "the upstream"),
    ],
)
async def test_what_goes_wrong_is_told_and_recorded(content: bytes, reason: str) -> None:
    async with standing() as (setup, server):
        server.close_after(content)
        outcome = await setup.begin()
        assert isinstance(outcome, FailedCall)
        assert reason in outcome.reason
        assert setup.engine.archive.outcome.exchange == outcome.exchange


async def test_a_server_that_hangs_is_left() -> None:
    async with standing() as (setup, server):
        task = setup.begin()
        wire, _ = await server.accept_request()
        task.cancel()
        assert await wire.read_to_end() == b""
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await setup.engine.tasks.finish(LIMIT)
        assert setup.engine.archive.outcome.completeness == "aborted"


@pytest.mark.parametrize(
    ("piece", "is_tool_call"),
    [
        (say(content="x" * 50), False),
        (say(content=" \n" * 25), False),
        (say(tool_calls=[{"index": 0, "id": "c"}]), True),
    ],
)
async def test_a_server_that_never_ends_is_left_as_soon_as_that_is_seen(piece: bytes, is_tool_call: bool) -> None:
    async with standing() as (setup, server):
        task = setup.begin()
        wire, _ = await server.accept_request()
        wire.send(stream_head())
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not task.done():
                wire.send(piece)
                sent += 1
                await wire.flush()
                await asyncio.sleep(0)
        outcome = await task
        assert isinstance(outcome, ModelResponse if is_tool_call else FailedCall)
        recorded = setup.engine.archive.outcome
        assert (recorded.completeness, recorded.exchange) == ("aborted", outcome.exchange)
        await wire.read_to_end()


async def test_calls_stand_side_by_side_with_others() -> None:
    async with standing() as (setup, server):
        tasks = [setup.begin() for _ in range(8)]
        wires = [(await server.accept_request())[0] for _ in tasks]
        for wire in reversed(wires):
            wire.send(WHOLE + LAST_CHUNK)
        outcomes = await asyncio.gather(*tasks)
        assert {type(outcome) for outcome in outcomes} == {ModelResponse}
        assert len({outcome.exchange for outcome in outcomes}) == 8
