"""Every other path: both ways as it comes, unread, without a cap."""

import pytest

from tests.support.scripted import ScriptedUpstream, answer, chunk, request
from tests.support.serving import Plan, Served, serving, with_server

BODY = bytes(range(256)) * 40


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_any_method_and_path_go_on_as_they_are(served: Served, upstream: ScriptedUpstream, method: str) -> None:
    upstream.answer_with(answer(b"\x00\xff", "X-Two: 2", "X-One: 1"))
    body = BODY if method in ("POST", "PUT", "PATCH", "DELETE") else b""
    got = await served.ask(request(method, "/a/b?c=%20&d=/../e", "X-B: 2", "x-a: 1", "X-B: 3", body=body))
    assert (got.status, got.body) == (200, b"\x00\xff")
    assert got.headers[:-2] == ((b"x-two", b"2"), (b"x-one", b"1"), (b"content-length", b"2"))
    (sent,) = upstream.requests
    assert sent.line == f"{method} /a/b?c=%20&d=/../e HTTP/1.1".encode()
    assert sent.body == body
    assert sent.headers[:4] == (
        (b"host", b"127.0.0.1:%d" % upstream.port),
        (b"x-b", b"2"),
        (b"x-a", b"1"),
        (b"x-b", b"3"),
    )
    opening = await served.opening()
    assert (opening.kind, opening.method, opening.target) == ("passthrough", method, "/a/b?c&d")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_upload_reaches_the_upstream_while_it_is_being_sent(
    served: Served, upstream: ScriptedUpstream, *, is_chunked: bool
) -> None:
    length = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 10"
    async with await served.connect() as client:
        client.send(f"POST /v1/files HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n".encode())
        client.send(chunk(b"first") if is_chunked else b"first")
        wire = await upstream.accept()
        head = await wire.read_head()
        assert head.all(b"content-length") == ([] if is_chunked else [b"10"])
        expected = chunk(b"first") if is_chunked else b"first"
        assert await wire.read(len(expected)) == expected
        client.send(chunk(b"-last") + b"0\r\n\r\n" if is_chunked else b"-last")
        expected = chunk(b"-last") + b"0\r\n\r\n" if is_chunked else b"-last"
        assert await wire.read(len(expected)) == expected
        wire.send(answer(b"stored"))
        assert (await client.read_answer()).body == b"stored"
    assert (await served.opening()).body.size == 10


async def test_a_target_that_names_a_host_goes_on_as_a_path(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    assert (await served.ask(request("GET", "http://other.example/v1/models?a=%20"))).body == b"ok"
    assert upstream.requests[0].line == b"GET /v1/models?a=%20 HTTP/1.1"


async def test_an_upload_has_no_cap(plan: Plan, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"stored"))
    body = bytes(3 * 1024 * 1024)
    async with serving(with_server(plan, max_body_bytes=1024)) as served:
        assert (await served.ask(request("POST", "/v1/files", body=body))).body == b"stored"
    assert upstream.requests[0].body == body


async def test_a_trick_path_is_refused_and_reaches_nobody(served: Served, upstream: ScriptedUpstream) -> None:
    for path in ("/v1/../admin", "/v1/%2e%2e/admin", "/v1%2Fadmin", "/a;b", "/a\\b", "/v1/chat%2fcompletions", "/%2e"):
        for method in ("GET", "POST"):
            assert (await served.ask(request(method, path))).status == 400, path
    assert upstream.accepted == 0


async def test_a_stream_comes_through_as_it_comes(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("GET", "/v1/events"))
        wire, _ = await upstream.accept_request()
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.read_head()
        for piece in (b"1", b"22"):
            wire.send(chunk(piece))
            assert await client.read_until(chunk(piece)) == chunk(piece)
        wire.send(b"0\r\n\r\n")
        assert await client.read_until(b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_the_keys_of_the_settings_are_spent_under_the_base_only(upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(Plan(upstream.url, api_key="own-secret-key")) as served:
        for path in ("/v1/models", "/admin"):
            await served.ask(request("GET", path, "Authorization: Bearer client", "X-Api-Key: c"))
    under, outside = upstream.requests
    assert (under.all(b"authorization"), under.all(b"x-api-key")) == ([b"Bearer own-secret-key"], [])
    assert (outside.all(b"authorization"), outside.all(b"x-api-key")) == ([b"Bearer client"], [b"c"])
