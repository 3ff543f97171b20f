"""One call to a model for a summary, from end to end. The log has it as an `auxiliary` exchange of its session."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from proxy.context.pricing import Cost
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_health import ModelHealth
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock, Ids, Upstream
from proxy.engine.relay import Relay
from proxy.engine.request import ManagedRequest
from proxy.engine.response_reader import read_received
from proxy.engine.response_stream import is_plain_stream
from proxy.engine.runtime import EngineBus, TaskRunner, attempt
from proxy.model.errors import ProxyError
from proxy.model.events import OwnCallEnded
from proxy.model.exchange import Answer, Headers, Opening, Round, SessionKey, Usage
from proxy.model.manifest import make_capped_manifest
from proxy.wire.format import Format
from proxy.wire.headers import list_credentials, read_rate_limits, redact_target, select_for_own_call, select_stored
from proxy.wire.overflow import read_overflow
from proxy.wire.streams import EVENT_END, read_events
from proxy.wire.summary_request import begins_with_thoughts, list_headers, make_target, read_piece, read_summary

_METHOD = "POST"
_SUCCESS = range(200, 300)
# A larger response is parsed in a thread.
_INLINE_BYTES = 64 * 1024
_EMPTY_BY_LENGTH = ("", "length")

# The longest event, and the longest response that is not a stream.
_MOST_BUFFERED = 1024 * 1024
_BEGINNING_CHARACTERS = 64
# Some models write their reasoning into the text, which is then longer.
_THINKING_FACTOR = 4


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call to be made to a model, for a session, with its expected usage."""

    session: SessionKey
    credential: CallCredential  # the session's
    upstream: Upstream
    form: Format
    model: str
    body: bytes = field(repr=False)
    most_characters: int  # limit of the visible text of the response
    expected: Usage
    extends: ManagedRequest | None = None  # the client's last request, if the body repeats it; only the rest is logged
    is_whole: bool = True  # the body repeats all of it, so that its cached share shows whether a cache is read

    @property
    def is_at_home(self) -> bool:
        """Return whether it goes to the upstream of the session's own calls."""
        return self.upstream.name == self.session.upstream

    @property
    def target(self) -> bytes:
        """Return the path and query."""
        return self.credential.target if self.is_at_home else make_target(self.form)

    @property
    def headers(self) -> Headers:
        """Return the headers. Another upstream than the session's gets none of the client's."""
        headers = select_for_own_call(self.credential.headers, is_same_upstream=self.is_at_home)
        headers = headers if self.is_at_home else (*list_headers(self.form), *headers)
        return self.form.add_needed_headers(headers, self.body)


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """A response that is complete, or was stopped at a tool call. `seconds` is the duration of the call."""

    text: str
    finish: str
    usage: Usage | None
    seconds: float
    is_tool_call: bool
    exchange: str
    refusal: str = ""
    block: str = ""  # the raw message of the provider's own compaction

    @property
    def has_no_room_left(self) -> bool:
        """Return whether reasoning used all tokens, so that it is worth asking again with more."""
        return (self.text, self.finish) == _EMPTY_BY_LENGTH


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call without a usable response. `exchange` is empty if nothing was sent.

    `retry_after` is in seconds, if the upstream sent it. `is_too_long`: the body does not fit into the model's window.
    """

    reason: str
    status: int = 0
    retry_after: float | None = None
    exchange: str = ""
    is_too_long: bool = False


class SummaryResponseReader:
    """The client of a call for a summary. It reads events as they are relayed, and stops responses that are of no use.

    `stop` ends the call if the response begins a tool call, has more than `most_characters` of visible text, or has
    ended while its connection stays open. Bytes are not kept here; the record has them.
    """

    def __init__(self, form: Format, most_characters: int, stop: Callable[[], object]) -> None:
        self._form = form
        self._most = most_characters
        self._stop = stop
        self._buffered = b""
        self._characters = 0
        self._beginning = ""
        self._is_stream = False
        self.status = 0
        self.headers: Headers = ()
        self.error: ProxyError | None = None
        self.is_whole = False
        self.verdict: Literal["", "tool_call", "too_long"] = ""

    def label(self, fields: Headers) -> None:
        """Ignore the response headers that the proxy adds for clients."""

    def start(self, status: int, headers: Headers) -> None:
        """Take the head of the response."""
        self.status, self.headers = status, headers

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Take a piece of the body."""
        self._is_stream = self._is_stream or is_plain_stream(self.headers, content)
        if self._is_stream and not self.verdict and not self.is_whole:
            self._read(content, is_last=is_last)
        self.is_whole = self.is_whole or is_last
        if self.verdict or (self.is_whole and not is_last):
            self._stop()
        return True

    async def drain(self) -> None:
        """Return at once, since nothing is buffered."""

    def fail(self, error: ProxyError) -> None:
        """Record that no response came."""
        self.error = error

    def dismiss(self) -> None:
        """Do nothing, since only our own code cancels the call."""

    def abort(self) -> None:
        """Do nothing: a response that broke off stays incomplete."""

    def _read(self, content: bytes, *, is_last: bool) -> None:
        """Read each complete event once. The end of the stream completes the last one."""
        held = self._buffered + content
        end = len(held) if is_last else max((match.end() for match in EVENT_END.finditer(held)), default=0)
        self._buffered = held[end:]
        report, self.is_whole = read_piece(self._form, read_events(held[:end]))
        self._characters += len(report.said)
        self._beginning = (self._beginning + report.said)[:_BEGINNING_CHARACTERS]
        most = self._most * (_THINKING_FACTOR if begins_with_thoughts(self._beginning) else 1)
        if report.is_tool_call:
            self.verdict = "tool_call"
        elif self._characters > most or len(self._buffered) > _MOST_BUFFERED:
            self.verdict = "too_long"


