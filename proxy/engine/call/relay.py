"""Relaying a response to the client, and its record to the log.

Bytes are passed on at once, with two exceptions: the first byte waits until the request is durable, the last one until
the response is. A response that breaks off upstream breaks off at the client and is recorded as such.

A client that hangs up cancels the task of its call. The round under way is then recorded as aborted, with what came of
its response (status 0: nothing), and the connection to the upstream is closed. A response of which all has come is
recorded as complete, also if only its commit was waited for. Between two rounds of an answer, the one that ended is
complete, and the next one is not sent: if it was recorded already, it is aborted with status 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from proxy.engine.call.open_exchange import HiddenRounds, OpenExchange, Retries, Retry
from proxy.engine.call.response_reader import ResponseReader, is_event_stream, is_too_short
from proxy.engine.call.response_stream import (
    StreamRelay,
    WithheldResponse,
    is_encoded,
    is_open_stream,
    may_refuse,
    read_final_event,
    set_length,
    spell_in_stream,
)
from proxy.engine.call.round_recorder import RoundRecorder
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.ports import Archive, Clock, RequestBody, UpstreamResponse
from proxy.engine.runtime import EngineBus
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.exchange import SUCCESS, Completeness, Headers, Trailer
from proxy.model.log import Record
from proxy.wire.credentials import redact
from proxy.wire.headers import forward_response

T = TypeVar("T")
Send = Callable[[bytes | RequestBody], Awaitable[UpstreamResponse]]
"""Sends a body upstream, with everything else that belongs to the request."""

# Seconds that a record waits to share its commit with others, and that deferred work waits for a quick response.
_COMPANY_SECONDS = 0.003
_OK, _ERROR = 200, 400


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
