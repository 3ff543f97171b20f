"""Reading a response as it arrives: passing it on up to its end, or holding it back while it may be a refusal.

Bytes are withheld, never changed; only what we did in a provider's place is added for the client, behind the record.
Comments at the beginning of a stream are not withheld. A client that waits long gets a comment of ours, with the head
before it. A retry then continues in the same stream.
"""

import asyncio
import re
from collections.abc import Callable
from itertools import pairwise

from proxy.engine.call.open_exchange import REFUSAL_BYTES, CappedBuffer, OpenExchange, Refusal, Retries, Start
from proxy.engine.call.response_reader import is_event_stream, is_too_short
from proxy.engine.ports import Client, Clock, UpstreamResponse
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.exchange import SUCCESS, Headers, Trailer
from proxy.wire.body import decode_content
from proxy.wire.credentials import redact
from proxy.wire.format import Format
from proxy.wire.headers import find_header, forward_response
from proxy.wire.streams import EVENT_END, MARKER_REACH, read_error_object

# Seconds to wait for the end of the body after the last event of a stream, and for the end of that event itself.
_LINGER_SECONDS = 0.05
_LAST_EVENT_SECONDS = 2.0
# Well below the time after which clients give up on a silent server.
WITHHOLD_SECONDS = 5.0
WAITING = b": waiting\n\n"
_JSON: Headers = ((b"content-type", b"application/json"),)
_COMMENTS = re.compile(rb"(?:[\r\n]*:[^\r\n]*[\r\n]+)+")
_DATA = re.compile(rb"(?:\A|[\r\n])data: ?([^\r\n]*)")
# A longer body or event is passed on as it is.
_MOST_EDITED = 8 * 1024 * 1024
REFUSED = range(400, 600)  # servers and gateways refuse a request with 5xx, too; what they say tells


class StreamRelay:
    """Passes the pieces of a response on, and withholds the bytes from the stream's end marker on in `withheld`.

    Where a model may recall, they pass through what stitches the rounds of its answer, without a content-encoding.
    """

    def __init__(self, exchange: OpenExchange, headers: Headers, clock: Clock) -> None:
        self._exchange = exchange
        self._write = exchange.client.write if exchange.rounds is None else exchange.rounds.write
        self._decode = exchange.decode
        self._clock = clock
        begun = exchange.beginning
        is_readable = is_plain_stream(headers, begun) or (self._decode is not None and is_event_stream(headers))
        self._marker = exchange.format.end_marker if exchange.format is not None and is_readable else None
        self._carry = b"\n"  # a stream begins at the start of a line
        self.withheld = b""

    def take(self, piece: bytes) -> bool:
        """Record a piece and pass it on. Return False once bytes are withheld, or if the client is slow."""
        self._exchange.keep_piece(piece, self._clock)
        return self.pass_on(piece)

    def pass_on(self, piece: bytes) -> bool:
        """Pass on a piece that is recorded already. Return as `take` does."""
        if self._decode is not None:
            piece = self._decode(piece)
        if self._marker is None:
            return self._write(piece)
        window = self._carry + piece
        known = len(self._carry)
        self._carry = window[-MARKER_REACH:]
        found = self._marker.search(window, 1)
        if found is None:
            return self._write(piece)
        cut = max(0, found.start() - known)  # the marker may begin in the previous piece
        if cut:
            self._write(piece[:cut])
        self.withheld = piece[cut:]
        return False


def is_plain_stream(headers: Headers, beginning: bytes = b"") -> bool:
    """Return whether a body is an event stream without content-encoding, which can be read as it passes."""
    return not is_encoded(headers) and is_event_stream(headers, beginning)


def is_encoded(headers: Headers) -> bool:
    """Return whether a body has a content-encoding."""
    return find_header(headers, b"content-encoding") not in (b"", b"identity")


async def read_beginning(exchange: OpenExchange, response: UpstreamResponse, clock: Clock) -> None:
    """Read the first bytes of a response whose head does not say whether it is a stream, until they tell."""
    try:
        while not (response.is_ended or is_encoded(response.headers)) and is_too_short(exchange.beginning):
            exchange.beginning += exchange.keep_piece(await response.read(), clock)
    except UpstreamUnreachable:
        pass  # the next read raises it again, after the bytes that came


