"""The HTTP/1.1 protocol of the way in: uvicorn's on httptools, with the limits it lacks.

Rule: what is not one well-formed request within the caps is answered 400, 408 or 431 and closed before anything else
sees it. httptools refuses CL+TE, obs-fold and odd versions; head size, head time, Host and a client that stops
reading are ours.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.server.errors import render_plain
from proxy.server.policy import ServerPolicy

EXTENSION = "palimpsest.connection"

_READ_AHEAD = 1024 * 1024
_LINGER_SECONDS = 1.0


class GuardedProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        policy: ServerPolicy,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._policy = policy
        self._head_size = 0
        self._hosts = 0
        self._is_in_head = True
        self._refusal = (400, "bad_request", "this is not a valid HTTP/1.1 request")
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Part of asyncio's Protocol."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's Protocol."""
        self._unwatch_head()
        self._unwatch_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's Protocol."""
        super().data_received(data)
        if self._is_in_head and self._head_timer is None and not self.transport.is_closing():
            self._watch_head()

    def pause_writing(self) -> None:
        """Part of asyncio's Protocol."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self._policy.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Part of asyncio's Protocol."""
        self._unwatch_stall()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Part of httptools' protocol."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_size = self._hosts = 0
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        """Part of httptools' protocol."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' protocol."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)
        if self.headers[-1][0] == b"host":
            self._hosts += 1

    def on_headers_complete(self) -> None:
        """Part of httptools' protocol."""
        self._is_in_head = False
        self._unwatch_head()
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() != "1.0"):
            self._refuse(400, "bad_request", "a request has exactly one Host field")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol.

        Reads further ahead than uvicorn: a large body then wakes its reader less often.
        """
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > _READ_AHEAD:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Answer what never became a request."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(render_plain(*self._refusal))
        self.transport.close()

    def break_off(self) -> None:
        """End the connection after what was written, without ending the answer."""
        self.transport.close()

    def linger(self) -> None:
        """Close soon if the rest of a refused body keeps coming: closing at once would reset the answer away."""
        self.loop.call_later(_LINGER_SECONDS, self._close_unless_read, self.cycle)

    def _close_unless_read(self, cycle: object) -> None:
        if self.cycle is cycle and self.cycle.more_body:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Silent: the application answers 426."""

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._policy.max_header_bytes:
            self._refuse(
                431,
                "headers_too_large",
                f"the head of the request exceeds server.max_header_bytes ({self._policy.max_header_bytes})",
            )

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._refusal = (status, code, message)
        raise ValueError(message)

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self._policy.header_timeout, self._give_up_on_head)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _unwatch_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _give_up_on_head(self) -> None:
        self._refusal = (408, "head_timeout", "the head of the request took too long (server.header_timeout)")
        self._head_timer = None
        self.send_400_response("")
