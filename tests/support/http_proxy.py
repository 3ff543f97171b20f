"""An HTTP proxy on loopback as a company has one: CONNECT for https, absolute URLs for http."""

import asyncio
import base64
import contextlib
import ssl
from typing import Self
from urllib.parse import urlsplit

from tests.support.scripted import Message, Wire

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PIECE = 64 * 1024


class HttpProxy:
    """Passes bytes on between its clients and the servers that they name; `heads` are what it was sent itself.

    With `password` it demands `user` and that password. `is_silent` has it accept requests and say nothing.
    """

    def __init__(self, *, password: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[Message] = []
        self.is_silent = False
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self._tls = tls
        self._password = password
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Its URL as a setting has it, with the password if there is one."""
        user = f"user:{self._password}@" if self._password else ""
        return f"{'https' if self._tls else 'http'}://{user}127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # as this proxy stops
        finally:
            self.closed.set()
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        head = await wire.read_head()
        is_silent = self.is_silent
        self.heads.append(head)
        self.asked.set()
        if is_silent:
            await wire.read_to_end()
            return
        credential = base64.b64encode(f"user:{self._password}".encode())
        if self._password and head.find(b"proxy-authorization") != b"Basic " + credential:
            wire.send(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await wire.close()
            return
        method, target, _ = head.line.split(b" ")
        if method == b"CONNECT":
            host, _, port = target.decode().rpartition(":")
            begun = b""
        else:
            parts = urlsplit(target.decode())
            host, port = parts.hostname or "", str(parts.port or 80)
            begun = b"%s %s HTTP/1.1\r\n" % (method, target[target.index(b"/", len("http://")) :])
            begun += b"".join([b"%s: %s\r\n" % field for field in head.headers if field[0].lower()[:6] != b"proxy-"])
            begun += b"\r\n"
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        try:
            if begun:
                there_writer.write(begun)
            else:
                wire.send(_ESTABLISHED)
            await asyncio.gather(_pipe(reader, there_writer), _pipe(there_reader, writer))
        finally:
            there_writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, and its end, broken or not."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()
