"""An overflow never reaches the client: what goes over the wire on both sides of the proxy."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from proxy.engine.call import response_stream
from proxy.model.exchange import Outcome
from tests.support.rescuing import SHORT, TOO_LONG, TOO_LONG_EVENT, ScriptedRescuer
from tests.support.scripted import (
    LAST_CHUNK,
    LIMIT,
    ScriptedUpstream,
    Wire,
    answer,
    chunk,
    request,
    stream_head,
)
from tests.support.serving import Plan, Served, serving

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'
ASK = request("POST", "/v1/chat/completions", "Content-Type: application/json", body=BODY)
REFUSED = answer(TOO_LONG, "Content-Type: application/json", status="400 Bad Request")
STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
COMMENT = b": upstream works\n\n"


@contextlib.asynccontextmanager
async def calling(rescuer: ScriptedRescuer | None) -> AsyncIterator[tuple[Served, ScriptedUpstream, Wire, Wire]]:
    """A call that has come to the upstream: the server, the upstream, the client's wire and the upstream's."""
    async with (
        ScriptedUpstream() as upstream,
        serving(Plan(upstream.url, rescuer=rescuer)) as served,
        await served.connect() as client,
    ):
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        yield served, upstream, client, wire


async def read_retry(upstream: ScriptedUpstream, wire: Wire) -> None:
    """The retry, on the connection of the refused round."""
    upstream.requests.append(await wire.read_request())


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_refusal_is_answered_by_the_retry(*, is_stream: bool) -> None:
    async with calling(ScriptedRescuer()) as (served, upstream, client, wire):
        wire.send(REFUSED)
        await read_retry(upstream, wire)
        wire.send(stream_head() + chunk(STREAM) + LAST_CHUNK if is_stream else answer(ANSWER))
        got = await client.read_answer()
        assert (got.status, got.body, got.is_whole) == (200, STREAM if is_stream else ANSWER, True)
        assert [asked.body for asked in upstream.requests] == [BODY, SHORT]
        assert [each.received for each in await served.archive.wait_for(Outcome, 2)] == [TOO_LONG, got.body]


@pytest.mark.parametrize("before", [b"", COMMENT])
async def test_a_refusal_inside_a_stream_is_answered_by_the_retry(before: bytes) -> None:
    async with calling(ScriptedRescuer(is_guarded=True)) as (served, upstream, client, wire):
        wire.send(stream_head() + (chunk(before) if before else b""))
        if before:
            await client.read_until(before)
        wire.send(chunk(TOO_LONG_EVENT) + LAST_CHUNK)
        await read_retry(upstream, wire)
        wire.send(stream_head() + chunk(STREAM) + LAST_CHUNK)
        if before:
            assert (await client.read_until(b"\r\n0\r\n\r\n")).endswith(STREAM + b"\r\n0\r\n\r\n")
        else:
            got = await client.read_answer()
            assert (got.status, got.body, got.is_whole) == (200, STREAM, True)
        refused, answered = await served.archive.wait_for(Outcome, 2)
        assert (refused.received, answered.received) == (before + TOO_LONG_EVENT, STREAM)


@pytest.mark.parametrize("rescuer", [None, ScriptedRescuer(retry=None), ScriptedRescuer(retry=None, is_guarded=True)])
async def test_without_a_retry_the_refusal_is_what_the_client_gets(rescuer: ScriptedRescuer | None) -> None:
    seen: list[bytes] = []
    for content in (REFUSED, stream_head("X-A: 1") + chunk(TOO_LONG_EVENT) + LAST_CHUNK):
        async with calling(rescuer) as (served, _, client, wire):
            wire.send(content)
            got = await client.read_answer()
            seen.append(got.body)
            assert got.is_whole
            await served.outcome()
    assert seen == [TOO_LONG, TOO_LONG_EVENT]


async def test_a_second_refusal_is_what_the_client_gets() -> None:
    async with calling(ScriptedRescuer()) as (_, upstream, client, wire):
        wire.send(REFUSED)
        await read_retry(upstream, wire)
        wire.send(answer(b"still too long", "X-A: 1", status="413 Content Too Large"))
        got = await client.read_answer()
        assert (got.status, got.body, got.find(b"x-a")) == (413, b"still too long", b"1")
        assert len(upstream.requests) == 2


async def test_an_upstream_that_dies_in_the_retry_breaks_the_answer() -> None:
    async with calling(ScriptedRescuer()) as (served, upstream, client, wire):
        wire.send(REFUSED)
        await read_retry(upstream, wire)
        wire.send(stream_head() + chunk(STREAM[:30]))
        await client.read_until(chunk(STREAM[:30]))
        wire.reset()
        assert await client.read_to_end() == b""
        _, broken = await served.archive.wait_for(Outcome, 2)
        assert (broken.k, broken.completeness, broken.received) == (1, "truncated", STREAM[:30])


@pytest.mark.parametrize("when", ["held", "retry"])
async def test_a_client_that_leaves_takes_the_upstream_with_it(when: str) -> None:
    rescuer = ScriptedRescuer(is_guarded=True)
    async with calling(rescuer) as (served, upstream, client, wire):
        if when == "held":
            wire.send(stream_head() + chunk(b"data: {}\n\n"))
            async with asyncio.timeout(LIMIT):
                await rescuer.looked.wait()
        else:
            wire.send(REFUSED)
            await read_retry(upstream, wire)
        await client.close()
        assert await wire.read_to_end() == b""
        outcomes = await served.archive.wait_for(Outcome, 1 if when == "held" else 2)
        assert outcomes[-1].completeness == "aborted"


async def test_a_client_that_waits_is_told_so_and_gets_the_answer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_stream, "WITHHOLD_SECONDS", 0.01)
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    waiting = chunk(b": waiting\n\n")
    async with calling(ScriptedRescuer(is_guarded=True)) as (served, _, client, wire):
        wire.send(stream_head() + chunk(role))
        assert b"HTTP/1.1 200 OK" in await client.read_until(waiting)
        await client.read_until(waiting)
        wire.send(chunk(STREAM) + LAST_CHUNK)
        got = await client.read_until(b"\r\n0\r\n\r\n")
        assert b"".join(re.findall(rb"data: [^\n]*\n\n", got)) == role + STREAM
        assert (await served.outcome()).received == role + STREAM
