"""Carrying an answer to the client and its record to the log.

Rule (BEHAVIOUR B32b): bytes go on as they come, except that the first is released when the user's turn is durable and
the one that completes the answer when the answer is. What broke upstream breaks at the client, and is recorded as it
was.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.engine.bus import EventBus
from proxy.engine.durability import CommitGate
from proxy.engine.ports import Archive, Client, Clock, UpstreamResponse
from proxy.engine.readings import Readings, Received, is_event_stream
from proxy.engine.tape import Tape
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import Completeness, Headers, Opening, Outcome, Timings, Trailer
from proxy.model.record import Record
from proxy.wire.format import Format
from proxy.wire.headers import find, forward_response, keep_for_log, redact
from proxy.wire.sse import EVENT_END, MARKER_REACH

_LINGER_SECONDS = 0.05
_LAST_EVENT_SECONDS = 2.0
_COMPANY_SECONDS = 0.003


class Entry:
    """The opening of an exchange on its way to the log: appended once, when its body is known or its answer ends.

    Unless it is urgent it may wait a few milliseconds for company: an answer that is there by then shares its commit. A
    streamed answer never is, for its first byte waits for the opening.
    """

    def __init__(self, archive: Archive, make: Callable[[], tuple[Opening, *tuple[Record, ...]]]) -> None:
        self._archive = archive
        self._make = make
        self.opening: Opening | None = None
        self.commit: asyncio.Future[bool] | None = None

    def append(self, *, is_urgent: bool = False) -> Opening:
        """Queue the opening if that has not been done."""
        if self.opening is None:
            records = self._make()
            self.opening = records[0]
            self.commit = self._archive.append(*records, is_urgent=is_urgent)
        return self.opening


@dataclass(slots=True)
class Flight:
    """One round under way: who asked for what, and what has come of it so far. Times on the monotonic clock.

    `secrets` are the credentials that may be echoed; they live as long as the call.
    """

    exchange: str
    entry: Entry
    format: Format | None
    upstream: str
    client: Client
    tape: Tape
    secrets: tuple[bytes, ...]
    k: int = 0
    began: float = 0.0
    head_at: float = 0.0
    first_at: float = 0.0


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

    def note(self, piece: bytes) -> None:
        """Keep a piece for the record."""
        if not self._flight.first_at:
            self._flight.first_at = self._clock.monotonic()
        self._flight.tape.add(piece)

    def take(self, piece: bytes) -> bool:
        """Pass a piece on; False where it is held from here on, or the client is slow."""
        self.note(piece)
        cut = self._ender.find(piece) if self._ender is not None else -1
        if cut < 0:
            return self._write(piece)
        if cut:
            self._write(piece[:cut])
        self.held = piece[cut:]
        return False


class Relay:
    """Pumps answers. Every path through `carry` leaves exactly one outcome per round in the log."""

    def __init__(self, archive: Archive, gate: CommitGate, readings: Readings, bus: EventBus, clock: Clock) -> None:
        self._archive = archive
        self._gate = gate
        self._readings = readings
        self._bus = bus
        self._clock = clock

    @property
    def problem(self) -> str:
        """Why calls cannot be recorded as promised; empty while they can."""
        return self._gate.problem

    def enter(self, make: Callable[[], tuple[Opening, *tuple[Record, ...]]]) -> Entry:
        """An opening that goes to this relay's log, together with the records that `make` puts behind it."""
        return Entry(self._archive, make)

    async def carry(self, flight: Flight, sending: Awaitable[UpstreamResponse]) -> None:
        """Await the answer and pass it on.

        Raises ProxyError where none came; a cancelled call is recorded as aborted.
        """
        flight.began = self._clock.monotonic()
        flushing = self._hold(flight.entry)
        try:
            response = await sending
        except ProxyError as error:
            self._record(flight, 0, (), "failed", str(error))
            raise
        except BaseException:
            self._record(flight, 0, (), "aborted", "")
            raise
        finally:
            if flushing is not None:
                flushing.cancel()
        flight.head_at = self._clock.monotonic()
        try:
            await self._pump(flight, response)
        finally:
            response.close()

    def _hold(self, entry: Entry) -> asyncio.TimerHandle | None:
        """Let an opening that is not durable yet wait for company, a few milliseconds at most."""
        if entry.commit is not None and entry.commit.done():
            return None
        return asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self._archive.flush)

    async def _pump(self, flight: Flight, response: UpstreamResponse) -> None:
        status, headers = response.status, response.headers
        completeness: Completeness = "aborted"
        problem = ""
        try:
            held, is_ended = await self._pass_on(flight, response)
            completeness = "complete"
        except UpstreamUnreachable as error:
            completeness, problem = "truncated", str(error)
        finally:
            recorded = self._record(flight, status, headers, completeness, problem)
        if completeness == "truncated":
            flight.client.abort()
            return
        await self._gate.wait(recorded)
        _start(flight, response)
        flight.client.write(held, is_last=is_ended)
        if not is_ended:
            await self._pass_rest(flight, response)

    async def _pass_on(self, flight: Flight, response: UpstreamResponse) -> tuple[bytes, bool]:
        """Pass on all but the bytes that complete the answer; returns those, and whether the body ends with them."""
        client, tape = flight.client, flight.tape
        if response.is_received:
            content = await response.read()
            flight.first_at = self._clock.monotonic()
            tape.add(content)
            return content, True
        commit = flight.entry.commit
        if commit is not None and not commit.done():
            self._archive.flush()
            await self._gate.wait(commit)
        _start(flight, response)
        passage = Passage(flight, _find_ender(flight, response), self._clock)
        while not response.is_received:
            await response.pump(passage.take)
            if passage.held:
                return await _linger(response, tape, passage.held)
            await client.drain()
        content = await response.read()
        passage.note(content)
        return content, True

    async def _pass_rest(self, flight: Flight, response: UpstreamResponse) -> None:
        """What comes after a stream's end marker: passed on at once, recorded as trailers up to the cap."""
        i = 0
        try:
            while not response.is_ended:
                chunk = await response.read()
                flight.tape.add(chunk)
                if chunk and not flight.tape.is_capped:
                    kept = redact(chunk, flight.secrets, is_error=False)
                    self._archive.append(Trailer(flight.exchange, flight.k, i, kept))
                    i += 1
                if not flight.client.write(chunk, is_last=response.is_ended):
                    await flight.client.drain()
        except UpstreamUnreachable:
            flight.client.abort()

    def _record(
        self, flight: Flight, status: int, headers: Headers, completeness: Completeness, problem: str
    ) -> "asyncio.Future[bool]":
        flight.entry.append()
        tape, now = flight.tape, self._clock.monotonic()
        timings = Timings(
            _since(flight.began, flight.head_at), _since(flight.began, flight.first_at), _since(flight.began, now)
        )
        outcome = Outcome(
            flight.exchange,
            flight.k,
            status,
            keep_for_log(headers),
            completeness,
            redact(tape.content, flight.secrets, is_error=status >= 400),
            tape.size,
            tape.whole_digest,
            timings,
            problem,
        )
        commit = self._archive.append(outcome)
        self._announce(flight, outcome)
        if flight.format is not None and tape.size:
            self._readings.submit(Received(flight.exchange, flight.k, flight.format, outcome.headers, outcome.received))
        return commit

    def _announce(self, flight: Flight, outcome: Outcome) -> None:
        opening = flight.entry.append()
        self._bus.publish(
            ExchangeRecorded(
                flight.exchange,
                opening.session.id,
                opening.kind,
                opening.wire,
                flight.upstream,
                outcome.status,
                outcome.completeness,
                opening.body.size,
                outcome.size,
                outcome.timings.first_byte_ms / 1000,
                outcome.timings.total_ms / 1000,
                is_readable=flight.format is not None and outcome.size > 0,
            )
        )


