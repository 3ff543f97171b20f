"""Relaying a response to the client, and its record to the log.

Bytes are passed on at once, with two exceptions: the first byte waits until the request is durable, the last one until
the response is. A response that breaks off upstream breaks off at the client and is recorded as such.

A client that hangs up cancels the task of its call. The round under way is then recorded as aborted, with what came of
its response (status 0: nothing), and the connection to the upstream is closed. A response of which all has come is
recorded as complete, also if only its commit was waited for. Between two rounds of an answer, the one that ended is
complete, and the next one is not sent: if it was recorded already, it is aborted with status 0.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from proxy.engine.durability import DurabilityWaiter
from proxy.engine.open_exchange import HiddenRounds, OpenExchange, Retries, Retry
from proxy.engine.ports import Archive, Clock, RequestBody, UpstreamResponse
from proxy.engine.response_reader import AnswerKind, ResponseReader, UnreadAnswer, is_event_stream, is_too_short
from proxy.engine.response_stream import (
    StreamRelay,
    WithheldResponse,
    is_encoded,
    is_open_stream,
    may_refuse,
    read_final_event,
    set_length,
    spell_in_stream,
)
from proxy.engine.runtime import EngineBus
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.events import ExchangeRecorded, LimitsTold
from proxy.model.exchange import SUCCESS, Completeness, Headers, Outcome, Timings, Trailer
from proxy.model.log import Record
from proxy.model.manifest import compute_digest
from proxy.wire.credentials import redact, redact_answer, redact_headers, redact_quickly
from proxy.wire.headers import forward_response, has_rate_limits, select_stored

T = TypeVar("T")
Send = Callable[[bytes | RequestBody], Awaitable[UpstreamResponse]]
"""Sends a body upstream, with everything else that belongs to the request."""

# Seconds that a record waits to share its commit with others, and that deferred work waits for a quick response.
_COMPANY_SECONDS = 0.003
_OK, _ERROR, _TOO_MANY = 200, 400, 429
_ENDINGS: dict[Completeness, str] = {"failed": "failed", "truncated": "broke off"}

_log = logging.getLogger("palimpsest")


class RoundRecorder:
    """Records how rounds ended, and announces it."""

    def __init__(self, archive: Archive, reader: ResponseReader, bus: EngineBus, clock: Clock) -> None:
        self.archive = archive
        self._reader = reader
        self._bus = bus
        self._clock = clock

    async def redact(self, exchange: OpenExchange, response: UpstreamResponse) -> bytes:
        """Return a response's bytes with credentials redacted, for the log. Search long ones in a thread."""
        content, headers, status = exchange.buffer.content, response.headers, response.status
        kept = redact_quickly(content, headers, status, exchange.secrets)
        if kept is None:
            cap = exchange.buffer.cap
            kept = await asyncio.to_thread(redact_answer, content, headers, status, exchange.secrets, cap)
        return kept

    async def redact_anyway(self, exchange: OpenExchange, response: UpstreamResponse) -> bytes:
        """Do the same for a cancelled call. Keep nothing if it is cancelled again, since that is urgent."""
        try:
            return await self.redact(exchange, response)
        except asyncio.CancelledError:
            return b""

    def end_round(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse | None,
        completeness: Completeness,
        problem: str = "",
        kept: bytes = b"",
    ) -> None:
        """Record and announce the outcome of a round from which the client gets nothing more."""
        outcome, _ = self.record(exchange, response, completeness, problem, kept)
        self.announce(exchange, outcome)

    def record(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse | None,
        completeness: Completeness,
        problem: str = "",
        kept: bytes = b"",
        *,
        also: Sequence[Record] = (),
    ) -> tuple[Outcome, "asyncio.Future[bool]"]:
        """Queue the outcome of a round, and what is recorded `also`. The future is done when both are durable.

        `response` is None if none came.
        """
        exchange.record_opening()
        status, headers = (response.status, response.headers) if response is not None else (0, ())
        buffer, secrets = exchange.buffer, exchange.secrets
        size, digest = len(kept), b""
        if buffer.is_capped:
            size, digest = buffer.size, buffer.whole_digest
        elif not kept and buffer.size:  # bytes that were not searched for credentials are not kept
            size, digest = buffer.size, compute_digest(buffer.content)
        moments = exchange.head_at, exchange.first_at, exchange.ended_at or self._clock.monotonic()
        # milliseconds with microsecond precision; 0 if it has not happened
        head_ms, first_ms, end_ms = [int((at - exchange.began) * 1_000_000) / 1000 if at else 0.0 for at in moments]
        overhead_ms = None if exchange.k or exchange.overhead is None else round(exchange.overhead * 1000, 3)
        timings = Timings(head_ms, first_ms, end_ms, overhead_ms)
        outcome = Outcome(
            exchange.id,
            exchange.k,
            status,
            redact_headers(select_stored(headers), secrets, is_error=status >= _ERROR),
            completeness,
            kept,
            size,
            digest,
            timings,
            problem,
        )
        return outcome, self.archive.append(outcome, *also)

    def announce(self, exchange: OpenExchange, outcome: Outcome) -> None:
        """Publish the end of a round, and queue its response for reading."""
        opening = exchange.opening
        assert opening is not None, "the opening is recorded with the outcome at the latest"
        if outcome.completeness not in ("complete", "aborted"):  # the line contains no body, query value or credential
            reason = outcome.error or "unknown reason"
            named = {"exchange": exchange.id, "session": opening.session.id, "upstream": exchange.upstream}
            _log.warning(
                "a call %s, status %d: %s", _ENDINGS[outcome.completeness], outcome.status, reason, extra=named
            )
        ended = ExchangeRecorded(
            exchange.id,
            opening.session.id,
            opening.kind,
            opening.wire,
            exchange.upstream,
            outcome.status,
            outcome.completeness,
            opening.body.size,
            outcome.size,
            outcome.timings.first_byte_ms / 1000,
            outcome.timings.total_ms / 1000,
            is_readable=exchange.format is not None and outcome.size > 0,
            is_final=exchange.is_final,
            model=opening.model,
            is_unreached=exchange.is_unreached,
            overhead_s=exchange.overhead,
            k=exchange.k,
            plan=exchange.plans[-1] if exchange.plans else None,
            error=outcome.error,
        )
        self._bus.publish(ended)
        if outcome.status == _TOO_MANY or has_rate_limits(outcome.headers):
            limits = (opening.session.tenant, opening.model, outcome.status, outcome.headers)
            self._bus.publish(LimitsTold(exchange.id, exchange.upstream, *limits))
        if exchange.format is None or not outcome.size:
            return
        kind: AnswerKind = "whole"
        if exchange.is_hidden or (exchange.is_final and exchange.rounds is not None and exchange.rounds.is_continued):
            kind = "stitched" if exchange.is_final else "hidden"
        told_by = (outcome.headers, outcome.received, ended, exchange.secrets)
        unread = UnreadAnswer(exchange.id, exchange.k, exchange.format, *told_by, kind)
        if exchange.is_final or exchange.is_hidden:
            self._reader.submit(unread)
        else:
            self._reader.read_refusal(unread)


