"""The client's side of a call: its body, its answer, and its leaving, at every moment of the call."""

import asyncio
import json

import pytest

from proxy.model.exchange import Outcome
from tests.support.loops import put_forward, wait_for_timer
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
from tests.support.serving import Plan, Served, serving, with_server

CHAT = "/v1/chat/completions"
FILES = "/v1/files"
BODY = b'{"model":"m","messages":[]}'
MIB = 1024 * 1024


# --- leaving ---------------------------------------------------------------------------------------------------------


async def leave(client: Wire, *, is_reset: bool) -> None:
    """Close the connection one way or the other."""
    if is_reset:
        client.reset()
    else:
        await client.close()


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("path", [CHAT, FILES])
async def test_a_client_that_leaves_a_stream_ends_it_upstream(
    served: Served, upstream: ScriptedUpstream, path: str, *, is_reset: bool
) -> None:
    client = await served.connect()
    client.send(request("POST", path, body=BODY))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(b"data: 1\n\n"))
    await client.read_until(b"data: 1\n\n")
    await leave(client, is_reset=is_reset)
    assert await wire.read_to_end() == b""
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.status, outcome.received) == ("aborted", 200, b"data: 1\n\n")


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("POST", FILES), ("GET", "/v1/models")])
async def test_a_client_that_leaves_before_the_first_byte_ends_the_call(
    served: Served, upstream: ScriptedUpstream, method: str, path: str, *, is_reset: bool
) -> None:
    client = await served.connect()
    client.send(request(method, path, body=BODY if method == "POST" else b""))
    wire, _ = await upstream.accept_request()
    await leave(client, is_reset=is_reset)
    assert await wire.read_to_end() == b""
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.status, outcome.received) == ("aborted", 0, b"")


async def test_a_client_that_leaves_in_the_middle_of_a_plain_answer_ends_the_call(
    served: Served, upstream: ScriptedUpstream
) -> None:
    client = await served.connect()
    client.send(request("POST", CHAT, body=BODY))
    wire, _ = await upstream.accept_request()
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
    await client.read_until(b"part")
    client.reset()
    assert await wire.read_to_end() == b""
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.received) == ("aborted", b"part")


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_leaves_in_the_middle_of_an_upload_ends_it_upstream(
    served: Served, upstream: ScriptedUpstream, *, is_reset: bool
) -> None:
    client = await served.connect()
    client.send(request("POST", FILES, body=bytes(1000))[:-500])
    wire = await upstream.accept()
    await wire.read_head()
    await wire.read(500)
    await leave(client, is_reset=is_reset)
    assert await wire.read_to_end() == b""
    assert (await served.outcome()).completeness == "aborted"


async def test_a_client_that_leaves_while_the_upstream_takes_nothing_of_its_upload_ends_it(
    served: Served, upstream: ScriptedUpstream
) -> None:
    client = await served.connect()
    client.send(request("POST", FILES, body=bytes(32 * MIB)))
    wire = await upstream.accept()
    await wire.read_head()
    wire.stop_reading()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.flush()
    client.reset()
    assert (await served.outcome()).completeness == "aborted"


async def test_a_client_that_leaves_a_later_upload_after_a_while_is_noticed_too(
    served: Served, upstream: ScriptedUpstream
) -> None:
    """The kernel is asked once a second while nothing is read: again each time, and anew for each upload."""
    client = await served.connect()
    upload = request("POST", FILES, body=bytes(16 * MIB))
    client.send(upload)
    wire = await upstream.accept()
    await wire.read_head()
    await put_forward(0.3)
    await wire.read(16 * MIB)
    wire.send(answer(b"stored"))
    assert (await client.read_answer()).body == b"stored"
    await put_forward(1.2)
    client.send(upload)
    wire = await upstream.accept()
    await wire.read_head()
    wire.stop_reading()
    await served.paused()
    await put_forward(1.5)
    client.reset()
    async with asyncio.timeout(LIMIT):
        while len(served.archive.of(Outcome)) < 2:
            await put_forward(1.0)
    assert [outcome.completeness for outcome in served.archive.of(Outcome)] == ["complete", "aborted"]


async def test_a_client_that_leaves_before_its_managed_body_is_whole_reaches_nobody(
    served: Served, upstream: ScriptedUpstream
) -> None:
    client = await served.connect()
    client.send(request("POST", CHAT, body=BODY)[:-1])
    await client.close()
    await served.drained()
    assert upstream.accepted == 0


async def test_a_client_that_takes_its_time_holds_the_upstream_back(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.stop_reading()
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head())
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 256 * MIB:
                wire.send(chunk(bytes(MIB)))
                sent += MIB
                async with asyncio.timeout(0.3):
                    await wire.flush()
        assert sent < 40 * MIB
    outcome = await served.outcome()
    assert (outcome.completeness, len(outcome.received)) == ("aborted", min(outcome.size, 8 * MIB))


# --- bodies ----------------------------------------------------------------------------------------------------------


def error_code(body: bytes) -> str:
    """The code in one of our errors."""
    code: str = json.loads(body)["error"]["code"]
    return code


async def test_a_body_announced_above_the_cap_is_refused_before_it_comes(
    plan: Plan, upstream: ScriptedUpstream
) -> None:
    async with serving(with_server(plan, max_body_bytes=1000)) as served, await served.connect() as client:
        client.send(request("POST", CHAT, "Expect: 100-continue", body=bytes(1001))[:-1001])
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (413, "too_large")
        assert await client.read_to_end() == b""
    assert upstream.accepted == 0


