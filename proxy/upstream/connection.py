"""One HTTP/1.1 connection to an upstream.

Rule: bytes are handed on as they come, nothing is decoded or repaired; an answer that breaks is an error after the
bytes that came, never an end. A bare httptools client adds 0.12 ms a call where aiohttp adds 0.24 and httpx 1.2
(benchmarks/upstream_clients.py); asyncio supplies TLS and sockets, so what is ours is this file and the pool.
"""

import asyncio
from typing import cast

import httptools

from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers

_HIGH_WATER = 256 * 1024
_LOW_WATER = 64 * 1024
_HEAD_LIMIT = 256 * 1024
_BODILESS = (204, 304)


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time: `begin`, `wait_for_head`, `read` until it is empty."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading_paused = False
        self._is_lost = False
        self.idle_since = 0.0
        self.round_trip = 0.0
        self.keep_for = 0.0
        self._reset("", 0.0)

    def _reset(self, method: str, idle_timeout: float) -> None:
        self._method = method
        self._idle_timeout = idle_timeout
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._error: UpstreamUnreachable | None = None
        self._is_busy = bool(method)
        self._has_head = False
        self._is_complete = False
        self._is_delimited = False
        self._can_keep = False
        self._seen_bytes = False
        self._began = self._active = self._loop.time()
        self._ended_at = 0.0
        self._was_reset = False
        self.status = 0

    # --- use ---------------------------------------------------------------------------------------------------------

    @property
    def headers(self) -> Headers:
        """Fields of the answer's head, names lower case, in order."""
        return tuple(self._headers)

    @property
    def is_reusable(self) -> bool:
        """Whether another request may go out on this connection now."""
        transport = self._transport
        return not self._is_busy and not self._is_lost and transport is not None and not transport.is_closing()

    @property
    def is_ended(self) -> bool:
        """Whether every byte of the answer has been read."""
        return self._is_complete and not self._pieces

    @property
    def is_received(self) -> bool:
        """Whether the answer is here whole, read or not."""
        return self._is_complete

    @property
    def was_stale(self) -> bool:
        """Whether the connection broke in a way that proves the server did not read the request.

        It sent no byte, and either reset the connection (its kernel threw unread data away) or closed it sooner than
        the request could have reached it and come back. Anything else may have been billed, and is not tried again.
        """
        if not self._is_lost or self._seen_bytes:
            return False
        return self._was_reset or self._ended_at - self._began < self.round_trip

    def begin(self, method: str, head: bytes, body: bytes, idle_timeout: float) -> None:
        """Send a request's head, and its body where that is at hand."""
        self._reset(method, idle_timeout)
        if self._is_lost or self._transport is None:
            self._fail_lost(None)
            return
        self._timer = self._loop.call_later(idle_timeout, self._check_idle)
        if len(body) < _LOW_WATER:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def write(self, content: bytes) -> None:
        """Send more of a streamed body; returns when more can be taken."""
        if self._transport is None or self._is_lost:
            return
        self._active = self._loop.time()
        self._transport.write(content)
        if self._writable is not None:
            await asyncio.shield(self._writable)
            self._active = self._loop.time()

    async def wait_for_head(self) -> None:
        """Return when status and headers are there. Raises UpstreamUnreachable."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """What has come, at least one byte; empty at the end.

        Raises UpstreamUnreachable after the last byte that came.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            await self._wait()
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            self._active = self._loop.time()
            self._transport.resume_reading()
        return content

    def finish(self) -> bool:
        """Let go of the request; True if the connection can carry another one, else it is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_kept = self._is_complete and self._can_keep and not self._is_lost and not self._pieces
        self._is_busy = False
        if not is_kept:
            self.close()
        return is_kept

    def close(self) -> None:
        """Close at once, throwing away what was not read."""
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's Protocol."""
        if not self._is_busy or self._is_complete:
            self._can_keep = False
            self.close()
            return
        self._seen_bytes = True
        self._active = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._is_complete:
                self._fail(UpstreamUnreachable(f"the upstream's answer is not valid HTTP: {_reason(error)}"))
            self._can_keep = False
            self.close()
        if self._buffered > _HIGH_WATER and not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Part of asyncio's Protocol."""
        if self._is_busy and self._has_head and not self._is_complete and self._is_delimited:
            self._is_complete = True
        self._ended_at = self._loop.time()
        self._can_keep = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's Protocol."""
        self._is_lost = True
        self._can_keep = False
        self._ended_at = self._ended_at or self._loop.time()
        if self._is_busy and not self._is_complete:
            self._fail_lost(exc)
        if self._writable is not None:
            self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        """Part of asyncio's Protocol."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Part of asyncio's Protocol."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- httptools callbacks -----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' protocol."""
        self._head_size += len(name) + len(value)
        if self._head_size > _HEAD_LIMIT:
            raise ValueError("the upstream's header fields are too large")
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Part of httptools' protocol."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            if status == 101:
                raise ValueError("the upstream switched protocols unasked")
            return
        if status > 599:
            raise ValueError(f"the upstream's status {status} is none of HTTP's")
        self.status = status
        self._has_head = True
        names = {name for name, _ in self._headers}
        self._is_delimited = (
            b"content-length" not in names and b"transfer-encoding" not in names and status not in _BODILESS
        )
        self._can_keep = self._parser.should_keep_alive()
        if self._method == "HEAD":
            # httptools cannot be told that no body follows, so this connection is not used again.
            self._can_keep = False
            self._is_complete = True

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol."""
        self._pieces.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        """Part of httptools' protocol."""
        if self._has_head:
            self._is_complete = True

    # --- inner -------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: UpstreamUnreachable) -> None:
        if self._error is None:
            self._error = error

    def _fail_lost(self, exc: Exception | None) -> None:
        self._was_reset = isinstance(exc, ConnectionResetError | BrokenPipeError)
        what = "in the middle of its answer" if self._has_head else "before it answered"
        self._fail(UpstreamUnreachable(f"the upstream closed the connection {what}"))

    def _check_idle(self) -> None:
        idle = self._loop.time() - self._active
        if self._is_reading_paused or self._pieces:
            idle = 0.0  # our side is the slow one
        if idle < self._idle_timeout:
            self._timer = self._loop.call_later(self._idle_timeout - idle, self._check_idle)
            return
        self._fail(UpstreamUnreachable(f"the upstream was silent for {self._idle_timeout:g} s", was_silent=True))
        self.close()
        self._wake()


def _reason(error: Exception) -> str:
    """What the parser says, or what our callback said inside it."""
    cause = error.__context__ or error
    return str(cause)[:200]
