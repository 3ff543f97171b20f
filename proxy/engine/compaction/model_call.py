"""One call of our own to a model, from end to end. The log has it as an `auxiliary` exchange of its session.

Of a call for vectors the log keeps only the beginning of request and response, with the size and the digest of all, and
the usage: it has the texts already, and the vectors can be made anew.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from proxy.context.pricing import Cost
from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.call.relay import Relay
from proxy.engine.call.response_reader import read_received
from proxy.engine.call.response_stream import LocalClient, is_plain_stream
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_health import ModelHealth
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.models import Models
from proxy.engine.policy import UNKNOWN_PROVIDER, EnginePolicy
from proxy.engine.ports import Ids, Upstream
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import attempt
from proxy.model.errors import ProxyError
from proxy.model.events import AuxiliaryEnded
from proxy.model.exchange import SUCCESS, Headers, Opening, Reading, Round, SessionKey, Usage
from proxy.model.manifest import Manifest, make_capped_manifest
from proxy.retrieval.embeddings import EMBEDDINGS, read_embeddings
from proxy.wire import FORMATS, OWN_FORMAT, find_wire
from proxy.wire.body import decode_content
from proxy.wire.format import Format
from proxy.wire.headers import (
    find_header,
    list_credentials,
    redact_target,
    select_for_own_call,
    select_stored,
)
from proxy.wire.overflow import read_overflow
from proxy.wire.streams import EVENT_END
from proxy.wire.summary_request import begins_with_thoughts, find_form, make_target, read_piece, read_summary

REPEAT_SECONDS = 600.0
"""Longest time for a client's own request that is sent again: its client sets the limit of a response, not we."""
MOST_BYTES = 32 * 1024 * 1024
"""The most bytes of a response: a few times what 64 vectors of 8,192 numbers take."""

_METHOD = "POST"
# A larger response is parsed in a thread, and so are vectors: 64 of 3,072 numbers take 60 ms.
_INLINE_BYTES = 64 * 1024
_RECORDED_BYTES = 1024  # of a call for vectors
_EMPTY_BY_LENGTH = ("", "length")