async def test_an_endless_body_is_refused_at_the_cap_and_cut_off(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(with_server(plan, max_body_bytes=1000)) as served, await served.connect() as client:
        client.send(b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(bytes(1001)))
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (413, "too_large")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(LIMIT):
                while True:
                    client.send(chunk(bytes(100_000)))
                    await client.flush()
    assert upstream.accepted == 0


async def test_a_body_of_exactly_the_cap_passes(plan: Plan, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(with_server(plan, max_body_bytes=1000)) as served:
        assert (await served.ask(request("POST", CHAT, body=bytes(1000)))).status == 200
        assert (await served.ask(request("POST", CHAT, body=bytes(1001)))).status == 413


async def test_a_managed_body_that_falls_silent_is_given_up(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(with_server(plan, body_timeout=40)) as served, await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY)[:-1])
        await wait_for_timer(40)
        await put_forward(40)
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (408, "body_timeout")
        assert await client.read_to_end() == b""
    assert upstream.accepted == 0


async def test_an_upload_that_falls_silent_is_given_up(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(with_server(plan, body_timeout=40)) as served, await served.connect() as client:
        client.send(request("POST", FILES, body=BODY)[:-1])
        wire = await upstream.accept()
        await wire.read_head()
        await wire.read(len(BODY) - 1)
        await wait_for_timer(40)
        await put_forward(40)
        await wire.read_to_end()
        await client.read_to_end()
        assert (await served.outcome()).completeness == "aborted"


@pytest.mark.parametrize("path", [CHAT, FILES])
async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    upstream.answer_with(answer(b"ok"))
    async with await served.connect() as client:
        client.send(request("POST", path, "Expect: 100-continue", body=BODY)[: -len(BODY)])
        assert (await client.read_head()).status == 100
        client.send(BODY)
        assert (await client.read_answer()).body == b"ok"
    (got,) = upstream.requests
    assert (got.body, got.all(b"expect")) == (BODY, [])


# --- answers before the body has come --------------------------------------------------------------------------------


async def test_a_refused_upload_is_answered_and_forgotten(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("POST", "/v1/%2e%2e/files", body=bytes(1000))[:-1])
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (400, "bad_request")
        await served.drained()
    assert upstream.accepted == 0


async def test_an_upload_to_nobody_is_answered_and_forgotten(plan: Plan) -> None:
    async with ScriptedUpstream() as gone:
        url = gone.url
    async with serving(Plan(url)) as served, await served.connect() as client:
        client.send(request("POST", FILES, body=bytes(1000))[:-1])
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (502, "upstream_unreachable")
        await served.drained()


async def test_an_answer_before_the_end_of_an_upload_is_passed_on_and_the_upload_forgotten(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", FILES, body=bytes(1000))[:-1])
        wire = await upstream.accept()
        await wire.read_head()
        wire.send(answer(b"no", status="401 Unauthorized"))
        got = await client.read_answer()
        assert (got.status, got.body) == (401, b"no")
        await served.drained()


async def test_a_client_that_leaves_a_stream_which_answers_an_unfinished_upload_is_noticed(
    served: Served, upstream: ScriptedUpstream
) -> None:
    client = await served.connect()
    client.send(request("POST", FILES, body=bytes(1000))[:-1])
    wire = await upstream.accept()
    await wire.read_head()
    wire.send(stream_head() + chunk(b"data: 1\n\n"))
    await client.read_until(b"data: 1\n\n")
    client.reset()
    await wire.read_to_end()


# --- answers whose head says one thing and whose framing another -----------------------------------------------------


async def test_a_304_with_the_length_of_what_it_does_not_carry_leaves_the_connection_usable(
    served: Served, upstream: ScriptedUpstream
) -> None:
    """RFC 9110 §15.4.5 allows the field; servers of files send it."""
    upstream.answer_with(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 12\r\n\r\n')
    async with await served.connect() as client:
        for _ in range(2):
            client.send(request("GET", "/v1/files/x", 'If-None-Match: "a"'))
            got = await client.read_answer()
            assert (got.status, got.find(b"etag")) == (304, b'"a"')


async def test_a_head_request_gets_the_length_and_no_body(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.script = None
    async with await served.connect() as client:
        for _ in range(2):
            client.send(request("HEAD", "/"))
            wire, got = await upstream.accept_request()
            assert got.line == b"HEAD / HTTP/1.1"
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            head = await client.read_answer(method="HEAD")
            assert (head.status, head.find(b"content-length")) == (200, b"5")


@pytest.mark.parametrize("status", ["599 Odd", "299 Odd"])
async def test_a_status_nobody_knows_passes(served: Served, upstream: ScriptedUpstream, status: str) -> None:
    upstream.answer_with(answer(b"odd", status=status))
    got = await served.ask(request("GET", "/v1/models"))
    assert (got.status, got.body) == (int(status[:3]), b"odd")


async def test_a_status_that_is_none_is_a_bad_gateway(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"odd", status="999 Request Denied"))
    assert (await served.ask(request("GET", "/v1/models"))).status == 502


async def test_an_answer_of_nothing_but_an_end_is_whole(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream_head() + LAST_CHUNK)
    got = await served.ask(request("POST", CHAT, body=BODY))
    assert (got.status, got.body, got.is_whole) == (200, b"", True)
