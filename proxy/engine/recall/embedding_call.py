"""One call to a model for embeddings, from end to end. The log has it as an `auxiliary` exchange of its session.

The log has the texts already, and the vectors can be made anew: of request and response it keeps only the beginning,
with the size and the digest of all, and the usage.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from proxy.context.pricing import Cost
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_call import FailedCall
from proxy.engine.compaction.model_health import ModelHealth
from proxy.engine.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock, Ids, Upstream
from proxy.engine.relay import Relay
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.errors import ProxyError
from proxy.model.events import OwnCallEnded
from proxy.model.exchange import Headers, Opening, Reading, Round, SessionKey, Usage
from proxy.model.manifest import make_capped_manifest
from proxy.retrieval.vectors import pack_signs
from proxy.wire.body import decode_content
from proxy.wire.headers import (
    accept_identity_only,
    find_header,
    list_credentials,
    read_rate_limits,
    redact_target,
    select_for_own_call,
    select_stored,
)

CALL_SECONDS = 30.0
"""The time limit of a call."""
MOST_BYTES = 32 * 1024 * 1024
"""The most bytes of a response: a few times what 64 vectors of 8,192 numbers take."""
_METHOD, _TARGET = "POST", b"/v1/embeddings"
_SUCCESS = range(200, 300)
_RECORDED_BYTES = 1024
_CHARACTERS_OF_TOKEN = 3  # as few as English has: what is reserved is rather too much


class _Vector(msgspec.Struct, gc=False):
    """A vector in a response. Some servers leave out the index, and send them in order."""

    embedding: list[float]
    index: int | None = None


class _Counted(msgspec.Struct, gc=False):
    """The usage in a response."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Response(msgspec.Struct, gc=False):
    """What is read of a response."""

    data: list[_Vector]
    usage: _Counted | None = None


