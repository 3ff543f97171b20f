"""The API under `/-/api`. Rule: reads the log, changes nothing; documents are the command line's.

Nothing here may be shown as a page: raw bodies are what others sent. A listing is bounded by its limit and has no
bodies, an export comes in pieces; of what was asked and answered, that of one exchange at a time is in memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from proxy.engine.ports import LogReader
from proxy.engine.reports.documents import describe_overview, describe_sessions, list_calls, write_json
from proxy.engine.reports.exports import FORMS, Form, describe_whole, open_export
from proxy.engine.reports.finding import Part, find_exchange, find_session, list_matching, load_part, read_pages
from proxy.engine.reports.overview import load_overview
from proxy.model.errors import BadRequest, ProxyError
from proxy.model.log import ExchangeRow, Selection
from proxy.server.errors import render_body, render_error

_METHODS = ("GET", "HEAD")
_SESSIONS, _MOST_SESSIONS = 50, 1000
_CALLS, _MOST_CALLS = 100, 1000
_LONGEST_NUMBER = 9
_JSON = "application/json"
_MEDIA: dict[Form, str] = {"json": _JSON, "jsonl": "application/x-ndjson", "openai": _JSON}
_GUARDS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
}

Answering = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """One path: `answer` makes the answer to GET, and takes the query parameters named."""

    def __init__(self, answer: Answering, *parameters: str) -> None:
        self._answer = answer
        self._parameters = frozenset({"token", *parameters})  # the token is looked at before

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ProxyError as error:
            status, _, body = render_error(error)
            response = _respond_json(body, status)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            body = render_body("method_not_allowed", f"{request.method[:20]} is not for this path; it takes {allowed}")
            return _respond_json(body, 405, {"allow": allowed})
        for name in request.query_params:
            if name not in self._parameters:
                known = ", ".join(sorted(self._parameters - {"token"})) or "none"
                raise BadRequest(f"the parameter {name[:40]!r} is not known here; this path takes: {known}")
        return await self._answer(request)


class ManagementApi:
    """The log over HTTP, read where it is written: what has been recorded is seen."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def list_routes(self) -> Sequence[BaseRoute]:
        """The paths, below `/-`."""
        exchange = "/api/sessions/{id}/exchanges/{n}"
        return [
            Route("/api/sessions", Endpoint(self._list_sessions, "limit", "family", "parent", "before")),
            Route("/api/sessions/{id}", Endpoint(self._show_session)),
            Route("/api/sessions/{id}/export", Endpoint(self._export, "form", "branch")),
            Route("/api/sessions/{id}/exchanges", Endpoint(self._list_exchanges, "after", "limit")),
            Route(exchange, Endpoint(self._show_exchange)),
            Route(exchange + "/sent", Endpoint(self._load_sent, "k")),
            Route(exchange + "/received", Endpoint(self._load_received, "k")),
        ]

    async def _list_sessions(self, request: Request) -> Response:
        limit = _read_limit(request, _SESSIONS, _MOST_SESSIONS)
        query = request.query_params
        selection = Selection(query.get("family", ""), query.get("parent", ""))
        if "before" in query:
            selection = replace(selection, before=_read_number(query["before"], "before"))
        rows = await list_matching(self._log, limit, selection)
        return _respond_json(write_json(describe_sessions(rows)))

    async def _show_session(self, request: Request) -> Response:
        return _respond_json(write_json(describe_overview(await load_overview(self._log, request.path_params["id"]))))

    async def _list_exchanges(self, request: Request) -> Response:
        after = _read_number(request.query_params.get("after", "0"), "after")
        limit = _read_limit(request, _CALLS, _MOST_CALLS)
        session = await find_session(self._log, request.path_params["id"])
        pages = read_pages(self._log, session, after, limit)
        return _respond_json(write_json([call async for page in pages for call in list_calls(page)]))

    async def _show_exchange(self, request: Request) -> Response:
        return _respond_json(write_json(await describe_whole(self._log, await self._find_exchange(request))))

    async def _load_sent(self, request: Request) -> Response:
        return await self._load(request, "sent")

    async def _load_received(self, request: Request) -> Response:
        return await self._load(request, "received")

    async def _load(self, request: Request, part: Part) -> Response:
        asked = request.query_params.get("k")
        k = None if asked is None else _read_number(asked, "k")
        content = await load_part(self._log, await self._find_exchange(request), part, k)
        return Response(content, headers=_GUARDS, media_type="application/octet-stream")

    async def _export(self, request: Request) -> Response:
        query = request.query_params
        form = query.get("form", FORMS[0])
        if form not in _MEDIA:
            raise BadRequest(f"form is one of {', '.join(FORMS)}, not {form[:40]!r}")
        opened = await open_export(self._log, request.path_params["id"], form, query.get("branch", ""))
        pieces = opened.pieces if request.method == "GET" else _write_nothing()
        return StreamingResponse(pieces, headers=_GUARDS, media_type=_MEDIA[form])

    async def _find_exchange(self, request: Request) -> ExchangeRow:
        n = _read_number(request.path_params["n"], "the number of an exchange")
        return await find_exchange(self._log, request.path_params["id"], n)


def _respond_json(body: bytes, status: int = 200, more: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers={**_GUARDS, **(more or {})}, media_type=_JSON)


def _read_limit(request: Request, default: int, most: int) -> int:
    limit = _read_number(request.query_params.get("limit", str(default)), "limit")
    if not 1 <= limit <= most:
        raise BadRequest(f"limit is 1 to {most}, not {limit}")
    return limit


def _read_number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise BadRequest(f"{name} is a number from 0 on, not {text[:40]!r}")
    return int(text)


async def _write_nothing() -> AsyncIterator[bytes]:
    """The body that a HEAD does not get."""
    return
    yield b""
