"""Raw HTTP over real sockets: a server whose bytes the test writes, and a client that shows how an answer ended.

Rule: nothing is repaired and nothing guessed; every wait is bounded by LIMIT.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Self, cast

# Only what hangs takes so long, on however busy a machine. No test may pass or fail by how long something takes: what
# is to happen after a time happens when the test puts the clock forward (`LoopTime`, `FixedClock`).
LIMIT = 300.0

_BUFFER = 64 * 1024
_RESET = struct.pack("ii", 1, 0)

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer as it was on the wire; names as sent. `is_whole`: its framing came to its end."""

    line: bytes
    headers: Fields
    body: bytes
    is_whole: bool = True

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.line.split(b" ")[1])

    @property
    def target(self) -> bytes:
        """The target of a request."""
        return self.line.split(b" ")[1]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field, in order."""
        return [value for key, value in self.headers if key.lower() == name]

    def find(self, name: bytes) -> bytes:
        """The only value of a field, empty if absent."""
        values = self.all(name)
        assert len(values) < 2, values
        return values[0] if values else b""


class Wire:
    """One end of a connection, in raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, content: bytes) -> None:
        """Write without waiting."""
        self._writer.write(content)

    async def flush(self) -> None:
        """Wait until nearly all that was written has left."""
        await self._writer.drain()

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(LIMIT):
            return await self._reader.readexactly(count)

    async def read_some(self) -> bytes:
        """What comes next; empty at the end."""
        async with asyncio.timeout(LIMIT):
            return await self._reader.read(_BUFFER)

    async def read_until(self, end: bytes) -> bytes:
        """Bytes up to and with `end`."""
        async with asyncio.timeout(LIMIT):
            return await self._reader.readuntil(end)

    async def read_to_end(self, limit: float = LIMIT) -> bytes:
        """Everything until the other side has closed, by FIN or RST."""
        content = bytearray()
        async with asyncio.timeout(limit):
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(_BUFFER):
                    content += piece
        return bytes(content)

    async def read_head(self) -> Message:
        """First line and fields of a message."""
        head = await self.read_until(b"\r\n\r\n")
        line, *rest = head[:-4].split(b"\r\n")
        fields = [field.partition(b":") for field in rest]
        return Message(line, tuple((name, value.strip()) for name, _, value in fields), b"")

    async def read_request(self) -> Message:
        """A whole request."""
        return await self._read_body(await self.read_head(), to_end=False)

    async def read_answer(self, *, method: str = "GET") -> Message:
        """A whole or broken answer."""
        head = await self.read_head()
        if method == "HEAD" or head.status in (204, 304) or head.status < 200:
            return head
        return await self._read_body(head, to_end=True)

    async def _read_body(self, head: Message, *, to_end: bool) -> Message:
        body, is_whole = bytearray(), True
        try:
            async with asyncio.timeout(LIMIT):
                if head.find(b"transfer-encoding") == b"chunked":
                    async for chunk in self._read_chunks():
                        body += chunk
                elif length := head.find(b"content-length"):
                    body += await self._read_exactly(int(length), body)
                elif to_end:
                    body += await self._reader.read(-1)
        except (asyncio.IncompleteReadError, ConnectionError):
            is_whole = False
        return Message(head.line, head.headers, bytes(body), is_whole)

    async def _read_exactly(self, count: int, body: bytearray) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            body += error.partial
            raise

    async def _read_chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self._reader.readuntil(b"\r\n")).strip(), 16):
            yield await self._reader.readexactly(size)
            assert await self._reader.readexactly(2) == b"\r\n"
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass

    def finish_sending(self) -> None:
        """Send FIN, go on reading."""
        self._writer.write_eof()

    def shut(self, how: int = socket.SHUT_WR) -> None:
        """Send FIN within this call, not when the loop comes round to it. After SHUT_RDWR what comes is answered by a
        reset, as after a close.
        """
        with socket.socket(fileno=os.dup(self._socket.fileno())) as copy:
            copy.shutdown(how)

    def reset(self) -> None:
        """Send RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's hands, whose buffers are made small."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        cast(asyncio.Transport, self._writer.transport).pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        cast(asyncio.Transport, self._writer.transport).resume_reading()

    async def close(self) -> None:
        """Send FIN and let go."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(LIMIT):
                await self._writer.wait_closed()

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def dial(port: int) -> Wire:
    """A client's connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_BUFFER * 1024)
    return Wire(reader, writer)


Script = Callable[[Wire], Awaitable[None]]


class ScriptedUpstream:
    """A server. With a script each connection is played by it; without, the test takes them by `accept`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.accepted = 0
        self.requests: list[Message] = []
        self.script: Script | None = None
        self._waiting: asyncio.Queue[Wire] = asyncio.Queue()
        self._wires: list[Wire] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Its base URL as an SDK takes it."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    async def accept(self) -> Wire:
        """The next connection."""
        async with asyncio.timeout(LIMIT):
            return await self._waiting.get()

    async def accept_request(self) -> tuple[Wire, Message]:
        """The next connection and the request on it."""
        wire = await self.accept()
        request = await wire.read_request()
        self.requests.append(request)
        return wire, request

    def answer_with(self, content: bytes) -> None:
        """Send these bytes after every request, for as long as connections stay open."""

        async def answer(wire: Wire) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                while True:
                    self.requests.append(await wire.read_request())
                    wire.send(content)

        self.script = answer

    def close_after(self, content: bytes) -> None:
        """Send these bytes after the first request of a connection, then FIN."""

        async def answer(wire: Wire) -> None:
            self.requests.append(await wire.read_request())
            wire.send(content)
            await wire.close()

        self.script = answer

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        wire = Wire(reader, writer)
        self._wires.append(wire)
        if self.script is None:
            self._waiting.put_nowait(wire)
        else:
            self._tasks.append(asyncio.get_running_loop().create_task(_play(self.script, wire)))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0, limit=_BUFFER * 1024, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self._wires:
            await wire.close()


async def _play(script: Script, wire: Wire) -> None:
    await script(wire)


def request(method: str, target: str, *fields: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """A request with its length, where it has a body or a method that expects one."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *fields]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def answer(body: bytes = b"", *fields: str, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def stream_head(*fields: str) -> bytes:
    """The head of a chunked event stream."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def chunk(content: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(content), content)


LAST_CHUNK = b"0\r\n\r\n"
