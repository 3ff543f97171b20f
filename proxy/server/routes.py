"""The table of paths. Rule: nothing but the table, in the order of matching.

Our own paths are under `/-/` and open only where they are named so here; every path that is not ours goes upstream.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.engine.exchange import ExchangeService
from proxy.server.access import START_PAGE, AccessRules, Entrance, Management
from proxy.server.client import BodyBudget
from proxy.server.context_api import ContextApi
from proxy.server.errors import render_body
from proxy.server.health import Health
from proxy.server.inspector import Inspector
from proxy.server.managed import Managed
from proxy.server.passthrough import Passthrough
from proxy.server.policy import ServerPolicy
from proxy.server.sessions_api import SessionsApi
from proxy.wire import FORMATS

MANAGED_PATHS = {
    "/v1/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic_messages",
}

# Clients put other prefixes before them, or none: Azure's `/openai/deployments/NAME`, `/api/v1`, `/v1beta/openai`.
_ENDINGS = {form.path_ending: form.name for form in FORMATS.values()}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the table points to."""

    exchanges: ExchangeService
    health: Health
    inspector: Inspector
    api: SessionsApi
    contexts: ContextApi


def find_wire(path: str) -> str:
    """The wire format that a POST to a path is in, by how the path ends; empty where it is none of them.

    Below `/threads/` the same words name something else, and below `/-/` are our own pages.
    """
    for ending, wire in _ENDINGS.items():
        if path.endswith(ending):
            return "" if "/threads/" in path or path.lstrip("/").startswith("-/") else wire
    return ""


# Ours, too, for whoever sends them has our token with them; there is nothing below them.
_STRAY = re.compile(r"/-$|//+-(?:/|$)")


class FrontDoor:
    """Lets calls of managed paths in at once, by their wire; matching the table one by one would cost each 10 µs."""

    def __init__(self, managed: Mapping[str, ASGIApp], strays: ASGIApp, others: ASGIApp) -> None:
        self._managed = managed
        self._strays = strays
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        path: str = scope["path"]
        app = self._managed.get(find_wire(path)) if scope["method"] == "POST" else None
        if app is None:
            app = self._strays if _STRAY.match(path) else self._others
        await app(scope, receive, send)


def build_routes(endpoints: Endpoints, policy: ServerPolicy) -> ASGIApp:
    """The server's ASGI application."""
    rules = AccessRules(policy)
    passthrough, bodies = Passthrough(endpoints.exchanges, policy), BodyBudget(policy.max_buffered_bytes)

    def proxied(app: ASGIApp) -> ASGIApp:
        return Entrance(app, rules, policy)

    managed = {
        wire: proxied(Managed(wire, endpoints.exchanges, policy, passthrough, bodies)) for wire in _ENDINGS.values()
    }
    management = Router(
        [
            Route("/", endpoints.inspector.show),
            Route("/metrics", endpoints.health.metrics),
            *endpoints.api.list_routes(),
            *endpoints.contexts.list_routes(),
            Route("/{path:path}", _not_found),
        ]
    )
    others = Router(
        [
            Route("/-/live", endpoints.health.live),
            Route("/-/ready", endpoints.health.ready),
            Mount("/-", Management(management, rules, policy)),
            Mount("/", proxied(passthrough)),
        ],
        redirect_slashes=False,
    )
    nothing = Management(Router([Route("/{path:path}", _not_found)]), rules, policy)
    strays = Router([Route("/-", _lead_to_page), Mount("/", nothing)])
    return FrontDoor(managed, strays, others)


async def _lead_to_page(request: Request) -> Response:
    return RedirectResponse(START_PAGE, 307)


async def _not_found(request: Request) -> Response:
    body = render_body("not_found", f"there is no {request.url.path}; docs/api.md lists our own pages")
    return Response(body, 404, media_type="application/json")
