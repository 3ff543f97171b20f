"""Clients that use httpx: for upstreams behind an HTTP proxy, and for webhooks.

A call of 2 KB takes 0.47 ms of CPU through httpx and an HTTP proxy, and 0.05 ms through `client`. Importing httpx takes
60 ms and 6 MB. So this module is imported only if it is needed.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from http.cookiejar import Cookie, CookieJar
from typing import Any

import httpx

from proxy.engine.ports import RequestBody, UpstreamResponse
from proxy.model.errors import BadRequest, ProxyError, UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.origin import choose_headers, is_near, make_key_header, make_tls_context, map_target, parse_base
from proxy.upstream.policy import UpstreamPolicy
from proxy.upstream.received_response import ReceivedResponse, Spawn
from proxy.wire.headers import HOP, find_header, list_hops

# An idle tunnel is checked before reuse, but a close that is still on its way fails the call, which is sent only once.
# So tunnels are kept for as long as an agent's tools run, not for the pauses of its user.
_MAX_REFUSED_BYTES = 65_536
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)


class ProxiedClient:
    """Sends requests to one upstream through an HTTP proxy; implements the port `Upstream`, as `DirectClient` does.

    An https upstream is reached by CONNECT, an http one by requests with an absolute URL. A call is sent once, with no
    retries, redirects, stored cookies or decoded bodies. `spawn` starts the task that receives a response. `hop_id`
    identifies this server in `x-palimpsest-hop`, which is sent only if the base URL names a loopback or
    private address.
    """

    def __init__(self, policy: UpstreamPolicy, spawn: Spawn, *, hop_id: str = "") -> None:
        self.name = policy.name
        self._policy = policy
        self._spawn = spawn
        self._origin, self._base_path = parse_base(policy.base_url)
        self._key = make_key_header(policy)
        self._hop_id = hop_id.encode() if is_near(self._origin.host) else b""
        self._tls = make_tls_context()
        self._transport: _Transport | None = None

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> UpstreamResponse:
        """Send one request. httpx sends all of a streamed body before it reads the response."""
        request = self._build_request(method, target, headers, body)
        transport = self._transport = self._transport or _Transport(self._policy.proxy, self._tls)
        transport.under_way += 1
        try:
            async with asyncio.timeout(self._policy.connect_timeout) as connecting:

                async def note_event(event: str, info: dict[str, Any]) -> None:
                    if event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
                        connecting.reschedule(None)

                request.extensions["trace"] = note_event
                response = await transport.handle_async_request(request)
            if response.status_code >= 600:
                await response.aclose()
                raise UpstreamUnreachable(f"the upstream sent the unexpected status {response.status_code}")
        except BaseException as error:
            if connecting.when() is not None:
                # httpcore 1.0.9 never removes a connection from its pool whose TLS handshake has failed.
                transport.is_retired = True
                self._transport = None if self._transport is transport else self._transport
            self._release(transport)
            if isinstance(error, TimeoutError | httpx.HTTPError):
                raise self._explain(error) from error
            raise
        return ProxiedResponse(response, self._spawn, self._explain, lambda: self._release(transport))

    async def aclose(self) -> None:
        """Close all connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _build_request(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> httpx.Request:
        mapped = map_target(self._base_path, target)
        sent = [(b"host", self._origin.host_header), *choose_headers(headers, self._key, mapped)]
        if self._hop_id:
            sent.append((HOP, b", ".join([*list_hops(headers), self._hop_id])))
        stream: httpx.AsyncByteStream
        if isinstance(body, bytes):
            stream = httpx.ByteStream(body)
            if body or method in ("POST", "PUT", "PATCH"):
                sent.append((b"content-length", b"%d" % len(body)))
        else:
            stream = _UploadStream(body)
            length = find_header(headers, b"content-length")
            sent.append((b"content-length", length) if length else (b"transfer-encoding", b"chunked"))
        idle = self._policy.idle_timeout
        timeout = {"connect": None, "read": idle, "write": idle, "pool": None}
        url = self._policy.base_url
        request = httpx.Request(method, url, headers=sent, stream=stream, extensions={"timeout": timeout})
        request.url = _RawUrl(url, mapped.path)
        return request

    def _release(self, transport: "_Transport") -> None:
        transport.under_way -= 1
        if transport.is_retired and not transport.under_way:
            self._spawn(transport.aclose())

    def _explain(self, error: Exception, *, has_head: bool = False) -> ProxyError:
        """Return the error for the client; its text never contains the proxy's URL or credentials."""
        name, policy = self.name, self._policy
        match error:
            case TimeoutError():
                what = f"no connection to the upstream {name!r} through its proxy within {policy.connect_timeout:g} s"
                return UpstreamUnreachable(what, was_silent=True)
            case httpx.TimeoutException():
                return UpstreamUnreachable(f"the upstream was silent for {policy.idle_timeout:g} s", was_silent=True)
            case httpx.ProxyError():
                return UpstreamUnreachable(f"the proxy of the upstream {name!r} refused to connect: {error}")
            case httpx.ConnectError():
                return UpstreamUnreachable(f"no connection to the upstream {name!r} through its proxy: {error}")
            case httpx.LocalProtocolError():
                return BadRequest(f"this request cannot be sent through a proxy: {error}")
            case httpx.RemoteProtocolError() if "disconnected" not in str(error) and "closed" not in str(error):
                return UpstreamUnreachable(f"the upstream's response is not valid HTTP: {error}")
        where = "in the middle of its response" if has_head else "before it responded"
        return UpstreamUnreachable(f"the upstream closed the connection {where}")


class ProxiedResponse(ReceivedResponse):
    """A response through a proxy; implements the port `UpstreamResponse`.

    A separate task receives it: httpcore closes a connection when a read is cancelled, but readers may stop waiting and
    read again later.
    """

    def __init__(
        self,
        response: httpx.Response,
        spawn: Spawn,
        explain: Callable[..., ProxyError],
        release: Callable[[], None],
    ) -> None:
        headers = tuple([(name.lower(), value) for name, value in response.headers.raw])
        super().__init__(response.status_code, headers)
        self._response = response
        self._explain = explain
        self._release = release
        self.start(spawn)

    async def receive(self) -> None:
        """Receive the body, then release the connection."""
        try:
            await super().receive()
        finally:
            try:
                await self._response.aclose()
            finally:
                self._release()

    async def receive_body(self) -> None:
        """Receive the body."""
        assert isinstance(self._response.stream, httpx.AsyncByteStream)
        try:
            async for piece in self._response.stream:
                await self.put(piece)
        except httpx.HTTPError as error:
            raise self._explain(error, has_head=True) from error


class WebhookClient:
    """Posts to one address of the settings. It follows no redirect, uses no proxy, and keeps no cookie."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._client: httpx.AsyncClient | None = None

    async def post(self, headers: Headers, body: bytes) -> int:
        """Return the status of the response, of whose body little is read. Raises TimeoutError, UpstreamUnreachable."""
        client = self._client = self._client or httpx.AsyncClient(
            verify=make_tls_context(), trust_env=False, timeout=None, cookies=_NoCookies()
        )
        try:
            async with asyncio.timeout(self._seconds):
                async with client.stream("POST", self._url, headers=list(headers), content=body) as response:
                    left = _MAX_REFUSED_BYTES
                    async for piece in response.aiter_raw():  # a connection whose response was read is used again
                        left -= len(piece)
                        if left < 0:
                            break
                    return response.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UpstreamUnreachable(f"no response: {error or type(error).__name__}") from error

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _NoCookies(CookieJar):
    """Keeps nothing."""

    def set_cookie(self, cookie: Cookie) -> None:
        """Do not keep it."""


class _Transport(httpx.AsyncHTTPTransport):
    """Connections through one proxy. `under_way` counts the calls on them. A retired transport gets no new calls."""

    def __init__(self, proxy: str, tls: ssl.SSLContext) -> None:
        through = httpx.Proxy(proxy, ssl_context=tls if proxy.lower().startswith("https:") else None)
        super().__init__(verify=tls, trust_env=False, limits=_LIMITS, proxy=through)
        self.under_way = 0
        self.is_retired = False


class _RawUrl(httpx.URL):
    """A URL whose path and query are sent unchanged; httpx would normalise them.

    The extension `target` of httpx does not help: it would also replace the target of CONNECT and absolute URLs.
    """

    def __init__(self, url: str, target: bytes) -> None:
        super().__init__(url)
        self._target = target

    @property
    def raw_path(self) -> bytes:
        """The path and query, unchanged."""
        return self._target


class _UploadStream(httpx.AsyncByteStream):
    """A streamed request body in the form that httpx requires."""

    def __init__(self, body: RequestBody) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while content := await self._body.read():
            yield content
