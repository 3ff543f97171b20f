"""One HTTP/1.1 connection to an upstream, and the parser of its responses.

Bytes are passed on as they come; nothing is decoded or repaired. A response that breaks off yields its bytes, then an
error, never an end. Bytes after a response belong neither to it nor to the next one. httptools with asyncio's sockets
and TLS adds 0.1 ms per call; aiohttp adds 0.2 and httpx 0.7 (benchmarks/upstream_clients.py).
"""

import asyncio
import ipaddress
import select
from collections.abc import Callable
from typing import cast

import httptools

from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers

_HEAD_LIMIT = 256 * 1024
_TOO_LARGE = f"its head exceeds {_HEAD_LIMIT} bytes"
_BODILESS = (204, 304)
_HIGH_WATER = 256 * 1024
_JOINED_BYTES = 64 * 1024
_RESET = select.POLLHUP | select.POLLERR


class InvalidResponse(Exception):
    """The bytes are not an HTTP/1.1 response; the text says why."""


class ResponseParser:
    """Parses one response: `feed` it until `is_complete`, and `take` body bytes out.

    `can_keep` is whether the connection may carry another request afterwards, `has_bytes` whether any byte has come.
    """

    def __init__(self, method: str) -> None:
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called by httptools for every chunk: `feed` does the rest for all together
        self._parser = httptools.HttpResponseParser(self)
        self._method = method
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_size = self._unparsed = 0
        self._measured = 0  # pieces whose bytes are in `buffered`
        self._ends_with_connection = self._has_moved = False
        self.buffered = 0
        self.status = 0
        self.headers: Headers = ()  # in order, names in lower case
        self.has_bytes = False
        self.has_head = False
        self.is_complete = False
        self.can_keep = False

    def feed(self, data: bytes) -> None:
        """Parse bytes. Raises InvalidResponse; the body bytes before the error can still be taken."""
        self.has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise InvalidResponse(str(error.__context__ or error)[:200]) from None
        finally:
            if len(self._pieces) > self._measured:
                self.buffered += sum(map(len, self._pieces[self._measured :]))
                self._measured = len(self._pieces)
                self._has_moved = True
        # httptools reports a header when it ends, so that `on_header` would never count an endless one.
        self._unparsed = 0 if self._has_moved else self._unparsed + len(data)
        self._has_moved = False
        if self._unparsed > _HEAD_LIMIT:
            raise InvalidResponse(_TOO_LARGE)

    def end(self) -> bool:
        """Note that the connection has ended. Return True if the response is complete, perhaps by that."""
        if self.has_head and self._ends_with_connection:
            self.is_complete = True
        return self.is_complete

    def take(self) -> bytes:
        """Return all buffered body bytes."""
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.buffered = self._measured = 0
        return content

    def close(self) -> None:
        """Drop httptools' parser, which refers to our methods: no cycle is left to the garbage collector."""
        del self._parser

    # --- callbacks of httptools --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse a second response."""
        if self.is_complete:
            raise ValueError("there are bytes behind the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header of the response; trailers are ignored."""
        self._has_moved = True
        self._head_size += len(name) + len(value)
        if self._head_size > _HEAD_LIMIT:
            raise ValueError(_TOO_LARGE)
        if not self.has_head:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Determine how the body ends."""
        status = self._parser.get_status_code()
        if status == 101 or not 100 <= status <= 599:
            raise ValueError(f"the status {status} is unexpected")
        if status < 200:
            self._fields.clear()
            return
        self.status = status
        self.has_head = True
        self.headers = tuple(self._fields)
        fields = dict(self._fields)
        coding = fields.get(b"transfer-encoding", b"").lower().rpartition(b",")[2].strip()
        self._ends_with_connection = (
            b"content-length" not in fields and coding != b"chunked" and status not in _BODILESS
        )
        self.can_keep = self._parser.should_keep_alive()
        if self._method == "HEAD":
            # httptools cannot be told that no body follows, so the connection is not reused.
            self.can_keep = False
            self.is_complete = True

    def on_message_complete(self) -> None:
        """Note the end of a message, which may also be a 1xx response."""
        self.is_complete = self.has_head


# The parser of a connection without a request.
_IDLE = ResponseParser("")


class HttpConnection(asyncio.Protocol):
    """A connection that carries one request at a time: `begin`, `wait_for_head`, `read` until it is empty, `finish`.

    `on_idle_close` is called when the upstream closes the connection between two requests. `may_send_again` tells if a
    failed request may be sent once more on another connection: no byte of a response came, and the connection was reset
    or the request was not sent completely. After an orderly close it may not if the request was sent completely: the
    upstream may have read and billed it. `is_near` tells if the peer is this machine or has a non-public address.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_idle_close: "Callable[[HttpConnection], None] | None" = None,
    ) -> None:
        self._loop = loop
        self._on_idle_close = on_idle_close
        self._transport: asyncio.Transport | None = None
        self._incoming = _IDLE
        self._error: tuple[str, bool] | None = None  # what is wrong, and whether the upstream was silent
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timeout = 0.0
        self._active = 0.0
        self._is_reading_paused = False
        self._is_lost = False
        self.is_near = False
        self._poll: select.poll | None = None
        self.idle_since = 0.0
        self.keep_for = 0.0
        self.waits_for_client = False
        self.may_send_again = False

    @property
    def status(self) -> int:
        """The status of the response."""
        return self._incoming.status

    @property
    def headers(self) -> Headers:
        """The response's headers in order, names in lower case."""
        return self._incoming.headers

    @property
    def is_received(self) -> bool:
        """Whether the whole response has come, read or not."""
        return self._incoming.is_complete

    @property
    def is_ended(self) -> bool:
        """Whether every byte of the response has been read."""
        return self._incoming.is_complete and not self._incoming.buffered

    def is_fresh(self) -> bool:
        """Return whether a request may be sent on this pooled connection.

        Asks the kernel, too: a close that the event loop has not processed yet would fail the call, because a request
        that may have been read is never sent twice.
        """
        transport = self._transport
        return not (self._is_lost or transport is None or transport.is_closing() or self._ask_kernel(transport))

    def begin(self, method: str, head: bytes, body: bytes, idle_timeout: float) -> None:
        """Send the head of a request, and its body unless that is streamed. `idle_timeout` is in seconds."""
        self._incoming = ResponseParser(method)
        self._error = None
        self._idle_timeout = idle_timeout
        self._active = self._loop.time()
        self.waits_for_client = self.may_send_again = False
        if self._is_lost or self._transport is None:
            self.may_send_again = True
            self._fail("the upstream closed the connection before the request was sent")
            return
        if self._timer is None:
            self._timer = self._loop.call_later(idle_timeout, self._check_idle)
        if len(body) < _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def write(self, content: bytes) -> None:
        """Send a part of a streamed body. Return when there is room for more."""
        if self._transport is None or self._is_lost:
            return
        self._active = self._loop.time()
        self._transport.write(content)
        if self._writable is not None:
            await asyncio.shield(self._writable)
            self._active = self._loop.time()

    async def wait_for_head(self) -> None:
        """Wait for status and headers. Raises UpstreamUnreachable."""
        while not self._incoming.has_head:
            await self._wait()

    async def read(self) -> bytes:
        """Return the received bytes, at least one; empty at the end.

        Raises UpstreamUnreachable after the last byte that came.
        """
        incoming = self._incoming
        while not incoming.buffered:
            if incoming.is_complete and self._error is None:
                return b""
            await self._wait()
        return self._take()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Pass received bytes to `take` until that returns False or the whole response has come.

        `take` is called from the transport's callback: waking a task for every chunk would cost more than the chunk.

        Raises UpstreamUnreachable after the last byte that came.
        """
        incoming = self._incoming
        while not incoming.is_complete:
            if not incoming.buffered:
                self._sink = take
                try:
                    await self._wait()
                    is_refused = self._sink is None
                finally:
                    self._sink = None
                if is_refused:
                    return
            elif not take(self._take()):
                return

    def finish(self) -> bool:
        """End the request. Return True if the connection can carry another one; else close it."""
        incoming, transport = self._incoming, self._transport
        is_kept = (
            incoming.is_complete
            and not incoming.buffered
            and incoming.can_keep
            and not self._is_lost
            and transport is not None
            and not transport.get_write_buffer_size()  # an early response: the rest of the request may never be read
        )
        if incoming is not _IDLE:
            incoming.close()
            self._incoming = _IDLE
        if not is_kept:
            self.close()
        return is_kept

    def hand_over(self) -> asyncio.Transport:
        """Return the transport for another protocol: a proxy has opened a tunnel on it."""
        self._stop_watching()
        self._incoming.close()
        self._incoming = _IDLE
        assert self._transport is not None, "its response has come"
        return self._transport

    def close(self) -> None:
        """Close at once, and discard unread bytes."""
        self._stop_watching()
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport and where the peer is."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_near = _is_near(transport)

    def data_received(self, data: bytes) -> None:
        """Parse the data and pass it on. Close a connection that sends data without a request."""
        incoming = self._incoming
        if incoming is _IDLE or incoming.is_complete:
            incoming.can_keep = False
            self._note_end(is_reset=False)
            self.close()
            return
        self._active = self._loop.time()
        try:
            incoming.feed(data)
        except InvalidResponse as error:
            incoming.can_keep = False
            if not incoming.is_complete:
                self._fail(f"the upstream's response is not valid HTTP: {error}")
            self.close()
        if self._sink is not None and incoming.buffered and not incoming.is_complete:
            if self._sink(incoming.take()):
                return
            self._sink = None
        if incoming.buffered > _HIGH_WATER and not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Complete a response that ends with the connection; otherwise fail the request.

        If a reset follows the end, the upstream had closed before the request arrived, or left it unread in its kernel.
        """
        incoming = self._incoming
        if not incoming.end() and not incoming.has_bytes and self._transport is not None:
            self._note_end(is_reset=bool(self._ask_kernel(self._transport) & _RESET))
            self._fail("the upstream closed the connection before it responded")
            self.close()  # at once: the transport would first try to send the rest of the request
            self._wake()
        incoming.can_keep = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request unless its response is complete."""
        self._is_lost = True
        self._stop_watching()
        if not self._incoming.is_complete:
            self._note_end(is_reset=isinstance(exc, ConnectionError))
            what = "in the middle of its response" if self._incoming.has_head else "before it responded"
            self._fail(f"the upstream closed the connection {what}")
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        """Make `write` wait."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let `write` continue."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def _wait(self) -> None:
        """Wait until something changes. Raises the error that ended the response."""
        if self._error is not None:
            # a new error each time: its traceback refers to frames that hold this connection and the request
            message, was_silent = self._error
            raise UpstreamUnreachable(message, was_silent=was_silent)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self) -> bytes:
        content = self._incoming.take()
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            self._active = self._loop.time()
            self._transport.resume_reading()
        return content

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _ask_kernel(self, transport: asyncio.Transport) -> int:
        """Return the events of the socket that poll(2) reports; the event loop may not have processed them yet."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        found = self._poll.poll(0)
        return found[0][1] if found else 0

    def _note_end(self, *, is_reset: bool) -> None:
        """Decide whether the request may be sent again after the upstream closed; keep an earlier error as it is."""
        if self._error is not None:
            return
        if self._incoming is _IDLE:
            if self._on_idle_close is not None:
                self._on_idle_close(self)
        elif not self._incoming.has_bytes and self._transport is not None:
            is_unsent = self._transport.get_write_buffer_size() > 0
            self.may_send_again = self.may_send_again or is_reset or is_unsent

    def _fail(self, message: str, *, was_silent: bool = False) -> None:
        if self._error is None:
            self._error = message, was_silent

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_idle(self) -> None:
        """Fail the request if the upstream is silent. One timer serves many calls: it is set again if time is left."""
        self._timer = None
        if self._incoming is _IDLE or self._incoming.is_complete:
            return
        idle = self._loop.time() - self._active
        if self._is_reading_paused or self._incoming.buffered or self.waits_for_client:
            idle = 0.0  # our side is slow
        if idle < self._idle_timeout:
            self._timer = self._loop.call_later(self._idle_timeout - idle, self._check_idle)
            return
        self._fail(f"the upstream was silent for {self._idle_timeout:g} s", was_silent=True)
        self.close()
        self._wake()


def _is_near(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer is this machine or has a non-public address."""
    peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
    if not peer or not own:  # the peer has closed already
        return False
    return peer[0] == own[0] or not ipaddress.ip_address(peer[0]).is_global