class Relay:
    """Relays responses. Every path through `carry` leaves exactly one outcome per round in the log."""

    def __init__(
        self, archive: Archive, durability: DurabilityWaiter, reader: ResponseReader, bus: EngineBus, clock: Clock
    ) -> None:
        self.archive = archive
        self.recorder = RoundRecorder(archive, reader, bus, clock)
        self.durability = durability
        self.reader = reader
        self.bus = bus
        self.clock = clock

    @property
    def problem(self) -> str:
        """The reason why calls cannot be recorded as promised, or an empty string while they can."""
        return self.durability.problem

    async def confirm(self, exchange: OpenExchange, seconds: float = 0.0) -> bool:
        """Wait for all queued records of an exchange, as a response does, and return whether they are in the log.

        `seconds` adds a longer wait for a needed record, unless the log is known to fail.
        """
        if exchange.commit is None:
            return False
        self.archive.flush()
        return await self.durability.confirm(exchange.commit, seconds)

    def abandon(self, exchange: OpenExchange) -> None:
        """Record a round that was cancelled before anything was sent."""
        exchange.began = self.clock.monotonic()
        self.recorder.end_round(exchange, None, "aborted")

    async def carry(self, exchange: OpenExchange, send: Send, body: bytes | RequestBody) -> None:
        """Send the body and relay the response. If it is refused and there is a retry, relay the response to the retry.

        Raises ProxyError if no response came. A cancelled call is recorded as far as it came.
        """
        try:
            retry = await self._carry_round(exchange, send(body))
            while retry is not None:
                exchange.begin_round(retry.round.k)
                exchange.begin_rounds(retry.body, retry.epoch)
                exchange.plans.append(retry.plan)
                exchange.record(*[record for record in (retry.round, retry.plan) if record is not None])
                if exchange.is_left:
                    self.abandon(exchange)
                    break
                retry = await self._carry_round(exchange, send(retry.body))
            if exchange.is_left:
                raise asyncio.CancelledError
        finally:
            # break reference cycles, which would keep the request
            exchange.retries = exchange.make_retries = exchange.make_rounds = None
            if exchange.rounds is not None:
                exchange.rounds.stop()
                exchange.rounds = None

    async def _carry_round(self, exchange: OpenExchange, sending: Awaitable[UpstreamResponse]) -> Retry | None:
        """Carry one round. Return the next one: a retry, if nothing of a refusal was passed on, or what follows."""
        response = await self._await_head(exchange, sending)
        try:
            await self._read_beginning(exchange, response)
            begun = exchange.beginning
            if exchange.retries is not None and response.status < _ERROR:
                await exchange.retries.accept()
            if exchange.make_retries is not None and may_refuse(exchange, response):
                exchange.retries = exchange.retries or exchange.make_retries()
                withheld = WithheldResponse(exchange, exchange.retries, response, self.clock)
                if (retry := await self._find_retry(exchange, response, withheld, exchange.retries)) is not None:
                    return retry
                begun = withheld.begun
            rounds = exchange.rounds
            if rounds is not None and not (response.status in SUCCESS and rounds.take_head(response.headers, begun)):
                exchange.next_number, exchange.rounds = rounds.next_number, None
            return await self._relay(exchange, response, begun)
        finally:
            response.close()

    async def _read_beginning(self, exchange: OpenExchange, response: UpstreamResponse) -> None:
        """Read the first bytes of the response to a request for a stream, if its head does not say that it is one."""
        headers = response.headers
        if not exchange.is_urgent or response.status not in SUCCESS or is_event_stream(headers) or is_encoded(headers):
            return
        try:
            while not response.is_ended and is_too_short(exchange.beginning):
                exchange.beginning += await self._read(exchange, response)
        except UpstreamUnreachable:
            pass  # the next read raises it again, after the bytes that came
        except BaseException:
            self.recorder.end_round(
                exchange, response, "aborted", kept=await self.recorder.redact_anyway(exchange, response)
            )
            raise

    def _break_off(self, exchange: OpenExchange, response: UpstreamResponse, problem: str, kept: bytes) -> None:
        """Record a round that broke off, and break the client's response off."""
        self.recorder.end_round(exchange, response, "truncated", problem, kept)
        if (rounds := exchange.rounds) is not None:
            head = response.headers if rounds.decode is None else rounds.head
            exchange.client.start(response.status, set_length(forward_response(head), None))
            exchange.client.write(rounds.break_off())
        exchange.client.abort()

    async def _complete(self, exchange: OpenExchange, ending: Coroutine[Any, Any, T]) -> T:
        """Return the result of what ends a round, which a client that leaves stops only if another one follows.

        Else the call ends behind it. A second cancellation, as at the end of the server, stops it, too.
        """
        task = asyncio.get_running_loop().create_task(ending)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            exchange.is_left = True
        if not exchange.is_final:
            task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        return task.result()

    async def _end_round(
        self, exchange: OpenExchange, response: UpstreamResponse, rounds: HiddenRounds, withheld: bytes
    ) -> tuple[Retry | None, bool]:
        """End a round whose last event has come, from `withheld` on, or whose body has ended.

        Return the next round, or None after the last one, and whether nothing more of this one is passed on.
        """
        completeness: Completeness = "aborted"
        try:
            if withheld:
                rounds.withhold(await read_final_event(response, exchange.buffer, withheld, rounds.decode))
            completeness, ended_at = "complete", self.clock.monotonic()
            exchange.is_final = not rounds.end_round()
            if exchange.is_left and not exchange.is_final:
                raise asyncio.CancelledError
            retry = await rounds.find_next(exchange.k) if not rounds.fault else None
            kept = await self.recorder.redact(exchange, response)
        except BaseException:
            exchange.is_hidden, exchange.is_final = not exchange.is_final, True  # it ends with a call of our own
            kept = await self.recorder.redact_anyway(exchange, response)
            self.recorder.end_round(exchange, response, completeness, kept=kept)
            raise
        exchange.ended_at = ended_at
        if rounds.fault:
            self._break_off(exchange, response, rounds.fault, kept)
            return None, True
        if retry is None:
            return None, await self._end_answer(exchange, response, rounds, kept)
        exchange.is_hidden = True
        self.recorder.end_round(exchange, response, "complete", kept=kept)
        return retry, True

    async def _pass_round(
        self, exchange: OpenExchange, response: UpstreamResponse, rounds: HiddenRounds, begun: bytes
    ) -> bytes:
        """Pass on all of a round but its last event. Return what has come of that; nothing if the body has ended."""
        if rounds.is_stream:
            await self._wait_until_durable(exchange)
            exchange.client.start(response.status, set_length(forward_response(rounds.head), None))
            exchange.is_head_sent = True
        stream = StreamRelay(exchange, response.headers, self.clock)
        if begun:
            stream.pass_on(begun)
        while not stream.withheld and not response.is_ended:
            await exchange.client.drain()
            if response.is_received:
                stream.pass_on(await self._read(exchange, response))
            else:
                await response.pump(stream.take)
        if rounds.fault:
            raise UpstreamUnreachable(rounds.fault)
        return stream.withheld

    async def _end_answer(
        self, exchange: OpenExchange, response: UpstreamResponse, rounds: HiddenRounds, kept: bytes
    ) -> bool:
        """Record the last round of an answer, and what the answer is, and pass on its end. Return as `_finish` does."""
        rest, exchange.is_hidden = rounds.finish(), rounds.is_continued
        if exchange.is_head_sent and not rounds.is_stream:  # the client reads a stream that a comment has begun
            assert exchange.format is not None, "rounds are read in its format"
            rest = spell_in_stream(exchange.format, rounds.head, rest, rounds.next_number)
        try:
            records = await rounds.list_records(exchange.k)
        except BaseException:
            self.recorder.end_round(exchange, response, "complete", kept=kept)
            raise
        status = response.status if response.status in SUCCESS else _OK
        head = set_length(forward_response(rounds.head), None if rounds.is_stream else len(rest))
        return await self._finish(exchange, response, (status, head), rest, kept=kept, also=records)

    async def _finish(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse,
        head: tuple[int, Headers],
        rest: bytes,
        *,
        kept: bytes,
        also: Sequence[Record] = (),
    ) -> bool:
        """Record the end of a whole answer, and pass on the `rest` of it, once that is durable, behind its head.

        Return whether the client has all of it: the body may not have ended yet.
        """
        outcome, recorded = self.recorder.record(exchange, response, "complete", kept=kept, also=also)
        try:
            if not (recorded.done() and recorded.result()):  # usually it is, since the journal has it
                await self.durability.pass_on(recorded)
            exchange.client.start(*head)
            is_last = response.is_ended or exchange.is_hidden  # now: the body may have ended during the commit
            exchange.client.write(rest, is_last=is_last)
        finally:
            self.recorder.announce(exchange, outcome)  # after the last byte is written, to not delay it
        return is_last

    async def _await_head(self, exchange: OpenExchange, sending: Awaitable[UpstreamResponse]) -> UpstreamResponse:
        exchange.began = self.clock.monotonic()
        if exchange.arrived and exchange.overhead is None:
            exchange.overhead = exchange.began - exchange.arrived
        flushing: asyncio.TimerHandle | None = None

        def note_sent() -> None:
            nonlocal flushing
            if exchange.has_body:
                exchange.record_opening()
            if not exchange.is_durable:
                flushing = asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self._flush_early, exchange)

        sent = asyncio.get_running_loop().call_soon(note_sent)  # then the request is written, and loses no time
        try:
            response = await sending
        except ProxyError as error:
            exchange.is_unreached = isinstance(error, UpstreamUnreachable)
            self.recorder.end_round(exchange, None, "failed", str(error))
            raise
        except BaseException:
            self.recorder.end_round(exchange, None, "aborted")
            raise
        finally:
            sent.cancel()
            if flushing is not None:
                flushing.cancel()
        exchange.head_at = self.clock.monotonic()
        if exchange.has_body and exchange.opening is None:  # the response was there at once
            exchange.record_opening()
        return response

    def _flush_early(self, exchange: OpenExchange) -> None:
        """Commit the records, since no response came at once."""
        if not exchange.is_durable:
            self.archive.flush()

    async def _find_retry(
        self,
        exchange: OpenExchange,
        response: UpstreamResponse,
        withheld: WithheldResponse,
        retries: Retries,
    ) -> Retry | None:
        """Withhold the response while it may be a refusal. Return what to send instead, or None."""
        completeness: Completeness = "aborted"
        try:
            if not response.is_received:
                await self._wait_until_durable(exchange)
            refusal = await withheld.find_refusal()
            if refusal is None:
                return None
            completeness, ended_at = "complete", self.clock.monotonic()
            if (rounds := exchange.rounds) is not None and rounds.is_continued:
                retry = await rounds.find_retry(refusal, exchange.k)
            else:
                retry = await retries.find_retry(refusal)
            kept = await self.recorder.redact(exchange, response) if retry is not None else b""
        except BaseException:
            kept = await self.recorder.redact_anyway(exchange, response)
            self.recorder.end_round(exchange, response, completeness, kept=kept)
            raise
        if retry is not None:
            exchange.ended_at, exchange.is_final = ended_at, False
            self.recorder.end_round(exchange, response, completeness, kept=kept)
        return retry

    async def _wait_until_durable(self, exchange: OpenExchange) -> None:
        """Wait for the records that the first byte of a response waits for."""
        commit = exchange.commit
        if commit is not None and not (commit.done() and commit.result()):
            if not commit.done():
                self.archive.flush()
            await self.durability.pass_on(commit)

    async def _relay(self, exchange: OpenExchange, response: UpstreamResponse, begun: bytes) -> Retry | None:
        """Relay a response whose beginning `begun` was read and withheld. Return the next round, if one follows."""
        rounds = exchange.rounds
        completeness: Completeness = "aborted"
        problem, kept, withheld = "", b"", b""
        try:
            try:
                if rounds is None:
                    withheld = await self._pass_on(exchange, response, begun)
                else:
                    withheld = await self._pass_round(exchange, response, rounds, begun)
            except UpstreamUnreachable as error:
                completeness, problem, exchange.ended_at = "truncated", str(error), self.clock.monotonic()
            if rounds is None or completeness == "truncated":
                kept = await self.recorder.redact(exchange, response)
        except BaseException:
            kept = await self.recorder.redact_anyway(exchange, response)
            self.recorder.end_round(exchange, response, completeness, problem, kept)
            raise
        if completeness == "truncated":
            self._break_off(exchange, response, problem, kept)
            return None
        if rounds is None:
            head = response.status, forward_response(response.headers)
            retry, is_last = None, await self._finish(exchange, response, head, withheld, kept=kept)
        else:
            retry, is_last = await self._complete(exchange, self._end_round(exchange, response, rounds, withheld))
        if not (is_last or exchange.is_left):
            await self._pass_trailers(exchange, response)
        return retry

    async def _pass_on(self, exchange: OpenExchange, response: UpstreamResponse, begun: bytes) -> bytes:
        """Pass on all but the last bytes of the response. Return those."""
        if exchange.is_head_sent and not is_open_stream(response.headers, exchange.beginning):
            return await self._embed(exchange, response)
        if response.is_received:
            return begun + await self._read(exchange, response)
        await self._wait_until_durable(exchange)
        exchange.client.start(response.status, forward_response(response.headers))
        stream = StreamRelay(exchange, response.headers, self.clock)
        if begun:
            stream.pass_on(begun)
        while not stream.withheld and not response.is_received:
            await exchange.client.drain()
            await response.pump(stream.take)
        if stream.withheld:
            return await read_final_event(response, exchange.buffer, stream.withheld)
        return await self._read(exchange, response)

    async def _read(self, exchange: OpenExchange, response: UpstreamResponse) -> bytes:
        content = await response.read()
        exchange.keep_piece(content, self.clock)
        return content

    async def _embed(self, exchange: OpenExchange, response: UpstreamResponse) -> bytes:
        """Read a response that is no stream. Return it as an event of the stream that the client already reads."""
        while not response.is_ended:
            await self._read(exchange, response)
        assert exchange.format is not None, "a head is sent before only where events are read"
        return spell_in_stream(exchange.format, response.headers, exchange.buffer.content, exchange.next_number)

    async def _pass_trailers(self, exchange: OpenExchange, response: UpstreamResponse) -> None:
        """Pass on what follows a stream's end marker, and record it as trailers up to the cap."""
        i, decode = 0, exchange.rounds.decode if exchange.rounds is not None else None
        is_last = False
        try:
            while not is_last:
                chunk = await response.read()
                is_last = response.is_ended
                exchange.buffer.add(chunk)
                if chunk and not exchange.buffer.is_capped:
                    kept = redact(chunk, exchange.secrets, is_error=False)
                    self.archive.append(Trailer(exchange.id, exchange.k, i, kept))
                    i += 1
                if not exchange.client.write(chunk if decode is None else decode(chunk), is_last=is_last):
                    await exchange.client.drain()
        except UpstreamUnreachable:
            exchange.client.abort()
