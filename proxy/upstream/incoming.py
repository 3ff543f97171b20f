"""An answer as its bytes come in: HTTP/1.1 parsing, and what of it waits to be read.

Rule: nothing is decoded or repaired. Bytes that are not one well-formed answer are an error, and what stands behind an
answer is never part of it, nor of the next one.
"""

import httptools

from proxy.model.exchange import Headers

_HEAD_LIMIT = 256 * 1024
_TOO_LARGE = f"its head exceeds {_HEAD_LIMIT} bytes"
_BODILESS = (204, 304)


class BadAnswer(Exception):
    """The bytes are not an HTTP/1.1 answer; the text says why."""


class Incoming:
    """One answer. `feed` it until `is_complete`; take body bytes out with `take`."""

    def __init__(self, method: str) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._method = method
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_size = self._unparsed = 0
        self._pieces: list[bytes] = []
        self._ends_with_connection = self._has_moved = False
        self.buffered = 0
        self.status = 0
        self.has_bytes = False
        self.has_head = False
        self.is_complete = False
        self.can_keep = False

    @property
    def headers(self) -> Headers:
        """Fields of the head, names lower case, in order."""
        return tuple(self._fields)

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire. Raises BadAnswer; the body bytes before the fault can still be taken."""
        self.has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadAnswer(str(error.__context__ or error)[:200]) from None
        # The parser keeps a field until it ends, so that an endless one would never be counted below.
        self._unparsed = 0 if self._has_moved else self._unparsed + len(data)
        self._has_moved = False
        if self._unparsed > _HEAD_LIMIT:
            raise BadAnswer(_TOO_LARGE)

    def end(self) -> bool:
        """The connection ended: whether that ends the answer, as it does where nothing else says how long it is."""
        if self.has_head and self._ends_with_connection:
            self.is_complete = True
        return self.is_complete

    def take(self) -> bytes:
        """All body bytes that wait."""
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.buffered = 0
        return content

    def close(self) -> None:
        """Nothing more is fed. The parser holds our methods: without it, a call leaves no cycle to collect."""
        del self._parser

    # --- httptools callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Part of httptools' protocol."""
        if self.is_complete:
            raise ValueError("there are bytes behind the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' protocol. Trailers are passed over."""
        self._has_moved = True
        self._head_size += len(name) + len(value)
        if self._head_size > _HEAD_LIMIT:
            raise ValueError(_TOO_LARGE)
        if not self.has_head:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Part of httptools' protocol."""
        status = self._parser.get_status_code()
        if status == 101 or not 100 <= status <= 599:
            raise ValueError(f"status {status} was not asked for")
        if status < 200:
            self._fields.clear()
            return
        self.status = status
        self.has_head = True
        fields = dict(self._fields)
        coding = fields.get(b"transfer-encoding", b"").lower().rpartition(b",")[2].strip()
        self._ends_with_connection = (
            b"content-length" not in fields and coding != b"chunked" and status not in _BODILESS
        )
        self.can_keep = self._parser.should_keep_alive()
        if self._method == "HEAD":
            # httptools cannot be told that no body follows, so the connection is not used again.
            self.can_keep = False
            self.is_complete = True

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol."""
        self._has_moved = True
        self._pieces.append(body)
        self.buffered += len(body)

    def on_message_complete(self) -> None:
        """Part of httptools' protocol; called for 1xx answers, too."""
        self.is_complete = self.has_head
