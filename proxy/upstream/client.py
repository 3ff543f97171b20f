"""The pooling client of one upstream, perhaps behind an HTTP proxy, or of one receiver of webhooks.

A client call makes at most one upstream call. A dead pooled connection is replaced before the request is sent. After
that the request is repeated once, and only if the upstream cannot have read it (`HttpConnection.may_send_again`).
Pooled connections are not used when the upstream is about to close them. Redirects are passed on to the client.
"""

import asyncio
import errno
import math
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from proxy.engine.ports import RequestBody, UpstreamResponse
from proxy.engine.runtime import Descriptors
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import SUCCESS, Headers
from proxy.upstream.http_connection import HttpConnection
from proxy.upstream.origin import (
    UpstreamTarget,
    choose_headers,
    is_near,
    make_key_header,
    make_tls_context,
    map_target,
    parse_base,
    parse_proxy,
)
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire.headers import HOP, find_header, list_hops

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

_MOST_READ = 65_536
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 20.0  # of a call of a command
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_RELIEF_SECONDS = 0.05
_KEEP_SECONDS = 55.0
_KEEP_MOST = 256
# A pooled connection is not used in this last part of the upstream's keep-alive time, because a request takes some time
# to arrive. Of short keep-alive times it is a quarter.
_MARGIN_SECONDS = 1.0
_MARGIN_FRACTION = 0.25


class ClientResponse:
    """A response on one of the client's connections; implements the port `UpstreamResponse`."""

    __slots__ = ("_connection", "_give_back", "_upload", "headers", "status")

    def __init__(
        self,
        connection: HttpConnection,
        give_back: Callable[[HttpConnection], None],
        upload: "asyncio.Task[None] | None",
    ) -> None:
        self._connection: HttpConnection | None = connection
        self._give_back = give_back
        self._upload = upload
        self.status = connection.status
        self.headers = connection.headers

    @property
    def is_received(self) -> bool:
        """Whether the whole response has come, read or not."""
        return self._connection is None or self._connection.is_received

    @property
    def is_ended(self) -> bool:
        """Whether every byte has been read."""
        return self._connection is None or self._connection.is_ended

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises UpstreamUnreachable."""
        assert self._connection is not None, "the response was closed"
        return await self._connection.read()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Pass received bytes to `take` until that returns False or the whole response has come."""
        assert self._connection is not None, "the response was closed"
        await self._connection.pump(take)

    def close(self) -> None:
        """Return the connection to the pool, or close it if the response is incomplete."""
        if self._connection is None:
            return
        if self._upload is not None and not self._upload.done():
            self._upload.cancel()
            self._connection.close()
        connection, self._connection = self._connection, None
        connection.keep_for = _read_keep_alive(self.headers)
        if connection.finish():
            self._give_back(connection)


