"""The page that a browser gets at `/` where an upstream answers with an error (PROTOCOL §6)."""

from dataclasses import replace

import pytest

from proxy.server.access import make_cookie
from tests.support.scripted import ScriptedUpstream, answer, request
from tests.support.serving import TOKEN, Plan, Served, serving

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


@pytest.mark.parametrize("field", [NAVIGATES, "Sec-Fetch-Dest: iframe", "Sec-Fetch-Dest: document"])
@pytest.mark.parametrize("path", ["/docs", "/"])
async def test_a_page_of_an_upstream_has_an_origin_of_its_own(
    served: Served, upstream: ScriptedUpstream, path: str, field: str
) -> None:
    theirs = ("Content-Type: text/html", "Content-Security-Policy: default-src 'self'")
    upstream.answer_with(answer(b"<script>fetch('/-/api/sessions')</script>", *theirs))
    got = await served.ask(request("GET", path, HTML, field))
    policies = got.all(b"content-security-policy")
    assert policies == [b"default-src 'self'", b"sandbox allow-scripts allow-forms allow-popups"]
    # as a browser asks for a page of another origin
    foreign = ("Origin: null", "Sec-Fetch-Site: cross-site", "Cookie: palimpsest_admin=" + make_cookie(TOKEN))
    assert (await served.ask(request("GET", "/-/api/sessions", *foreign))).status == 403


async def test_no_other_response_is_changed(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"{}", "Content-Type: application/json"))
    for fields in ((), (HTML,), ("Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"), ("Sec-Fetch-Dest: image",)):
        got = await served.ask(request("GET", "/docs", *fields))
        assert got.all(b"content-security-policy") == []


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