@dataclass(kw_only=True, eq=False)
class ModelCaller:
    """Makes calls for summaries.

    Only cancellation raises, and nothing is sent that could not be recorded. A call has a time limit, ends early if its
    response is of no use, and is recorded however it ends.
    """

    policy: EnginePolicy
    relay: Relay
    memory: ContextCaches
    tasks: TaskRunner
    bus: EngineBus
    clock: Clock
    ids: Ids
    health: ModelHealth
    time_limit_seconds: float

    async def call(self, asked: ModelCall) -> ModelResponse | FailedCall:
        """Send a call, and wait for its response up to the time limit."""
        if problem := self.relay.problem:
            return FailedCall(f"nothing is asked that cannot be recorded: {problem}")
        budget, session = self.health.budget, asked.session.id
        call = _RunningCall(asked, self.ids.next_exchange(), self.clock.monotonic())
        expected = budget.price(asked.upstream.name, asked.model, asked.expected)
        budget.reserve(session, expected)
        call.task = self.tasks.spawn(self._carry(call))
        try:
            await asyncio.wait((call.task,), timeout=self.time_limit_seconds)
            if not call.task.done() and not call.is_stopped:
                call.is_late = True
                call.stop()
            await asyncio.wait((call.task,))
            problems: list[Exception] = []
            outcome = await attempt(self._conclude(call), problems.append)
            outcome = outcome or _fail(call, f"the response could not be read: {problems[0]!r}", status=0)
        except asyncio.CancelledError:
            call.stop()
            self._settle(call, None, expected)
            raise
        self._settle(call, outcome, expected)
        return outcome

    async def _carry(self, call: "_RunningCall") -> None:
        asked = call.asked
        send = partial(asked.upstream.send, _METHOD, asked.target, asked.headers)
        opening, sent = self._make_opening(call), Round(call.exchange, 0, asked.upstream.name, None)
        call.buffer = CappedBuffer(self.policy.record_cap_bytes)
        exchange = OpenExchange(
            call.exchange,
            self.relay.archive,
            lambda: (opening, sent),
            asked.form,
            asked.upstream.name,
            call.reader,
            call.buffer,
            (*self.policy.own_keys, *list_credentials(asked.headers, asked.target)),
        )
        exchange.record_opening()
        try:
            await self.relay.carry(exchange, send, asked.body)
        except ProxyError as error:
            call.reader.fail(error)

    def _make_opening(self, call: "_RunningCall") -> Opening:
        asked = call.asked
        if asked.extends is None:
            body = make_capped_manifest(asked.body, self.policy.record_cap_bytes)
        else:
            self.memory.forget_lost()
            body = self.memory.sent.keep(asked.extends, asked.body)
        return Opening(
            exchange=call.exchange,
            session=asked.session,
            kind="auxiliary",
            wire=asked.form.name,
            mode="manage",
            model=asked.model,
            method=_METHOD,
            target=redact_target(asked.target),
            headers=select_stored(asked.headers),
            body=body,
            opened_ms=self.clock.now_ms(),
        )

    async def _conclude(self, call: "_RunningCall") -> ModelResponse | FailedCall:
        """Return the result of a call that has ended."""
        reader = call.reader
        if reader.verdict == "tool_call":
            seconds = self.clock.monotonic() - call.began
            return ModelResponse("", "", None, seconds, is_tool_call=True, exchange=call.exchange)
        if reader.verdict == "too_long":
            return _fail(call, "the response is longer than it may be")
        if reader.error is not None:
            return _fail(call, str(reader.error), status=0)
        if call.is_late and not reader.is_whole:
            return _fail(call, f"no complete response came within {self.time_limit_seconds:g} s")
        if not reader.is_whole:
            return _fail(call, "the response broke off")
        content, cap = call.buffer.content, self.policy.record_cap_bytes
        parse = partial(read_received, call.asked.form, reader.headers, content, cap)
        try:
            answer = (parse() if len(content) <= _INLINE_BYTES else await asyncio.to_thread(parse))[0]
        except ValueError as error:
            return self._read(call, None, str(error))
        return self._read(call, answer, answer.error)

    def _read(self, call: "_RunningCall", answer: Answer | None, problem: str) -> ModelResponse | FailedCall:
        reader, content = call.reader, call.buffer.content
        if reader.status not in _SUCCESS:
            is_too_long = read_overflow(reader.status, reader.headers, content) is not None
            pause = read_rate_limits(reader.headers, self.clock.now_ms()).retry_after
            return FailedCall(
                f"status {reader.status}: {problem}", reader.status, pause, call.exchange, is_too_long=is_too_long
            )
        if answer is None or problem:
            return _fail(call, problem)
        if not answer.is_ended:
            return _fail(call, "the response broke off")
        said = read_summary(call.asked.form, answer)
        if len(said.text) > call.asked.most_characters:
            return _fail(call, "the response is longer than it may be")
        seconds = self.clock.monotonic() - call.began
        return ModelResponse(
            *(said.text, said.finish, said.usage, seconds, said.is_tool_call, call.exchange, said.refusal, said.block)
        )

    def _settle(self, call: "_RunningCall", outcome: ModelResponse | FailedCall | None, expected: Cost) -> None:
        """Account for a call that has ended. Without a reported usage it costs what was expected."""
        asked, seconds, budget = call.asked, self.clock.monotonic() - call.began, self.health.budget
        upstream, model, cost = asked.upstream.name, asked.model, expected
        if isinstance(outcome, ModelResponse) and not outcome.is_tool_call:
            usage = outcome.usage
            warm_usage = usage if asked.extends is not None and asked.is_whole else None
            self.health.cache_hits.record_call(upstream, model, seconds, warm_usage)
            cost = expected if usage is None else budget.price(upstream, model, usage)
        elif not call.is_billed:
            cost = Cost()
        budget.settle(asked.session.id, call.exchange, expected, cost)
        ended = (call.exchange, asked.session.id, upstream, model, _name(outcome), cost.tokens, seconds)
        self.bus.publish(OwnCallEnded(*ended))


class _RunningCall:
    """A call under way."""

    def __init__(self, asked: ModelCall, exchange: str, began: float) -> None:
        self.asked = asked
        self.exchange = exchange
        self.began = began
        self.task: asyncio.Task[None] | None = None
        self.buffer = CappedBuffer(0)
        self.is_late = self.is_stopped = False
        self.reader = SummaryResponseReader(asked.form, asked.most_characters, self.stop)

    @property
    def is_billed(self) -> bool:
        """Return whether it may have cost something, since the upstream has not refused it."""
        status = self.reader.status
        return self.reader.error is None and (not status or status in _SUCCESS)

    def stop(self) -> None:
        """Stop waiting for the response."""
        if not self.is_stopped and self.task is not None:
            self.is_stopped = True
            self.task.cancel()


def _fail(call: _RunningCall, reason: str, status: int | None = None) -> FailedCall:
    return FailedCall(reason, call.reader.status if status is None else status, exchange=call.exchange)


def _name(outcome: ModelResponse | FailedCall | None) -> Literal["answered", "tool_call", "failed", "aborted"]:
    if outcome is None:
        return "aborted"
    if isinstance(outcome, FailedCall):
        return "failed"
    return "tool_call" if outcome.is_tool_call else "answered"
