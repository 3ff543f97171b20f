"""How a response is framed and how its connection ends: a break never looks like an end."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from proxy.server.health import Health
from proxy.server.http11_response import ConnectionCloser
from proxy.server.policy import ServerPolicy
from tests.support.loops import put_forward
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[]}'


async def ask(client: Wire, upstream: ScriptedUpstream, sent: bytes, version: bytes = b"1.1") -> Wire:
    """Make a call that is answered with these bytes; the upstream's connection."""
    client.send(request("POST", CHAT, body=BODY).replace(b"HTTP/1.1", b"HTTP/" + version))
    wire, _ = await upstream.accept_request()
    wire.send(sent)
    return wire


async def test_an_old_client_gets_no_chunks_but_an_answer_that_ends_with_the_connection(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, b"HTTP/1.1 200 OK\r\n\r\npart of it", b"1.0")
        await wire.close()
        head = await client.read_head()
        assert head.all(b"transfer-encoding") == []
        assert head.find(b"connection") == b"close"
        assert await client.read_to_end() == b"part of it"


async def test_an_old_client_sees_a_reset_where_its_answer_breaks(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, stream_head() + chunk(b"part"), b"1.0")
        await client.read_until(b"part")
        wire.reset()
        with pytest.raises(ConnectionResetError):
            await client.read_some()


async def test_an_old_client_that_leaves_in_its_answer_is_no_fault_of_ours(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, stream_head() + chunk(b"part"), b"1.0")
        await client.read_until(b"part")
        client.reset()
        await wire.read_to_end()
    assert (await served.outcome()).completeness == "aborted"


async def test_a_length_is_passed_on_to_head_without_a_body(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("HEAD", "/v1/models"))
        wire, _ = await upstream.accept_request()
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n")
        head = await client.read_answer(method="HEAD")
        assert head.find(b"content-length") == b"12"
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_followed_by_the_next_one(
    served: Served, upstream: ScriptedUpstream, status: int
) -> None:
    async with await served.connect() as client:
        await ask(client, upstream, b"HTTP/1.1 %d X\r\netag: a\r\n\r\n" % status)
        head = await client.read_head()
        assert (head.status, head.all(b"content-length"), head.all(b"transfer-encoding")) == (status, [], [])
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200


async def test_a_status_without_a_name_is_passed_on(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        await ask(client, upstream, b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\nno")
        got = await client.read_answer()
        assert (got.status, got.body) == (529, b"no")


async def test_a_body_in_pieces_is_joined_and_capped(upstream: ScriptedUpstream) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    policy = ServerPolicy(port=0, admin_token="t", max_body_bytes=64)
    async with serving(Plan(upstream.url, server=policy)) as served, await served.connect() as client:
        client.send(head + chunk(BODY[:5]))
        await served.ask(request("GET", "/-/live"))  # meanwhile the first piece has been read
        client.send(chunk(BODY[5:]) + LAST_CHUNK)
        wire, seen = await upstream.accept_request()
        assert seen.body == BODY
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert (await client.read_answer()).status == 200
        client.send(head + chunk(b"x" * 65) + LAST_CHUNK)
        assert (await client.read_answer()).status == 413


async def test_the_whole_answer_is_sent_before_the_connection_ends(upstream: ScriptedUpstream) -> None:
    async with serving(Plan(upstream.url)) as served, await served.connect() as client:
        client.send(request("POST", CHAT, "Connection: close", body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(answer(b"whole"))
        assert (await client.read_answer()).body == b"whole"
        assert await client.read_to_end() == b""


# --- faults of ours --------------------------------------------------------------------------------------------------


async def fail(health: Health, request: Request) -> Response:
    raise KeyError("a fault of ours")


async def stop_halfway(health: Health, request: Request) -> Response:
    async def write() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise KeyError("a fault of ours")

    return StreamingResponse(write())


async def write_too_much(health: Health, request: Request) -> Response:
    async def write() -> AsyncIterator[bytes]:
        yield b"12"
        yield b"345"

    return StreamingResponse(write(), headers={"content-length": "4"})


async def break_a_header(health: Health, request: Request) -> Response:
    return Response(headers={"x-a": "1\r\nx-b: 2"})


@pytest.mark.parametrize("page", [fail, break_a_header])
async def test_a_page_that_fails_is_an_error_of_ours_and_ends_the_connection(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, page: Any
) -> None:
    monkeypatch.setattr(Health, "live", page)
    async with serving(plan) as served, await served.connect() as client:
        client.send(request("GET", "/-/live"))
        got = await client.read_answer()
        assert (got.status, json.loads(got.body)["error"]["code"]) == (500, "internal_error")
        assert (got.find(b"connection"), got.all(b"x-b")) == (b"close", [])
        assert await client.read_to_end() == b""
    assert "serving a request failed" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("page", [stop_halfway, write_too_much])
async def test_a_page_that_fails_halfway_is_broken_off(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, page: Any
) -> None:
    monkeypatch.setattr(Health, "live", page)
    async with serving(plan) as served:
        got = await served.ask(request("GET", "/-/live"))
        assert (got.status, got.is_whole) == (200, False)
    caplog.clear()


async def test_a_large_page_waits_for_a_client_that_takes_it_slowly(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    async def show(health: Health, request: Request) -> Response:
        async def write() -> AsyncIterator[bytes]:
            for number in range(16):
                written.append(number)
                yield bytes(1024 * 1024)

        return StreamingResponse(write())

    monkeypatch.setattr(Health, "live", show)
    async with serving(plan) as served, await served.connect() as client:
        client.stop_reading()
        client.send(request("GET", "/-/live"))
        await served.ask(request("GET", "/-/ready"))
        assert len(written) < 16
        client.resume_reading()
        assert len((await client.read_answer()).body) == 16 * 1024 * 1024


# --- closing a connection whose client takes nothing ------------------------------------------------------------------


class Transport:
    """One of which some bytes have not left yet."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.done: list[str] = []

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.done

    def get_write_buffer_size(self) -> int:
        return self.left


@pytest.mark.parametrize(("left", "done"), [(0, ["close"]), (5, ["close", "abort"])])
async def test_a_connection_is_not_held_by_a_client_that_takes_nothing(left: int, done: list[str]) -> None:
    transport = Transport(left)
    closer = ConnectionCloser(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    closer.close()
    await put_forward(9)
    assert transport.done == ["close"]
    await put_forward(1)
    assert transport.done == done


async def test_a_connection_that_is_closed_is_watched_no_more() -> None:
    transport = Transport(5)
    closer = ConnectionCloser(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    for _ in range(2):
        closer.close()
    closer.cancel()
    await put_forward(10)
    assert transport.done == ["close", "close"]


async def test_a_client_that_takes_something_has_its_time_anew_and_none_while_nothing_is_to_end() -> None:
    transport = Transport(5)
    closer = ConnectionCloser(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    closer.start_timer()
    closer.note_progress()
    await put_forward(10)
    assert transport.done == []
    closer.close()
    closer.note_progress()
    await put_forward(10)
    assert transport.done == ["close", "abort"]


async def test_a_client_that_takes_a_little_at_a_time_is_not_given_up() -> None:
    transport = Transport(50)
    closer = ConnectionCloser(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    closer.start_timer()
    for _ in range(25):
        transport.left -= 1
        await put_forward(1)
    assert transport.done == []
    for _ in range(2):
        await put_forward(10)
    assert transport.done == ["abort"]
