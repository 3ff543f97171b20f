"""Carrying an answer to the client and its record to the log.

Rule (BEHAVIOUR B32b): bytes go on as they come, except that the first is released when the user's turn is durable and
the one that completes the answer when the answer is. What broke upstream breaks at the client, and is recorded as it
was.
"""

import asyncio
from collections.abc import Awaitable, Callable

from proxy.engine.behind import Behind
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.ports import Archive, Clock, RequestBody, UpstreamResponse
from proxy.engine.response_reader import ResponseReader, UnreadAnswer
from proxy.engine.response_stream import (
    ResponseHold,
    StreamRelay,
    find_ender,
    find_hold,
    is_open_stream,
    read_final_event,
    spell_in_stream,
)
from proxy.engine.round import PendingRecord, Retry, RoundState
from proxy.engine.runtime import EventBus
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.events import ExchangeRecorded, LimitsTold
from proxy.model.exchange import Completeness, Headers, Opening, Outcome, Timings, Trailer
from proxy.model.log import Record
from proxy.model.manifest import digest_of
from proxy.wire.credentials import redact, redact_answer, redact_headers, redact_quickly
from proxy.wire.headers import forward_response, keep_for_log, tells_limits

Send = Callable[[bytes | RequestBody], Awaitable[UpstreamResponse]]

_COMPANY_SECONDS = 0.003
_ERROR, _TOO_MANY = 400, 429


