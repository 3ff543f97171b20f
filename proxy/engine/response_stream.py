"""Reading a response as it comes: passing it on up to its end, or holding it back while it may be a refusal.

BEHAVIOUR B8, B8a, B20a.
"""

import asyncio
import re

from proxy.engine.ports import Clock, UpstreamResponse
from proxy.engine.response_reader import is_event_stream
from proxy.engine.round import REFUSAL_BYTES, CappedBuffer, Refusal, RetrySource, RoundState, Start
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.wire.body import decode_content
from proxy.wire.headers import find, forward_response
from proxy.wire.streams import EVENT_END, MARKER_REACH

_LINGER_SECONDS = 0.05
_LAST_EVENT_SECONDS = 2.0

# Well below the time after which clients give up on a silent server.
_HOLD_SECONDS = 5.0
_WAITING = b": waiting\n\n"
_COMMENTS = re.compile(rb"(?:[\r\n]*:[^\r\n]*[\r\n]+)+")
_REFUSED = frozenset({*range(400, 500), 500})  # 500 is how some local servers say it
_SUCCESS = range(200, 300)


class EndFinder:
    """Finds the line that ends a stream in chunks that may cut it anywhere."""

    def __init__(self, marker: re.Pattern[bytes]) -> None:
        self._marker = marker
        self._carry = b"\n"  # a stream begins at the start of a line

    def find(self, chunk: bytes) -> int:
        """Where in this chunk the end begins (0 if it began in the one before), -1 if it is not here."""
        window = self._carry + chunk
        known = len(self._carry)
        self._carry = window[-MARKER_REACH:]
        match = self._marker.search(window, 1)
        return max(0, match.start() - known) if match else -1


class StreamRelay:
    """Passes pieces of an answer on until its end marker; holds what begins with that."""

    def __init__(self, flight: RoundState, ender: EndFinder | None, clock: Clock) -> None:
        self._flight = flight
        self._write = flight.client.write
        self._ender = ender
        self._clock = clock
        self.held = b""

    def take(self, piece: bytes) -> bool:
        """Keep a piece for the record and pass it on; False where it is held from here on, or the client is slow."""
        self._flight.note(piece, self._clock)
        return self.pass_on(piece)

    def pass_on(self, piece: bytes) -> bool:
        """Pass on what is kept already; as `take`."""
        cut = self._ender.find(piece) if self._ender is not None else -1
        if cut < 0:
            return self._write(piece)
        if cut:
            self._write(piece[:cut])
        self.held = piece[cut:]
        return False


def find_ender(flight: RoundState, headers: Headers) -> EndFinder | None:
    """What looks for the end of a stream; None where there is no stream, or none that can be read as it passes."""
    return EndFinder(flight.format.end_marker) if flight.format is not None and is_plain_stream(headers) else None


def is_plain_stream(headers: Headers) -> bool:
    """Whether a body is a stream of events that can be read as it passes."""
    return is_event_stream(headers) and find(headers, b"content-encoding") in (b"", b"identity")


async def read_final_event(response: UpstreamResponse, tape: CappedBuffer, held: bytes) -> tuple[bytes, bool]:
    """Wait for the rest of the event that ends a stream, and a moment for the body to end behind it.

    What still comes in that moment does not make it longer.
    """
    is_whole = False
    try:
        async with asyncio.timeout(_LAST_EVENT_SECONDS) as waiting:
            while not response.is_ended:
                if not is_whole and EVENT_END.search(held):
                    is_whole = True
                    waiting.reschedule(asyncio.get_running_loop().time() + _LINGER_SECONDS)
                chunk = await response.read()
                tape.add(chunk)
                held += chunk
    except (TimeoutError, UpstreamUnreachable):
        pass  # what comes later is passed on later; a break shows again at the next read
    return held, response.is_ended


