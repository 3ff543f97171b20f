"""The table of paths. Rule: nothing but the table, in the order of matching.

Our own paths are under `/-/` and open only where they are named so here; every path that is not ours goes upstream.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from proxy.engine.exchange import Exchanges
from proxy.server.access import AccessRules, Entrance, Management
from proxy.server.errors import render_body
from proxy.server.health import Health
from proxy.server.inspector import Inspector
from proxy.server.managed import Managed
from proxy.server.passthrough import Passthrough
from proxy.server.policy import ServerPolicy

MANAGED_PATHS = {
    "/v1/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic_messages",
}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the table points to."""

    exchanges: Exchanges
    health: Health
    inspector: Inspector


def build_routes(endpoints: Endpoints, policy: ServerPolicy, *, has_own_key: bool) -> Router:
    """The server's ASGI application."""
    rules = AccessRules(policy)
    passthrough = Passthrough(endpoints.exchanges, policy)

    def proxied(app: ASGIApp) -> ASGIApp:
        return Entrance(app, rules, policy, has_own_key=has_own_key)

    managed: list[BaseRoute] = [
        Route(path, proxied(Managed(wire, endpoints.exchanges, policy, passthrough)), methods=["POST"])
        for path, wire in MANAGED_PATHS.items()
    ]
    management = Router(
        [
            Route("/", endpoints.inspector.show),
            Route("/metrics", endpoints.health.metrics),
            Route("/{path:path}", _not_found),
        ]
    )
    return Router(
        [
            *managed,
            Route("/-/live", endpoints.health.live),
            Route("/-/ready", endpoints.health.ready),
            Mount("/-", Management(management, rules, policy)),
            Mount("/", proxied(passthrough)),
        ],
        redirect_slashes=False,
    )


async def _not_found(request: Request) -> Response:
    body = render_body("not_found", f"there is no {request.url.path}; our own pages are listed in the README")
    return Response(body, 404, media_type="application/json")
