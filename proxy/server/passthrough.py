"""Every other path and method. Rule: streams both ways, unread; the upstream is the one to judge it (BEHAVIOUR B35).

But for one page: a person who opens `/` in a browser, where the upstream has nothing to show, is led to ours.
"""

import http

from starlette.types import Receive, Scope, Send

from proxy.engine.exchange import ExchangeService
from proxy.model.exchange import Headers
from proxy.server.client import ServedClient, read_request
from proxy.server.errors import PAGE_GUARDS
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import find

_ERROR = 400
_FIELDS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
    ),
    (b"cache-control", b"no-store"),
    *PAGE_GUARDS,
)
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>palimpsest</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>:root {{ color-scheme: light dark; font: 16px/1.6 ui-serif, Georgia, serif }}
main {{ max-width: 38rem; margin: 12vh auto; padding: 0 1.25rem }} a {{ color: inherit }}</style>
<main><h1>palimpsest</h1><p>This is the address for clients: they call it as they would call their provider, whose
server answers {status} here. What went through is on <a href="/-/">the page of this proxy</a>, which
<code>palimpsest open</code> opens, or the link that was printed at the start.</p></main></html>
"""


class Passthrough:
    """The endpoint of what has no other."""

    def __init__(self, exchanges: ExchangeService, policy: ServerPolicy) -> None:
        self._exchanges = exchanges
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        kind = Visitor if _is_visit(scope) else ServedClient
        client = kind(scope, self._policy)
        body = client if client.has_body else None
        if body is None:
            client.expect_nothing()
        await client.see_through(self._exchanges.carry_stream(read_request(scope), body, client))


class Visitor(ServedClient):
    """A browser at `/`: in place of an error, whose bytes are for API clients, it gets a page that leads to ours."""

    def __init__(self, scope: Scope, policy: ServerPolicy) -> None:
        super().__init__(scope, policy)
        self._page = b""

    def start(self, status: int, headers: Headers) -> None:
        """The answer's head, or that of the page."""
        if status >= _ERROR and not self._page:
            self._page = _render_page(status)
            headers = (*_FIELDS, (b"content-length", b"%d" % len(self._page)))
        super().start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Body bytes; of an error the page, once all of it has come."""
        if self._page:
            content = self._page if is_last else b""
        return super().write(content, is_last=is_last)


def _is_visit(scope: Scope) -> bool:
    """Whether a person opens `/` in a browser; only on some addresses browsers say that they navigate."""
    if scope["raw_path"] != b"/" or scope["method"] != "GET":
        return False
    headers: Headers = scope["headers"]
    return b"text/html" in find(headers, b"accept") and find(headers, b"sec-fetch-mode") in (b"", b"navigate")


def _render_page(status: int) -> bytes:
    try:
        told = f"{status} ({http.HTTPStatus(status).phrase})"
    except ValueError:
        told = str(status)
    return _PAGE.format(status=told).encode()
