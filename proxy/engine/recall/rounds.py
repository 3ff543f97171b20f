"""The rounds of an answer in which a model recalls: calls of our tool are executed, and it goes on with the results.

The client gets one answer (`wire/rounds`). Each round is recorded as it was sent and received. The rounds are kept with
the node of the answer as the client has it, since later requests repeat them in its place.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from proxy.engine.call.open_exchange import OpenExchange, Refusal, Retry
from proxy.engine.call.response_reader import is_event_stream, read_received
from proxy.engine.call.response_stream import WAITING, WITHHOLD_SECONDS, is_encoded
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.tool_offers import ToolOffers
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.scope import make_scope
from proxy.engine.recall.tool import DESCRIPTION, PARAMETERS
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Epoch, HiddenRound, Plan, Recalled
from proxy.model.events import CeilingExceededEvent
from proxy.model.exchange import Headers, Round
from proxy.model.lineage import extend_chain
from proxy.model.log import Record
from proxy.model.messages import RECALL_TOOL
from proxy.wire import FORMATS
from proxy.wire.body import ContentDecoder
from proxy.wire.headers import drop_encoding, find_header
from proxy.wire.identity import Item
from proxy.wire.overflow import read_overflow
from proxy.wire.rounds import (
    OwnCall,
    OwnResult,
    OwnTool,
    PlayedRound,
    RoundEnd,
    RoundStitcher,
    continue_request,
    make_stitcher,
    name_calls,
    restore_answer,
    spell_tool,
)
from proxy.wire.rounds import find_obstacle as find_wire_obstacle

# Tokens that a page may have, though with them the request is above its ceiling: less would say nothing.
_PAGE_TOKENS = 3_000
_CHARACTERS_OF_A_TOKEN = 3
# Bytes that one piece of an encoded response may have decoded.
_MOST_DECODED = 16 * 1024 * 1024
# Calls of one round that are executed.
_MOST_CALLS = 8
_SPENT = "The calls for this answer are used up. Answer now, with what you have."
_TOO_MANY = f"Only {_MOST_CALLS} calls at once are answered. Ask again for what is still needed."
_NO_ROOM = (
    "There is no room for this in the context now. Ask for less (search returns short passages), or go on with what you"
    " have."
)

_log = logging.getLogger("palimpsest.recall")

Run = Callable[[ManagedRequest, Epoch, str, int], Awaitable[str]]
"""Returns the result of a call, given its raw arguments, for a request that is sent under an epoch. Never raises.

