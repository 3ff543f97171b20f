"""The server's HTTP/1.1 parser: an asyncio protocol on httptools, which uvicorn runs as its `http` class.

Bytes that are not one well-formed request within the limits are refused with 400, 408 or 431 before anything else sees
them, and the connection is closed. httptools refuses Content-Length beside Transfer-Encoding and folded headers. This
module checks the size and time of the head, Host and transfer codings.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.server import ServerState

from proxy.engine.runtime import Descriptors
from proxy.server.errors import render_plain
from proxy.server.http11_response import Http11Connection, Http11Response
from proxy.server.policy import ServerPolicy

_log = logging.getLogger("palimpsest.server")

# The key of the `Http11Response` in a scope's extensions.
RESPONSE = "palimpsest.response"

_READ_AHEAD = 1024 * 1024
_CHECKED = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
# A path as nearly all requests have it; for these the URL parser is not needed.
_PLAIN_PATH = re.compile(rb"/(?:[A-Za-z0-9_.-][A-Za-z0-9_./-]*)?")
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Http11Protocol(asyncio.Protocol):
    """The parsing side of one client connection."""

    transport: asyncio.Transport
    connection: Http11Connection

    def __init__(
        self,
        policy: ServerPolicy,
        descriptors: Descriptors,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any] | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._policy = policy
        self._descriptors = descriptors
        self._config = config
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = self._make_parser()
        self._most_head = policy.max_header_bytes
        self._response: Http11Response | None = None  # of the request whose body is being read
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = self._unparsed = self._hosts = 0
        self._upgrade: bytes | None = None
        self._is_in_head = True
        self._has_begun = self._has_progressed = self._expects_continue = False
        self._is_reparsed = self._discards_input = False
        self._data = b""
        self._refusal = (400, "bad_request", "this is not a valid HTTP/1.1 request")
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True if every request has its response, and no byte of another request has come."""
        return not self._is_in_head and not self.connection.pipeline

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head. Refuse the client if hardly a file descriptor is left."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._server = transport.get_extra_info("sockname")[:2]
        self._client = (transport.get_extra_info("peername") or ("somebody", 0))[:2]  # no name if it has left
        self.connection = Http11Connection(
            self._loop,
            self.transport,
            app=self._config.loaded_app,
            tasks=self._state.tasks,
            stall_seconds=self._policy.stall_timeout,
            keep_alive_seconds=self._config.timeout_keep_alive,
        )
        self._start_head_timer()
        if self._descriptors.is_scarce(transport.get_extra_info("socket").fileno()) and not self._descriptors.relieve():
            self._discards_input = True
            self.transport.write(render_plain(503, "too_many_connections", "no file descriptor is free; try again"))
            self.connection.closer.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that is being served that its client has left."""
        self._state.connections.discard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._parser = self._response = None  # the parser refers to this protocol: no reference cycle is left
        self.connection.lose()

    def data_received(self, data: bytes) -> None:
        """Parse the data, and bound the time and size of an incomplete head."""
        if self._discards_input:
            return
        connection = self.connection
        if connection.keep_alive_timer is not None:
            connection.keep_alive_timer.cancel()
            connection.keep_alive_timer = None
        self._data = data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.refuse(error)
        except httptools.HttpParserUpgrade as error:
            if self._is_reparsed:
                self._read_again(data[error.args[0] :])
                return
        self._data = b""  # an idle connection holds nothing
        if self._discards_input or self.transport.is_closing():
            return
        # The parser reports a header when it ends, so that `on_header` would never count an endless one.
        self._unparsed = 0 if self._has_progressed else self._unparsed + len(data)
        self._has_progressed = False
        if self._unparsed > self._most_head:
            self._refusal = _describe_too_large(self._most_head)
            self.refuse()
        elif self._is_in_head:
            if self._head_timer is None:
                self._start_head_timer()
        elif not connection.pipeline:  # answered before its body was read
            connection.keep_alive_timer = self._loop.call_later(connection.keep_alive_seconds, connection.closer.close)

    def pause_writing(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Resume writing."""
        self.connection.resume_writing()

    # --- uvicorn -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close once the requests under way have their responses, or at once if there are none."""
        if pipeline := self.connection.pipeline:
            pipeline[-1][0].keep_alive = False
        else:
            self.transport.close()

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Reset the state for a new request."""
        self._url, self._upgrade = b"", None
        self._headers = []
        self._head_size = self._hosts = 0
        self._has_begun = self._is_in_head = self._has_progressed = True
        self._expects_continue = self._is_reparsed = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._has_progressed = True
        self._head_size += len(url)
        if self._head_size > self._most_head:
            self._refuse_head(*_describe_too_large(self._most_head))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. A trailer only counts towards the size."""
        self._has_progressed = True
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._most_head:
            self._refuse_head(*_describe_too_large(self._most_head))
        if not self._is_in_head:
            return
        name = name.lower()
        self._headers.append((name, value))
        if name == b"host":
            self._hosts += 1
        elif name in _CHECKED:
            self._check_header(name, value)

    def on_headers_complete(self) -> None:
        """Start serving the request, or queue it behind the one before it."""
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        parser = self._parser
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse_head(400, "bad_request", "only HTTP/1.1 and HTTP/1.0 are supported")
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            self._refuse_head(400, "bad_request", "a request has exactly one Host header")
        if self._upgrade not in (None, b"websocket") and parser.should_upgrade():
            self._is_reparsed = True
            return
        path, query = self._url, b""
        if not _PLAIN_PATH.fullmatch(path):
            parsed = httptools.parse_url(path)  # raises if it is not a request target
            path, query = parsed.path, parsed.query or b""
        method = parser.get_method().decode("ascii")
        is_http10 = version == "1.0"
        self._response = response = Http11Response(
            self.connection,
            method,
            self._url,
            is_http10=is_http10,
            keep_alive=not is_http10 and parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        text = path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "method": method,
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "headers": tuple(self._headers),
            "extensions": {RESPONSE: response},
        }
        if not self.connection.add(response, scope):
            # Further data is read and discarded: unread in the kernel, it would make the close a reset of responses.
            self._discards_input = True
            self.connection.resume_reading()
            self._log_refusal("too many pipelined requests")
            raise ValueError("what comes now is not parsed")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body. Pause reading if too much of it waits to be read."""
        self._has_progressed = True
        response = self._response
        if response is not None and not response.is_complete and response.put_body(body) > _READ_AHEAD:
            self.connection.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        if (response := self._response) is not None and not self._is_reparsed:
            response.has_more_body = False
            response.notify()
            self._response = None

    # --- refusing ----------------------------------------------------------------------------------------------------

    def refuse(self, cause: Exception | None = None) -> None:
        """Close the connection; send an error for the invalid request first if no other response is due."""
        if self._discards_input:
            return
        reason = self._refusal[2]
        if isinstance(cause, httptools.HttpParserError) and not isinstance(cause, httptools.HttpParserCallbackError):
            reason = f"{reason}: {cause}"
        if self._has_begun or self._data or self._unparsed:  # else the client has sent nothing
            self._log_refusal(reason)
        if self.connection.can_refuse:
            self.transport.write(render_plain(*self._refusal))
        self.connection.closer.close()

    def _log_refusal(self, reason: str) -> None:
        _log.warning("a request was refused: %s", reason, extra={"client": self._client[0]})

    def _refuse_head(self, status: int, code: str, message: str) -> None:
        self._refusal = status, code, message
        raise ValueError(message)

    def _check_header(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self._expects_continue |= value.lower() == b"100-continue"
        elif name == b"upgrade":
            self._upgrade = value.lower()
        elif value.strip().lower() != b"chunked":
            self._refuse_head(400, "bad_request", "the only transfer coding supported is chunked")

    def _read_again(self, rest: bytes) -> None:
        """Parse a request again without its Upgrade header (`h2c`), since the parser has skipped its body.

        The application refuses a WebSocket upgrade; any other is ignored.
        """
        lines = b"".join([b"%s: %s\r\n" % header for header in self._headers if header[0] != b"upgrade"])
        head = b"%s %s HTTP/1.1\r\n%s\r\n" % (self._parser.get_method(), self._url, lines)
        self._parser = self._make_parser()
        self.data_received(head + rest)

    def _make_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # After a request with `Connection: close`, further data must not prevent its response.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # --- the time of a head ------------------------------------------------------------------------------------------

    def _start_head_timer(self) -> None:
        self._head_timer = self._loop.call_later(self._policy.header_timeout, self._end_head_time)

    def _end_head_time(self) -> None:
        self._head_timer = None
        if not self.connection.can_refuse:
            self._start_head_timer()  # a response is under way, which this must not end
            return
        self._refusal = 408, "head_timeout", "the head of the request took too long (server.header_timeout)"
        self.refuse()


def close_idle(connections: Iterable[object]) -> int:
    """Close client connections that carry no request. Return how many there were."""
    idle = [one for one in connections if isinstance(one, Http11Protocol) and one.is_idle]
    for one in idle:
        one.connection.closer.close()
    return len(idle)


def _describe_too_large(limit: int) -> tuple[int, str, str]:
    return 431, "headers_too_large", f"the head of the request exceeds server.max_header_bytes ({limit})"