class DirectClient:
    """Sends requests to one upstream over its own connection pool; implements the port `Upstream`.

    Behind an HTTP proxy an https upstream is reached by CONNECT, an http one by requests with an absolute URL.
    `spawn` starts the task that streams an upload while the response is awaited.
    `descriptors` frees file descriptors when none is left. `now` returns monotonic seconds. `hop_id` identifies
    this server in `x-palimpsest-hop`, which is sent to near addresses only; behind a proxy, if the base URL names one.
    """

    def __init__(
        self,
        policy: UpstreamPolicy,
        spawn: Spawn,
        descriptors: Descriptors | None = None,
        now: Callable[[], float] = time.monotonic,
        *,
        hop_id: str = "",
    ) -> None:
        self.name = policy.name
        self._policy = policy
        self._spawn = spawn
        self._origin, base = parse_base(policy.base_url)
        self._map: Callable[[bytes], UpstreamTarget] = partial(map_target, base)
        self._host = self._origin.host_header
        self._proxy = proxy = parse_proxy(policy.proxy)
        self._near = self._origin if proxy is None else proxy.origin  # where connections lead
        self._has_tunnel = proxy is not None and self._origin.is_tls
        is_relayed = proxy is not None and not self._has_tunnel
        self._absolute = b"http://%s" % self._host if is_relayed else b""  # before the path
        self._fields = proxy.fields if proxy is not None and is_relayed else b""
        self._where = f"the upstream {self.name!r}{' through its proxy' if proxy is not None else ''}"
        self._idle: list[HttpConnection] = []  # longest idle first
        self._closed_at = math.inf  # idle time after which the upstream was seen to close connections, seconds
        self._now = now
        self._descriptors = descriptors
        if descriptors is not None:
            descriptors.add_releaser(self.close)
        self._tls: ssl.SSLContext | None = None
        self._key = make_key_header(policy)
        self._hop_id = hop_id.encode()

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> UpstreamResponse:
        """Send one request. A streamed body gets a new connection, because it could not be sent twice."""
        mapped = self._map(target)
        lines = [b"%s: %s\r\n" % header for header in choose_headers(headers, self._key, mapped)]
        start = (method.encode(), self._absolute, mapped.path, self._host, b"".join(lines), self._fields)
        head = b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s%s" % start
        if not isinstance(body, bytes):
            return await self._send_stream(method, head, headers, body)
        if body or method in ("POST", "PUT", "PATCH"):
            head += b"content-length: %d\r\n" % len(body)
        pooled = self._take_idle()
        if pooled is not None:
            age = self._now() - pooled.idle_since
            try:
                return await self._ask(pooled, method, head + self._hop_field(headers, pooled), body)
            except UpstreamUnreachable:
                if not pooled.may_send_again:
                    raise
                self._closed_at = min(self._closed_at, age)
        connection = await self._connect()
        return await self._ask(connection, method, head + self._hop_field(headers, connection), body)

    def close(self) -> int:
        """Close the idle connections; return how many there were."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        return len(idle)

    async def aclose(self) -> None:
        """Close the idle connections."""
        self.close()

    async def _ask(self, connection: HttpConnection, method: str, head: bytes, body: bytes) -> ClientResponse:
        head += b"\r\n"
        try:
            connection.begin(method, head, body, self._policy.idle_timeout)
            await connection.wait_for_head()
        except BaseException:
            _discard(connection)
            raise
        return ClientResponse(connection, self._give_back, None)

    async def _send_stream(self, method: str, head: bytes, headers: Headers, body: RequestBody) -> ClientResponse:
        length = find_header(headers, b"content-length")
        head += b"content-length: %s\r\n" % length if length else b"transfer-encoding: chunked\r\n"
        connection = await self._connect()
        head += self._hop_field(headers, connection) + b"\r\n"
        upload: asyncio.Task[None] | None = None
        try:
            connection.begin(method, head, b"", self._policy.idle_timeout)
            upload = self._spawn(_upload(connection, body, is_chunked=not length))
            await connection.wait_for_head()
        except BaseException:
            if upload is not None:
                upload.cancel()
            _discard(connection)
            raise
        return ClientResponse(connection, self._give_back, upload)

    async def _connect(self) -> HttpConnection:
        if self._tls is None and (self._origin.is_tls or self._near.is_tls):
            self._tls = make_tls_context()
        try:
            async with asyncio.timeout(self._policy.connect_timeout):
                try:
                    return await self._open()
                except OSError as error:
                    if error.errno not in _NO_DESCRIPTOR or not (self._descriptors and self._descriptors.relieve()):
                        raise
                await asyncio.sleep(_RELIEF_SECONDS)  # the event loop closes the connections
                return await self._open()
        except TimeoutError:
            raise UpstreamUnreachable(
                f"no connection to {self._where} within {self._policy.connect_timeout:g} s",
                was_silent=True,
            ) from None
        except OSError as error:
            raise UpstreamUnreachable(f"no connection to {self._where}: {error}") from error

    async def _open(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: HttpConnection(loop, self._note_idle_close),
            self._near.host,
            self._near.port,
            ssl=self._tls if self._near.is_tls else None,
        )
        return await self._open_tunnel(connection) if self._has_tunnel else connection

    async def _open_tunnel(self, proxied: HttpConnection) -> HttpConnection:
        """Return a connection to the upstream through the tunnel that the proxy opens on another one."""
        loop, proxy = asyncio.get_running_loop(), self._proxy
        assert proxy is not None and self._tls is not None, "it leads to an https upstream"
        host, place = self._origin.host, self._origin.address
        head = b"CONNECT %s HTTP/1.1\r\nhost: %s\r\n%s\r\n" % (place, place, proxy.fields)
        connection = HttpConnection(loop, self._note_idle_close)
        try:
            proxied.begin("CONNECT", head, b"", self._policy.connect_timeout)
            await proxied.wait_for_head()
            if proxied.status not in SUCCESS:
                raise UpstreamUnreachable(
                    f"the proxy of the upstream {self.name!r} refused to connect: {proxied.status}"
                )
            secured = await loop.start_tls(proxied.hand_over(), connection, self._tls, server_hostname=host)
        except BaseException:
            proxied.close()
            raise
        assert secured is not None, "the transport is open"
        connection.connection_made(secured)
        return connection

    def _take_idle(self) -> HttpConnection | None:
        now = self._now()
        # A connection that is still open after a longer idle time shows that the others were not closed for idleness,
        # but because the upstream was restarted or had too many.
        if self._idle and now - self._idle[0].idle_since > self._closed_at and self._idle[0].is_fresh():
            self._closed_at = math.inf
        margin = min(_MARGIN_SECONDS, self._closed_at * _MARGIN_FRACTION)
        while self._idle:
            connection = self._idle.pop()
            age = now - connection.idle_since
            if not connection.is_fresh():
                self._closed_at = min(self._closed_at, age)
            elif age < connection.keep_for and age < self._closed_at - margin:
                return connection
            connection.close()
        return None

    def _note_idle_close(self, connection: HttpConnection) -> None:
        """Note that the upstream closed an idle connection."""
        if connection in self._idle:
            self._idle.remove(connection)
            self._closed_at = min(self._closed_at, self._now() - connection.idle_since)

    def _give_back(self, connection: HttpConnection) -> None:
        if len(self._idle) >= _KEEP_MOST:
            connection.close()
            return
        connection.idle_since = self._now()
        self._idle.append(connection)

    def _hop_field(self, headers: Headers, connection: HttpConnection) -> bytes:
        """Return the header by which palimpsest servers detect loops; empty for peers in the public network."""
        if not self._hop_id or not (connection.is_near if self._proxy is None else is_near(self._origin.host)):
            return b""
        return b"%s: %s\r\n" % (HOP, b", ".join([*list_hops(headers), self._hop_id]))


class WebhookClient(DirectClient):
    """Posts to one address of the settings as it is. It follows no redirect, uses no proxy, and keeps no cookie."""

    def __init__(self, url: str, seconds: float, spawn: Spawn) -> None:
        super().__init__(UpstreamPolicy("webhook", base_url=url, connect_timeout=seconds, idle_timeout=seconds), spawn)
        parts = urlsplit(url)
        self._target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}".encode()
        self._map = lambda target: UpstreamTarget(target, is_under_base=False)
        self._seconds = seconds

    async def post(self, headers: Headers, body: bytes) -> int:
        """Return the status of the response, of whose body little is read. Raises TimeoutError, UpstreamUnreachable."""
        async with asyncio.timeout(self._seconds):
            response = await self.send("POST", self._target, headers, body)
            try:
                left = _MOST_READ
                while left > 0 and not response.is_ended:  # a connection whose response was read is used again
                    left -= len(await response.read())
                return response.status
            finally:
                response.close()


class Received(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    content: bytes


async def fetch(policy: UpstreamPolicy, method: str, target: bytes, headers: Headers, body: bytes = b"") -> Received:
    """Make one call of a command to an upstream, or to our own server, as the proxy reaches it. Raises ProxyError."""
    quick = replace(policy, connect_timeout=_CONNECT_SECONDS, idle_timeout=_SILENT_SECONDS)
    client = DirectClient(quick, asyncio.get_running_loop().create_task)
    try:
        response = await client.send(method, target, (*headers, (b"user-agent", b"palimpsest")), body)
        content = b""
        while piece := await response.read():
            content += piece
        response.close()
        return Received(response.status, response.headers, content)
    finally:
        client.close()


async def _upload(connection: HttpConnection, body: RequestBody, *, is_chunked: bool) -> None:
    while True:
        connection.waits_for_client = True
        content = await body.read()
        connection.waits_for_client = False
        if not content:
            break
        await connection.write(b"%x\r\n%s\r\n" % (len(content), content) if is_chunked else content)
    if is_chunked:
        await connection.write(b"0\r\n\r\n")


def _discard(connection: HttpConnection) -> None:
    """Close a connection whose request failed."""
    connection.close()
    connection.finish()


def _read_keep_alive(headers: Headers) -> float:
    """Return for how many seconds an idle connection may be reused: one less than the upstream keeps it open."""
    for part in find_header(headers, b"keep-alive").split(b","):
        name, _, value = part.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit():
            return max(0.0, min(_KEEP_SECONDS, float(value) - _MARGIN_SECONDS))
    return _KEEP_SECONDS
