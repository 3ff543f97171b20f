"""The page behind the start-up link."""

from starlette.requests import Request

from proxy.server.inspector import Inspector


def ask(query: bytes = b"") -> Request:
    """A request of the page."""
    return Request({"type": "http", "method": "GET", "path": "/-/", "query_string": query, "headers": []})


async def test_the_page_shows_facts_and_never_runs_them() -> None:
    page = await Inspector((("up<stream>", "a & <script>b</script>"),)).show(ask())
    assert b"<dt>up&lt;stream&gt;</dt><dd>a &amp; &lt;script&gt;b&lt;/script&gt;</dd>" in bytes(page.body)
    assert page.headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    )


async def test_the_link_leads_to_the_page_and_leaves_the_token_in_a_cookie_only() -> None:
    answer = await Inspector(()).show(ask(b"token=secret"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/-/")
    assert answer.headers["set-cookie"].startswith("palimpsest_admin=secret;")
