"""The API of search under `/-/api`: what was said, and the entries that a search found.

Unlike the rest of the API these paths also accept the credential of a client, which sees the sessions of its own tenant
(`server/access`).
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.engine.ports import Index
from proxy.engine.reports.context import Document
from proxy.engine.reports.search import (
    DEFAULT_LIMIT,
    MOST_HITS,
    MOST_TOKENS,
    SearchLog,
    SearchRequest,
    describe_answer,
    describe_health,
    load_found_page,
    search_log,
)
from proxy.model.errors import BadRequest
from proxy.model.search import IndexHealth
from proxy.server.access import READER
from proxy.server.endpoints import GUARDS, Endpoint, read_limit, read_number

_TEXT = "text/plain"
_FILTERS = ("session", "branch", "kind", "role", "sender", "tool", "since", "until")
_PARAMETERS = ("q", *_FILTERS, "limit", "tokens")

Rebuild = Callable[[], Awaitable[IndexHealth]]
"""Has the index made anew, and returns how current it is. Raises ProxyError."""


class SearchApi:
    """Endpoints that search the log, show what a reference names, and tell of the index."""

    def __init__(self, log: SearchLog, index: Index, now_ms: Callable[[], int], rebuild: Rebuild) -> None:
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._rebuild = rebuild

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`, for the administrator and for clients."""
        return [
            Route("/api/search", Endpoint(self._search, *_PARAMETERS)),
            Route("/api/refs/{id}", Endpoint(self._expand, "page")),
        ]

    def list_own_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`, for the administrator alone."""
        return [
            Route("/api/index", Endpoint(self._show_index)),
            Route("/api/index/rebuild", Endpoint().on("POST", self._make_anew)),
        ]

    async def _show_index(self, request: Request) -> Document:
        return describe_health(self._index.health)

    async def _make_anew(self, request: Request) -> Document:
        return describe_health(await self._rebuild())

    async def _search(self, request: Request) -> Document:
        asked = request.query_params
        if "q" not in asked:
            raise BadRequest("q is missing: what to look for")
        named = {name: asked.get(name, "") for name in _FILTERS}
        tokens = read_number(asked["tokens"], "tokens") if "tokens" in asked else None
        if tokens is not None and not 1 <= tokens <= MOST_TOKENS:
            raise BadRequest(f"tokens is 1 to {MOST_TOKENS}, not {tokens}")
        limit = read_limit(request, DEFAULT_LIMIT, MOST_HITS)
        wanted = SearchRequest(asked["q"], **named, limit=limit, tokens=tokens)
        return describe_answer(await search_log(self._log, self._index, wanted, self._now_ms(), _read_tenant(request)))

    async def _expand(self, request: Request) -> Response:
        asked = request.query_params.get("page", "1")
        number = None if asked == "all" else read_number(asked, "page")
        reference, tenant = request.path_params["id"], _read_tenant(request)
        page = await load_found_page(self._log, self._index, reference, number, tenant)
        headers = {**GUARDS, "x-palimpsest-page": str(page.number), "x-palimpsest-pages": str(page.pages)}
        return Response(page.content, headers=headers, media_type=_TEXT)


def _read_tenant(request: Request) -> str | None:
    """Return the tenant whose sessions the caller may see, or None for all."""
    tenant: str | None = request.scope[READER]
    return tenant
