"""The API of search under `/-/api`: what was said, and the entries that a search found.

Unlike the rest of the API these paths also accept the credential of a client, which sees the sessions of its own tenant
(`server/access`).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.engine.ports import Index
from proxy.model.search import IndexHealth
from proxy.read.search import (
    AnswerDocument,
    LogSearch,
    SearchLog,
    SearchRequest,
    load_found_page,
)
from proxy.server.access import READER
from proxy.server.endpoints import GUARDS, Endpoint, Media, read_number

_TEXT = "text/plain"


class ReferencePath(msgspec.Struct, frozen=True):
    """A reference, or an entry that a search found."""

    id: Annotated[str, Meta(description="a reference, with or without `ref:`")]


class PageQuery(msgspec.Struct, frozen=True):
    """A part of a text."""

    page: Annotated[str, Meta(pattern="^([0-9]{1,9}|all)$", description="a page of 12,000 characters, or `all`")] = "1"


Rebuild = Callable[[], Awaitable[IndexHealth]]
"""Has the index made anew, and returns how current it is. Raises ProxyError."""


class SearchApi:
    """Endpoints that search the log, show what a reference names, and tell of the index."""

    def __init__(self, log: SearchLog, index: Index, now_ms: Callable[[], int], rebuild: Rebuild) -> None:
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._rebuild = rebuild
        self._searcher = LogSearch(log, index)

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`, for the administrator and for clients."""
        return [
            Route("/api/search", Endpoint(self._search)),
            Route("/api/refs/{id}", Endpoint(self._expand)),
        ]

    def list_own_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`, for the administrator alone."""
        return [
            Route("/api/index", Endpoint(self._show_index)),
            Route("/api/index/rebuild", Endpoint().on("POST", self._make_anew)),
        ]

    async def _show_index(self) -> IndexHealth:
        """Show how current the index is."""
        return self._index.health

    async def _make_anew(self) -> IndexHealth:
        """Make the index anew from the log."""
        return await self._rebuild()

    async def _search(self, query: SearchRequest, request: Request) -> AnswerDocument:
        """Search what was said and done, the best first."""
        return await self._searcher.search(query, self._now_ms(), _read_tenant(request))

    async def _expand(
        self, path: ReferencePath, query: PageQuery, request: Request
    ) -> Annotated[Response, Media(_TEXT, "the text; `x-palimpsest-pages` says how many pages it has")]:
        """Show the original of a reference, or a whole entry that a search found."""
        number = None if query.page == "all" else read_number(query.page, "page")
        page = await load_found_page(self._log, self._index, path.id, number, _read_tenant(request))
        headers = {**GUARDS, "x-palimpsest-page": str(page.number), "x-palimpsest-pages": str(page.pages)}
        return Response(page.content, headers=headers, media_type=_TEXT)


def _read_tenant(request: Request) -> str | None:
    """Return the tenant whose sessions the caller may see, or None for all."""
    tenant: str | None = request.scope[READER]
    return tenant