class Relay:
    """Pumps answers. Every path through `carry` leaves exactly one outcome per round in the log."""

    def __init__(
        self, archive: Archive, gate: DurabilityWaiter, readings: ResponseReader, bus: EventBus, clock: Clock
    ) -> None:
        self._archive = archive
        self._gate = gate
        self._readings = readings
        self._bus = bus
        self._clock = clock

    @property
    def problem(self) -> str:
        """Why calls cannot be recorded as promised; empty while they can."""
        return self._gate.problem

    def enter(
        self, make: Callable[[], tuple[Opening, *tuple[Record, ...]]], *, is_urgent: bool = False
    ) -> PendingRecord:
        """An opening that goes to this relay's log, together with the records that `make` puts behind it.

        It is queued as soon as the request is on its way upstream, before anything else can be.
        """
        return PendingRecord(self._archive, make, is_urgent=is_urgent)

    async def confirm(self, entry: PendingRecord) -> bool:
        """Whether all that was queued of an exchange is in the log, waited for as long as an answer waits."""
        if entry.commit is None:
            return False
        self._archive.flush()
        return await self._gate.confirm(entry.commit)

    def abandon(self, flight: RoundState) -> None:
        """Record a round that was given up before anything was sent."""
        flight.began = self._clock.monotonic()
        self._record(flight, 0, (), "aborted", "", b"")

    async def carry(self, flight: RoundState, send: Send, body: bytes | RequestBody) -> None:
        """Send the body, await the answer and pass it on; where it is refused and a rescuer has something else to send,
        the answer to that.

        Raises ProxyError where none came; a cancelled call is recorded as aborted.
        """
        retry = await self._fly(flight, send(body))
        while retry is not None:
            flight = flight.go_again(retry.round.k)
            flight.entry.extend(*[record for record in (retry.round, retry.plan) if record is not None])
            retry = await self._fly(flight, send(retry.body))

    async def _fly(self, flight: RoundState, sending: Awaitable[UpstreamResponse]) -> Retry | None:
        """One round; a retry in place of all that was not passed on yet."""
        response = await self._await_head(flight, sending)
        try:
            begun = b""
            if flight.k and flight.rescuer is not None and response.status < _ERROR:
                await flight.rescuer.accept()
            if flight.rescuer is not None and (guard := find_hold(flight, response, self._clock)) is not None:
                if (retry := await self._rescue(flight, response, guard)) is not None:
                    return retry
                begun = guard.held
            await self._pump(flight, response, begun)
        finally:
            response.close()
        return None

    async def _await_head(self, flight: RoundState, sending: Awaitable[UpstreamResponse]) -> UpstreamResponse:
        flight.began = self._clock.monotonic()
        flushing: asyncio.TimerHandle | None = None

        def enter() -> None:
            nonlocal flushing
            if flight.is_whole:
                flight.entry.append()
            flushing = self._hold(flight.entry)

        try:
            response = await Behind(sending, enter)
        except ProxyError as error:
            self._record(flight, 0, (), "failed", str(error), b"")
            raise
        except BaseException:
            self._record(flight, 0, (), "aborted", "", b"")
            raise
        finally:
            if flushing is not None:
                flushing.cancel()
        flight.head_at = self._clock.monotonic()
        return response

    def _hold(self, entry: PendingRecord) -> asyncio.TimerHandle | None:
        """Let an opening that is not durable yet wait for company, and what was postponed for an answer that is there
        at once; a few milliseconds at most.
        """
        if _is_durable(entry) and entry.is_settled:
            return None
        return asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self._hurry, entry)

    def _hurry(self, entry: PendingRecord) -> None:
        entry.settle()
        if not _is_durable(entry):
            self._archive.flush()

    async def _rescue(self, flight: RoundState, response: UpstreamResponse, guard: ResponseHold) -> Retry | None:
        """Hold the answer back as long as it may be a refusal; what to send in its place, where that is to be."""
        assert flight.rescuer is not None, "only what can be rescued is guarded"
        completeness: Completeness = "aborted"
        try:
            if not response.is_received:
                await self._make_durable(flight)
            refusal = await guard.hold()
            if refusal is None:
                return None
            completeness, ended_at = "complete", self._clock.monotonic()
            retry = await flight.rescuer.rescue(refusal)
            kept = await self._search(flight, response) if retry is not None else b""
        except BaseException:
            kept = await self._search_anyhow(flight, response)
            self._record(flight, response.status, response.headers, completeness, "", kept)
            raise
        if retry is not None:
            flight.ended_at, flight.is_final = ended_at, False
            self._record(flight, response.status, response.headers, completeness, "", kept)
        return retry

    async def _make_durable(self, flight: RoundState) -> None:
        """Wait for what the first byte waits for."""
        flight.entry.settle()
        commit = flight.entry.commit
        if commit is not None and not commit.done():
            self._archive.flush()
        if commit is not None:
            await self._gate.pass_on(commit)

    async def _pump(self, flight: RoundState, response: UpstreamResponse, begun: bytes) -> None:
        """Pass an answer on, of which `begun` was read and held back."""
        status, headers = response.status, response.headers
        held, is_ended, break_off = b"", False, None
        try:
            try:
                held, is_ended = await self._pass_on(flight, response, begun)
            except UpstreamUnreachable as error:
                break_off = str(error)
            kept = await self._search(flight, response)
        except BaseException:
            self._record(flight, status, headers, "aborted", "", await self._search_anyhow(flight, response))
            raise
        if break_off is not None:
            self._record(flight, status, headers, "truncated", break_off, kept)
            flight.client.abort()
            return
        outcome, recorded = self._keep(flight, status, headers, "complete", "", kept)
        try:
            await self._gate.pass_on(recorded)
            _start(flight, response)
            flight.client.write(held, is_last=is_ended)
        finally:
            self._tell(flight, outcome)  # behind the writing, which nothing can come between
        if not is_ended:
            await self._pass_rest(flight, response)

    async def _pass_on(self, flight: RoundState, response: UpstreamResponse, begun: bytes) -> tuple[bytes, bool]:
        """Pass on all but the bytes that complete the answer; returns those, and whether the body ends with them."""
        if flight.is_head_out and not is_open_stream(response.headers):
            return await self._embed(flight, response), True
        if response.is_received:
            return begun + await self._read(flight, response), True
        await self._make_durable(flight)
        _start(flight, response)
        passage = StreamRelay(flight, find_ender(flight, response.headers), self._clock)
        if begun:
            passage.pass_on(begun)
        while not passage.held and not response.is_received:
            await flight.client.drain()
            await response.pump(passage.take)
        if passage.held:
            return await read_final_event(response, flight.tape, passage.held)
        return await self._read(flight, response), True

    async def _read(self, flight: RoundState, response: UpstreamResponse) -> bytes:
        """What comes next of an answer."""
        content = await response.read()
        flight.note(content, self._clock)
        return content

    async def _embed(self, flight: RoundState, response: UpstreamResponse) -> bytes:
        """An answer that is no stream, as an event of the stream that the client is reading already."""
        while not response.is_ended:
            await self._read(flight, response)
        return spell_in_stream(response.headers, flight.tape.content)

    async def _pass_rest(self, flight: RoundState, response: UpstreamResponse) -> None:
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

    async def _search(self, flight: RoundState, response: UpstreamResponse) -> bytes:
        """What of an answer may rest in the log; what takes long to search is searched in a thread."""
        content, headers, status = flight.tape.content, response.headers, response.status
        kept = redact_quickly(content, headers, status, flight.secrets)
        if kept is None:
            kept = await asyncio.to_thread(redact_answer, content, headers, status, flight.secrets, flight.tape.cap)
        return kept

    async def _search_anyhow(self, flight: RoundState, response: UpstreamResponse) -> bytes:
        """The same of a call that was cancelled; nothing where it is cancelled once more, which is in a hurry."""
        try:
            return await self._search(flight, response)
        except asyncio.CancelledError:
            return b""

    def _record(
        self, flight: RoundState, status: int, headers: Headers, completeness: Completeness, problem: str, kept: bytes
    ) -> None:
        outcome, _ = self._keep(flight, status, headers, completeness, problem, kept)
        self._tell(flight, outcome)

    def _keep(
        self, flight: RoundState, status: int, headers: Headers, completeness: Completeness, problem: str, kept: bytes
    ) -> tuple[Outcome, "asyncio.Future[bool]"]:
        """How a round ended goes to the log; the future is done when it is there."""
        flight.entry.append()
        began, ended_at = flight.began, flight.ended_at or self._clock.monotonic()
        timings = Timings(_since(began, flight.head_at), _since(began, flight.first_at), _since(began, ended_at))
        outcome = Outcome(
            flight.exchange,
            flight.k,
            status,
            redact_headers(keep_for_log(headers), flight.secrets, is_error=status >= _ERROR),
            completeness,
            *_measure(flight, kept),
            timings,
            problem,
        )
        return outcome, self._archive.append(outcome)

    def _tell(self, flight: RoundState, outcome: Outcome) -> None:
        """Let everybody know who makes something of it."""
        flight.entry.settle()
        self._announce(flight, outcome)
        if flight.format is None or not outcome.size:
            return
        first_byte_s = outcome.timings.first_byte_ms / 1000
        content = outcome.received
        told = (outcome.headers, content, first_byte_s, flight.secrets)
        received = UnreadAnswer(flight.exchange, flight.k, flight.format, *told)
        if flight.is_final:
            self._readings.submit(received)
        else:
            self._readings.read_refusal(received)

    def _announce(self, flight: RoundState, outcome: Outcome) -> None:
        opening = flight.entry.append()
        self._bus.publish(_sum_up(flight, opening, outcome))
        if outcome.status == _TOO_MANY or tells_limits(outcome.headers):
            told = (opening.session.tenant, opening.model, outcome.status, outcome.headers)
            self._bus.publish(LimitsTold(flight.exchange, flight.upstream, *told))


def _measure(flight: RoundState, kept: bytes) -> tuple[bytes, int, bytes]:
    """What is kept of an answer, how much it counts, and the digest of all of it where not all is kept."""
    tape = flight.tape
    if tape.is_capped:
        return kept, tape.size, tape.whole_digest
    return (kept, len(kept), b"") if kept else (b"", tape.size, digest_of(tape.content) if tape.size else b"")


def _is_durable(entry: PendingRecord) -> bool:
    return entry.commit is not None and entry.commit.done()


def _sum_up(flight: RoundState, opening: Opening, outcome: Outcome) -> ExchangeRecorded:
    return ExchangeRecorded(
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
        is_final=flight.is_final,
        model=opening.model,
        problem=outcome.error,
    )


def _start(flight: RoundState, response: UpstreamResponse) -> None:
    """The answer's head, if it has not been sent."""
    flight.client.start(response.status, forward_response(response.headers))


def _since(began: float, at: float) -> float:
    return int((at - began) * 1_000_000) / 1000 if at else 0.0
