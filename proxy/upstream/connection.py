"""One HTTP/1.1 connection to an upstream.

Rule: bytes are handed on as they come; an answer that breaks is an error after the bytes that came, never an end. A
bare httptools client adds 0.1 ms a call where aiohttp adds 0.2 and httpx 0.7 (benchmarks/upstream_clients.py); asyncio
supplies TLS and sockets, so what is ours is this file, `incoming` and the pool in `forwarder`.
"""

import asyncio
import ipaddress
import select
from collections.abc import Callable
from typing import cast

from proxy.engine.runtime import WriteBatcher
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.incoming import BadAnswer, Incoming

_HIGH_WATER = 256 * 1024
_JOINED_BYTES = 64 * 1024
_IDLE = Incoming("")
_RESET = select.POLLHUP | select.POLLERR


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time: `begin`, `wait_for_head`, `read` until it is empty, `finish`.

    `on_idle_close` is told when the upstream ends it between two requests. `may_send_again`, once the request has
    failed: not a byte of an answer came, and the connection was reset or the request had not left whole, so that it may
    go out once more on another connection. An orderly close after the whole request may follow on its being billed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writes: WriteBatcher,
        on_idle_close: "Callable[[Connection], None] | None" = None,
    ) -> None:
        self._loop = loop
        self._writes = writes
        self._on_idle_close = on_idle_close
        self._turn = -1  # the request is on its way once the turn is another
        self._transport: asyncio.Transport | None = None
        self._incoming = _IDLE
        self._error: UpstreamUnreachable | None = None
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
        """Status of the answer."""
        return self._incoming.status

    @property
    def headers(self) -> Headers:
        """Fields of the answer's head, names lower case, in order."""
        return self._incoming.headers

    @property
    def is_received(self) -> bool:
        """Whether the answer is here whole, read or not."""
        return self._incoming.is_complete

    @property
    def is_ended(self) -> bool:
        """Whether every byte of the answer has been read."""
        return self._incoming.is_complete and not self._incoming.buffered

    def is_fresh(self) -> bool:
        """Whether a request may go out on this pooled connection.

        Asks the kernel, too: a close that the loop has not come round to would cost the call, because a request that
        may have been read is never sent twice.
        """
        transport = self._transport
        return not (self._is_lost or transport is None or transport.is_closing() or self._ask_kernel(transport))

    def begin(self, method: str, head: bytes, body: bytes, idle_timeout: float) -> None:
        """Send a request's head, and its body where that is at hand."""
        self._incoming = Incoming(method)
        self._error = None
        self._idle_timeout = idle_timeout
        self._active = self._loop.time()
        self.waits_for_client = self.may_send_again = False
        if self._is_lost or self._transport is None:
            self.may_send_again = True
            self._fail("the upstream closed the connection before it was asked")
            return
        if self._timer is None:
            self._timer = self._loop.call_later(idle_timeout, self._check_idle)
        if len(body) < _JOINED_BYTES:
            self._turn = self._writes.put(self._transport, head + body)
        else:
            self._transport.writelines((head, body))

    async def write(self, content: bytes) -> None:
        """Send more of a streamed body; returns when more can be taken."""
        if self._transport is None or self._is_lost:
            return
        self._active = self._loop.time()
        self._writes.flush()  # its head may be there
        self._transport.write(content)
        if self._writable is not None:
            await asyncio.shield(self._writable)
            self._active = self._loop.time()

    async def wait_for_head(self) -> None:
        """Return when status and headers are there. Raises UpstreamUnreachable."""
        while not self._incoming.has_head:
            await self._wait()

    async def read(self) -> bytes:
        """What has come, at least one byte; empty at the end.

        Raises UpstreamUnreachable after the last byte that came.
        """
        incoming = self._incoming
        while not incoming.buffered:
            if incoming.is_complete and self._error is None:
                return b""
            await self._wait()
        return self._take()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Hand on what comes until `take` says no or the answer is here whole: from the transport's callback, for a
        task that is woken for every chunk costs more than the chunk.

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
        """Let go of the request; True if the connection can carry another one, else it is closed."""
        incoming, transport = self._incoming, self._transport
        is_kept = (
            self.is_ended
            and incoming.can_keep
            and not self._is_lost
            and transport is not None
            and not transport.get_write_buffer_size()  # an early answer: the rest of the request may never be read
        )
        if incoming is not _IDLE:
            incoming.close()
            self._incoming = _IDLE
        if not is_kept:
            self.close()
        return is_kept

    def close(self) -> None:
        """Close at once, throwing away what was not read."""
        self._stop_watching()
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_near = _is_near(transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's Protocol."""
        incoming = self._incoming
        if incoming is _IDLE or incoming.is_complete or self._turn == self._writes.turn:  # nobody asked for it
            incoming.can_keep = False
            self._note_end(is_reset=False)
            self.close()
            return
        self._active = self._loop.time()
        try:
            incoming.feed(data)
        except BadAnswer as error:
            incoming.can_keep = False
            if not incoming.is_complete:
                self._fail(f"the upstream's answer is not valid HTTP: {error}")
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
        """Part of asyncio's Protocol.

        An end that is followed by a reset came from an upstream that had closed before the request arrived, or left it
        unread in its kernel.
        """
        incoming = self._incoming
        if not incoming.end() and not incoming.has_bytes and self._transport is not None:
            self._note_end(is_reset=bool(self._ask_kernel(self._transport) & _RESET))
            self._fail("the upstream closed the connection before it answered")
            self.close()  # at once, or what of the request is unsent would be waited for
            self._wake()
        incoming.can_keep = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's Protocol."""
        self._is_lost = True
        self._stop_watching()
        if not self._incoming.is_complete:
            self._note_end(is_reset=isinstance(exc, ConnectionError))
            what = "in the middle of its answer" if self._incoming.has_head else "before it answered"
            self._fail(f"the upstream closed the connection {what}")
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

    # --- inner -------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Return when something has changed. Raises the error that ended the answer."""
        if self._error is not None:
            raise self._error
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
        """What has happened to the socket that the loop may not have come round to, as poll(2) says it."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return sum(events for _, events in self._poll.poll(0))

    def _note_end(self, *, is_reset: bool) -> None:
        """The upstream has ended the connection, unless that was us for another reason."""
        if self._error is not None:
            return
        if self._incoming is _IDLE:
            if self._on_idle_close is not None:
                self._on_idle_close(self)
        elif not self._incoming.has_bytes and self._transport is not None:
            is_unsent = self._turn == self._writes.turn or self._transport.get_write_buffer_size() > 0
            self.may_send_again = self.may_send_again or is_reset or is_unsent

    def _fail(self, message: str, *, was_silent: bool = False) -> None:
        if self._error is None:
            self._error = UpstreamUnreachable(message, was_silent=was_silent)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_idle(self) -> None:
        """One timer serves many calls: set when none runs, it looks how long it has been quiet when it is due."""
        self._timer = None
        if self._incoming is _IDLE or self._incoming.is_complete:
            return
        idle = self._loop.time() - self._active
        if self._is_reading_paused or self._incoming.buffered or self.waits_for_client:
            idle = 0.0  # our side is the slow one
        if idle < self._idle_timeout:
            self._timer = self._loop.call_later(self._idle_timeout - idle, self._check_idle)
            return
        self._fail(f"the upstream was silent for {self._idle_timeout:g} s", was_silent=True)
        self.close()
        self._wake()


def _is_near(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end is this machine, or at an address that is not of the public network."""
    peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
    if not peer or not own:  # the other end has gone already
        return False
    return peer[0] == own[0] or not ipaddress.ip_address(peer[0]).is_global
