"""What becomes a request at all: one well-formed head, in time, within the caps; everything else stops here."""

import asyncio
import dataclasses
import json
from typing import cast
from weakref import ref

import pytest

from proxy.server.http11 import Http11Protocol
from proxy.server.http11_response import Http11Response
from proxy.server.policy import ServerPolicy
from tests.support.garbage import no_collector
from tests.support.loops import put_forward, wait_for_timer
from tests.support.scripted import (
    LIMIT,
    Message,
    ScriptedUpstream,
    answer,
    request,
    stream_head,
)
from tests.support.serving import Plan, Served, serving, with_server

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[]}'
_KEEP_ALIVE = 5  # uvicorn's default


def assert_refused(got: Message, status: int, code: str) -> None:
    """One of our own errors, as JSON, on a connection that ends."""
    assert got.status == status
    assert got.find(b"x-palimpsest-error") == b"true"
    error = json.loads(got.body)["error"]
    assert (error["type"], error["code"]) == ("palimpsest_error", code)
    assert got.find(b"connection") == b"close"


def find_protocol(served: Served) -> Http11Protocol:
    """The only connection of a client, at the server's end."""
    (protocol,) = served.state.connections
    return cast(Http11Protocol, protocol)


def find_response(served: Served) -> Http11Response:
    """The response that is due on that connection."""
    return find_protocol(served).connection.pipeline[0][0]


# --- what is no request ----------------------------------------------------------------------------------------------

_POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        _POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        _POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        _POST + b"Content-Length: 4, 4\r\n\r\nabcd",
        _POST + b"Content-Length: +4\r\n\r\nabcd",
        _POST + b"Content-Length: -4\r\n\r\nabcd",
        _POST + b"Content-Length: 0x4\r\n\r\nabcd",
        _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        _POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        _POST + b"X\r\nContent-Length: 0\r\n\r\n",
        _POST + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
        _POST + b"X: a\nContent-Length: 0\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT other:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://other HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_not_one_well_formed_request_is_refused_and_reaches_nobody(
    served: Served, upstream: ScriptedUpstream, sent: bytes
) -> None:
    async with await served.connect() as client:
        client.send(sent)
        assert_refused(await client.read_answer(), 400, "bad_request")
        assert await client.read_to_end() == b""
    assert upstream.accepted == 0


async def test_a_bad_chunk_in_a_request_is_refused(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert_refused(await client.read_answer(), 400, "bad_request")
    assert upstream.accepted == 0


@pytest.mark.parametrize("host", [b"Host: a\r\n", b""])
async def test_an_old_client_need_not_name_a_host(served: Served, upstream: ScriptedUpstream, host: bytes) -> None:
    upstream.answer_with(answer(b"ok"))
    async with await served.connect() as client:
        client.send(b"GET /v1/models HTTP/1.0\r\n" + host + b"\r\n")
        got = await client.read_answer()
        assert (got.status, got.body, got.find(b"connection")) == (200, b"ok", b"close")


async def test_fields_behind_a_chunked_body_do_not_become_fields_of_the_request(
    served: Served, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"{}"))
    sent = _POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Smuggled: 1\r\nAuthorization: Bearer x\r\n\r\n"
    assert (await served.ask(sent)).status == 200
    assert (upstream.requests[0].all(b"x-smuggled"), upstream.requests[0].all(b"authorization")) == ([], [])


# --- time and size ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
async def test_a_head_that_takes_too_long_is_given_up(plan: Plan, sent: bytes) -> None:
    async with serving(with_server(plan, header_timeout=30)) as served, await served.connect() as client:
        client.send(sent)
        await wait_for_timer(30)
        await put_forward(30)
        assert_refused(await client.read_answer(), 408, "head_timeout")
        assert await client.read_to_end() == b""


async def test_dripping_bytes_do_not_buy_a_head_more_time(plan: Plan) -> None:
    async with serving(with_server(plan, header_timeout=30)) as served, await served.connect() as client:
        client.send(b"GET / HTTP/1.1\r\n")
        for _ in range(30):
            client.send(b"X: 1\r\n")
            await put_forward(1)
        assert_refused(await client.read_answer(), 408, "head_timeout")


async def test_the_head_of_the_next_request_is_timed_anew(plan: Plan, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(with_server(plan, header_timeout=3)) as served, await served.connect() as client:
        for _ in range(2):
            client.send(request("GET", "/v1/models"))
            assert (await client.read_answer()).body == b"ok"
            await put_forward(2)
        client.send(b"GET / HTTP/1.1\r\n")
        await wait_for_timer(3)
        await put_forward(2)
        assert not find_protocol(served).transport.is_closing()
        await put_forward(1)
        assert_refused(await client.read_answer(), 408, "head_timeout")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a" * 70_000 + b": 1\r\n\r\n",
    ],
)
async def test_a_head_above_the_cap_is_refused(served: Served, upstream: ScriptedUpstream, sent: bytes) -> None:
    async with await served.connect() as client:
        client.send(sent)
        assert_refused(await client.read_answer(), 431, "headers_too_large")
    assert upstream.accepted == 0


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"GET / HTTP/1.1\r\nHost: a\r\nX", b"GET /"])
async def test_a_field_that_never_ends_is_refused_at_the_cap_and_not_kept_in_memory(
    served: Served, start: bytes
) -> None:
    async with await served.connect() as client:
        client.send(start + b"a" * 1_000_000)
        assert_refused(await client.read_answer(), 431, "headers_too_large")


