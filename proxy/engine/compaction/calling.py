"""One call of our own, end to end: an exchange as any other in the log, of kind `auxiliary` in the session it is for.

Rule: nothing here raises but a cancellation, and nothing is asked that could not be recorded. A call has a time limit,
ends when what comes is of no use, and leaves its record however it ends.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from proxy.context.pricing import Cost
from proxy.engine.boundary import attempt
from proxy.engine.compaction.correspondent import Correspondent
from proxy.engine.compaction.keys import CallCredential
from proxy.engine.compaction.spending import Purse
from proxy.engine.compaction.warmth import Warmth
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock, Ids, RequestBody, Upstream, UpstreamResponse
from proxy.engine.relay import Relay
from proxy.engine.request import ManagedRequest
from proxy.engine.response_reader import read_received
from proxy.engine.round import CappedBuffer, RoundState
from proxy.engine.runtime import EventBus, TaskRunner
from proxy.model.errors import ProxyError
from proxy.model.events import AuxiliaryEnded
from proxy.model.exchange import Answer, Headers, Opening, Round, SessionKey, Usage
from proxy.model.manifest import Manifest, keep_to
from proxy.wire.asking import read_report
from proxy.wire.format import Format
from proxy.wire.headers import keep_for_call, keep_for_log, keep_target, list_credentials, read_allowance
from proxy.wire.overflow import read_overflow

_METHOD = "POST"
_TARGET = b"/v1/chat/completions"
_SUCCESS = range(200, 300)
_INLINE_BYTES = 64 * 1024
_EMPTY_BY_LENGTH = ("", "length")


@dataclass(frozen=True, slots=True)
class Errand:
    """What is asked of a model, for which session, and what that will probably cost.

    `key` is the session's. `most_characters` bounds the visible text of the answer. A warm call is `warm_behind` the
    request of the client's that was sent last, on whose body its own leans in the log.
    """

    session: SessionKey
    key: CallCredential
    upstream: Upstream
    model: str
    body: bytes = field(repr=False)
    most_characters: int
    expected: Usage
    warm_behind: ManagedRequest | None = None

    @property
    def is_at_home(self) -> bool:
        """Whether it goes where the session's own calls go."""
        return self.upstream.name == self.session.upstream

    @property
    def target(self) -> bytes:
        """The path and query."""
        return self.key.target if self.is_at_home else _TARGET

    @property
    def headers(self) -> Headers:
        """The fields; no other upstream gets any of the client's."""
        return keep_for_call(self.key.headers, is_same_upstream=self.is_at_home)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that came to its end, or began a call of a tool and was left there. `seconds` from asking to end."""

    text: str
    finish: str
    usage: Usage | None
    seconds: float
    is_tool_call: bool
    exchange: str
    refusal: str = ""

    @property
    def wants_more_room(self) -> bool:
        """Whether all its tokens went into thoughts, so that it is worth asking again with more (B29)."""
        return (self.text, self.finish) == _EMPTY_BY_LENGTH


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came, or none that can be used; `exchange` is empty where nothing was asked.

    `retry_after` in seconds, where the upstream said so. `is_too_long`: what was asked does not fit in its window.
    """

    reason: str
    status: int = 0
    retry_after: float | None = None
    exchange: str = ""
    is_too_long: bool = False


@dataclass(frozen=True, slots=True)
class Means:
    """With what calls are made and recorded, and who keeps account of them."""

    relay: Relay
    memory: ContextCaches
    tasks: TaskRunner
    bus: EventBus
    clock: Clock
    ids: Ids
    purse: Purse
    warmth: Warmth