async def read_final_event(
    response: UpstreamResponse, buffer: CappedBuffer, withheld: bytes, decode: Callable[[bytes], bytes] | None = None
) -> bytes:
    """Read the rest of the event that ends a stream, and wait a moment for the end of the body after it.

    Return the bytes. Bytes that arrive in that moment do not prolong it. `decode` undoes the content-encoding of what
    is read; it is recorded as received.
    """
    is_whole = False
    try:
        async with asyncio.timeout(_LAST_EVENT_SECONDS) as waiting:
            while not response.is_ended:
                if not is_whole and EVENT_END.search(withheld):
                    is_whole = True
                    waiting.reschedule(asyncio.get_running_loop().time() + _LINGER_SECONDS)
                chunk = await response.read()
                buffer.add(chunk)
                withheld += chunk if decode is None else decode(chunk)
    except (TimeoutError, UpstreamUnreachable):
        pass  # later bytes are passed on later, and the next read raises a broken connection again
    return withheld


def may_refuse(exchange: OpenExchange, response: UpstreamResponse) -> bool:
    """Return whether a response may refuse what was sent, and can be withheld until that is known."""
    if response.status not in SUCCESS:
        return response.status in REFUSED
    if exchange.rounds is not None and exchange.rounds.is_continued:
        return is_open_stream(response.headers, exchange.beginning)
    return (
        exchange.is_guarded
        and not exchange.k
        and (is_plain_stream(response.headers) or not is_event_stream(response.headers))
    )


def is_open_stream(headers: Headers, beginning: bytes = b"") -> bool:
    """Return whether a response is an event stream to which the proxy can add, since it has no content-length."""
    return is_plain_stream(headers, beginning) and not find_header(headers, b"content-length")


class WithheldResponse:
    """Withholds the beginning of one response while it may be a refusal. `start` sends a head to the client."""

    def __init__(
        self,
        exchange: OpenExchange,
        retries: Retries,
        response: UpstreamResponse,
        clock: Clock,
        start: Callable[[int, Headers], None],
    ) -> None:
        self._exchange = exchange
        self._retries = retries
        self._response = response
        self._clock = clock
        self._start_client = start
        self._start: Start = "undecided"
        self._pieces = bytearray(exchange.beginning)

    @property
    def begun(self) -> bytes:
        """The bytes that were read and not passed on."""
        return bytes(self._pieces)

    async def find_refusal(self) -> Refusal | None:
        """Wait until it is known whether this may be a refusal. Return it, or None if it goes to the client."""
        is_open = is_open_stream(self._response.headers, self._exchange.beginning)
        is_stream = self._response.status in SUCCESS and is_open
        try:
            is_suspect = await (self._withhold_events() if is_stream else self._withhold_whole())
        except UpstreamUnreachable:
            return None  # the next read raises it again, after the bytes that came
        if not is_suspect or len(self._pieces) > REFUSAL_BYTES:
            return None
        status, headers = self._response.status, self._response.headers
        return Refusal(status, headers, self.begun)

    async def _withhold_whole(self) -> bool:
        """Withhold a body that can be read only as a whole. Return True if all of it has arrived."""
        response = self._response
        try:
            async with asyncio.timeout(WITHHOLD_SECONDS):
                while not response.is_ended and len(self._pieces) <= REFUSAL_BYTES:
                    self._keep(await response.read())
        except TimeoutError:
            pass  # a slow response is passed on as it arrives
        return response.is_ended

    async def _withhold_events(self) -> bool:
        """Withhold a stream until its first content. Return True if it is a refusal, or ended without content."""
        response = self._response
        if self._pieces:
            self._look(len(self._pieces))
        while self._start == "undecided" and not response.is_received:
            try:
                async with asyncio.timeout(WITHHOLD_SECONDS):
                    await response.pump(self._take)
            except TimeoutError:
                self._send(WAITING)
        if self._start == "undecided":
            self._take(await response.read())
        if self._start == "refused":
            self._pieces[:] = await read_final_event(response, self._exchange.buffer, self.begun)
        return self._start != "content"

    def _take(self, piece: bytes) -> bool:
        """Withhold a piece of a stream. Return False once it is known how the stream begins."""
        self._keep(piece)
        withheld = self._pieces
        if not self._response.is_received and (comments := _COMMENTS.match(withheld)):
            self._send(bytes(withheld[: comments.end()]))
            del withheld[: comments.end()]
        return self._look(len(piece))

    def _look(self, size: int) -> bool:
        """Find out how the stream begins, whose last `size` bytes are new. Return as `_take` does."""
        withheld = self._pieces
        if len(withheld) > REFUSAL_BYTES:
            self._start = "content"
        elif EVENT_END.search(withheld, max(0, len(withheld) - size - 3)):
            self._start = self._retries.read_start(bytes(withheld))
        return self._start == "undecided"

    def _keep(self, piece: bytes) -> None:
        self._exchange.keep_piece(piece, self._clock)
        self._pieces += piece

    def _send(self, comments: bytes) -> None:
        """Send comments, and the head before them."""
        self._start_client(self._response.status, forward_response(self._response.headers))
        self._exchange.client.write(comments)