_responses = msgspec.json.Decoder(_Response)


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts of which vectors are wanted, for a session with its credential."""

    session: SessionKey
    credential: CallCredential
    upstream: Upstream
    model: str
    texts: Sequence[str] = field(repr=False)

    @property
    def expected(self) -> Usage:
        """Return the expected usage."""
        return Usage(sum([len(text) // _CHARACTERS_OF_TOKEN + 1 for text in self.texts]), 0)

    @property
    def headers(self) -> Headers:
        """Return the headers. Another upstream than the session's gets none of the client's."""
        is_at_home = self.upstream.name == self.session.upstream
        return accept_identity_only(select_for_own_call(self.credential.headers, is_same_upstream=is_at_home))


class _BodyReader:
    """The client of a call. It collects the body of a success."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self.status = 0
        self.headers: Headers = ()
        self.body = bytearray()
        self.error: ProxyError | None = None
        self.is_whole = False

    def label(self, fields: Headers) -> None:
        """Ignore the response headers that the proxy adds for clients."""

    def start(self, status: int, headers: Headers) -> None:
        """Take the head of the response."""
        self.status, self.headers = status, headers

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Take a piece of the body."""
        self.is_whole = self.is_whole or is_last
        if len(self.body) + len(content) > MOST_BYTES:
            self.error = ProxyError(f"the response has more than {MOST_BYTES} bytes")
            self._stop()
        else:
            self.body += content
        return True

    async def drain(self) -> None:
        """Return at once, since the size is bounded."""

    def fail(self, error: ProxyError) -> None:
        """Record that no response came."""
        self.error = error

    def dismiss(self) -> None:
        """Do nothing, since only our own code cancels the call."""

    def abort(self) -> None:
        """Do nothing: a response that broke off stays incomplete."""


class _Call:
    """A call under way."""

    def __init__(self, asked: EmbeddingRequest, exchange: str, began: float) -> None:
        self.asked = asked
        self.exchange = exchange
        self.began = began
        self.task: asyncio.Task[None] | None = None
        self.reader = _BodyReader(self.stop)

    @property
    def is_billed(self) -> bool:
        """Return whether it may have cost something, since the upstream has not refused it."""
        status = self.reader.status
        return self.reader.error is None and (not status or status in _SUCCESS)

    def stop(self) -> None:
        """Stop waiting for the response."""
        if self.task is not None:
            self.task.cancel()


@dataclass(kw_only=True, eq=False)
class EmbeddingCaller:
    """Makes calls for embeddings, within the limits of spending, rates and failures that hold for summaries, too.

    Only cancellation raises, and nothing is sent that could not be recorded.
    """

    policy: EnginePolicy
    relay: Relay
    tasks: TaskRunner
    bus: EngineBus
    clock: Clock
    ids: Ids
    health: ModelHealth
    seconds: float = CALL_SECONDS

    def find_objection(self, asked: EmbeddingRequest) -> str:
        """Return why a call must not be made now, or "" if it may."""
        if problem := self.relay.problem:
            return f"nothing is asked that cannot be recorded: {problem}"
        return self.health.find_objection(
            asked.session, asked.credential, asked.upstream.name, asked.model, expected=asked.expected
        )

    async def call(self, asked: EmbeddingRequest) -> list[bytes] | FailedCall:
        """Return a code for each text, or why there are none. `exchange` of a failure is empty if nothing was sent."""
        if objection := self.find_objection(asked):
            return FailedCall(objection)
        budget, session, names = self.health.budget, asked.session.id, (asked.upstream.name, asked.model)
        call = _Call(asked, self.ids.next_exchange(), self.clock.monotonic())
        expected = budget.price(*names, asked.expected)
        budget.reserve(session, expected)
        self.health.breakers.record_start(*names, self.clock.monotonic())
        call.task = self.tasks.spawn(self._carry(call))
        try:
            await asyncio.wait((call.task,), timeout=self.seconds)
            if not call.task.done():
                call.stop()
                await asyncio.wait((call.task,))
            codes, usage = await self._conclude(call)
        except asyncio.CancelledError:
            call.stop()
            self._settle(call, "aborted", expected, expected)
            raise
        if not isinstance(codes, FailedCall):
            self.health.breakers.record_success(*names)
            cost = expected if usage is None else budget.price(*names, usage)
            self._settle(call, "answered", expected, cost)
        else:
            self.health.breakers.record_failure(*names, self.clock.monotonic())
            self._settle(call, "failed", expected, expected if call.is_billed else Cost())
        return codes

    async def _carry(self, call: _Call) -> None:
        asked = call.asked
        body = msgspec.json.encode({"model": asked.model, "input": asked.texts})
        opening = Opening(
            exchange=call.exchange,
            session=asked.session,
            kind="auxiliary",
            wire="",
            mode="manage",
            model=asked.model,
            method=_METHOD,
            target=redact_target(_TARGET),
            headers=select_stored(asked.headers),
            body=make_capped_manifest(body, _RECORDED_BYTES),
            opened_ms=self.clock.now_ms(),
        )
        sent = Round(call.exchange, 0, asked.upstream.name, None)
        exchange = OpenExchange(
            call.exchange,
            self.relay.archive,
            lambda: (opening, sent),
            None,
            asked.upstream.name,
            call.reader,
            CappedBuffer(_RECORDED_BYTES),
            (*self.policy.own_keys, *list_credentials(asked.headers)),
        )
        exchange.record_opening()
        try:
            await self.relay.carry(exchange, partial(asked.upstream.send, _METHOD, _TARGET, asked.headers), body)
        except ProxyError as error:
            call.reader.fail(error)

    async def _conclude(self, call: _Call) -> tuple[list[bytes] | FailedCall, Usage | None]:
        """Return the result of a call that has ended, and its usage if that was reported."""
        reader = call.reader
        if reader.status and reader.status not in _SUCCESS:
            pause = read_rate_limits(reader.headers, self.clock.now_ms()).retry_after
            return FailedCall(f"status {reader.status}", reader.status, pause, call.exchange), None
        if reader.error is not None:
            return FailedCall(str(reader.error), exchange=call.exchange), None
        if not reader.is_whole:
            reason = f"no complete response came within {self.seconds:g} s"
            return FailedCall(reason, reader.status, exchange=call.exchange), None
        try:
            # in a thread: 64 vectors of 3,072 numbers take 60 ms
            codes, usage = await asyncio.to_thread(
                read_vectors, bytes(reader.body), reader.headers, len(call.asked.texts)
            )
        except ValueError as error:
            return FailedCall(f"the response cannot be used: {error}", reader.status, exchange=call.exchange), None
        answer = msgspec.json.encode({"object": "list", "model": call.asked.model})
        self.relay.archive.append(Reading(call.exchange, 0, answer, usage, "", ""), is_urgent=False)
        return codes, usage

    def _settle(
        self, call: _Call, verdict: Literal["answered", "failed", "aborted"], expected: Cost, cost: Cost
    ) -> None:
        asked = call.asked
        self.health.budget.settle(asked.session.id, call.exchange, expected, cost)
        made, seconds = len(asked.texts) if verdict == "answered" else 0, self.clock.monotonic() - call.began
        told = (call.exchange, asked.session.id, asked.upstream.name, asked.model, verdict, cost.tokens, seconds, made)
        self.bus.publish(OwnCallEnded(*told))


def read_vectors(body: bytes, headers: Headers, count: int) -> tuple[list[bytes], Usage | None]:
    """Return the code of each of `count` vectors in a response, and the usage if it is told.

    Raises ValueError if it has not as many, or they are no vectors of one length.
    """
    plain = decode_content(body, find_header(headers, b"content-encoding").decode("latin-1"), MOST_BYTES)
    try:
        response = _responses.decode(plain)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    places = [at if each.index is None else each.index for at, each in enumerate(response.data)]
    if sorted(places) != list(range(count)):
        raise ValueError(f"it has {len(places)} vectors for {count} texts, or not one for each")
    codes = [b""] * count
    for at, each in zip(places, response.data, strict=True):
        codes[at] = pack_signs(each.embedding)
    if len({len(code) for code in codes}) > 1:
        raise ValueError("its vectors are of several lengths")
    counted = response.usage or _Counted()
    tokens = counted.prompt_tokens if counted.prompt_tokens is not None else counted.total_tokens
    return codes, None if tokens is None or tokens < 0 else Usage(tokens, 0)
