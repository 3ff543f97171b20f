"""The read-only API of recorded sessions under `/-/api`.

Its documents are those of the command line. Memory is bounded: a listing has a limit and no bodies, and an export is
streamed with the bodies of one exchange at a time in memory.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from proxy.engine.ports import LogReader
from proxy.engine.reports.cache import describe_cache, load_cache
from proxy.engine.reports.context import Document
from proxy.engine.reports.export import FORMS, Form, describe_whole, open_export
from proxy.engine.reports.lookup import Part, find_exchange, find_session, list_matching, load_part, read_pages
from proxy.engine.reports.savings import (
    SavingsInputs,
    describe_estimate,
    describe_savings,
    load_estimate,
    load_estimates,
    load_savings,
)
from proxy.engine.reports.sessions import describe_overview, describe_sessions, list_calls, load_overview
from proxy.model.errors import BadRequest
from proxy.model.log import ExchangeRow, Selection
from proxy.server.endpoints import GUARDS, JSON, Endpoint, read_limit, read_number
from proxy.server.erase_api import EraseApi

_SESSIONS, _MOST_SESSIONS = 50, 1000
_CALLS, _MOST_CALLS = 100, 1000
_MEDIA: dict[Form, str] = {"json": JSON, "jsonl": "application/x-ndjson", "openai": JSON}


class SessionsApi:
    """Endpoints that show sessions, exchanges and savings, including what was recorded last."""

    def __init__(self, log: LogReader, inputs: SavingsInputs, erasing: EraseApi) -> None:
        self._log = log
        self._erasing = erasing
        self._inputs = inputs

    def list_routes(self) -> Sequence[BaseRoute]:
        """Return the routes, below `/-`."""
        exchange = "/api/sessions/{id}/exchanges/{n}"
        return [
            Route("/api/sessions", Endpoint(self._list_sessions, "limit", "family", "parent", "before")),
            Route("/api/sessions/{id}", self._erasing.add_to(Endpoint(self._show_session))),
            Route("/api/sessions/{id}/cache", Endpoint(self._show_cache)),
            Route("/api/sessions/{id}/export", Endpoint(self._export, "form", "branch")),
            Route("/api/sessions/{id}/exchanges", Endpoint(self._list_exchanges, "after", "limit")),
            Route(exchange, Endpoint(self._show_exchange)),
            Route(exchange + "/sent", Endpoint(partial(self._load, "sent"), "k")),
            Route(exchange + "/received", Endpoint(partial(self._load, "received"), "k")),
            Route("/api/savings", Endpoint(self._show_savings)),
        ]

    async def _list_sessions(self, request: Request) -> list[Document]:
        limit = read_limit(request, _SESSIONS, _MOST_SESSIONS)
        query = request.query_params
        selection = Selection(query.get("family", ""), query.get("parent", ""))
        if "before" in query:
            selection = replace(selection, before=read_number(query["before"], "before"))
        rows = await list_matching(self._log, limit, selection)
        return describe_sessions(rows, await load_estimates(self._log, rows, self._inputs))

    async def _show_session(self, request: Request) -> Document:
        overview = await load_overview(self._log, request.path_params["id"])
        rows = (overview.session, *overview.children)
        return describe_overview(overview, await load_estimates(self._log, rows, self._inputs))

    async def _list_exchanges(self, request: Request) -> list[Document]:
        after = read_number(request.query_params.get("after", "0"), "after")
        limit = read_limit(request, _CALLS, _MOST_CALLS)
        session = await find_session(self._log, request.path_params["id"])
        pages = read_pages(self._log, session, after, limit)
        return [call async for page in pages for call in list_calls(page)]

    async def _show_exchange(self, request: Request) -> Document:
        return await describe_whole(self._log, await self._find_exchange(request))

    async def _load(self, part: Part, request: Request) -> Response:
        asked = request.query_params.get("k")
        k = None if asked is None else read_number(asked, "k")
        content = await load_part(self._log, await self._find_exchange(request), part, k)
        return Response(content, headers=GUARDS, media_type="application/octet-stream")

    async def _export(self, request: Request) -> Response:
        query = request.query_params
        form = query.get("form", FORMS[0])
        if form not in _MEDIA:
            raise BadRequest(f"form is one of {', '.join(FORMS)}, not {form[:40]!r}")
        opened = await open_export(self._log, request.path_params["id"], form, query.get("branch", ""))
        pieces = opened.pieces if request.method == "GET" else _write_nothing()
        return StreamingResponse(pieces, headers=GUARDS, media_type=_MEDIA[form])

    async def _show_cache(self, request: Request) -> Document:
        found = await load_cache(self._log, request.path_params["id"], self._inputs)
        return describe_cache(found) | {
            "saved": describe_estimate(await load_estimate(self._log, found.session, self._inputs))
        }

    async def _show_savings(self, request: Request) -> Document:
        return describe_savings(await load_savings(self._log, self._inputs))

    async def _find_exchange(self, request: Request) -> ExchangeRow:
        n = read_number(request.path_params["n"], "the number of an exchange")
        return await find_exchange(self._log, request.path_params["id"], n)


async def _write_nothing() -> AsyncIterator[bytes]:
    """Yield the empty body of a response to HEAD."""
    return
    yield b""
