"""The page that a browser gets at `/` in place of an upstream's error. `server/pages` has our own pages."""

import http

from starlette.types import Scope

from proxy.model.exchange import Headers
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import find_header

_ERROR = 400
_SANDBOX: Headers = ((b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups"),)
_SHOWN = frozenset({b"document", b"iframe", b"frame", b"embed", b"object"})
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


class VisitingClient(ServedClient):
    """A browser that shows what an upstream responds as a page, under our own address.

    The page is sandboxed, so that it has an origin of its own: else its scripts could use our cookie as our pages do.
    """

    def start(self, status: int, headers: Headers) -> None:
        """Write the head of the response."""
        super().start(status, (*headers, *_SANDBOX))


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
        elif not self._page:
            headers = (*headers, *_SANDBOX)
        super().start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Write body bytes; of an error, write the page instead once all of the error has come."""
        if self._page:
            content = self._page if is_last else b""
        return super().write(content, is_last=is_last)


def is_visit(headers: Headers) -> bool:
    """Return True if a browser will show the response as a page."""
    is_shown = find_header(headers, b"sec-fetch-dest") in _SHOWN
    return is_shown or find_header(headers, b"sec-fetch-mode") == b"navigate"


def choose_client(scope: Scope) -> type[ServedClient]:
    """Return the client for a request that is not read."""
    if is_browser_at_root(scope):
        return BrowserClient
    return VisitingClient if is_visit(scope["headers"]) else ServedClient


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
