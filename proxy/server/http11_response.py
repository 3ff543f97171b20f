"""The writing side of one client connection: responses, their order, flow control, and closing.

A response is framed as its head announces, and ends only by an explicit last write. Proxied responses use `start` and
`write`; ASGI's `send`, which our own pages use, would cost 15 µs per chunk.
"""

import asyncio
import logging
import select
import struct
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET

from starlette.types import ASGIApp, Message, Scope

from proxy.model.exchange import Headers
from proxy.server.errors import Refused, render_error

_BODILESS = (204, 304)
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"
_JOINED_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
# The most pipelined requests: each takes memory before it is served, and no ordinary client sends so many.
_MOST_PIPELINED = 64
_LINGER_SECONDS = 1.0
_PROBE_SECONDS = 1.0
_HALF_CLOSED: int = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a reset is noticed

_log = logging.getLogger("palimpsest.server")


class ConnectionCloser:
    """Closes a connection after its pending data is sent; aborts it if the client takes no byte for `seconds`.

    It is a separate object, so that a connection that waits to be closed does not keep its protocol alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close after the pending data is sent. May be called again."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.start_timer()

    def close_unless_read(self, response: "Http11Response") -> None:
        """Close in a second unless the refused body has ended; at once, a reset could discard the response."""

        def close() -> None:
            if response.has_more_body:
                self.close()

        self._loop.call_later(_LINGER_SECONDS, close)

    def start_timer(self) -> None:
        """Abort the connection if the client takes no byte for `seconds` from now on."""
        if self._timer is None:
            self._left = self._transport.get_write_buffer_size()
            self._timer = self._loop.call_later(self._seconds, self._give_up)

    def note_progress(self) -> None:
        """Stop the timer, as the client has taken most of the data; start it again if the connection is closing."""
        self.cancel()
        if self._transport.is_closing():
            self.start_timer()

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._left:
            self.start_timer()  # slowly, but steadily
        else:
            self._transport.abort()


class Http11Connection:
    """What the responses of one connection share: its transport, flow control both ways, and their order.

    The oldest request without a response is being served; those behind it wait. `tasks` holds the tasks that serve
    requests until they end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        app: ASGIApp,
        tasks: set["asyncio.Task[None]"],
        stall_seconds: float,
        keep_alive_seconds: float,
    ) -> None:
        self.loop = loop
        self.transport = transport
        self.closer = ConnectionCloser(loop, transport, stall_seconds)
        self.is_reading_paused = self.is_writing_paused = self.is_lost = False
        self.keep_alive_timer: asyncio.TimerHandle | None = None
        self.pipeline: deque[tuple[Http11Response, Scope]] = deque()
        self._app = app
        self._tasks = tasks
        self.keep_alive_seconds = keep_alive_seconds
        self._probe: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()

    @property
    def can_refuse(self) -> bool:
        """True if our own error can be the next response: no other is due, except for the request that is invalid."""
        if not self.pipeline:
            return True
        response = self.pipeline[0][0]
        return len(self.pipeline) == 1 and response.has_more_body and not response.is_started

    # --- requests and their responses --------------------------------------------------------------------------------

    def add(self, response: "Http11Response", scope: Scope) -> bool:
        """Serve a request after those before it. If these are too many, return False and close after their last."""
        pipeline = self.pipeline
        if len(pipeline) >= _MOST_PIPELINED:
            pipeline[-1][0].keep_alive = False
            return False
        pipeline.append((response, scope))
        if len(pipeline) == 1:
            self._serve(response, scope)
        else:
            self.pause_reading()
        return True

    def finish_response(self) -> None:
        """Serve the next request. If there is none, close the connection after `keep_alive_seconds`."""
        self.pipeline.popleft()
        if self.transport.is_closing():
            return
        if self.is_reading_paused:
            self.resume_reading()
        if self.pipeline:
            self._serve(*self.pipeline[0])
        else:
            self.keep_alive_timer = self.loop.call_later(self.keep_alive_seconds, self.closer.close)

    def disconnect(self) -> None:
        """End every response under way without another byte."""
        for response, _ in self.pipeline:
            response.is_disconnected = True
            response.notify()

    def lose(self) -> None:
        """Release everything, after the transport was closed."""
        self.is_lost = True
        for timer in (self.keep_alive_timer, self._probe, self.closer):
            if timer is not None:
                timer.cancel()
        self.disconnect()
        self.is_writing_paused = False
        self._writable.set()
        lost = [response for response, _ in self.pipeline]
        self.pipeline.clear()
        for response in lost:
            if response.on_disconnect is not None:
                response.on_disconnect()

    def _serve(self, response: "Http11Response", scope: Scope) -> None:
        task: asyncio.Task[None] = self.loop.create_task(self._app(scope, response.receive, response.send))  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(response.end_task)

    # --- flow control ------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Pause reading, but still notice when the client leaves."""
        if not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()
        if self._probe is None:
            self._probe = self.loop.call_later(_PROBE_SECONDS, self._probe_client)

    def resume_reading(self) -> None:
        """Resume reading."""
        if self.is_reading_paused:
            self.is_reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Note that the client takes less than is written."""
        self.is_writing_paused = True
        self._writable.clear()
        self.closer.start_timer()

    def resume_writing(self) -> None:
        """Note that the client can take more."""
        self.closer.note_progress()
        self.is_writing_paused = False
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client can take more, or has left."""
        while self.is_writing_paused:
            await self._writable.wait()

    def _probe_client(self) -> None:
        """Poll the kernel every second: while reading is paused, asyncio does not notice that a client leaves."""
        self._probe = None
        if not self.is_reading_paused or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HALF_CLOSED)
        if poll.poll(0):
            self.transport.abort()  # the client has closed its side; reading that would end the connection, too
        else:
            self._probe = self.loop.call_later(_PROBE_SECONDS, self._probe_client)


