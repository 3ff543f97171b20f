"""One client connection as its responses see it: what is written, in which order, when to stop reading, how it ends.

A response is framed as its head announces and ends only when it is told to. Responses that are passed on are written by
`start` and `write`; ASGI's `send`, which is for our own pages, would cost them 15 µs a chunk.
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

from proxy.engine.runtime import WriteBatcher
from proxy.model.exchange import Headers
from proxy.server.errors import Refused, render_error

_BODILESS = (204, 304)
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"
_JOINED_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
# Requests ahead of their responses. More than this is no client but a flood: each takes memory before it is served.
_MOST_PIPELINED = 64
_LINGER_SECONDS = 1.0
_PROBE_SECONDS = 1.0
_HALF_CLOSED: int = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a reset is noticed

_log = logging.getLogger("palimpsest.server")


class ConnectionCloser:
    """Closes a connection once what was written has left, for which the client has `seconds`, as for any other byte.

    An object of its own, so that a response that waits to be closed does not keep its protocol alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close after what was written; may be called again."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.start_timer()

    def close_unless_read(self, response: "Http11Response") -> None:
        """Close soon if the rest of a refused body keeps coming; closing at once would reset the response away."""

        def close() -> None:
            if response.has_more_body:
                self.close()

        self._loop.call_later(_LINGER_SECONDS, close)

    def start_timer(self) -> None:
        """Abort the connection if the client takes none of what is written for `seconds` from now on."""
        if self._timer is None:
            self._left = self._transport.get_write_buffer_size()
            self._timer = self._loop.call_later(self._seconds, self._give_up)

    def note_progress(self) -> None:
        """Restart the time: the client has taken what was written, or most of it."""
        self.cancel()
        if self._transport.is_closing():
            self.start_timer()

    def cancel(self) -> None:
        """Stop the time: the connection is closed, or need not be."""
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

    The oldest request that is not answered is being served; those behind it wait for it. `tasks` holds the tasks that
    serve requests until they end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        writes: WriteBatcher,
        *,
        app: ASGIApp,
        tasks: set["asyncio.Task[None]"],
        stall_seconds: float,
        keep_alive_seconds: float,
    ) -> None:
        self.loop = loop
        self.transport = transport
        self.writes = writes
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
        """True if an error of ours can be the next response: none is due, or the one whose body is bad is next."""
        if not self.pipeline:
            return True
        response = self.pipeline[0][0]
        return len(self.pipeline) == 1 and response.has_more_body and not response.is_started

    # --- requests and their responses --------------------------------------------------------------------------------

    def add(self, response: "Http11Response", scope: Scope) -> bool:
        """Serve a request, after those before it. False where these are too many: the last of them closes."""
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
        """Serve the next request, or wait for it for as long as a connection may be idle."""
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
        """Have every response under way end without another byte."""
        for response, _ in self.pipeline:
            response.is_disconnected = True
            response.notify()

    def lose(self) -> None:
        """Let go of everything: the transport is closed."""
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
        """Read no more for now, but notice a client that leaves."""
        if not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()
        if self._probe is None:
            self._probe = self.loop.call_later(_PROBE_SECONDS, self._probe_client)

    def resume_reading(self) -> None:
        """Read on."""
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
        """Ask the kernel now and then: while reading is paused asyncio does not notice that a client leaves."""
        self._probe = None
        if not self.is_reading_paused or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HALF_CLOSED)
        if poll.poll(0):
            self.transport.abort()  # it sends no more: once read, that would end the connection, too
        else:
            self._probe = self.loop.call_later(_PROBE_SECONDS, self._probe_client)


class Http11Response:
    """The response to one request, and that request's body in the pieces it came in.

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
        self.on_disconnect: Callable[[], object] | None = None
        self._is_head_request = method == "HEAD"
        self._is_http10 = is_http10
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._has_news = False
        self._news: asyncio.Event | None = None  # made when somebody waits: most bodies are there at once
        self._head = b""
        self._is_chunked = self._ends_with_connection = False
        self._left = 0

    # --- the request's body ------------------------------------------------------------------------------------------

    def put_body(self, piece: bytes) -> int:
        """Take a piece of the body; return the number of bytes that wait to be read."""
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
        """Wake whoever waits for the body or for its client to leave."""
        self._has_news = True
        if self._news is not None:
            self._news.set()

    async def wait_for_body(self) -> bool:
        """Wait for more of the body, or its end; False once the client has left or the response is complete."""
        if self._expects_continue and not self.connection.transport.is_closing():
            self.connection.writes.put(self.connection.transport, b"HTTP/1.1 100 Continue\r\n\r\n")
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
        """Call this when the client has left, at once if it has; set `on_disconnect` to None to end that."""
        self.on_disconnect = notify
        if self.connection.is_lost:
            notify()
        elif self.connection.is_reading_paused and not self.has_more_body:
            self.connection.resume_reading()  # or leaving would not be noticed

    # --- the response ------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        """Write the head, together with what of the body comes at once. Header names are lower case.

        A length or else chunks frame the body; for an HTTP/1.0 client without a length it ends with the connection.
        """
        if self.is_disconnected:
            return
        self.is_started = True
        self._expects_continue = False
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length = None
        for name, value in headers:
            if name == b"content-length":
                if status in _BODILESS:
                    continue  # it describes a body that does not come (RFC 9110, 15.4.5)
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
        """Write body bytes; False: write no more until the connection has drained.

        Raises ValueError where the body is not as long as announced.
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
        # Behind the head, if that is still here: one system call in place of two, of 15 µs each.
        head, self._head = self._head, b""
        if len(content) < _JOINED_BYTES:
            connection.writes.put(connection.transport, head + content)
        else:
            connection.writes.flush()
            connection.transport.writelines((head, content) if head else (content,))
        if is_last:
            self.is_complete = True
            if self._news is not None:
                self._news.set()
            if not self.keep_alive:
                connection.writes.flush()
                connection.closer.close()
            connection.finish_response()
        return not connection.is_writing_paused

    def break_off(self) -> None:
        """End the connection after what was written, without ending this response; nothing where it has ended."""
        connection = self.connection
        if not connection.transport.is_closing():
            self._write_head()
            connection.writes.flush()
            if self._ends_with_connection and self.is_started:  # closing would be a clean end
                connection.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
                connection.transport.abort()
            else:
                connection.closer.close()
        connection.disconnect()

    def end_task(self, task: "asyncio.Task[None]") -> None:
        """Answer for a task that has ended and left its response unfinished, by a fault of ours."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("serving a request failed", exc_info=error)
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
            self.connection.writes.put(self.connection.transport, head)

    # --- ASGI, for our own pages -------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next part of the request's body, or that the client has left."""
        if not await self.wait_for_body():
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.take_body(), "more_body": self.has_more_body}

    async def send(self, message: Message) -> None:
        """Write the head or a part of the body. Raises ValueError for a header that would be more than one."""
        if message["type"] == "http.response.start":
            headers: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
            if any(b"\n" in part or b"\r" in part or b"\0" in part for header in headers for part in header):
                raise ValueError("a header of ours has a line break in it")
            self.start(message["status"], tuple(headers))
        elif not self.write(message.get("body", b""), is_last=not message.get("more_body", False)):
            await self.connection.drain()
