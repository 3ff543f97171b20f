"""Requests that come before those ahead of them are answered: each answer is its own, and none waits for ever."""

import pytest

from proxy.model.exchange import Outcome
from tests.server.test_client import leave
from tests.server.test_http11 import BODY, CHAT, assert_refused
from tests.support.loops import put_forward
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving, with_server

_UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_CALL = request("POST", CHAT, body=BODY)
_BAD_CHUNK = b"zz\r\n"


@pytest.mark.parametrize(
    ("asked", "bad", "is_started", "can_refuse"),
    [
        (b"", b"GARBAGE\r\n\r\n", False, True),
        (_UPLOAD, _BAD_CHUNK, False, True),
        (_CALL, b"GARBAGE\r\n\r\n", False, False),
        (_UPLOAD, _BAD_CHUNK, True, False),
        (_CALL, _UPLOAD + _BAD_CHUNK, False, False),
    ],
)
async def test_an_error_of_ours_may_only_be_the_next_answer(
    served: Served, upstream: ScriptedUpstream, asked: bytes, bad: bytes, *, is_started: bool, can_refuse: bool
) -> None:
    async with await served.connect() as client:
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200
        client.send(asked)
        if asked:
            wire = await upstream.accept()
            await wire.read_head()
        if is_started:
            wire.send(stream_head() + chunk(b"data: 1\n\n"))
            await client.read_until(chunk(b"data: 1\n\n"))
        client.send(bad)
        if can_refuse:
            assert_refused(await client.read_answer(), 400, "bad_request")
        assert await client.read_to_end() == b""


async def test_pipelined_requests_are_answered_in_order(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.script = None
    async with await served.connect() as client:
        client.send(b"".join(request("POST", CHAT, f"X-Number: {i}", body=BODY) for i in range(3)))
        for i in range(3):
            if i == 0:
                wire, got = await upstream.accept_request()
            else:
                got = await wire.read_request()
            assert (got.find(b"x-number"), got.body) == (b"%d" % i, BODY)
            wire.send(answer(b"answer %d" % i))
            assert (await client.read_answer()).body == b"answer %d" % i


async def test_a_client_that_leaves_behind_a_pipelined_request_is_noticed(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY) + request("GET", "/v1/models"))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(b"data: 1\n\n"))
        await client.read_until(b"data: 1\n\n")
        client.reset()
        wire.send(chunk(b"data: 2\n\n"))
        await wire.read_to_end()
    assert (await served.outcome()).completeness == "aborted"


async def test_a_bad_request_behind_a_stream_does_not_end_it_cleanly(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(b"data: 1\n\n"))
        got = await client.read_until(b"data: 1\n\n")
        client.send(b"GARBAGE\r\n\r\n")
        rest = await client.read_to_end()
        assert b"HTTP/1.1 400" not in got + rest
        assert LAST_CHUNK not in rest
        await wire.read_to_end()
    assert (await served.archive.wait_for(Outcome))[0].completeness == "aborted"


@pytest.mark.parametrize("behind", [b"GARBAGE\r\n\r\n", request("GET", "/v1/models") + b"GARBAGE\r\n\r\n"])
async def test_an_error_of_ours_never_stands_inside_an_older_answer(
    served: Served, upstream: ScriptedUpstream, behind: bytes
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n" + b"a" * 100)
        got = await client.read_until(b"a" * 100)
        client.send(behind)
        assert b"HTTP/1.1 400" not in got + await client.read_to_end()


async def test_an_old_client_sees_a_broken_answer_though_it_asks_for_more(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        old = b"GET /v1/models HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"
        client.send(old + request("GET", "/v1/models"))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(b"half of it"))
        await client.read_until(b"half of it")
        wire.reset()
        with pytest.raises(ConnectionResetError):
            await client.read_some()


async def test_half_a_head_behind_a_request_is_not_its_answer(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with (
        serving(with_server(plan, header_timeout=4)) as served,
        await served.connect() as client,
    ):  # keep-alive: 5
        client.send(request("POST", CHAT, body=BODY) + b"GET /v1/mo")
        wire, _ = await upstream.accept_request()
        await put_forward(4)
        with pytest.raises(TimeoutError):
            await client.read_to_end(0.1)
        wire.send(answer(b"ok"))
        assert (await client.read_answer()).body == b"ok"
        await put_forward(4)
        assert_refused(await client.read_answer(), 408, "head_timeout")


async def test_who_asks_far_ahead_is_answered_what_was_taken_and_let_go(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        client.send(request("GET", "/-/live") * 100)
        client.send(b"GARBAGE" * 1000)
        wire.send(stream_head() + chunk(b"data: 1\n\n"))
        await client.read_until(b"data: 1\n\n")
        client.send(request("GET", "/-/live") * 100)
        wire.send(LAST_CHUNK)
        await client.read_until(LAST_CHUNK)
        for i in range(63):
            got = await client.read_answer()
            assert got.status == 200
            assert got.find(b"connection") == (b"close" if i == 62 else b"")
        assert await client.read_some() == b""  # no reset either
    assert (await served.outcome()).completeness == "complete"


async def test_who_asked_far_ahead_and_leaves_is_noticed(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        client.send(request("GET", "/-/live") * 100)
        await served.ask(request("GET", "/-/live"))
        client.reset()
        assert await wire.read_to_end() == b""
    assert (await served.outcome()).completeness == "aborted"


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_asks_for_more_and_leaves_is_noticed(
    served: Served, upstream: ScriptedUpstream, *, is_reset: bool
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        client.send(request("GET", "/v1/models"))
        await served.paused()
        await leave(client, is_reset=is_reset)
        await put_forward(1.0)  # the kernel is asked so often
        assert await wire.read_to_end() == b""


async def test_the_beginning_of_a_head_behind_a_large_body_is_not_a_large_head(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", "/v1/files", body=bytes(3_000_000)) + b"GET /v1/mo")
        wire, got = await upstream.accept_request()
        assert len(got.body) == 3_000_000
        wire.send(answer(b"ok"))
        assert (await client.read_answer()).body == b"ok"