# The longest event.
_MOST_BUFFERED = 1024 * 1024
_BEGINNING_CHARACTERS = 64
# Some models write their reasoning into the text, which is then longer.
_THINKING_FACTOR = 4
_TOO_LONG, _BROKEN = "the response is longer than it may be", "the response broke off"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call to be made to a model, for a session, with its expected usage. Without a `form` it asks for vectors."""

    session: SessionKey
    credential: CallCredential  # the session's
    upstream: Upstream
    form: Format | None
    model: str
    body: bytes = field(repr=False)
    most_characters: int  # limit of the visible text of the response
    expected: Usage
    extends: ManagedRequest | None = None  # the client's last request, if the body repeats it; only the rest is logged
    is_whole: bool = True  # the body repeats all of it, so that its cached share shows whether a cache is read
    texts: Sequence[str] = field(default=(), repr=False)  # of which vectors are asked for
    # The id of the exchange, and the body as the log has it: this is a client's own request that is sent again. Its
    # response is read to its end whatever it says, and no session's share pays for it.
    repeats: tuple[str, Manifest] | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Return the upstream and the model."""
        return self.upstream.name, self.model

    @property
    def is_at_home(self) -> bool:
        """Return whether it goes to the upstream of the session's own calls."""
        return self.upstream.name == self.session.upstream

    @property
    def payer(self) -> str:
        """Return the session whose share of spending it takes from, empty if it takes from none."""
        return self.session.id if self.repeats is None else ""

    @property
    def target(self) -> bytes:
        """Return the path and query."""
        if self.form is None:
            return EMBEDDINGS
        return self.credential.target if self.is_at_home else make_target(self.form)

    @property
    def headers(self) -> Headers:
        """Return the headers. Another upstream than the session's gets none of the client's."""
        headers = select_for_own_call(self.credential.headers, is_same_upstream=self.is_at_home)
        if self.form is None:
            return headers
        headers = headers if self.is_at_home else (*self.form.own_headers, *headers)
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
    codes: Sequence[bytes] = ()  # of the texts of which vectors were asked for
    answer: bytes = b""  # all of it as JSON, to a client's own request

    @property
    def is_text(self) -> bool:
        """Return whether it says something, and calls no tool."""
        return bool(self.text.strip()) and not self.is_tool_call

    @property
    def has_no_room_left(self) -> bool:
        """Return whether reasoning used all tokens, so that it is worth asking again with more."""
        return (self.text, self.finish) == _EMPTY_BY_LENGTH


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call without a usable response. `exchange` is empty if nothing was sent.

    `is_too_long`: the body does not fit into the model's window.
    """

    reason: str
    status: int = 0
    exchange: str = ""
    is_too_long: bool = False


class RunningCall(LocalClient):
    """A call under way, and its client. It reads events as they are relayed, and stops responses that are of no use.

    `stop` ends the call, once, if the response begins a tool call, has more than `most_characters` of visible text, or
    has ended while its connection stays open.
    """

    def __init__(self, asked: ModelCall, id: str, began: float, stop: Callable[[], object]) -> None:
        super().__init__()
        self.asked = asked
        self.id = id
        self.began = began
        self.is_stopped = False
        self.verdict: Literal["", "tool_call", "too_long"] = ""
        self._stop = stop
        self._buffered = b""
        self._size = self._characters = 0
        self._beginning = ""
        self._is_stream = False

    @property
    def is_billed(self) -> bool:
        """Return whether it may have cost something, since the upstream has not refused it."""
        return self.error is None and (not self.status or self.status in SUCCESS)

    def stop(self) -> None:
        """Stop waiting for the response."""
        if not self.is_stopped:
            self.is_stopped = True
            self._stop()

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Take a piece of the body."""
        form = self.asked.form
        self._is_stream = self._is_stream or is_plain_stream(self.headers, content)
        if form is not None and self._is_stream and not self.verdict and not self.is_whole:
            self._read(form, content, is_last=is_last)
        self._size += len(content)
        if self._size > MOST_BYTES:
            self.verdict = self.verdict or "too_long"
        else:
            super().write(content, is_last=is_last)
        if self.verdict or (self.is_whole and not is_last):
            self.stop()
        return True

    def _read(self, form: Format, content: bytes, *, is_last: bool) -> None:
        """Read each complete event once. The end of the stream completes the last one."""
        buffered = self._buffered + content
        end = len(buffered) if is_last else max((match.end() for match in EVENT_END.finditer(buffered)), default=0)
        self._buffered = buffered[end:]
        report, self.is_whole = read_piece(form, buffered[:end])
        self._characters += len(report.said)
        self._beginning = (self._beginning + report.said)[:_BEGINNING_CHARACTERS]
        most = self.asked.most_characters * (_THINKING_FACTOR if begins_with_thoughts(self._beginning) else 1)
        if report.is_tool_call and self.asked.repeats is None:
            self.verdict = "tool_call"
        elif self._characters > most or len(self._buffered) > _MOST_BUFFERED:
            self.verdict = "too_long"

    def read_response(self, seconds: float) -> ModelResponse:
        """Return what the whole response says. Raises ValueError if that is of no use."""
        asked = self.asked
        if asked.form is None and self.status in SUCCESS:
            coding = find_header(self.headers, b"content-encoding").decode("latin-1")
            codes, usage = read_embeddings(decode_content(self.content, coding, MOST_BYTES), len(asked.texts))
            return ModelResponse("", "", usage, seconds, is_tool_call=False, exchange=self.id, codes=codes)
        form = asked.form or OWN_FORMAT  # as an upstream says why it makes no vectors
        answer, plain = read_received(form, self.headers, self.content, MOST_BYTES)
        if answer.error or not answer.is_ended:
            raise ValueError(answer.error or _BROKEN)
        said = read_summary(form, answer)
        if len(said.text) > asked.most_characters:
            raise ValueError(_TOO_LONG)
        return ModelResponse(
            *(said.text, said.finish, said.usage, seconds, said.is_tool_call, self.id, said.refusal, said.block),
            answer=plain if asked.repeats is not None else b"",
        )


