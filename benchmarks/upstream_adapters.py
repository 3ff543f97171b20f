"""HTTP clients as a proxy's upstream leg would use them: each posts a body and reads the answer as it arrives.

The rule: every client gets the same body and headers, streams the answer undecoded, keeps its connections, and does
nothing a proxy would not do.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

import aiohttp
import httptools
import httpx
import httpx_aiohttp

PATH = "/v1/chat/completions"
CONNECTIONS = 128


class Reply(NamedTuple):
    """What a call got: the status and the size of the body."""

    status: int
    size: int


class UpstreamClient(Protocol):
    """A client under comparison."""

    @property
    def name(self) -> str: ...

    async def open(self, origin: str) -> None:
        """Get ready to call `origin`, which is `http://127.0.0.1:PORT`."""

    async def call(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST the body to PATH and read the whole answer, piece by piece."""

    async def close(self) -> None: ...


class _RawConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed in mid-answer"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, content: bytes) -> None:
        self._size += len(content)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self._done is not None:
            self._done.set_result(Reply(status, self._size))

    async def call(self, head: bytes, body: bytes) -> Reply:
        assert self._transport is not None
        self._size = 0
        self._done = self._loop.create_future()
        self._transport.write(head + body if len(body) < 65_536 else head)
        if len(body) >= 65_536:
            self._transport.write(body)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class RawClient:
    """The floor: httptools on a bare protocol, no header handling, no time limits, no flow control."""

    name = "raw httptools (floor)"

    def __init__(self) -> None:
        self._port = 0
        self._idle: list[_RawConnection] = []

    async def open(self, origin: str) -> None:
        self._port = int(origin.rsplit(":", 1)[1])

    async def call(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._idle:
            connection = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_RawConnection, "127.0.0.1", self._port)
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}content-length: {len(body)}\r\n\r\n"
        reply = await connection.call(head.encode(), body)
        self._idle.append(connection)
        return reply

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class HttpxClient:
    """httpx with its default transport (httpcore)."""

    name = "httpx"

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    def build_transport(self) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        return httpx.AsyncHTTPTransport(limits=limits)

    async def open(self, origin: str) -> None:
        self._client = httpx.AsyncClient(
            transport=self.build_transport(), base_url=origin, timeout=600, follow_redirects=False
        )

    async def call(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        assert self._client is not None
        size = 0
        async with self._client.stream("POST", PATH, content=body, headers=headers) as response:
            async for content in response.aiter_raw():
                size += len(content)
        return Reply(response.status_code, size)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class HttpxAiohttpClient(HttpxClient):
    """httpx on aiohttp's connections."""

    name = "httpx on httpx-aiohttp"

    def build_transport(self) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        return httpx_aiohttp.AiohttpTransport(limits=limits)


class AiohttpClient:
    """aiohttp, bodies not decompressed."""

    name = "aiohttp"

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def open(self, origin: str) -> None:
        self._session = aiohttp.ClientSession(
            base_url=origin,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=600),
            auto_decompress=False,
        )

    async def call(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        assert self._session is not None
        size = 0
        async with self._session.post(PATH, data=body, headers=headers, allow_redirects=False) as response:
            async for content in response.content.iter_any():
                size += len(content)
        return Reply(response.status, size)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
