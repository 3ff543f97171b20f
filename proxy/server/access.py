"""Who may see our own pages, and who may call the proxied paths.

Every path under `/-/` except `live` and `ready` requires the admin token, an allowed Host, and the same Origin if any.
Search also accepts the credential of a client, which finds the sessions of its own tenant.
Proxied paths refuse calls of foreign web pages and calls that have passed through here.

A web page in the user's browser can reach loopback addresses. The token keeps it from reading our pages, the Host check
prevents DNS rebinding, and the Origin check keeps it from using the cookie or a key that it does not know.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable
from operator import itemgetter
from urllib.parse import parse_qs, unquote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS, Refused
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import HOP, OWN_COOKIE, find_credential, find_header, is_loopback, list_hops, strip_scheme

START_PAGE = "/-/"
READER = "palimpsest.reader"
"""The name in an ASGI scope of the tenant, as hexadecimal digits, whose sessions may be read; None there means all."""

FindTenant = Callable[[Headers], bytes | None]
"""Returns the tenant whose sessions the credential in these headers may read, or None if it proves none."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_OWN_SITE = (b"", b"none", b"same-origin")
_BROWSER_OR_HOP = frozenset({b"origin", b"sec-fetch-site", HOP})
# A 426 has to name a protocol that is supported (RFC 9110, 15.5.22).
_USE_HTTP: Headers = ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade"))
_name_of = itemgetter(0)