class ModelCaller:
    """Makes calls of our own. `form` is the wire of them all."""

    def __init__(self, policy: EnginePolicy, means: Means, form: Format, time_limit_seconds: float) -> None:
        self._policy = policy
        self._means = means
        self._form = form
        self._seconds = time_limit_seconds

    async def ask(self, errand: Errand) -> Answered | Unanswered:
        """Ask, and wait for the answer until the time is up."""
        means = self._means
        if problem := means.relay.problem:
            return Unanswered(f"nothing is asked that cannot be recorded: {problem}")
        call = _RunningCall(errand, means.ids.next_exchange(), self._form, means.clock.monotonic())
        expected = means.purse.price(errand.upstream.name, errand.model, errand.expected)
        means.purse.hold(errand.session.id, expected)
        call.task = means.tasks.spawn(self._carry(call))
        try:
            await asyncio.wait((call.task,), timeout=self._seconds)
            if not call.task.done() and not call.is_let_go:
                call.is_late = True
                call.stop()
            await asyncio.wait((call.task,))
            outcome = await self._conclude_safely(call)
        except asyncio.CancelledError:
            call.stop()
            self._settle(call, None, expected)
            raise
        self._settle(call, outcome, expected)
        return outcome

    async def _carry(self, call: "_RunningCall") -> None:
        means, errand, flight = self._means, call.errand, self._take_off(call)
        try:
            await means.relay.carry(flight, partial(_send, errand), errand.body)
        except ProxyError as error:
            flight.client.fail(error)

    def _take_off(self, call: "_RunningCall") -> RoundState:
        errand, policy, means = call.errand, self._policy, self._means
        opening, sent = self._open(call), Round(call.exchange, 0, errand.upstream.name, None)
        entry = means.relay.enter(lambda: (opening, sent))
        entry.append()
        call.tape = CappedBuffer(policy.record_cap_bytes)
        secrets = (*policy.own_keys, *list_credentials(errand.headers, errand.target))
        return RoundState(
            call.exchange, entry, self._form, errand.upstream.name, call.correspondent, call.tape, secrets
        )

    def _open(self, call: "_RunningCall") -> Opening:
        errand = call.errand
        return Opening(
            exchange=call.exchange,
            session=errand.session,
            kind="auxiliary",
            wire=self._form.name,
            mode="manage",
            model=errand.model,
            method=_METHOD,
            target=keep_target(errand.target),
            headers=keep_for_log(errand.headers),
            body=self._keep(errand),
            opened_ms=self._means.clock.now_ms(),
        )

    def _keep(self, errand: Errand) -> Manifest:
        content = errand.body
        if errand.warm_behind is None:
            return keep_to(content, self._policy.record_cap_bytes)
        self._means.memory.forget_lost()
        return self._means.memory.sent.keep(errand.warm_behind, content)

    async def _conclude_safely(self, call: "_RunningCall") -> Answered | Unanswered:
        problems: list[Exception] = []
        outcome = await attempt(self._conclude(call), problems.append)
        return outcome or Unanswered(f"the answer could not be read: {problems[0]!r}", exchange=call.exchange)

    async def _conclude(self, call: "_RunningCall") -> Answered | Unanswered:
        """What came of a call that has ended."""
        heard, exchange = call.correspondent, call.exchange
        if heard.verdict == "tool_call":
            return Answered("", "", None, self._since(call), is_tool_call=True, exchange=exchange)
        if heard.verdict == "babble":
            return Unanswered("the answer is longer than it may be", heard.status, exchange=exchange)
        if heard.error is not None:
            return Unanswered(str(heard.error), exchange=exchange)
        if call.is_late and not heard.is_whole:
            return Unanswered(f"no whole answer came within {self._seconds:g} s", heard.status, exchange=exchange)
        if not heard.is_whole:
            return Unanswered("the answer broke off", heard.status, exchange=exchange)
        return self._read(call, await self._parse(call))

    async def _parse(self, call: "_RunningCall") -> Answer | ValueError:
        """The answer, or why there is none in what came."""
        tape, headers, cap = call.tape, call.correspondent.headers, self._policy.record_cap_bytes
        try:
            if len(tape.content) <= _INLINE_BYTES:
                return read_received(self._form, headers, tape.content, cap)[0]
            return (await asyncio.to_thread(read_received, self._form, headers, tape.content, cap))[0]
        except ValueError as error:
            return error

    def _read(self, call: "_RunningCall", answer: Answer | ValueError) -> Answered | Unanswered:
        heard, exchange = call.correspondent, call.exchange
        problem = str(answer) if isinstance(answer, ValueError) else answer.error
        if heard.status not in _SUCCESS:
            is_too_long = read_overflow(heard.status, heard.headers, call.tape.content) is not None
            pause = read_allowance(heard.headers, self._means.clock.now_ms()).retry_after
            return Unanswered(f"status {heard.status}: {problem}", heard.status, pause, exchange, is_too_long)
        if isinstance(answer, ValueError) or problem:
            return Unanswered(problem, heard.status, exchange=exchange)
        if not answer.is_ended:
            return Unanswered("the answer broke off", heard.status, exchange=exchange)
        said = read_report(answer)
        if len(said.text) > call.errand.most_characters:
            return Unanswered("the answer is longer than it may be", heard.status, exchange=exchange)
        seconds = self._since(call)
        return Answered(said.text, said.finish, said.usage, seconds, said.is_tool_call, exchange, said.refusal)

    def _settle(self, call: "_RunningCall", outcome: Answered | Unanswered | None, expected: Cost) -> None:
        """Keep account of a call that has ended; of one that nobody counted what it was expected to cost."""
        errand, means, seconds = call.errand, self._means, self._since(call)
        upstream, model, cost = errand.upstream.name, errand.model, expected
        if isinstance(outcome, Answered) and not outcome.is_tool_call:
            usage = outcome.usage
            means.warmth.note(upstream, model, seconds, usage if errand.warm_behind is not None else None)
            cost = expected if usage is None else means.purse.price(upstream, model, usage)
        elif not call.is_billed:
            cost = Cost()
        means.purse.settle(errand.session.id, call.exchange, expected, cost)
        ended = (call.exchange, errand.session.id, upstream, model, _name(outcome), cost.tokens, seconds)
        means.bus.publish(AuxiliaryEnded(*ended))

    def _since(self, call: "_RunningCall") -> float:
        return self._means.clock.monotonic() - call.began


class _RunningCall:
    """A call under way."""

    def __init__(self, errand: Errand, exchange: str, form: Format, began: float) -> None:
        self.errand = errand
        self.exchange = exchange
        self.began = began
        self.task: asyncio.Task[None] | None = None
        self.tape = CappedBuffer(0)
        self.is_late = self.is_let_go = False
        self.correspondent = Correspondent(form, errand.most_characters, self.stop)

    @property
    def is_billed(self) -> bool:
        """Whether it may have cost something: it was refused by nobody."""
        status = self.correspondent.status
        return self.correspondent.error is None and (not status or status in _SUCCESS)

    def stop(self) -> None:
        """Wait for no more of the answer."""
        if not self.is_let_go and self.task is not None:
            self.is_let_go = True
            self.task.cancel()


def _send(errand: Errand, body: bytes | RequestBody) -> Awaitable[UpstreamResponse]:
    return errand.upstream.send(_METHOD, errand.target, errand.headers, body)


def _name(outcome: Answered | Unanswered | None) -> Literal["answered", "tool_call", "failed", "aborted"]:
    if outcome is None:
        return "aborted"
    if isinstance(outcome, Unanswered):
        return "failed"
    return "tool_call" if outcome.is_tool_call else "answered"