@dataclass(eq=False)
class ModelCaller:
    """Makes calls of our own, within the limits of spending, rates and failures.

    Only cancellation raises, and nothing is sent that could not be recorded. A call has a time limit, ends early if its
    response is of no use, and is recorded however it ends.
    """

    limits: CompactionPolicy
    policy: EnginePolicy
    relay: Relay
    caches: ContextCaches
    models: Models
    ids: Ids

    def __post_init__(self) -> None:
        self.bus, self.clock, self.tasks = self.relay.bus, self.relay.clock, self.relay.bus.tasks
        self.health = ModelHealth(self.limits, self.models, self.bus, self.clock)
        self.time_limit_seconds = self.limits.time_limit_seconds

    async def call(self, asked: ModelCall, *, is_manual: bool = False) -> ModelResponse | FailedCall:
        """Send a call if it may be made, and wait for its response up to the time limit.

        A manual call may exceed the session's share. Whoever calls this records whether the model is of use; see `ask`.
        """
        if problem := self.relay.problem:
            return FailedCall(f"nothing is asked that cannot be recorded: {problem}")
        if objection := self.health.find_objection(
            asked.session, asked.credential, *asked.names, expected=asked.expected, is_manual=is_manual
        ):
            return FailedCall(objection)
        budget, now = self.health.budget, self.clock.monotonic()
        expected = budget.price(*asked.names, asked.expected)
        budget.reserve(asked.payer, expected)
        self.health.breakers.record_start(*asked.names)
        id = self.ids.next_exchange() if asked.repeats is None else asked.repeats[0]
        call = RunningCall(asked, id, now, lambda: task.cancel())
        task = self.tasks.spawn(self._carry(call))
        outcome: ModelResponse | FailedCall | None = None
        try:
            limit = self.time_limit_seconds if asked.repeats is None else REPEAT_SECONDS
            await asyncio.wait((task,), timeout=limit)
            if is_late := not task.done() and not call.is_stopped:
                call.stop()
            await asyncio.wait((task,))
            problems: list[Exception] = []
            late = f"no complete response came within {limit:g} s" if is_late else _BROKEN
            outcome = await attempt(self._conclude(call, late), problems.append)
            outcome = outcome or _fail(call, f"the response could not be read: {problems[0]!r}", status=0)
        finally:
            call.stop()
            self._settle(call, outcome, expected)
        return outcome

    async def ask(
        self, asked: ModelCall, *, is_manual: bool = False, is_text: bool = False
    ) -> ModelResponse | FailedCall:
        """Call a model, and record whether its response was of use: any that is complete, or only a text."""
        outcome, breakers = await self.call(asked, is_manual=is_manual), self.health.breakers
        if isinstance(outcome, ModelResponse) and (outcome.is_text or not is_text):
            breakers.record_success(*asked.names)
        elif outcome.exchange:
            breakers.record_failure(*asked.names)
        return outcome

    def find_form(self, session: SessionKey, credential: CallCredential, upstream: Upstream) -> Format:
        """Return the format of a call: at the session's own upstream that of its calls, which may speak no other."""
        if upstream.name == session.upstream:
            return FORMATS[find_wire(credential.target.partition(b"?")[0].decode("latin-1")) or OWN_FORMAT.name]
        return find_form(self.models.providers.get(upstream.name, UNKNOWN_PROVIDER).host)

    async def _carry(self, call: RunningCall) -> None:
        asked = call.asked
        cap = self.policy.record_cap_bytes if asked.form is not None else _RECORDED_BYTES
        opening, sent = self._make_opening(call, cap), Round(call.id, 0, asked.upstream.name, None)
        exchange = OpenExchange(
            call.id,
            self.relay.archive,
            lambda: (opening, sent),
            asked.form,
            asked.upstream.name,
            call,
            CappedBuffer(cap),
            (*self.policy.own_keys, *list_credentials(asked.headers, asked.target)),
        )
        exchange.record_opening()
        send = partial(asked.upstream.send, _METHOD, asked.target, asked.headers)
        try:
            await self.relay.carry(exchange, send, asked.body)
        except ProxyError as error:
            call.fail(error)

    def _make_opening(self, call: RunningCall, cap: int) -> Opening:
        asked = call.asked
        if asked.repeats is not None:
            body = asked.repeats[1]
        elif asked.extends is None:
            body = make_capped_manifest(asked.body, cap)
        else:
            self.caches.forget_lost()
            body = self.caches.sent.keep(asked.extends, asked.body)
        return Opening(
            exchange=call.id,
            session=asked.session,
            kind="auxiliary",
            wire=asked.form.name if asked.form is not None else "",
            mode="manage",
            model=asked.model,
            method=_METHOD,
            target=redact_target(asked.target),
            headers=select_stored(asked.headers),
            body=body,
            opened_ms=self.clock.now_ms(),
        )

    async def _conclude(self, call: RunningCall, unfinished: str) -> ModelResponse | FailedCall:
        """Return the result of a call that has ended. `unfinished` says why, if the response is not whole."""
        seconds = self.clock.monotonic() - call.began
        if call.verdict == "tool_call":
            return ModelResponse("", "", None, seconds, is_tool_call=True, exchange=call.id)
        if call.verdict == "too_long":
            return _fail(call, _TOO_LONG)
        if call.error is not None:
            return _fail(call, str(call.error), status=0)
        if not call.is_whole:
            return _fail(call, unfinished)
        read, problem = partial(call.read_response, seconds), ""
        is_long = call.asked.form is None or len(call.content) > _INLINE_BYTES
        try:
            response = await asyncio.to_thread(read) if is_long else read()
        except ValueError as error:
            problem = str(error)
        if call.status not in SUCCESS:
            is_too_long = read_overflow(call.status, call.headers, call.content) is not None
            return FailedCall(f"status {call.status}: {problem}", call.status, call.id, is_too_long=is_too_long)
        if problem:
            return _fail(call, problem)
        if call.asked.form is None:  # nobody else reads it
            answer = msgspec.json.encode({"object": "list", "model": call.asked.model})
            self.relay.archive.append(Reading(call.id, 0, answer, response.usage, "", ""), is_urgent=False)
        return response

    def _settle(self, call: RunningCall, outcome: ModelResponse | FailedCall | None, expected: Cost) -> None:
        """Account for a call that has ended. Without a reported usage it costs what was expected."""
        asked, seconds, cost = call.asked, self.clock.monotonic() - call.began, expected
        made = len(outcome.codes) if isinstance(outcome, ModelResponse) else 0
        if isinstance(outcome, ModelResponse) and outcome.usage is not None:
            cost = self.health.budget.price(*asked.names, outcome.usage)
        elif not call.is_billed:
            cost = Cost()
        if isinstance(outcome, ModelResponse) and not outcome.is_tool_call and asked.repeats is None:
            warm_usage = outcome.usage if asked.extends is not None and asked.is_whole else None
            self.health.cache_hits.record_call(*asked.names, seconds, warm_usage)
        self.health.budget.settle(asked.payer, call.id, expected, cost)
        ended = (call.id, asked.session.id, *asked.names, _name(outcome), cost.tokens, seconds)
        self.bus.publish(AuxiliaryEnded(*ended, None if asked.form is not None else made))


def _fail(call: RunningCall, reason: str, status: int | None = None) -> FailedCall:
    return FailedCall(reason, call.status if status is None else status, exchange=call.id)


def _name(outcome: ModelResponse | FailedCall | None) -> Literal["answered", "tool_call", "failed", "aborted"]:
    if outcome is None:
        return "aborted"
    if isinstance(outcome, FailedCall):
        return "failed"
    return "tool_call" if outcome.is_tool_call else "answered"