class AccessRules:
    """Checks of a request's headers."""

    def __init__(self, policy: ServerPolicy) -> None:
        self._token = policy.admin_token.encode()
        self._hosts = frozenset({"localhost", policy.host.lower(), *(name.lower() for name in policy.allowed_hosts)})
        self._origins = frozenset(policy.allowed_origins)
        self._has_own_key = policy.has_own_key
        keys = policy.tenant_keys
        self._tenants = None if keys is None else frozenset(_digest(key.encode()) for key in keys)
        self._hop_id = policy.hop_id.encode()

    def check_host(self, headers: Headers) -> None:
        """Raise Refused unless the Host is an IP address, one of our own names or an allowed name."""
        name = _host_name(find_header(headers, b"host"))
        if "*" in self._hosts or name in self._hosts or _is_address(name):
            return
        raise Refused(403, "forbidden", f"the Host {name[:100]!r} is not allowed; add it to server.allowed_hosts")

    def check_call(self, headers: Headers) -> None:
        """Raise Refused unless a request may be carried upstream."""
        if find_header(headers, b"upgrade").lower() == b"websocket":
            raise Refused(426, "upgrade_required", "WebSocket is not supported; use HTTP streaming", _USE_HTTP)
        if self._has_own_key:
            self.check_host(headers)
        if not _BROWSER_OR_HOP.isdisjoint(map(_name_of, headers)):
            self._check_page(headers)
            self._check_hops(headers)
        if self._tenants is not None and _digest(strip_scheme(find_credential(headers))) not in self._tenants:
            raise Refused(401, "unauthorized", "only the keys of `tenants` are accepted (server.require_tenant)")

    def check_reader(self, headers: Headers, find_tenant: FindTenant) -> str | None:
        """Return the tenant whose sessions a request may read, or None for all. Raises Refused for none.

        A browser's page cannot ask with a client's credential: it has to come from our own page.
        """
        self._check_own_site(headers)
        if self._has_token(headers):
            return None
        tenant = find_tenant(headers)
        if tenant is None:
            raise Refused(
                401,
                "unauthorized",
                "send the admin token as 'Authorization: Bearer TOKEN'; or a client's key, whose own sessions are"
                " found: one of `tenants`, or one that an upstream has accepted in the last half hour",
            )
        return tenant.hex()

    def check_management(self, headers: Headers, query: bytes = b"") -> None:
        """Raise Refused unless the request may see our pages. `query` is empty unless it is the start-up link's."""
        self._check_own_site(headers)
        if not self._has_token(headers, query):
            raise Refused(
                401,
                "unauthorized",
                "send the admin token as 'Authorization: Bearer TOKEN'; see the link printed at start",
            )

    def _has_token(self, headers: Headers, query: bytes = b"") -> bool:
        return any(hmac.compare_digest(token, self._token) for token in _tokens(headers, query) if self._token)

    def _check_own_site(self, headers: Headers) -> None:
        self.check_host(headers)
        origin = find_header(headers, b"origin").decode("latin-1")
        if origin and origin.partition("://")[2] != find_header(headers, b"host").decode("latin-1"):
            raise Refused(403, "forbidden", "requests from other origins are refused")
        if find_header(headers, b"sec-fetch-site").strip().lower() not in _OWN_SITE:
            raise Refused(403, "forbidden", "requests from other sites are refused; open the page by its own address")

    def _check_page(self, headers: Headers) -> None:
        """Refuse a page of a foreign origin, unless it has a credential in a header.

        A browser sends such a header only after a preflight, which has no credential and is refused here, too. Cookies
        and the query do not count as credentials, because a browser sends them without a preflight.
        """
        if not self._has_own_key and find_credential(headers):
            return
        origins = [value for name, value in headers if name == b"origin"]
        for origin in origins:
            if not self._knows_origin(origin.decode("latin-1").lower()):
                what = f"pages of {origin[:100].decode('latin-1')!r} may not call; add it to server.allowed_origins"
                raise Refused(403, "foreign_origin", what)
        if not origins and find_header(headers, b"sec-fetch-site").strip().lower() == b"cross-site":
            raise Refused(403, "foreign_origin", "pages of other sites may not call (server.allowed_origins)")

    def _knows_origin(self, origin: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        match = _ORIGIN.fullmatch(origin)
        return match is not None and is_loopback(match[1].strip("[]"))

    def _check_hops(self, headers: Headers) -> None:
        if self._hop_id and self._hop_id in list_hops(headers):
            message = "this call has passed through here before: an upstream leads back to this server; see upstreams"
            raise Refused(508, "loop_detected", message)


class AccessMiddleware:
    """Wraps an application that only the administrator may reach. Browsers show its responses in no frame.

    With `find_tenant` clients may reach it, too: `scope[READER]` says whose sessions the caller may see.
    """

    def __init__(
        self, app: ASGIApp, rules: AccessRules, policy: ServerPolicy, find_tenant: FindTenant | None = None
    ) -> None:
        self._app = app
        self._rules = rules
        self._policy = policy
        self._find_tenant = find_tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        is_link = scope["raw_path"] == START_PAGE.encode() and scope["method"] == "GET"
        try:
            if self._find_tenant is not None:
                scope[READER] = self._rules.check_reader(scope["headers"], self._find_tenant)
            else:
                self._rules.check_management(scope["headers"], scope["query_string"] if is_link else b"")
        except ProxyError as error:
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            client.label(PAGE_GUARDS)
            return client.fail(error)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *PAGE_GUARDS]
            await send(message)

        await self._app(scope, receive, send_guarded)


def _tokens(headers: Headers, query: bytes) -> list[bytes]:
    """Return the tokens that a request presents: as a bearer, in the cookie, and in `?token=` of the start-up link."""
    found = []
    scheme, _, token = find_header(headers, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        found.append(token.strip())
    for part in find_header(headers, b"cookie").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == OWN_COOKIE:
            found.append(unquote(value.decode("latin-1")).encode())
    if query:
        found.extend(value.encode() for value in parse_qs(query.decode("latin-1")).get("token", ()))
    return found


def _digest(key: bytes) -> bytes:
    """Return the digest by which a key is looked up, so that the time of the look-up reveals nothing of the keys."""
    return hashlib.sha256(key).digest()


def _host_name(host: bytes) -> str:
    """Return the name in a Host header, without its port."""
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