class Http11Response:
    """The response to one request, and that request's body in pieces as received.

    `target` is the request target as the client wrote it. `on_disconnect` is called when the client has left.
    """

    def __init__(
        self,
        connection: Http11Connection,
        method: str,
        target: bytes,
        *,
        is_http10: bool,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.connection = connection
        self.target = target
        self.keep_alive = keep_alive
        self.has_more_body = True
        self.is_started = self.is_complete = self.is_disconnected = False
        self.status = 0
        self.on_disconnect: Callable[[], object] | None = None
        self._is_head_request = method == "HEAD"
        self._is_http10 = is_http10
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._has_news = False
        self._news: asyncio.Event | None = None  # created on the first wait: most bodies arrive at once
        self._head = b""
        self._is_chunked = self._ends_with_connection = False
        self._left = 0

    # --- the request's body ------------------------------------------------------------------------------------------

    def put_body(self, piece: bytes) -> int:
        """Take a piece of the body. Return the number of bytes that wait to be read."""
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        self._has_news = True
        if self._news is not None:
            self._news.set()
        return self._waiting_bytes

    def take_body(self) -> bytes:
        """Return all of the body that waits to be read."""
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def notify(self) -> None:
        """Wake the task that waits in `wait_for_body`."""
        self._has_news = True
        if self._news is not None:
            self._news.set()

    async def wait_for_body(self) -> bool:
        """Wait for more of the body, or its end. Return False if the client has left or the response is complete."""
        if self._expects_continue and not self.connection.transport.is_closing():
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self.is_disconnected and not self.is_complete:
            self.connection.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            if not self._has_news:
                await self._news.wait()
            self._news.clear()
            self._has_news = False
        return not self.is_disconnected and not self.is_complete

    def watch(self, notify: Callable[[], object]) -> None:
        """Call `notify` when the client leaves, or at once if it has left. Set `on_disconnect` to None to undo this."""
        self.on_disconnect = notify
        if self.connection.is_lost:
            notify()
        elif self.connection.is_reading_paused and not self.has_more_body:
            self.connection.resume_reading()  # else a disconnect would be noticed late

    # --- the response ------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        """Write the head, together with body bytes that follow at once. Header names are lower case.

        Without a content-length the body is chunked; for an HTTP/1.0 client it ends with the connection.
        """
        if self.is_disconnected:
            return
        self.is_started = True
        self.status = status
        self._expects_continue = False
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length = None
        for name, value in headers:
            if name == b"content-length":
                if status in _BODILESS:
                    continue  # it describes a body that is not sent (RFC 9110, 15.4.5)
                length = int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self._is_head_request or status in _BODILESS:
            length = 0
        if length is None:
            self._ends_with_connection = self._is_http10
            self._is_chunked = not self._is_http10
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        self._left = length or 0
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self.connection.loop.call_soon(self._write_head)

    def write(self, content: bytes, *, is_last: bool) -> bool:
        """Write body bytes. Return False if the caller should wait for `drain` before it writes more.

        Raises ValueError if the body is not as long as announced.
        """
        connection = self.connection
        if self.is_disconnected or self.is_complete:
            return True
        if self._is_head_request:
            content = b""
        if self._is_chunked:
            content = b"%x\r\n%b\r\n" % (len(content), content) if content else b""
            content = content + _LAST_CHUNK if is_last else content
        elif not self._ends_with_connection:
            self._left -= len(content)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the body is not as long as its head announces")
        # Together with a head that is still pending: this saves a system call of 15 µs.
        head, self._head = self._head, b""
        if len(content) < _JOINED_BYTES:
            connection.transport.write(head + content)
        else:
            connection.transport.writelines((head, content) if head else (content,))
        if is_last:
            self.is_complete = True
            if self._news is not None:
                self._news.set()
            if not self.keep_alive:
                connection.closer.close()
            connection.finish_response()
        return not connection.is_writing_paused

    def break_off(self) -> None:
        """Close the connection after the pending data without ending this response cleanly."""
        connection = self.connection
        if not connection.transport.is_closing():
            self._write_head()
            if self._ends_with_connection and self.is_started:  # an orderly close would look like a clean end
                connection.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
                connection.transport.abort()
            else:
                connection.closer.close()
        connection.disconnect()

    def end_task(self, task: "asyncio.Task[None]") -> None:
        """Log the error of a task that has failed, and end a response that the task has left unfinished."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "serving a request failed inside the proxy; the client got a 500. Please report this line",
                exc_info=error,
            )
        if self.is_complete or self.is_disconnected:
            return
        if self.is_started or task.cancelled():
            self.break_off()
            return
        self.keep_alive = False
        status, headers, body = render_error(Refused(500, "internal_error", "an error inside the proxy; see its log"))
        self.start(status, headers)
        self.write(body, is_last=True)

    def _write_head(self) -> None:
        if self._head and not self.is_disconnected:
            head, self._head = self._head, b""
            self.connection.transport.write(head)

    # --- ASGI, for our own pages -------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next part of the request's body, or `http.disconnect` if the client has left."""
        if not await self.wait_for_body():
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.take_body(), "more_body": self.has_more_body}

    async def send(self, message: Message) -> None:
        """Write the head or a part of the body. Raises ValueError for a header with a line break or NUL."""
        if message["type"] == "http.response.start":
            headers: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
            if any(b"\n" in part or b"\r" in part or b"\0" in part for header in headers for part in header):
                raise ValueError("a header of ours has a line break in it")
            self.start(message["status"], tuple(headers))
        elif not self.write(message.get("body", b""), is_last=not message.get("more_body", False)):
            await self.connection.drain()
