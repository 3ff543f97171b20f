"""Every other path: both ways as it comes, unread, without a cap."""

from dataclasses import replace

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


# --- a browser at `/` (PROTOCOL §6) ----------------------------------------------------------------------------------

HTML = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"
NAVIGATES = "Sec-Fetch-Mode: navigate"


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "599 Own"])
@pytest.mark.parametrize("fields", [(HTML,), (HTML, NAVIGATES, "Sec-Fetch-Site: none")])
async def test_a_browser_that_gets_an_error_is_led_to_our_page(
    served: Served, upstream: ScriptedUpstream, status: str, fields: tuple[str, ...]
) -> None:
    upstream.answer_with(answer(b'{"error":{}}', "Set-Cookie: a=b", "Content-Encoding: gzip", status=status))
    got = await served.ask(request("GET", "/", *fields))
    assert (got.status, got.find(b"content-type")) == (int(status[:3]), b"text/html; charset=utf-8")
    assert b'href="/-/"' in got.body
    assert got.is_whole
    assert b"frame-ancestors 'none'" in got.find(b"content-security-policy")
    assert got.find(b"referrer-policy") == b"no-referrer"
    assert got.all(b"set-cookie") == got.all(b"content-encoding") == []
    outcome = await served.outcome()
    assert (outcome.status, outcome.received, outcome.completeness) == (int(status[:3]), b'{"error":{}}', "complete")


async def test_a_browser_is_led_to_our_page_where_no_upstream_answers(plan: Plan) -> None:
    async with serving(replace(plan, base_url="http://127.0.0.1:1/v1")) as served:
        got = await served.ask(request("GET", "/", HTML, NAVIGATES))
        assert (got.status, b'href="/-/"' in got.body) == (502, True)


async def test_what_an_upstream_shows_a_browser_is_shown(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"<h1>theirs</h1>", "Content-Type: text/html"))
    assert (await served.ask(request("GET", "/", HTML, NAVIGATES))).body == b"<h1>theirs</h1>"


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("GET", "/", ()),
        ("GET", "/", ("Accept: application/json",)),
        ("GET", "/", ("Accept: */*",)),
        ("GET", "/", (HTML, "Sec-Fetch-Mode: cors")),
        ("GET", "/v1/models", (HTML, NAVIGATES)),
        ("POST", "/", (HTML, NAVIGATES)),
    ],
)
async def test_an_api_client_gets_what_the_upstream_answers(
    served: Served, upstream: ScriptedUpstream, method: str, path: str, fields: tuple[str, ...]
) -> None:
    upstream.answer_with(answer(b'{"error":{}}', status="404 Not Found"))
    got = await served.ask(request(method, path, *fields))
    assert (got.status, got.body) == (404, b'{"error":{}}')


async def test_a_page_that_breaks_off_at_the_upstream_breaks_off_at_the_browser(
    served: Served, upstream: ScriptedUpstream
) -> None:
    upstream.close_after(b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nx")
    got = await served.ask(request("GET", "/", HTML))
    assert (got.status, got.is_whole) == (500, False)
