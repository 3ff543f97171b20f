"""One request on a connection, and its answer written straight to the transport.

Rule: an answer is framed as its head announces, and ends only when it is told to. uvicorn's own `send` serves ASGI
applications; for answers that are passed on it would cost 30 µs a call and 15 µs a chunk (names and values are checked
again, every piece becomes a dictionary), so that they are framed here.
"""

import asyncio
import struct
from collections.abc import Callable
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from uvicorn._types import HTTPDisconnectEvent, HTTPRequestEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from proxy.engine.runtime import WriteBatcher
from proxy.model.exchange import Headers

_BODILESS = (204, 304)
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"
_JOINED_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
_LEFT: HTTPDisconnectEvent = {"type": "http.disconnect"}


class Cycle(RequestResponseCycle):
    """What uvicorn knows of a request under way; its body is kept in the pieces it came in.

    `close` ends the connection once what was written has left.
    """

    def __init__(self, writes: WriteBatcher, close: Callable[[], None], **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._writes = writes
        self._close = close
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._ends_with_connection = False
        self._head = b""

    def put(self, piece: bytes) -> int:
        """Take a piece of the request's body; the number of bytes that wait to be read."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        self.message_event.set()
        return self._waiting

    def take(self) -> bytes:
        """All of the request's body that waits to be read."""
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def receive(self) -> HTTPRequestEvent | HTTPDisconnectEvent:
        """Part of ASGI: uvicorn's, over pieces."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self._writes.put(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return _LEFT
        return {"type": "http.request", "body": self.take(), "more_body": self.more_body}

    def start_answer(self, status: int, headers: Headers) -> None:
        """Write the head, together with what of the body comes at once. Names are lower case.

        A length or else chunks frame the body.
        """
        if self.disconnected:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length = None
        for name, value in headers:
            if name == b"content-length":
                if status in _BODILESS:
                    continue  # it describes a body that does not come (RFC 9110, 15.4.5)
                length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in _BODILESS:
            length = 0
        self._ends_with_connection = length is None and self.scope["http_version"] == "1.0"
        self.chunked_encoding = length is None and not self._ends_with_connection
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        self.expected_content_length = length or 0
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        asyncio.get_running_loop().call_soon(self._write_head)

    def write_answer(self, content: bytes, *, is_last: bool) -> bool:
        """Write body bytes; False: write no more until `flow` has drained.

        Raises ValueError where the body is not as long as announced.
        """
        if self.disconnected or self.response_complete:
            return True
        if self.scope["method"] == "HEAD":
            content = b""
        if self.chunked_encoding:
            content = b"%x\r\n%b\r\n" % (len(content), content) if content else b""
            content = content + _LAST_CHUNK if is_last else content
        elif not self._ends_with_connection:
            self._count(len(content), is_last=is_last)
        self._write(content)
        if is_last:
            self._end()
        return not self.flow.write_paused

    def break_off(self) -> None:
        """End the connection after what was written, without ending the answer; nothing where it has ended."""
        if self.transport.is_closing():
            return
        self._write_head()
        self._writes.flush()
        if self._ends_with_connection and self.response_started:
            self.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            self.transport.abort()  # closing would be a clean end
        else:
            self._close()

    def _write(self, content: bytes) -> None:
        """Write it behind the head, if that is still here: with one system call in place of two, of 15 µs each."""
        head, self._head = self._head, b""
        if len(content) < _JOINED_BYTES:
            self._writes.put(self.transport, head + content)
        else:
            self._writes.flush()
            self.transport.writelines((head, content) if head else (content,))

    def _write_head(self) -> None:
        if self._head and not self.disconnected:
            self._write(b"")

    def _count(self, size: int, *, is_last: bool) -> None:
        self.expected_content_length -= size
        if self.expected_content_length < 0 or (is_last and self.expected_content_length):
            raise ValueError("the body is not as long as its head announces")

    def _end(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self._writes.flush()
            self._close()
        self.on_response()
