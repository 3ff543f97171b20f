"""The client of our own server: commands ask it, since only that process writes the log.

It is made of the standard library and blocks: a command asks once, and importing httpx would take as long as all else
that it does.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from http.client import OK as HTTP_OK
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlsplit

from proxy.model.errors import TooLarge, UpstreamUnreachable

T = TypeVar("T")

_MAX_BYTES = 16 * 1024 * 1024
_MAX_REFUSED_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_CONNECT_SECONDS = 10.0
# For one request the server may call models several times, for a minute each.
_ANSWER_SECONDS = 1800.0
_LIVE_SECONDS = 1.0
# A stream of events has a heartbeat every 15 seconds.
_STREAM_SECONDS = 50.0
_LIVE = b'{"status":"live"}'


class AdminClient:
    """Sends requests of commands to our own server.

    The token is sent only to the configured address: no proxy is used, and no redirect is followed. Responses longer
    than `max_bytes` are refused. `start` is the command that starts the server, for errors.
    """

    def __init__(self, address: str, token: str, start: str = "palimpsest serve", max_bytes: int = _MAX_BYTES) -> None:
        self._address, self._start = address, start
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._max_bytes = max_bytes

    def ask(self, target: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        """Return status and body of the response. Raises TooLarge, and UpstreamUnreachable if no server responds."""
        with self._open(_ANSWER_SECONDS) as connection:
            response = self._send(connection, method, target, body)
            content = self._try(lambda: response.read(self._max_bytes + 1))
        if len(content) > self._max_bytes:
            raise TooLarge(f"the response of the server has more than {self._max_bytes} bytes")
        return response.status, content

    def follow(self, target: str, last_id: str, take: Callable[[bytes], object]) -> tuple[int, bytes]:
        """Pass on the pieces of a stream of events until it ends. Return its status, and the body of any but 200.

        Raises UpstreamUnreachable if the server does not respond, or the stream breaks off.
        """
        with self._open(_STREAM_SECONDS) as connection:
            more = {"last-event-id": last_id} if last_id else {}
            response = self._send(connection, "GET", target, b"", more)
            if response.status != HTTP_OK:
                return response.status, self._try(lambda: response.read(_MAX_REFUSED_BYTES))
            while piece := self._try(lambda: response.read1(_PIECE_BYTES)):
                take(piece)
            return response.status, b""

    def is_live(self) -> bool:
        """Return whether a server of ours answers, within a second."""
        try:
            with self._open(_LIVE_SECONDS) as connection:
                response = self._send(connection, "GET", "/-/live", b"")
                return self._try(lambda: response.read(len(_LIVE) + 1)) == _LIVE
        except UpstreamUnreachable:
            return False

    @contextlib.contextmanager
    def _open(self, seconds: float) -> Iterator[HTTPConnection]:
        """Open a connection on which each wait ends after so many seconds."""
        address = urlsplit(self._address)
        connection = HTTPConnection(str(address.hostname), address.port, timeout=min(seconds, _CONNECT_SECONDS))
        try:
            try:
                connection.connect()
            except OSError as error:
                what = f"no server answers at {self._address}; start it by `{self._start}`"
                raise UpstreamUnreachable(f"{what}, or name another by --data, or --host and --port") from error
            connection.sock.settimeout(seconds)
            yield connection
        finally:
            connection.close()

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        body: bytes,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> HTTPResponse:
        """Send a request, and return the head of its response."""
        self._try(lambda: connection.request(method, target, body or None, {**self._headers, **more}))
        return self._try(connection.getresponse)

    def _try(self, step: Callable[[], T]) -> T:
        """Return what a step of a request does. Raises UpstreamUnreachable where the connection fails."""
        try:
            return step()
        except (OSError, HTTPException) as error:
            what = f"the server at {self._address} did not answer: {error or type(error).__name__}"
            raise UpstreamUnreachable(f"{what}; try again, or look at what it logs") from error