def find_hold(flight: RoundState, response: UpstreamResponse, clock: Clock) -> "ResponseHold | None":
    """What holds this answer back; None where it goes on as it comes."""
    rescuer, status = flight.rescuer, response.status
    if rescuer is None or (status not in _REFUSED and not (rescuer.is_guarded and status in _SUCCESS)):
        return None
    if status in _SUCCESS and is_event_stream(response.headers) and not is_plain_stream(response.headers):
        return None
    return ResponseHold(flight, rescuer, response, clock)


def is_open_stream(headers: Headers) -> bool:
    """Whether an answer is a stream of events in which more can stand than the upstream sent."""
    return is_plain_stream(headers) and not find(headers, b"content-length")


class ResponseHold:
    """Holds the beginning of one answer: in `held`, what the client has not got yet."""

    def __init__(self, flight: RoundState, rescuer: RetrySource, response: UpstreamResponse, clock: Clock) -> None:
        self._flight = flight
        self._rescuer = rescuer
        self._response = response
        self._clock = clock
        self._start: Start = "undecided"
        self._pieces = bytearray()

    @property
    def held(self) -> bytes:
        """What came and has not gone on."""
        return bytes(self._pieces)

    async def hold(self) -> Refusal | None:
        """Return when it is known whether this may be a refusal, and which; None for all that is to go on."""
        is_stream = self._response.status in _SUCCESS and is_open_stream(self._response.headers)
        try:
            is_suspect = await (self._hold_events() if is_stream else self._hold_whole())
        except UpstreamUnreachable:
            return None  # it shows again at the next read, behind what came
        if not is_suspect or len(self._pieces) > REFUSAL_BYTES:
            return None
        status, headers = self._response.status, self._response.headers
        return Refusal(status, headers, self.held)

    async def _hold_whole(self) -> bool:
        """Hold a body that makes sense as a whole only; True if all of it is here."""
        response = self._response
        try:
            async with asyncio.timeout(_HOLD_SECONDS):
                while not response.is_ended and len(self._pieces) <= REFUSAL_BYTES:
                    self._keep(await response.read())
        except TimeoutError:
            pass  # an answer that takes its time; it goes on as it comes
        return response.is_ended

    async def _hold_events(self) -> bool:
        """Hold a stream until its first content; True if it is a refusal, or has ended without any."""
        response = self._response
        while self._start == "undecided" and not response.is_received:
            try:
                async with asyncio.timeout(_HOLD_SECONDS):
                    await response.pump(self._take)
            except TimeoutError:
                self._send(_WAITING)
        if self._start == "undecided":
            self._take(await response.read())
        if self._start == "overflow":
            self._pieces[:], _ = await read_final_event(response, self._flight.tape, self.held)
        return self._start != "content"

    def _take(self, piece: bytes) -> bool:
        """Hold a piece of a stream; False when what it begins with is known."""
        self._keep(piece)
        held = self._pieces
        if not self._response.is_received and (comments := _COMMENTS.match(held)):
            self._send(bytes(held[: comments.end()]))
            del held[: comments.end()]
        if len(held) > REFUSAL_BYTES:
            self._start = "content"
        elif EVENT_END.search(held, max(0, len(held) - len(piece) - 3)):
            self._start = self._rescuer.read_start(bytes(held))
        return self._start == "undecided"

    def _keep(self, piece: bytes) -> None:
        self._flight.note(piece, self._clock)
        self._pieces += piece

    def _send(self, comments: bytes) -> None:
        """Comments, and the head before them."""
        flight, response = self._flight, self._response
        flight.client.start(response.status, forward_response(response.headers))
        flight.client.write(comments)
        flight.is_head_out = True


def spell_in_stream(headers: Headers, content: bytes) -> bytes:
    """A body that is no stream, as the event of a stream that was begun; clients of all wires take it for an error."""
    try:
        plain = decode_content(content, find(headers, b"content-encoding").decode("latin-1"), REFUSAL_BYTES)
    except ValueError:
        plain = b""
    lines = plain.splitlines() or [b""]
    return b"event: error\n%s\n" % b"".join([b"data: %s\n" % line for line in lines])