def spell_in_stream(form: Format | None, headers: Headers, content: bytes, number: int = 0) -> bytes:
    """Return a body that is no stream as an error event of a stream that has begun, the event with this number."""
    try:
        plain = decode_content(content, find_header(headers, b"content-encoding").decode("latin-1"), REFUSAL_BYTES)
    except ValueError:
        plain = b""
    assert form is not None, "a stream has begun only where events are read"
    return form.spell_error(read_error_object(plain), number)


async def embed(exchange: OpenExchange, response: UpstreamResponse, clock: Clock, number: int) -> bytes:
    """Read a response that is no stream. Return it as an event, with this number, of one that the client reads."""
    while not response.is_ended:
        exchange.keep_piece(await response.read(), clock)
    return spell_in_stream(exchange.format, response.headers, exchange.buffer.content, number)


async def pass_trailers(exchange: OpenExchange, response: UpstreamResponse) -> None:
    """Pass on what follows a stream's end marker, and record it as trailers up to the cap."""
    i, is_last, decode = 0, False, exchange.decode
    while not is_last:
        chunk = await response.read()
        is_last = response.is_ended
        exchange.buffer.add(chunk)
        if chunk and not exchange.buffer.is_capped:
            kept = redact(chunk, exchange.secrets, is_error=False)
            exchange.archive.append(Trailer(exchange.id, exchange.k, i, kept))
            i += 1
        if not exchange.client.write(chunk if decode is None else decode(chunk), is_last=is_last):
            await exchange.client.drain()


class LocalClient:
    """A client in this process, which keeps what comes; implements the port `Client`. What differs is overridden."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.labels: Headers = ()
        self.error: ProxyError | None = None
        self.is_whole = False
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        """The body so far."""
        return b"".join(self._pieces)

    @property
    def session(self) -> str:
        """Where the call is kept."""
        return find_header(self.labels, b"x-palimpsest-session").decode("latin-1")

    @property
    def exchange(self) -> str:
        """The id of the call in the log."""
        return find_header(self.labels, b"x-palimpsest-exchange").decode("latin-1")

    def label(self, fields: Headers) -> None:
        """Take the fields that we add to the head."""
        self.labels = fields

    def start(self, status: int, headers: Headers) -> None:
        """Take the head. Only the first one counts."""
        if not self.status:
            self.status, self.headers = status, headers

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Take a piece of the body."""
        self._pieces.append(content)
        self.is_whole = self.is_whole or is_last
        return True

    async def drain(self) -> None:
        """Return at once: there is room for all that comes."""

    def fail(self, error: ProxyError) -> None:
        """Take an error. Only the first one counts."""
        self.error = self.error or error

    def dismiss(self) -> None:
        """Take that the call was cancelled."""
        self.fail(UpstreamUnreachable("the call was cancelled"))

    def abort(self) -> None:
        """Take that no more comes."""


class PassingClient:
    """Passes a response on to another client; implements the port `Client`. What differs is overridden."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def label(self, fields: Headers) -> None:
        """Set the headers that are added to the head of the response."""
        self._client.label(fields)

    def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self._client.start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send body bytes. Return as the port says."""
        return self._client.write(content, is_last=is_last)

    async def drain(self) -> None:
        """Return when the client can take more bytes."""
        await self._client.drain()

    def fail(self, error: ProxyError) -> None:
        """Respond with an error."""
        self._client.fail(error)

    def dismiss(self) -> None:
        """End a cancelled call."""
        self._client.dismiss()

    def abort(self) -> None:
        """Break the response off."""
        self._client.abort()


class LabellingClient(PassingClient):
    """Passes a response on with headers of its own beside those that it is given."""

    def __init__(self, client: Client, own: Headers) -> None:
        super().__init__(client)
        self._own = own

    def label(self, fields: Headers) -> None:
        """Set the headers that are added to the head of the response, with its own behind them."""
        super().label((*fields, *self._own))