async def test_a_head_just_below_the_cap_passes(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    assert (await served.ask(request("GET", "/v1/models", "X: " + "a" * 65_000))).status == 200
    assert len(upstream.requests[0].find(b"x")) == 65_000


async def test_a_client_that_takes_nothing_is_given_up(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(with_server(plan, stall_timeout=0.2)) as served, await served.connect() as client:
        client.stop_reading()
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(answer(bytes(64 * 1024 * 1024)))
        await wire.read_to_end(LIMIT)
        assert (await served.outcome()).completeness == "aborted"


# --- one connection, several requests --------------------------------------------------------------------------------


async def test_a_line_end_behind_a_body_is_no_request(plan: Plan, upstream: ScriptedUpstream) -> None:
    """Old clients send one; it must not start the clock of a head while the answer streams."""
    async with serving(with_server(plan, header_timeout=30)) as served, await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY) + b"\r\n")
        wire, _ = await upstream.accept_request()
        await put_forward(30)
        with pytest.raises(TimeoutError):
            await client.read_to_end(0.1)
        wire.send(answer(b"ok"))
        assert (await client.read_answer()).body == b"ok"


async def test_what_a_request_was_served_with_is_let_go(served: Served, upstream: ScriptedUpstream) -> None:
    is_gone = asyncio.Event()
    with no_collector():
        async with await served.connect() as client:
            client.send(request("POST", CHAT, body=BODY))
            wire, _ = await upstream.accept_request()
            first = ref(find_response(served))
            wire.send(answer(b"ok"))
            await client.read_answer()
            client.send(request("GET", "/-/live"))
            await client.read_answer()
            assert first() is None
            connection = ref(find_protocol(served), lambda _: is_gone.set())
        async with asyncio.timeout(LIMIT):
            await is_gone.wait()
        assert connection() is None


async def test_the_head_of_an_answer_that_breaks_at_once_arrives(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + b"no chunk\r\n")
        assert (await client.read_head()).status == 200
        assert await client.read_to_end() == b""


async def test_an_endless_field_behind_a_body_ends_the_connection(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(with_server(plan, max_header_bytes=10_000)) as served, await served.connect() as client:
        client.send(b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire = await upstream.accept()
        await wire.read_head()
        protocol = find_protocol(served)
        client.send(b"0\r\nX-T: ")
        for _ in range(100):
            if protocol.transport.is_closing():
                break
            client.send(b"a" * 1_000)
            await asyncio.sleep(0.01)
        assert protocol.transport.is_closing()


async def test_an_answer_before_its_request_is_read_does_not_keep_the_connection(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        sent = request("POST", "/v1/files", body=bytes(1000))
        client.send(sent[:-500])
        wire = await upstream.accept()
        await wire.read_head()
        wire.send(answer(b"no"))
        assert (await client.read_answer()).body == b"no"
        await put_forward(_KEEP_ALIVE - 1)
        client.send(sent[-500:-400])
        await served.ask(request("GET", "/-/live"))  # by then the piece has been read
        await put_forward(_KEEP_ALIVE - 1)
        with pytest.raises(TimeoutError):
            await client.read_to_end(0.1)
        await put_forward(1)
        assert await client.read_to_end() == b""


async def test_a_websocket_is_refused_at_once(served: Served, upstream: ScriptedUpstream) -> None:
    fields = ("Connection: Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    got = await served.ask(request("GET", "/v1/responses", *fields))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (426, "upgrade_required")
    assert upstream.accepted == 0


async def test_an_offer_of_http2_among_other_connection_fields_does_not_cost_the_body(
    served: Served, upstream: ScriptedUpstream
) -> None:
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA", "Connection: keep-alive")
    async with await served.connect() as client:
        client.send(request("POST", CHAT, *fields, body=BODY))
        wire, got = await upstream.accept_request()
        assert got.body == BODY
        wire.send(answer(b"ok"))
        assert (await client.read_answer()).body == b"ok"


# --- upgrades --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
@pytest.mark.parametrize("is_split", [False, True])
async def test_an_offer_of_http2_does_not_cost_the_body(
    served: Served, upstream: ScriptedUpstream, path: str, *, is_split: bool
) -> None:
    """Java's own client offers h2c with every first POST to a plain address; the offer is simply not taken up."""
    upstream.answer_with(answer(b"ok"))
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    sent = request("POST", path, *fields, body=BODY)
    async with await served.connect() as client:
        client.send(sent[: -len(BODY)] if is_split else sent)
        if is_split:
            await client.flush()
            client.send(BODY)
        assert (await client.read_answer()).body == b"ok"
        (got,) = upstream.requests
        assert (got.body, got.all(b"upgrade"), got.all(b"http2-settings")) == (BODY, [], [])


async def test_an_offer_of_http2_does_not_cost_a_body_that_is_larger_than_a_head_may_be(
    served: Served, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"ok"))
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    body = BODY + b" " * 200_000
    assert (await served.ask(request("POST", CHAT, *fields, body=body))).status == 200
    assert upstream.requests[0].body == body


def test_the_caps_are_those_the_documents_name() -> None:
    policy = ServerPolicy()
    assert (policy.host, policy.port, policy.max_body_bytes) == ("127.0.0.1", 8484, 64 * 1024 * 1024)
    assert (policy.max_header_bytes, policy.header_timeout, policy.body_timeout) == (65_536, 30.0, 60.0)
    assert (policy.stall_timeout, policy.drain_seconds, policy.allowed_hosts) == (600.0, 30.0, ())


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerPolicy().port = 1  # type: ignore[misc]


# --- limits -----------------------------------------------------------------------------------------------------------