def _start(flight: Flight, response: UpstreamResponse) -> None:
    """The answer's head, if it has not been sent."""
    flight.client.start(response.status, forward_response(response.headers))


def _find_ender(flight: Flight, response: UpstreamResponse) -> EndFinder | None:
    """What looks for the end of a stream; None where there is no stream, or none that can be read as it passes."""
    if flight.format is None or not is_event_stream(response.headers):
        return None
    if find(response.headers, b"content-encoding") not in (b"", b"identity"):
        return None
    return EndFinder(flight.format.end_marker)


async def _linger(response: UpstreamResponse, tape: Tape, held: bytes) -> tuple[bytes, bool]:
    """Wait for the rest of the event that ends a stream, and a moment for the body to end behind it."""
    try:
        async with asyncio.timeout(_LAST_EVENT_SECONDS) as waiting:
            while not response.is_ended:
                if EVENT_END.search(held):
                    waiting.reschedule(asyncio.get_running_loop().time() + _LINGER_SECONDS)
                chunk = await response.read()
                tape.add(chunk)
                held += chunk
    except (TimeoutError, UpstreamUnreachable):
        pass  # what comes later is passed on later; a break shows again at the next read
    return held, response.is_ended


def _since(began: float, at: float) -> float:
    return int((at - began) * 1_000_000) / 1000 if at else 0.0
