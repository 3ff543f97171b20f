"""One path of the API: its methods, its query parameters, and how it responds.

A request with an unknown method or parameter gets an error that lists the known ones. The headers of responses keep
browsers from rendering them as pages, since recorded bodies are untrusted.
"""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.engine.reports.sessions import write_json
from proxy.model.errors import BadRequest, ProxyError, TooLarge
from proxy.server.errors import render_body, render_error

JSON = "application/json"
GUARDS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
_LONGEST_NUMBER = 9

Form = TypeVar("Form", bound=msgspec.Struct)
Responder = Callable[[Request], Awaitable[object]]
"""A function that returns a response, or a document that is sent as JSON."""


class Endpoint:
    """An ASGI application for one path. `respond` serves GET and HEAD with the given query parameters."""

    def __init__(self, respond: Responder | None = None, *parameters: str) -> None:
        self._responders: dict[str, tuple[Responder, frozenset[str]]] = {}
        if respond is not None:
            self.on("GET", respond, *parameters).on("HEAD", respond, *parameters)

    def on(self, method: str, respond: Responder, *parameters: str) -> Self:
        """Add a method with its query parameters."""
        self._responders[method] = respond, frozenset(parameters)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request; a ProxyError becomes an error response."""
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ProxyError as error:
            status, _, body = render_error(error)
            response = _respond_json(body, status)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method not in self._responders:
            allowed = ", ".join(self._responders)
            body = render_body(
                "method_not_allowed", f"{request.method[:20]} is not allowed on this path; it takes {allowed}"
            )
            return _respond_json(body, 405, {"allow": allowed})
        respond, parameters = self._responders[request.method]
        for name in request.query_params:
            if name not in parameters:
                known = ", ".join(sorted(parameters)) or "none"
                raise BadRequest(f"the parameter {name[:40]!r} is not known here; this path takes: {known}")
        answer = await respond(request)
        return answer if isinstance(answer, Response) else _respond_json(write_json(answer))


def _respond_json(body: bytes, status: int = 200, more: dict[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(body, status, headers={**GUARDS, **(more or {})}, media_type=JSON)


def read_limit(request: Request, default: int, most: int) -> int:
    """Return the parameter `limit`. Raises BadRequest."""
    limit = read_number(request.query_params.get("limit", str(default)), "limit")
    if not 1 <= limit <= most:
        raise BadRequest(f"limit is 1 to {most}, not {limit}")
    return limit


def read_number(text: str, name: str) -> int:
    """Parse a number that is not negative. Raises BadRequest, which mentions `name`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise BadRequest(f"{name} is a number from 0 on, not {text[:40]!r}")
    return int(text)


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request to our API. Raises TooLarge above `most` bytes."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise TooLarge(f"the body of this request may have {most} bytes at most")
    return body


def read_document(body: bytes, form: type[Form]) -> Form:
    """Parse a JSON body. An empty body means an empty object. Raises BadRequest."""
    try:
        return msgspec.json.decode(body or b"{}", type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid: {error}") from error


def read_switch(request: Request, name: str) -> bool:
    """Return a boolean parameter, False if it is absent. Raises BadRequest."""
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false"):
        raise BadRequest(f"{name} is true or false, not {text[:40]!r}")
    return text == "true"
