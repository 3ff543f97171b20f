"""Routing by path: calls in a wire format that we read, our own pages under `/-/`, and everything else upstream."""

import asyncio
import re
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.engine.exchange import ExchangeService
from proxy.model.errors import ProxyError
from proxy.model.log import ArchiveHealth
from proxy.server.access import START_PAGE, AccessMiddleware, AccessRules, Check, Doors, FindTenant
from proxy.server.api.context import ContextApi
from proxy.server.api.doctor import DoctorApi
from proxy.server.api.events import EventsApi
from proxy.server.api.health import HealthApi
from proxy.server.api.maps import MapsApi
from proxy.server.api.memory import MemoryApi
from proxy.server.api.messages import MessagesApi
from proxy.server.api.openapi import ApiDocument
from proxy.server.api.search import SearchApi
from proxy.server.api.sessions import SessionsApi
from proxy.server.client import BodyBudget, ServedClient, Share, read_request
from proxy.server.endpoints import ANY, Endpoint, respond_json
from proxy.server.errors import render_body
from proxy.server.health import Health
from proxy.server.inspector import choose_client
from proxy.server.pages import Facts, Pages
from proxy.server.policy import ServerPolicy
from proxy.wire import COUNT_ENDINGS, find_wire
from proxy.wire.headers import find_header

# Variants of `/-/` such as `//-/` are also ours and never go upstream, since such requests carry our token. So is the
# target `*`, which is about the server itself.
_OWN_PATH = re.compile(r"/+-(?:/|$)|[^/]")
_READING = ("GET", "HEAD")


class FastRouter:
    """The server's ASGI application.

    It dispatches proxied calls itself, since each route that starlette tries costs 10 µs. Only our own pages use
    starlette's router. A call without access is refused before anything is read or recorded.
    """

    def __init__(
        self, exchanges: ExchangeService, own_pages: ASGIApp, rules: AccessRules, policy: ServerPolicy
    ) -> None:
        self._exchanges = exchanges
        self._own_pages = own_pages
        self._rules = rules
        self._policy = policy
        self._bodies = BodyBudget(policy.max_buffered_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        path: str = scope["path"]
        wire = find_wire(path) if scope["method"] == "POST" else ""
        if not wire and _OWN_PATH.match(path):
            return await self._own_pages(scope, receive, send)
        try:
            self._rules.check_call(scope["headers"])
        except ProxyError as error:
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            return client.fail(error)
        if wire:
            await self._carry(scope, wire)
        elif scope["method"] == "POST" and (counted := find_wire(path, COUNT_ENDINGS)):
            await self._carry(scope, counted, is_count=True)
        else:
            await self._carry_unread(scope)

    async def _carry(self, scope: Scope, wire: str, *, is_count: bool = False) -> None:
        """Read the whole body of a call in a wire format, and pass the call to the engine.

        If `is_count`, the upstream is to count the tokens of the request.
        """
        client, share = ServedClient(scope, self._policy), Share()
        try:
            if not self._exchanges.reads(scope["headers"]):
                return await self._carry_unread(scope)
            body = await client.read_whole(self._bodies, share)
            request = read_request(scope, body)
            if find_header(request.headers, b"content-encoding"):
                request = await client.decode(request, self._bodies, share)
            client.cancel_on_disconnect()
            carry = self._exchanges.counting.carry if is_count else self._exchanges.carry
            await carry(request, wire, client)
        except ProxyError as error:
            client.fail(error)
        except asyncio.CancelledError:
            client.dismiss()  # the server stops before the request is whole; later the engine ends the response
        finally:
            client.ignore_disconnect()
            self._bodies.release(share)

    async def _carry_unread(self, scope: Scope) -> None:
        """Pass a request to the engine as a stream, unread and unchecked: the upstream judges it."""
        client = choose_client(scope)(scope, self._policy)
        body = client if client.has_body else None
        if body is None:
            client.expect_nothing()
        client.cancel_on_disconnect()
        try:
            await self._exchanges.unread.carry(read_request(scope), body, client)
        except asyncio.CancelledError:
            pass  # the engine has ended the call
        finally:
            client.ignore_disconnect()


def build_routes(
    policy: ServerPolicy,
    exchanges: ExchangeService,
    *,
    health: Health,
    facts: Facts,
    find_log_health: Callable[[], ArchiveHealth],
    sessions: SessionsApi,
    contexts: ContextApi,
    searches: SearchApi,
    memory: MemoryApi,
    messages: MessagesApi,
    doctor: DoctorApi,
    events: EventsApi,
    maps: MapsApi,
    mcp: ASGIApp,
    find_tenant: FindTenant,
) -> ASGIApp:
    """Return the server's ASGI application. `find_tenant` returns whose sessions a client's credential may read.

    `facts` are what the start page tells of the settings. `mcp` checks by itself who asks.
    """
    rules = AccessRules(policy)
    doors = Doors(rules, find_tenant)

    def guard(app: ASGIApp, check: Check = doors.admit_administrator) -> ASGIApp:
        return AccessMiddleware(app, check, policy)

    def guard_all(routes: Sequence[BaseRoute]) -> ASGIApp:
        return guard(Router(routes, redirect_slashes=False, default=_not_found))

    own = [
        *sessions.list_routes(),
        *contexts.list_routes(),
        *memory.list_routes(),
        *messages.list_routes(),
        *doctor.list_routes(),
        *events.list_routes(),
        *maps.list_routes(),
        *searches.list_own_routes(),
        *HealthApi(health, find_log_health, facts).list_routes(),
    ]
    readable = searches.list_routes()
    described = ApiDocument([*own, *readable])
    pages = Pages([*own, *readable])
    table = [
        Route("/-/live", guard(Endpoint(health.live, ANY), doors.admit_probe), methods=_READING),
        Route("/-/ready", guard(Endpoint(health.ready, ANY), doors.admit_probe), methods=_READING),
        Route("/-/metrics", guard(Endpoint(health.metrics, ANY), doors.admit_scraper), methods=_READING),
        Route("/-/mcp", mcp),
        Route("/-", _lead_to_page),
        *(Route(f"/-{route.path}", guard(route.app, doors.admit_reader)) for route in readable),
        Mount("/-", guard_all([*own, *described.list_routes(), *pages.list_routes()])),
        Mount("/", guard_all([])),  # for another method of the paths above
    ]
    return FastRouter(exchanges, Router(table, redirect_slashes=False, default=guard_all([])), rules, policy)


async def _lead_to_page(request: Request) -> Response:
    return RedirectResponse(START_PAGE, 307)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    body = render_body("not_found", f"there is no {scope['path'][:200]}; /-/api lists what there is")
    await respond_json(body, 404)(scope, receive, send)
