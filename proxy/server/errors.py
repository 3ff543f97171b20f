"""Our own errors as HTTP responses, in one JSON shape that OpenAI's and Anthropic's SDKs both read."""

import http
import math

import orjson

from proxy.model.errors import ProxyError, TooSoon
from proxy.model.exchange import Headers

# Headers of all our own pages and documents: browsers show them in no frame, and send no Referer from them.
PAGE_GUARDS: Headers = ((b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY"))
_ORIGIN = (b"x-palimpsest-error", b"true")


class Refused(ProxyError):
    """A request refused before the engine sees it: access (401, 403), time (408), protocol (426), memory (503).

    `headers` are sent to the client, too.
    """

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def render_error(error: ProxyError) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of a response for an error of our own."""
    body = render_body(error.code, str(error))
    own = error.headers if isinstance(error, Refused) else ()
    if isinstance(error, TooSoon):
        own = ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))),)
    return error.status, (*_make_headers(body), *own), body


def render_closed_page() -> bytes:
    """Return the page for a person whose browser has shown no admin token."""
    return _CLOSED_PAGE.encode()


_CLOSED_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>palimpsest: the admin token is needed</title></head>
<body>
<main>
<h1>This page needs the admin token</h1>
<p>On the machine where the server runs, <code>palimpsest open</code> opens it, and <code>palimpsest open --print</code>
writes the link. With another log than the usual one add <code>--data DIR</code>, in a container run it there.</p>
<form action="/-/" method="get">
<p><label>Admin token <input type="password" name="token" autocomplete="off" required></label> <button>Open</button></p>
</form>
<p>It is in the settings (<code>server.admin_token</code>), else in the file <code>admin-token</code> of the data
directory. Programs send it as <code>Authorization: Bearer TOKEN</code>.</p>
</main>
</body>
</html>
"""


def render_body(code: str, message: str) -> bytes:
    """Return the JSON body of an error."""
    error = {"message": f"palimpsest: {message}", "type": "palimpsest_error", "param": None, "code": code}
    return orjson.dumps({"type": "error", "error": error})


def render_plain(status: int, code: str, message: str) -> bytes:
    """Return a whole HTTP/1.1 response that closes the connection, for bytes that are not a valid request."""
    body = render_body(code, message)
    head = b"HTTP/1.1 %d %s\r\n" % (status, http.HTTPStatus(status).phrase.encode())
    lines = b"".join(b"%s: %s\r\n" % header for header in _make_headers(body))
    return head + lines + b"connection: close\r\n\r\n" + body


def _make_headers(body: bytes) -> Headers:
    return ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), _ORIGIN)
