"""Relaying an answer to the client, round by round, and its record to the log.

Bytes are passed on at once, with two exceptions: the first byte waits until the request is durable, the last one until
the response is. A client that hangs up cancels the task of its call; the connection to the upstream is then closed.

A round ends in one of these ways (`Phase` says where it is). Each leaves one outcome, with what came of the response.

| what happens | recorded as | what the client gets |
|---|---|---|
| the body ends | complete | all of it; its last event, or its last bytes, once they are in the log |
| the body ends while the last event waits for the log | complete | the same |
| the body goes on behind the last event | complete, then trailers | the last event, then what follows as it comes |
| it breaks off behind the last event | complete | the last event, and a connection that breaks off |
| it is refused, and nothing else can be sent | complete | the refusal as it came |
| it is refused, and something else is sent (REFUSED) | complete | the next round, in the same stream |
| another round of the answer follows (FOLLOWED) | complete | the next round, in the same response |
| it breaks off, or cannot be read (BROKEN) | truncated | what came, and a connection that breaks off |
| no response comes (AWAITED) | failed, status 0 | an error |
| the client leaves before the head (AWAITED) | aborted, status 0 | nothing |
| it leaves before all has come (UNDECIDED, PASSING, ENDING) | aborted | what came |
| it leaves while the next round is made (REFUSED, FOLLOWED) | complete | nothing more: no next round is sent |
| it leaves when a next round is recorded (AWAITED) | complete, and aborted with status 0 | nothing more |
| it leaves when all has come (WHOLE, RECORDED) | complete | nothing more |
| it leaves behind the last event (TRAILING) | complete, then trailers | what came |
| what completes it cannot be recorded, and must be (RECORDED) | complete | an error, or what came |

The end of an answer that may have several rounds goes on behind a client that leaves, since what it has received may be
sent again. A second cancellation, as at the end of the server, stops that, too; all that came is recorded as complete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from proxy.engine.call.open_exchange import HiddenRounds, OpenExchange, Retry
from proxy.engine.call.response_reader import AnswerKind, ResponseReader, is_event_stream
from proxy.engine.call.response_stream import (
    StreamRelay,
    WithheldResponse,
    embed,
    is_open_stream,
    may_refuse,
    pass_trailers,
    read_beginning,
    read_final_event,
    set_length,
    spell_in_stream,
)
from proxy.engine.call.round_recorder import RoundRecorder
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.ports import Archive, Clock, RequestBody, UpstreamResponse
from proxy.engine.runtime import EngineBus
from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.exchange import SUCCESS, Completeness, Headers
from proxy.model.log import Record
from proxy.wire.headers import forward_response

Send = Callable[[bytes | RequestBody], Awaitable[UpstreamResponse]]
"""Sends a body upstream, with everything else that belongs to the request."""

# Seconds that a record waits to share its commit with others, and that deferred work waits for a quick response.
_COMPANY_SECONDS = 0.003
_ERROR = 400


class Phase(Enum):
    """Where a round is. It goes through these in order, and may leave some out."""

    AWAITED = auto()  # its request was made; no head of a response has come
    UNDECIDED = auto()  # it may be a refusal, or no stream: nothing but comments is passed on
    REFUSED = auto()  # a refusal has come whole, and what to send in its place is looked for
    PASSING = auto()  # its bytes are passed on as they come
    ENDING = auto()  # its body has ended, or its last event has begun, which is withheld
    FOLLOWED = auto()  # all of it has come, and the round that follows is made
    WHOLE = auto()  # all of it has come
    BROKEN = auto()  # it broke off
    RECORDED = auto()  # its outcome is queued
    TRAILING = auto()  # the same, and its body goes on behind the last event


_EARLY: Mapping[Phase, Completeness] = {
    **dict.fromkeys((Phase.REFUSED, Phase.FOLLOWED, Phase.WHOLE), "complete"),
    Phase.BROKEN: "truncated",
}
"""As what a round is recorded that is cancelled in a phase, if not as aborted."""


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
        """Send the body and relay the response. If something else is to be sent then, go on with the response to that.

        Raises ProxyError if no response came. A cancelled call is recorded as far as it came.
        """
        answer = AnswerRelay(self, exchange)
        try:
            following = await answer.carry_round(send(body))
            while following is not None:
                exchange.begin_next(following)
                if answer.is_left:
                    self.abandon(exchange)
                    break
                following = await answer.carry_round(send(following.body))
            if answer.is_left:
                raise asyncio.CancelledError
        finally:
            exchange.release()


class AnswerRelay:
    """Relays the rounds of one answer. `is_left` is true once the call was cancelled while its end was recorded."""

    def __init__(self, relay: Relay, exchange: OpenExchange) -> None:
        self._relay = relay
        self._recorder = relay.recorder
        self._clock = relay.clock
        self._exchange = exchange
        self._phase = Phase.AWAITED
        self._problem = ""
        self._begun = b""  # of the response: what was read and not passed on
        self._has_head = False  # whether the client has a head, perhaps before it has anything of a response
        self._next_number = 0  # of the client's next event, in formats that number them
        self.is_left = False

    async def carry_round(self, sending: Awaitable[UpstreamResponse]) -> Retry | None:
        """Carry a round through its phases, and record how it ended. Return what is sent next, if anything is."""
        self._phase, response, exchange = Phase.AWAITED, None, self._exchange
        try:
            try:
                response = await self._await_head(sending)
                if (retry := await self._decide(response)) is not None:
                    return retry
                withheld = await self._pass_on(response)
                self._phase = Phase.ENDING
                ending = self._end(response, exchange.rounds, withheld)
                following = await (ending if exchange.rounds is None else self._shield(ending))
                if self._phase is Phase.TRAILING and not self.is_left:
                    await pass_trailers(exchange, response)
                return following
            except UpstreamUnreachable as error:
                if response is None:
                    raise
                await self._break_off(response, str(error))
                return None
        except BaseException as error:
            if self._phase not in (Phase.RECORDED, Phase.TRAILING):
                await self._end_early(response, error)
            raise
        finally:
            if response is not None:
                response.close()

    async def _await_head(self, sending: Awaitable[UpstreamResponse]) -> UpstreamResponse:
        """Wait for the head of a response. Record the opening meanwhile, once the request is on its way."""
        exchange = self._exchange
        exchange.began = self._clock.monotonic()
        if exchange.arrived and exchange.overhead is None:
            exchange.overhead = exchange.began - exchange.arrived
        flushing: asyncio.TimerHandle | None = None

        def note_sent() -> None:
            nonlocal flushing
            if exchange.has_body:
                exchange.record_opening()
            if not exchange.is_durable:
                flushing = asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self._flush_early)

        sent = asyncio.get_running_loop().call_soon(note_sent)  # then the request is written, and loses no time
        try:
            response = await sending
        finally:
            sent.cancel()
            if flushing is not None:
                flushing.cancel()
        exchange.head_at = self._clock.monotonic()
        if exchange.has_body and exchange.opening is None:  # the response was there at once
            exchange.record_opening()
        return response

    def _flush_early(self) -> None:
        """Commit the records, since no response came at once."""
        if not self._exchange.is_durable:
            self._relay.archive.flush()

    async def _decide(self, response: UpstreamResponse) -> Retry | None:
        """Withhold a response while it may be a refusal. If it is one, return what is sent in its place, or None."""
        self._phase, exchange = Phase.UNDECIDED, self._exchange
        if exchange.is_urgent and response.status in SUCCESS and not is_event_stream(response.headers):
            await read_beginning(exchange, response, self._clock)
        self._begun = exchange.beginning
        if exchange.retries is not None and response.status < _ERROR:
            await exchange.retries.accept()
        if exchange.make_retries is None or not may_refuse(exchange, response):
            return None
        exchange.retries = exchange.retries or exchange.make_retries()
        withheld = WithheldResponse(exchange, exchange.retries, response, self._clock, self._start)
        if not response.is_received:
            await self._wait_until_durable()
        refusal = await withheld.find_refusal()
        self._begun = withheld.begun
        if refusal is None:
            return None
        self._phase, ended_at = Phase.REFUSED, self._clock.monotonic()
        retry = await exchange.find_next(refusal)
        if retry is not None:
            kept = await self._recorder.redact(exchange, response)
            exchange.ended_at = ended_at
            self._record_followed(response, kept, "refused")
        return retry

    async def _pass_on(self, response: UpstreamResponse) -> bytes:
        """Pass on what comes before the end. Return what has come of that; nothing if the rounds took all of it."""
        self._phase, exchange, headers, begun = Phase.PASSING, self._exchange, response.headers, self._begun
        rounds = exchange.rounds
        if rounds is not None and not (response.status in SUCCESS and rounds.take_head(headers, begun)):
            rounds.stop()
            self._next_number, exchange.rounds, rounds = rounds.next_number, None, None
        if rounds is None:
            if self._has_head and not is_open_stream(headers, exchange.beginning):
                return await embed(exchange, response, self._clock, self._next_number)
            if response.is_received:
                return begun + exchange.keep_piece(await response.read(), self._clock)
        if rounds is None or rounds.is_stream:
            await self._wait_until_durable()
            head = headers if rounds is None else set_length(rounds.head, None)
            self._start(response.status, forward_response(head))
        stream = StreamRelay(exchange, headers, self._clock)
        if begun:
            stream.pass_on(begun)
        while not stream.withheld and not (response.is_received if rounds is None else response.is_ended):
            await exchange.client.drain()
            if response.is_received:
                stream.pass_on(exchange.keep_piece(await response.read(), self._clock))
            else:
                await response.pump(stream.take)
        if rounds is None:
            return stream.withheld or exchange.keep_piece(await response.read(), self._clock)
        if rounds.fault:
            raise UpstreamUnreachable(rounds.fault)
        return stream.withheld

    async def _end(self, response: UpstreamResponse, rounds: HiddenRounds | None, withheld: bytes) -> Retry | None:
        """End a round whose last event has come, from `withheld` on, or whose body has ended. Return the next round.

        If none follows, the answer is recorded, and what completes it is passed on when that is durable.
        """
        exchange, following = self._exchange, None
        if withheld and not response.is_ended:
            withheld = await read_final_event(response, exchange.buffer, withheld, exchange.decode)
        exchange.ended_at = self._clock.monotonic()
        if rounds is not None:
            self._phase = Phase.WHOLE
            if withheld:
                rounds.withhold(withheld)
            if rounds.end_round():
                self._phase = Phase.FOLLOWED
                if self.is_left:
                    raise asyncio.CancelledError
            if rounds.fault:
                raise UpstreamUnreachable(rounds.fault)
            following = await exchange.find_next()
        kept = await self._recorder.redact(exchange, response)
        if following is not None:
            self._record_followed(response, kept, "hidden")
            return following
        also: Sequence[Record] = ()
        if rounds is None:
            head = forward_response(response.headers)
        else:
            withheld, head = self._finish(rounds)
            also = await rounds.list_records(exchange.k)
        outcome, recorded = self._recorder.record(exchange, response, "complete", kept=kept, also=also)
        self._phase = Phase.RECORDED
        try:
            if not (recorded.done() and recorded.result()):  # usually it is, since the journal has it
                await self._relay.durability.pass_on(recorded)
            exchange.client.start(response.status, head)
            # asked now, since the body may have ended during the commit
            is_last = response.is_ended or (rounds is not None and rounds.is_continued)
            exchange.client.write(withheld, is_last=is_last)
        finally:
            self._recorder.announce(exchange, outcome)  # after the last byte is written, to not delay it
        if not is_last:
            self._phase = Phase.TRAILING
        return None

    def _finish(self, rounds: HiddenRounds) -> tuple[bytes, Headers]:
        """Return the end of an answer that may have several rounds, and its head, which the client may have."""
        rest = rounds.finish()
        if self._has_head and not rounds.is_stream:  # the client reads a stream that a comment has begun
            rest = spell_in_stream(self._exchange.format, rounds.head, rest, rounds.next_number)
        return rest, set_length(forward_response(rounds.head), None if rounds.is_stream else len(rest))

    async def _shield(self, ending: Coroutine[Any, Any, Retry | None]) -> Retry | None:
        """Return the result of what ends a round, which a client that leaves stops only if another one follows.

        A second cancellation, as at the end of the server, stops it, too.
        """
        task = asyncio.get_running_loop().create_task(ending)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.is_left = True
        if self._phase is Phase.FOLLOWED:
            task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        return task.result()

    async def _break_off(self, response: UpstreamResponse, problem: str) -> None:
        """Break the client's response off, and record that unless the response was complete before."""
        exchange = self._exchange
        if self._phase is not Phase.TRAILING:
            self._phase, self._problem, exchange.ended_at = Phase.BROKEN, problem, self._clock.monotonic()
            kept = await self._recorder.redact(exchange, response)
            self._recorder.end_round(exchange, response, "truncated", problem, kept)
            self._phase = Phase.RECORDED
            if (rounds := exchange.rounds) is not None:
                head = response.headers if rounds.decode is None else rounds.head
                exchange.client.start(response.status, set_length(forward_response(head), None))
                exchange.client.write(rounds.break_off())
        exchange.client.abort()

    async def _end_early(self, response: UpstreamResponse | None, error: BaseException) -> None:
        """Record a round that nothing more comes of: its call was cancelled, or no response came."""
        completeness, problem, kept = _EARLY.get(self._phase, "aborted"), self._problem, b""
        if response is not None:
            with suppress(asyncio.CancelledError):  # nothing is kept where it is cancelled again, since that is urgent
                kept = await self._recorder.redact(self._exchange, response)
        elif isinstance(error, ProxyError):
            completeness, problem = "failed", str(error)
        is_unreached = isinstance(error, UpstreamUnreachable)
        self._recorder.end_round(self._exchange, response, completeness, problem, kept, is_unreached=is_unreached)

    def _record_followed(self, response: UpstreamResponse, kept: bytes, kind: AnswerKind) -> None:
        """Record a round that another one follows."""
        self._recorder.end_round(self._exchange, response, "complete", kept=kept, kind=kind)
        self._phase = Phase.RECORDED

    def _start(self, status: int, headers: Headers) -> None:
        """Send the client a head before the body is whole."""
        self._exchange.client.start(status, headers)
        self._has_head = True

    async def _wait_until_durable(self) -> None:
        """Wait for the records that the first byte of a response waits for."""
        commit = self._exchange.commit
        if commit is not None and not (commit.done() and commit.result()):
            if not commit.done():
                self._relay.archive.flush()
            await self._relay.durability.pass_on(commit)
