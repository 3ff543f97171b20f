"""Who may see our own pages, and who may call the proxied paths.

Every path under `/-/` requires an allowed Host, and the same Origin and site if a browser names them; all except `live`
and `ready` also the admin token, as a bearer, or the cookie that the start-up link sets. The cookie is not the token:
browsers send cookies to every port of a host, and so to other servers there.
Search also accepts the credential of a client, which finds the sessions of its own tenant.
The metrics also open to a token of their own, whatever the Host: no browser sends that by itself.
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
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS, Refused, render_closed_page
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
_UNAUTHORIZED = 401
_name_of = itemgetter(0)


class AccessRules:
    """Checks of a request's headers."""

    def __init__(self, policy: ServerPolicy) -> None:
        self._token = policy.admin_token.encode()
        self._cookie = make_cookie(policy.admin_token).encode()
        self._metrics_token = policy.metrics_token.encode()
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

    def check_metrics(self, headers: Headers) -> None:
        """Raise Refused unless the request may see the metrics."""
        if self._metrics_token and hmac.compare_digest(_read_bearer(headers), self._metrics_token):
            return self._check_browser(headers)
        self.check_management(headers)

    def check_open(self, headers: Headers) -> None:
        """Raise Refused unless the request may see what needs no token."""
        self._check_own_site(headers)

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
        if not self._token:
            return False
        is_given = [hmac.compare_digest(token, self._token) for token in (_read_bearer(headers), *_read_link(query))]
        return any([*is_given, *(hmac.compare_digest(value, self._cookie) for value in _read_cookies(headers))])

    def _check_own_site(self, headers: Headers) -> None:
        self.check_host(headers)
        self._check_browser(headers)

    def _check_browser(self, headers: Headers) -> None:
        """Refuse what a page of another origin has a browser send."""
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


Check = Callable[[Scope], None]
"""Raises Refused unless a request may reach an application."""


class AccessMiddleware:
    """Wraps an application that not everybody may reach. Browsers show its responses in no frame."""

    def __init__(self, app: ASGIApp, check: Check, policy: ServerPolicy) -> None:
        self._app = app
        self._check = check
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        try:
            self._check(scope)
        except ProxyError as error:
            if error.status == _UNAUTHORIZED and _is_read_by_a_person(scope):
                page = HTMLResponse(render_closed_page(), error.status)
                page.raw_headers.extend(PAGE_GUARDS)
                return await page(scope, receive, send)
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            client.label(PAGE_GUARDS)
            return client.fail(error)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *PAGE_GUARDS]
            await send(message)

        await self._app(scope, receive, send_guarded)


def _is_read_by_a_person(scope: Scope) -> bool:
    """Return whether a browser asks for one of our pages: programs take JSON, or whatever comes."""
    return scope["method"] == "GET" and b"text/html" in find_header(scope["headers"], b"accept")


class Doors:
    """What may be reached by whom, as checks of ASGI scopes. `scope[READER]` then says whose sessions may be seen."""

    def __init__(self, rules: AccessRules, find_tenant: FindTenant) -> None:
        self._rules = rules
        self._find_tenant = find_tenant

    def admit_administrator(self, scope: Scope) -> None:
        """Admit who has the admin token. At the start page it may be in the query, as in the link."""
        is_link = scope["raw_path"] == START_PAGE.encode() and scope["method"] == "GET"
        self._rules.check_management(scope["headers"], scope["query_string"] if is_link else b"")
        scope[READER] = None

    def admit_reader(self, scope: Scope) -> None:
        """Admit clients, too."""
        scope[READER] = self._rules.check_reader(scope["headers"], self._find_tenant)

    def admit_scraper(self, scope: Scope) -> None:
        """Admit who has the token of the metrics, too."""
        self._rules.check_metrics(scope["headers"])

    def admit_probe(self, scope: Scope) -> None:
        """Admit everybody but pages of others."""
        self._rules.check_open(scope["headers"])


def make_cookie(token: str) -> str:
    """Return the value of the cookie that stands for the admin token."""
    return hmac.new(token.encode(), b"palimpsest cookie", hashlib.sha256).hexdigest()


def _read_bearer(headers: Headers) -> bytes:
    scheme, _, token = find_header(headers, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _read_cookies(headers: Headers) -> list[bytes]:
    """Return the values of our cookie; there may be several, of several paths."""
    pairs = [part.strip().partition(b"=") for part in find_header(headers, b"cookie").split(b";")]
    return [value for name, _, value in pairs if name == OWN_COOKIE]


def _read_link(query: bytes) -> list[bytes]:
    """Return the tokens in the query of the start-up link."""
    return [value.encode() for value in parse_qs(query.decode("latin-1")).get("token", ())]


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
