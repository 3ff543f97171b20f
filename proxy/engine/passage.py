"""Passing an answer on until the bytes that complete it.

Rule: bytes go on as they come, in any pieces; those that complete the answer are held, for they wait for its record.
"""

import asyncio
import re

from proxy.engine.flight import Flight
from proxy.engine.ports import Clock, UpstreamResponse
from proxy.engine.readings import is_event_stream
from proxy.engine.tape import Tape
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.wire.headers import find
from proxy.wire.streams import EVENT_END, MARKER_REACH

_LINGER_SECONDS = 0.05
_LAST_EVENT_SECONDS = 2.0


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


class Passage:
    """Passes pieces of an answer on until its end marker; holds what begins with that."""

    def __init__(self, flight: Flight, ender: EndFinder | None, clock: Clock) -> None:
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


def find_ender(flight: Flight, headers: Headers) -> EndFinder | None:
    """What looks for the end of a stream; None where there is no stream, or none that can be read as it passes."""
    return EndFinder(flight.format.end_marker) if flight.format is not None and is_plain_stream(headers) else None


def is_plain_stream(headers: Headers) -> bool:
    """Whether a body is a stream of events that can be read as it passes."""
    return is_event_stream(headers) and find(headers, b"content-encoding") in (b"", b"identity")


async def linger(response: UpstreamResponse, tape: Tape, held: bytes) -> tuple[bytes, bool]:
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