The last argument is the number of characters for which there is room: a search answers in at most so many.
"""
LookAhead = Callable[[ManagedRequest], None]
"""Begins to prepare the result of a call whose arguments have not come yet."""


class RecallRounds:
    """Begins the rounds of answers. `run` executes a call; `max_hops` is how often a model recalls within an answer."""

    def __init__(
        self,
        run: Run,
        states: StateReader,
        lineage: LineageTracker,
        *,
        bus: EngineBus,
        max_hops: int,
        record_cap: int,
        look_ahead: LookAhead = lambda _: None,
    ) -> None:
        self.run = run
        self.look_ahead = look_ahead
        self.states = states
        self.lineage = lineage
        self.bus = bus
        self.max_hops = max_hops
        self.record_cap = record_cap

    def begin(
        self, request: ManagedRequest, exchange: OpenExchange, body: bytes, epoch: Epoch | None
    ) -> "AnswerRounds | None":
        """Return the rounds of the answer to a request, given what is sent, or None if that is without the tool."""
        if epoch is None or not epoch.depth or not self.states.offers.find(request, epoch):
            return None
        return AnswerRounds(self, request, epoch, body, exchange)


class AnswerRounds:
    """The rounds of one answer; implements `open_exchange.HiddenRounds`."""

    def __init__(
        self,
        parts: RecallRounds,
        request: ManagedRequest,
        epoch: Epoch,
        body: bytes,
        exchange: OpenExchange,
    ) -> None:
        self._parts = parts
        self._request = request
        self._epoch = epoch
        self._plans = exchange.plans
        self._form = FORMATS[request.wire]
        self._body = body
        self._client = exchange.client
        self._exchange = exchange
        self._tokens = 0  # of what was sent last, in the model's count, once that is known
        self._stitcher: RoundStitcher | None = None
        self._head: Headers = ()
        self._is_stream = False
        self._decoder: ContentDecoder | None = None
        self.fault = ""
        self._hops = 0
        self._end, self._goes_on = RoundEnd(), False  # of the round that has ended last
        self._is_continued = False
        self._played: list[HiddenRound] = []
        # The last round in which the model recalled, and what was sent for it, while its results may be left out.
        self._asked: tuple[RoundEnd, bytes, int] | None = None
        self._written: list[bytes] = []
        self._withheld: list[bytes] = []  # what the client gets, and has not got yet
        self._beat: asyncio.TimerHandle | None = None
        self._is_silent = self._is_prepared = False

    @property
    def is_continued(self) -> bool:
        """Whether a round of the answer has ended in which the model recalled."""
        return self._is_continued

    def note_retry(self, body: bytes, epoch: Epoch | None) -> None:
        """Note what is sent next in an answer of several rounds.

        If that is the first request in another form, the client still gets one response: what it has, and the answer
        to this request.
        """
        if body is self._body:
            return
        self._played.clear()
        self._asked, self._body, self._epoch = None, body, epoch or self._epoch

    @property
    def next_number(self) -> int:
        """The number of the client's next event, in formats that number them."""
        return self._stitcher.next_number if self._stitcher is not None else 0

    def take_head(self, headers: Headers, beginning: bytes) -> bool:
        """Begin to read the response of a round. Return False if it cannot be read as it arrives."""
        is_stream = is_event_stream(headers, beginning)
        if not self._take_encoding(headers):
            return False
        if self._stitcher is None:
            context = self._parts.states.caches.contexts.get(self._request.session.id)
            binds = context is None or context.reasoning.binds_in(self._request)
            is_stored = self._request.split.member("store") != b"false"
            options = {"binds_reasoning": binds, "is_stored": is_stored}
            echo = self._parts.states.offers.find_echo(self._request, self._epoch)
            self._stitcher = make_stitcher(self._form, RECALL_TOOL, is_stream=is_stream, echo=echo, **options)
            self._head, self._is_stream = drop_encoding(headers), is_stream
        return is_stream is self._is_stream

    def _take_encoding(self, headers: Headers) -> bool:
        """Prepare to undo the content-encoding of a round, which was not asked for. Return False if that is unknown.

        Then no call of ours can be seen in the response, so it passes unread, and the upstream gets no tool any more.
        """
        self._decoder = None
        if not is_encoded(headers):
            return True
        encoding = find_header(headers, b"content-encoding").decode("latin-1")
        try:
            self._decoder = ContentDecoder(encoding)
        except ValueError as error:
            upstream = self._request.upstream.name
            if self._parts.states.offers.note_unreadable(upstream):
                _log.warning(
                    "models get no tool to recall from the next epoch on, for a response cannot be read: %s",
                    error,
                    extra={"upstream": upstream},
                )
            return False
        return True

    @property
    def head(self) -> Headers:
        """The headers of the response to the first round, without a content-encoding."""
        return self._head

    @property
    def decode(self) -> Callable[[bytes], bytes] | None:
        """Undoes the content-encoding of a round, piece by piece; None if it has none. It never raises."""
        return self._decode if self._decoder is not None else None

    def _decode(self, piece: bytes) -> bytes:
        decoded: list[bytes] = []
        size = 0
        try:
            for each in self._decoder.decode(piece) if self._decoder is not None and not self.fault else ():
                decoded.append(each)
                size += len(each)
                if size > _MOST_DECODED:
                    raise ValueError(f"{len(piece)} bytes of the content are more than {_MOST_DECODED} ones decoded")
        except ValueError as error:
            self.fault = str(error)
        return b"".join(decoded)

    @property
    def is_stream(self) -> bool:
        """Whether the client gets a stream."""
        return self._is_stream

    def write(self, piece: bytes) -> bool:
        """Pass on what the client gets for a piece of a response. Return as `Client.write` does."""
        self.withhold(piece)
        return self._release() if self._is_stream else True  # a body is sent whole, behind a head with its length

    def withhold(self, piece: bytes) -> None:
        """Take the end of a round. What the client gets for it goes out with the next round, or with `finish`."""
        assert self._stitcher is not None, "the head comes first"
        self._withheld.append(self._stitcher.feed(piece))
        if not self._is_prepared and self._stitcher.has_call:
            self._is_prepared = True
            self._parts.look_ahead(self._request)
        if self._stitcher.is_withholding:
            self._watch()

    def _release(self) -> bool:
        """Pass on what was withheld. Return as `Client.write` does."""
        if not (written := self._take_withheld()):
            return True
        self._is_silent = False
        return self._client.write(written)

    def _take_withheld(self) -> bytes:
        written = b"".join(self._withheld)
        self._withheld.clear()
        self._written.append(written)
        return written

    def end_round(self) -> bool:
        """End a round, whose response is complete. Return whether another one follows."""
        assert self._stitcher is not None, "the head comes first"
        self._end = end = self._stitcher.end_round()
        is_broken = not (end.is_ended or end.error)
        if self._is_stream and is_broken and (end.own or self._is_continued):
            self.fault = self.fault or "the stream ended before its last event"
        self._goes_on = not self.fault and end.can_continue and self._hops <= self._parts.max_hops + 1
        self._is_continued = self._is_continued or self._goes_on
        return self._goes_on

    async def find_next(self, k: int, refusal: Refusal | None = None) -> Retry | None:
        """Execute our calls in round k, which has ended. Return the next round, or None if the answer is complete.

        If the round was refused, return what is sent in its place, or None.
        """
        if refusal is not None:
            return await self._replace(refusal, k)
        end, goes_on = self._end, self._goes_on
        if not end.own:
            if self._played:
                self._played.append(HiddenRound(end.answer))
            return None
        self._is_continued = True
        end = name_calls(self._form, RECALL_TOOL, end, self._body)
        self._watch()
        if not self._played and (plan := self._find_plan()) is not None and plan.tokens_upstream:
            self._tokens = plan.tokens_upstream
        is_whole = end.is_ended and not end.error and end.has_client_calls
        results = await self._answer(end.own) if goes_on or is_whole else ()
        self._played.append(HiddenRound(end.answer, tuple([(each.id, each.text) for each in results])))
        if not goes_on:
            return None
        self._hops += 1
        self._release()
        self._asked = end, self._body, self._tokens
        return await self._make_next(end, results, k)

    async def _replace(self, refusal: Refusal, k: int) -> Retry | None:
        """Return what is sent in place of round k, which was refused.

        If it was too long, that is the round once more, with results that say that they do not fit. Else, and next, it
        is the first request in another form, as where that itself is refused.
        """
        overflow = read_overflow(refusal.status, refusal.headers, refusal.content)
        if self._asked is None or overflow is None or overflow.is_guess:
            retries = self._exchange.retries
            return await retries.find_retry(refusal, k) if retries is not None else None
        (end, self._body, self._tokens), self._asked = self._asked, None
        results = tuple([OwnResult(each.id, _NO_ROOM) for each in end.own])
        self._played[-1] = HiddenRound(end.answer, tuple([(each.id, each.text) for each in results]))
        _log.warning(
            "what a model recalled does not fit into its window; the call goes on without it",
            extra={"exchange": self._request.exchange, "session": self._request.session.id},
        )
        return await self._make_next(end, results, k)

    def finish(self) -> bytes:
        """Return what is left of the answer: all of a body, or the end of a stream."""
        self.stop()
        if self._stitcher is not None:
            self._withheld.append(self._stitcher.finish())
        return self._take_withheld()

    def break_off(self) -> bytes:
        """Return what the client gets of a response that broke off, beside what it has."""
        if self.is_continued or self.fault or self._stitcher is None or self._stitcher.end_round().own:
            return b""
        return self.finish()

    def stop(self) -> None:
        """Send nothing more while the client waits."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    async def list_records(self, k: int) -> list[Record]:
        """Return the records of an answer with hidden rounds: its nodes as the client has it, and the rounds."""
        if not self._is_continued:
            return []
        request, parts = self._request, self._parts
        try:
            value = read_received(self._form, self._head, b"".join(self._written), parts.record_cap)[0].value
        except ValueError:
            return []
        items = next(iter(self._form.read_reply(value)), ())
        if not items:
            return []
        recalled = [await self._note_rounds(items)] if self._played else []
        # Nothing awaits from here on: a later request may refer to the answer, and is recorded behind it.
        begun = self._stitcher.begun_as if self._stitcher is not None else ""
        reply = parts.lineage.note_answer(request.exchange, k, self._form, value, begun=begun, is_read=False)
        return [*([reply] if reply is not None else []), *recalled]

    async def _note_rounds(self, items: Sequence[Item]) -> Recalled:
        """Keep the rounds with the node of the answer, whose `items` the client has. Return their record."""
        request, parts = self._request, self._parts
        node = extend_chain(request.chain.tip, [item.form for item in items])[-1]
        rounds = tuple(self._played)
        raws = restore_recalled(request.wire, rounds, ())
        tokens = await parts.states.caches.histories.count_messages(request, raws)
        added = max(0, tokens - sum([item.weight for item in items]) // 4)
        named = request.exchange, request.session.id, request.view
        recalled = Recalled(*named, self._epoch.id, node, len(items), added, rounds)
        contexts = parts.states.caches.contexts
        (await contexts.open(request)).recalled.add(recalled)
        contexts.weigh(request.session.id)
        return recalled

    async def _answer(self, calls: Sequence[OwnCall]) -> tuple[OwnResult, ...]:
        """Return the results of calls of one round, as far as there is room for them."""
        if self._hops >= self._parts.max_hops:
            return tuple([OwnResult(call.id, _SPENT) for call in calls])
        run, request, epoch = self._parts.run, self._request, self._epoch
        results: list[OwnResult] = []
        room, asked = self._find_room() * _CHARACTERS_OF_A_TOKEN, calls[:_MOST_CALLS]
        each_room = room // max(1, len(asked))
        texts = await asyncio.gather(*[run(request, epoch, call.arguments, each_room) for call in asked])
        for call, text in zip(calls, [*texts, *[_TOO_MANY] * (len(calls) - len(texts))], strict=True):
            is_fitting = len(text) <= room or len(text) <= len(_NO_ROOM)
            shown = text.encode("utf-8", "replace").decode() if is_fitting else _NO_ROOM
            room -= len(shown)
            results.append(OwnResult(call.id, shown))
        return tuple(results)

    def _find_room(self) -> int:
        """Return the tokens that results may have: up to the ceiling, and at least a page if the window has room."""
        plan, states = self._find_plan(), self._parts.states
        if plan is None or not plan.usable:
            return _PAGE_TOKENS * _MOST_CALLS
        ratio, window = states.find_ratio(self._request).value, states.find_budget(self._request).find_room()
        sent, usable = int(self._tokens / ratio), int(plan.usable / ratio)
        in_window = _PAGE_TOKENS if window is None else window - sent
        return max(0, usable - sent, min(_PAGE_TOKENS, in_window))

    def _find_plan(self) -> Plan | None:
        """Return the newest plan of the call that has counts."""
        return next((plan for plan in reversed(self._plans) if plan is not None and plan.tokens_upstream), None)

    async def _make_next(self, end: RoundEnd, results: Sequence[OwnResult], k: int) -> Retry:
        """Return the round that follows round k."""
        request, parts = self._request, self._parts
        is_last = self._hops > parts.max_hops + 1
        body = continue_request(self._form, self._body, end, results, is_last=is_last)
        added = await parts.states.caches.histories.count_messages(request, [*end.answer, *_spell(results)])
        plan = self._make_plan(k + 1, parts.states.find_ratio(request).apply(added))
        self._body = body
        manifest = parts.states.caches.sent.keep(request, body)
        following = Round(request.exchange, k + 1, request.session.upstream, manifest)
        return Retry(body, following, plan, self._epoch)

    def _make_plan(self, k: int, added: int) -> Plan | None:
        """Return the plan of a further round: the client would not have sent it, so that all of it is a cost.

        One that is above the ceiling is told in the plan and as an event: the head of the response may have left.
        """
        first, sent, request = self._find_plan(), self._tokens, self._request
        if first is None:
            return None
        self._tokens, reason = sent + added, "the model recalled"
        if first.usable and self._tokens > first.usable:
            self._parts.bus.publish(
                CeilingExceededEvent(
                    session=request.session.id,
                    exchange=request.exchange,
                    tokens=self._tokens,
                    usable=first.usable,
                    error=reason,
                )
            )
            reason = f"{reason}; above the ceiling: {self._tokens} tokens of {first.usable}"
        return msgspec.structs.replace(
            first,
            exchange=request.exchange,
            k=k,
            rung="epoch",
            pressure="none",
            reason=reason,
            tokens_client=0,
            tokens_upstream=self._tokens,
            saving=None,
            client_read=0,
            sent_read=sent,
            own_expected=0,
            sent_expected=None,
        )

    def _watch(self) -> None:
        """Send a comment whenever nothing was sent for a while, if the client reads a stream."""
        if self._beat is None and self._is_stream:
            self._beat = asyncio.get_running_loop().call_later(WITHHOLD_SECONDS, self._send_comment)

    def _send_comment(self) -> None:
        is_waiting = self._stitcher is not None and (self._stitcher.has_call or self._stitcher.is_withholding)
        if self._is_silent and is_waiting:
            self._client.write(WAITING)
        self._is_silent = True
        self._beat = asyncio.get_running_loop().call_later(WITHHOLD_SECONDS, self._send_comment)


def build_rounds(
    recall: Recall,
    policy: RecallPolicy,
    states: StateReader,
    lineage: LineageTracker,
    *,
    bus: EngineBus,
    record_cap: int,
) -> RecallRounds:
    """Return what begins the rounds of answers whose calls `recall` executes."""

    async def run(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        told = states.offers.answer(request, epoch, arguments)
        return told or await recall.run(make_scope(request, policy.scope, epoch, room), arguments)

    def look_ahead(request: ManagedRequest) -> None:
        recall.prepare(make_scope(request, policy.scope))

    limits = {"max_hops": policy.max_hops, "record_cap": record_cap}
    return RecallRounds(run, states, lineage, bus=bus, look_ahead=look_ahead, **limits)


def build_offers(*, is_on: bool, make: Callable[..., ToolOffers] = ToolOffers) -> ToolOffers:
    """Return what decides about the tool in requests of all formats; `make` gets what that needs."""
    tool = OwnTool(RECALL_TOOL, DESCRIPTION, PARAMETERS)

    def find_obstacle(request: ManagedRequest, is_offered: bool) -> str:
        return find_wire_obstacle(FORMATS[request.wire], request.split, RECALL_TOOL, is_offered=is_offered)

    spelled = {name: spell_tool(form, tool) for name, form in FORMATS.items()}
    return make(is_on=is_on, spell=spelled.__getitem__, find_obstacle=find_obstacle, restore=restore_recalled)


def restore_recalled(wire: str, rounds: Sequence[HiddenRound], following: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return what is sent in place of an answer with hidden rounds (`tool_offers.Restore`)."""
    played = [PlayedRound(each.answer, tuple([OwnResult(id, text) for id, text in each.results])) for each in rounds]
    return restore_answer(FORMATS[wire], RECALL_TOOL, played, following)


def _spell(results: Sequence[OwnResult]) -> list[bytes]:
    return [msgspec.json.encode({"role": "tool", "content": each.text}) for each in results]
