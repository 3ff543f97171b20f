"""Who may see our own pages. Rule: everything under `/-/` but `live` and `ready` needs the admin token, a Host that is
ours and an Origin that is the same; so does a proxied path's Host where a key of the settings is spent.

A web page in the user's browser can reach loopback addresses. The token keeps it from reading, the Host check from
rebinding a name of its own to us, the Origin check from riding on the cookie.
"""

import hmac
import ipaddress
from urllib.parse import parse_qs, unquote, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.server.client import ServedClient
from proxy.server.errors import Refused
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import find

COOKIE = "palimpsest_admin"


class AccessRules:
    """Decides from headers alone."""

    def __init__(self, policy: ServerPolicy) -> None:
        self._token = policy.admin_token.encode()
        self._hosts = frozenset({"localhost", policy.host.lower(), *(name.lower() for name in policy.allowed_hosts)})

    def check_host(self, headers: Headers) -> None:
        """Raises Refused for a Host that is no address, not ours and not allowed."""
        name = _host_name(find(headers, b"host"))
        if "*" in self._hosts or name in self._hosts or _is_address(name):
            return
        raise Refused(403, "forbidden", f"Host {name[:100]!r} is not known here; add it to server.allowed_hosts")

    def check_management(self, headers: Headers, query: bytes = b"") -> None:
        """Raises Refused unless the request may see our pages."""
        self.check_host(headers)
        origin = find(headers, b"origin").decode("latin-1")
        if origin and origin.partition("://")[2] != find(headers, b"host").decode("latin-1"):
            raise Refused(403, "forbidden", "requests from other origins are refused")
        if not any(hmac.compare_digest(token, self._token) for token in _tokens(headers, query) if self._token):
            raise Refused(
                401,
                "unauthorized",
                "send the admin token as 'Authorization: Bearer TOKEN'; see the link printed at start",
            )


class Management:
    """Wraps an application that only the administrator may reach."""

    def __init__(self, app: ASGIApp, rules: AccessRules, policy: ServerPolicy) -> None:
        self._app = app
        self._rules = rules
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        try:
            self._rules.check_management(scope["headers"], scope["query_string"])
        except ProxyError as error:
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            return client.fail(error)
        await self._app(scope, receive, send)


class Entrance:
    """Wraps the proxied paths: no protocol switches, and no foreign Host where our own key would be spent."""

    def __init__(self, app: ASGIApp, rules: AccessRules, policy: ServerPolicy, *, has_own_key: bool) -> None:
        self._app = app
        self._rules = rules
        self._policy = policy
        self._has_own_key = has_own_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        headers: Headers = scope["headers"]
        try:
            if find(headers, b"upgrade").lower() == b"websocket":
                raise Refused(426, "upgrade_required", "websockets are not spoken here; use HTTP streaming")
            if self._has_own_key:
                self._rules.check_host(headers)
        except ProxyError as error:
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            return client.fail(error)
        await self._app(scope, receive, send)


def _tokens(headers: Headers, query: bytes) -> list[bytes]:
    """Tokens a request presents: bearer, cookie, and `?token=` of the start-up link."""
    found = []
    scheme, _, token = find(headers, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        found.append(token.strip())
    for part in find(headers, b"cookie").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            found.append(unquote(value.decode("latin-1")).encode())
    if query:
        found.extend(value.encode() for value in parse_qs(query.decode("latin-1")).get("token", ()))
    return found


def _host_name(host: bytes) -> str:
    """The name in a Host field, without its port."""
    try:
        return (urlsplit("//" + host.decode("ascii")).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
