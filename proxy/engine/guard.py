"""Holding an answer back until it is known whether it is a refusal (BEHAVIOUR B8, B20a).

Rule: bytes are held, never changed; what is no refusal goes on as it came. Comments at the beginning of a stream are
not held, and a client that waits long gets one of ours: with it the head is out, and a retry goes on in that stream.
"""

import asyncio
import re

from proxy.engine.flight import Flight
from proxy.engine.passage import is_plain_stream, linger
from proxy.engine.ports import Clock, UpstreamResponse
from proxy.engine.readings import is_event_stream
from proxy.engine.rescue import REFUSAL_BYTES, Refusal, Rescuer, Start
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.wire.body import decode_content
from proxy.wire.headers import find, forward_response
from proxy.wire.streams import EVENT_END

# Well below the time after which clients give up on a silent server.
_HOLD_SECONDS = 5.0
_WAITING = b": waiting\n\n"
_COMMENTS = re.compile(rb"(?:[\r\n]*:[^\r\n]*[\r\n]+)+")
_REFUSED = frozenset({*range(400, 500), 500})  # 500 is how some local servers say it
_SUCCESS = range(200, 300)


def find_guard(flight: Flight, response: UpstreamResponse, clock: Clock) -> "Guard | None":
    """What holds this answer back; None where it goes on as it comes."""
    rescuer, status = flight.rescuer, response.status
    if rescuer is None or (status not in _REFUSED and not (rescuer.is_guarded and status in _SUCCESS)):
        return None
    if status in _SUCCESS and is_event_stream(response.headers) and not is_plain_stream(response.headers):
        return None
    return Guard(flight, rescuer, response, clock)


def is_open_stream(headers: Headers) -> bool:
    """Whether an answer is a stream of events in which more can stand than the upstream sent."""
    return is_plain_stream(headers) and not find(headers, b"content-length")


class Guard:
    """Holds the beginning of one answer: in `held`, what the client has not got yet."""

    def __init__(self, flight: Flight, rescuer: Rescuer, response: UpstreamResponse, clock: Clock) -> None:
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
            self._pieces[:], _ = await linger(response, self._flight.tape, self.held)
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