class EditingClient(PassingClient):
    """Passes a successful response on with something added to it.

    `edit` returns what goes out for a whole JSON body, and for the data of each event of a stream that has `sign`.
    """

    def __init__(self, client: Client, edit: Callable[[bytes], bytes], sign: bytes) -> None:
        super().__init__(client)
        self._edit = edit
        self._sign = sign
        self._withheld = bytearray()
        self._head: tuple[int, Headers] | None = None  # not sent before the body, whose length it has
        self._headers: Headers | None = None  # those of a head that was sent, before the body
        self._is_stream = self._is_started = False

    def start(self, status: int, headers: Headers) -> None:
        """Send the head, or hold it until the body is whole."""
        if not self._is_started and status in SUCCESS and _is_plain_json(headers):
            self._head = status, headers
        elif self._head is None:
            may_change = status in SUCCESS and not is_encoded(headers)
            self._headers = headers if may_change else None
            self._client.start(status, set_length(headers, None) if may_change else headers)
        self._is_started = True

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send what is whole: of a body all, of a stream the events. Return as the port says."""
        if self._headers is not None:
            self._is_stream, self._headers = is_plain_stream(self._headers, content), None
        if self._head is None and not self._is_stream:
            return self._client.write(content, is_last=is_last)
        known = len(self._withheld)
        self._withheld += content
        if self._head is not None:
            return True if not is_last and len(self._withheld) <= _MOST_EDITED else self._release(is_last=is_last)
        ends = [found.end() for found in EVENT_END.finditer(self._withheld, max(0, known - 3))]
        end = len(self._withheld) if is_last or len(self._withheld) > _MOST_EDITED else ends[-1] if ends else 0
        ready = bytes(self._withheld[:end])
        del self._withheld[:end]
        return self._client.write(self._edit_events(ready), is_last=is_last) if ready or is_last else True

    def abort(self) -> None:
        """Break the response off after all bytes that came."""
        if self._head is not None and self._withheld:
            self._start_withheld(None)
        if self._withheld:
            self._client.write(bytes(self._withheld))
            self._withheld.clear()
        self._client.abort()

    def _release(self, *, is_last: bool) -> bool:
        """Send a whole body, edited. One that is too long is sent as it is, and so is the rest of it."""
        content = bytes(self._withheld)
        self._withheld.clear()
        if is_last:
            content = self._edit(content)
        self._start_withheld(len(content) if is_last else None)
        return self._client.write(content, is_last=is_last)

    def _start_withheld(self, length: int | None) -> None:
        """Send the head that was withheld, with a new length if one is given."""
        assert self._head is not None, "it is withheld"
        (status, headers), self._head = self._head, None
        self._client.start(status, headers if length is None else set_length(headers, length))

    def _edit_events(self, events: bytes) -> bytes:
        if self._sign not in events:
            return events
        starts = [0, *(found.end() for found in EVENT_END.finditer(events))]
        return b"".join([self._edit_event(events[a:b]) for a, b in pairwise([*starts, len(events)])])

    def _edit_event(self, event: bytes) -> bytes:
        lines = list(_DATA.finditer(event)) if self._sign in event else []
        if len(lines) != 1:
            return event
        start, end = lines[0].span(1)
        return event[:start] + self._edit(event[start:end]) + event[end:]


def set_length(headers: Headers, length: int | None) -> Headers:
    """Return headers with another length of the body, if they have one, or without it."""
    if not find_header(headers, b"content-length"):
        return headers
    kept = [field for field in headers if field[0] != b"content-length"]
    return tuple(kept) if length is None else (*kept, (b"content-length", b"%d" % length))


def _is_plain_json(headers: Headers) -> bool:
    kind = find_header(headers, b"content-type").partition(b";")[0].strip().lower()
    return kind == b"application/json" and not is_encoded(headers)


class WholeResponse:
    """A JSON response that is in memory; implements the port `UpstreamResponse`."""

    is_received = True

    def __init__(self, status: int, headers: Headers, content: bytes) -> None:
        self.status = status
        self.headers: Headers = (*_JSON, (b"content-length", b"%d" % len(content)), *headers)
        self.is_ended = False
        self._content = content

    async def read(self) -> bytes:
        """Return the body, then empty bytes."""
        content, self._content = self._content, b""
        self.is_ended = True
        return content

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Do nothing: all of it has come."""

    def close(self) -> None:
        """Do nothing."""
