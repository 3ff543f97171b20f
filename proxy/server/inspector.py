"""Pages for people: the page at `/-/` that the start-up link opens, and the page that a browser gets at `/`."""

import html
import http
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from proxy.model.exchange import Headers
from proxy.server.access import START_PAGE
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import OWN_COOKIE, find_header

_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_INSPECTOR_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>palimpsest</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root {{ color-scheme: light dark; font: 16px/1.6 ui-serif, Georgia, serif }}
  main {{ max-width: 38rem; margin: 12vh auto; padding: 0 1.25rem }}
  h1 {{ font-weight: 500; letter-spacing: .01em; margin-bottom: .25rem }}
  code, dd {{ font-family: ui-monospace, monospace; font-size: .92em }}
  dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; margin: 1.5rem 0 }}
  dt {{ opacity: .7 }} dd {{ margin: 0; overflow-wrap: anywhere }} a {{ color: inherit }}
</style>
<main><h1>palimpsest</h1><p>Every call is recorded as it came. In mode manage, requests of long
sessions are shortened where that pays; the log says what was done, call by call.</p>
<dl>{rows}</dl>
<p>Read the log with <code>palimpsest sessions</code> and <code>palimpsest show SESSION</code>,
or as JSON: <a href="/-/api/sessions">sessions</a>. State: <a href="/-/ready">ready</a>,
<a href="/-/metrics">metrics</a>.</p></main></html>
"""
_ERROR = 400
_ROOT_HEADERS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
    ),
    (b"cache-control", b"no-store"),
    *PAGE_GUARDS,
)
_ROOT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>palimpsest</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>:root {{ color-scheme: light dark; font: 16px/1.6 ui-serif, Georgia, serif }}
main {{ max-width: 38rem; margin: 12vh auto; padding: 0 1.25rem }} a {{ color: inherit }}</style>
<main><h1>palimpsest</h1><p>This is the address for clients: they call it as they would call their provider, whose
server answers {status} here. What went through is on <a href="/-/">the page of this proxy</a>, which
<code>palimpsest open</code> opens, or the link that was printed at the start.</p></main></html>
"""


class Inspector:
    """The page at `/-/`. `facts` are its rows, as pairs of label and text."""

    def __init__(self, facts: tuple[tuple[str, str], ...]) -> None:
        rows = "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in facts)
        self._page = _INSPECTOR_PAGE.format(rows=rows)

    async def show(self, request: Request) -> Response:
        """Return the page. The start-up link gets a redirect to it that sets the token as a cookie."""
        token = request.query_params.get("token")
        if token is None:
            return HTMLResponse(self._page, headers={"content-security-policy": _CONTENT_POLICY})
        response = RedirectResponse(START_PAGE, 303)
        cookie = OWN_COOKIE.decode()
        response.set_cookie(cookie, quote(token, safe=""), httponly=True, samesite="strict", path=START_PAGE)
        return response


class BrowserClient(ServedClient):
    """A browser at `/`. In place of an upstream's error, which is meant for API clients, it gets a page of our own."""

    def __init__(self, scope: Scope, policy: ServerPolicy) -> None:
        super().__init__(scope, policy)
        self._page = b""

    def start(self, status: int, headers: Headers) -> None:
        """Write the head of the response, or of the page."""
        if status >= _ERROR and not self._page:
            self._page = _render_root_page(status)
            headers = (*_ROOT_HEADERS, (b"content-length", b"%d" % len(self._page)))
        super().start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Write body bytes; of an error, write the page instead once all of the error has come."""
        if self._page:
            content = self._page if is_last else b""
        return super().write(content, is_last=is_last)


def is_browser_at_root(scope: Scope) -> bool:
    """Return True if a person opens `/` in a browser. Browsers send `sec-fetch-mode` to some addresses only."""
    if scope["raw_path"] != b"/" or scope["method"] != "GET":
        return False
    headers: Headers = scope["headers"]
    return b"text/html" in find_header(headers, b"accept") and find_header(headers, b"sec-fetch-mode") in (
        b"",
        b"navigate",
    )


def _render_root_page(status: int) -> bytes:
    try:
        described = f"{status} ({http.HTTPStatus(status).phrase})"
    except ValueError:
        described = str(status)
    return _ROOT_PAGE.format(status=described).encode()
