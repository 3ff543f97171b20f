"""Paths of the API: which methods and parameters each takes, and how it answers.

Rule: what a path does not know is an error that names what it knows; nothing it answers can be shown as a page.
"""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
Answering = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """One path: `answer` makes the answer to GET, if there is one, and takes the query parameters named."""

    def __init__(self, answer: Answering | None = None, *parameters: str) -> None:
        self._actions: dict[str, tuple[Answering, frozenset[str]]] = {}
        if answer is not None:
            self.on("GET", answer, *parameters).on("HEAD", answer, *parameters)

    def on(self, method: str, answer: Answering, *parameters: str) -> Self:
        """What makes the answer to another method."""
        self._actions[method] = answer, frozenset(parameters)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ProxyError as error:
            status, _, body = render_error(error)
            response = respond_json(body, status)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method not in self._actions:
            allowed = ", ".join(self._actions)
            body = render_body("method_not_allowed", f"{request.method[:20]} is not for this path; it takes {allowed}")
            return respond_json(body, 405, {"allow": allowed})
        answer, parameters = self._actions[request.method]
        for name in request.query_params:
            if name not in parameters:
                known = ", ".join(sorted(parameters)) or "none"
                raise BadRequest(f"the parameter {name[:40]!r} is not known here; this path takes: {known}")
        return await answer(request)


def respond_json(body: bytes, status: int = 200, more: dict[str, str] | None = None) -> Response:
    """A document."""
    return Response(body, status, headers={**GUARDS, **(more or {})}, media_type=JSON)


def read_limit(request: Request, default: int, most: int) -> int:
    """The parameter `limit`. Raises BadRequest."""
    limit = read_number(request.query_params.get("limit", str(default)), "limit")
    if not 1 <= limit <= most:
        raise BadRequest(f"limit is 1 to {most}, not {limit}")
    return limit


def read_number(text: str, name: str) -> int:
    """A number from 0 on. Raises BadRequest, which calls it by its name."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise BadRequest(f"{name} is a number from 0 on, not {text[:40]!r}")
    return int(text)


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request of ours, which has so many bytes at most. Raises TooLarge."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise TooLarge(f"what is asked here takes {most} bytes at most")
    return body


def read_document(body: bytes, form: type[Form]) -> Form:
    """What a body says, each of whose members may be left out, as all of it may. Raises BadRequest."""
    try:
        return msgspec.json.decode(body or b"{}", type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not as it should be: {error}") from error


def read_switch(request: Request, name: str) -> bool:
    """A parameter that is true or false; false where it is not there. Raises BadRequest."""
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false"):
        raise BadRequest(f"{name} is true or false, not {text[:40]!r}")
    return text == "true"
