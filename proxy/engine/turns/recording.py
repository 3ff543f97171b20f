"""Turns that a program has made elsewhere: recorded as if they had been calls of ours, without one being made.

A recorded turn takes the way of a call whose history we hold (`engine/history`), up to the upstream: in its place, the
answer that the program brought is the response. So lineage, epochs, summaries, memory and events are as they would be.
The log says of what kind the call was (`recorded`), and of which tokens the program said nothing: these are estimated.

A session that was begun by hand is in the log, too, as a call without a conversation: its first one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, Protocol, cast, get_args

import msgspec
from msgspec import Meta

from proxy.engine.background.jobs import SUMMARY, BackgroundJobs
from proxy.engine.call.response_stream import LocalClient
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import read_key
from proxy.engine.models import Models
from proxy.engine.ports import Archive, Ids
from proxy.engine.recall.scope import is_conversation
from proxy.engine.recorded.conversation import list_raws, split_whole
from proxy.engine.recorded.lookup import read_back
from proxy.engine.turns.answers import write_answer, write_messages
from proxy.engine.turns.calls import make_request
from proxy.model.errors import BadRequest, Conflict, NotFound, StoreUnavailable
from proxy.model.events import RequestRecorded
from proxy.model.exchange import (
    Headers,
    LocalCall,
    Opening,
    Outcome,
    Round,
    SessionKey,
    Timings,
    Usage,
)
from proxy.model.lineage import extend_chain
from proxy.model.log import ExchangeRow
from proxy.model.manifest import make_manifest
from proxy.model.parts import MessagePart, TypedPart
from proxy.model.results import FinishReason, RecordResult, TokenUsage, count_usage
from proxy.wire import FORMATS, OWN_FORMAT
from proxy.wire.format import Format
from proxy.wire.json_values import encode_text, join_array, read_object
from proxy.wire.translation.conversations import translate
from proxy.wire.translation.responses import write_response

Message = Mapping[str, Any]
"""A message as the API of chat completions has it."""

_CREATED = "/-/api/sessions"
_JSON: Headers = ((b"content-type", b"application/json"),)
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_REASONS: tuple[str, ...] = get_args(FinishReason)
_NO_MESSAGE = (
    "a turn is told by texts, or by messages as mappings, as the API of chat completions has them; not by {0!r:.100}"
    " (of an object of an SDK give its `model_dump(exclude_none=True)`)"
)
_LEADING = frozenset({"system", "developer"})
_LONGEST_NAME = 200
_STATUS_CREATED = 201
_READ_BACK = 200


class TurnLog(Archive, Protocol):
    """The log, as far as turns need it."""

    async def number_calls(self, exchanges: Sequence[str]) -> Mapping[str, int]:
        """Return the numbers of exchanges in their sessions; those that the log has not yet are missing."""
        ...


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session to begin."""

    model: Annotated[str, Meta(min_length=1, description="the model that answers")]
    name: Annotated[str, Meta(description="a name, as `x-palimpsest-session` has it; without one it gets any")] = ""
    upstream: Annotated[str, Meta(description="its upstream by name, else the one of the model")] = ""
    system_prompt: Annotated[str, Meta(description="the text that the conversation begins with")] = ""
    parent: Annotated[str, Meta(description="the session that it works for, by its id or a prefix")] = ""


class RecordedTurn(msgspec.Struct, frozen=True):
    """A turn that was made elsewhere: the raw messages of the API of chat completions that were sent, and came back.

    `asked` are those of the user, or the results of tools. `answered` ends with an answer of the model's; before that
    there may be earlier ones of the turn, whose tools had results. `tokens` are None if the program does not know them.
    """

    asked: tuple[bytes, ...]
    answered: tuple[bytes, ...]
    tokens: TokenUsage | None = None
    finish_reason: FinishReason = "stop"
    model: str = ""


class KeptTurn(NamedTuple):
    """The result of recording a turn, and its exchange. `is_repeated`: it had been recorded under the same key."""

    result: RecordResult
    exchange: str
    is_repeated: bool = False


class _Terms(NamedTuple):
    """In which format a session goes on, with which model; and its system prompt, if it has no call yet."""

    form: Format
    model: str
    system: str = ""


def make_turn(
    asked: str | Sequence[Message] | Sequence[MessagePart],
    answered: str | Message | Sequence[Message] | Sequence[MessagePart],
    *,
    tokens: TokenUsage | None = None,
    finish_reason: FinishReason = "stop",
    model: str = "",
) -> RecordedTurn:
    """Return a turn from texts, messages or parts. Raises BadRequest if it is none."""
    if finish_reason not in _REASONS:
        raise BadRequest(f"finish_reason is one of {', '.join(_REASONS)}, not {finish_reason!r:.100}")
    if tokens is not None and not (isinstance(tokens, TokenUsage) and min(msgspec.structs.astuple(tokens)) >= 0):
        raise BadRequest(f"tokens are a TokenUsage of counts that are at least 0, not {tokens!r:.200}")
    told = _list_messages(asked, "user"), _list_messages(answered, "assistant")
    for message in (*told[0], *told[1]):
        if not isinstance(message, Mapping):
            raise BadRequest(_NO_MESSAGE.format(message))
        if message.get("role") not in _ROLES:
            raise BadRequest(f"a message has one of the roles {', '.join(sorted(_ROLES))}: {str(message)[:100]!r}")
    if not told[0]:
        raise BadRequest("a turn begins with a message of the user, or with the results of tools")
    if not told[1] or told[1][-1].get("role") != "assistant":
        raise BadRequest("a turn ends with an answer: the last message of the assistant's part has the role assistant")
    if not (told[1][-1].get("content") or told[1][-1].get("tool_calls")):
        raise BadRequest("the answer of a turn says something, or calls a tool; this one does neither")
    raws = [tuple(msgspec.json.encode(message) for message in part) for part in told]
    return RecordedTurn(raws[0], raws[1], tokens, finish_reason, model)


def _list_messages(told: str | Message | Sequence[Message] | Sequence[MessagePart], role: str) -> Sequence[Message]:
    if isinstance(told, str):
        return [{"role": role, "content": told}] if told else []
    if isinstance(told, Mapping):
        return [told]
    if not isinstance(told, list | tuple):
        raise BadRequest(_NO_MESSAGE.format(told))
    parts = [each for each in told if isinstance(each, TypedPart)]
    if not parts:
        return cast("Sequence[Message]", told)
    if len(parts) < len(told):
        raise BadRequest("a turn is told by messages or by parts, not by both")
    written = write_answer if role == "assistant" else partial(write_messages, OWN_FORMAT)
    return [msgspec.json.decode(raw) for raw in written(cast("Sequence[MessagePart]", told))]


@dataclass(eq=False)
class TurnRecorder:
    """Begins sessions, and records turns in them."""

    exchanges: ExchangeService
    archive: TurnLog
    models: Models
    ids: Ids
    jobs: BackgroundJobs
    creating: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.resolver, self.tasks, relay = (
            self.exchanges.resolver,
            self.exchanges.calls.tasks,
            self.exchanges.calls.relay,
        )
        self.gate, self.bus, self.clock = relay.durability, relay.bus, relay.clock

    async def create(self, wanted: SessionRequest) -> SessionKey:
        """Begin a session, which is in the log then. Raises Conflict if there is one of this name, and BadRequest."""
        name = wanted.name or f"session-{self.ids.next_exchange()}"
        if not (name.isascii() and name.isprintable() and name == name.strip()) or len(name) > _LONGEST_NAME:
            raise BadRequest(f"a session's name is 1 to {_LONGEST_NAME} printable ASCII characters")
        if not wanted.model:
            raise BadRequest("a session needs a model")
        if wanted.parent:
            await self.archive.find_key(wanted.parent)
        key = self.resolver.make_key(name, wanted.model, wanted.upstream, wanted.parent)
        async with self.creating:
            try:
                await self.archive.find_key(key.id)
            except NotFound:
                await self._add(key, wanted)
                return key
        raise Conflict(f"there is a session of the name {name!r} already: {key.id}")

    async def _add(self, key: SessionKey, wanted: SessionRequest) -> None:
        """Write the call to the log with which a session begins. Raises StoreUnavailable."""
        exchange = self.ids.next_exchange()
        received = msgspec.json.encode({"id": key.id})
        body = msgspec.json.encode(wanted)
        await self.write_call(key, exchange, model=wanted.model, target=_CREATED, body=body, received=received)

    async def write_call(
        self, key: SessionKey, exchange: str, *, model: str, target: str, body: bytes, received: bytes
    ) -> None:
        """Write a call to the log that is no part of a conversation. Raises StoreUnavailable."""
        if problem := self.archive.health.problem:
            raise StoreUnavailable(f"the log cannot take a call of a program: {problem}")
        now_ms = self.clock.now_ms()
        opening = Opening(
            exchange=exchange,
            session=key,
            kind="recorded",
            wire="",
            mode="manage",
            model=model,
            method="POST",
            target=target,
            headers=_JSON,
            body=make_manifest(body),
            opened_ms=now_ms,
        )
        ended = Outcome(
            exchange, 0, _STATUS_CREATED, _JSON, "complete", received, len(received), b"", Timings(0.0, 0.0, 0.0)
        )
        written = self.archive.append(opening, Round(exchange, 0, key.upstream, None), ended)
        self.archive.flush()
        if not await self.gate.confirm(written, 1.0):
            raise StoreUnavailable("the log did not take the call of a program in time")
        if RequestRecorded in self.bus.subscribers:
            told = RequestRecorded(exchange, key, key.upstream, model, "", (), 0, _list_no_roles, False, True)
            self.bus.publish(told)

    async def record(self, key: SessionKey, turn: RecordedTurn, once: str = "", system: str = "") -> KeptTurn:
        """Record a turn in a session. With `once`, an idempotency key, it is recorded only once.

        `system` is the system prompt of a session that has no turn yet. Raises BadRequest for a turn that does not
        continue the conversation, Conflict while another turn of the session is under way, NotFound if its history was
        erased, and StoreUnavailable.
        """
        terms = await self._find_terms(key, turn, system)
        spelled = _spell(terms, turn)
        more = ((b"idempotency-key", once.encode("latin-1", "replace")),) if once else ()
        request = make_request(terms.form, spelled.body, *more)
        if (kept := await self._find_kept(key.id, read_key(request.headers), spelled)) is not None:
            return kept
        respond = partial(self._respond, key, terms, turn, spelled)
        elsewhere, client = LocalCall(key, spelled.told, respond), LocalClient()
        had_job = bool(self.jobs.list_jobs(key.id, SUMMARY))
        # A turn that was begun is recorded to its end, whoever still waits for that.
        await asyncio.shield(self.tasks.spawn(self.exchanges.carry(request, terms.form.name, client, elsewhere)))
        if isinstance(client.error, Conflict):  # of two with one key, the other one may have been first
            kept = await self._find_kept(key.id, read_key(request.headers), spelled)
            if kept is not None:
                return kept
        if client.error is not None:
            raise client.error
        row = await self.find_row(key.id, client.exchange)
        if row is None:
            raise StoreUnavailable("the log has not taken the turn in time")
        return KeptTurn(
            await self._describe(row, is_begun=not had_job and bool(self.jobs.list_jobs(key.id, SUMMARY))), row.id
        )

    async def _find_terms(self, key: SessionKey, turn: RecordedTurn, system: str) -> _Terms:
        """Return how a session goes on: as its newest complete call did, or as it was begun."""
        model, looked_at = turn.model, 0
        try:
            async for row in read_back(self.archive, key.id):
                looked_at += 1
                if is_conversation(row) and _is_complete(row):
                    return _Terms(FORMATS[row.wire], model or row.model, system)
                if looked_at >= _READ_BACK:
                    break
            (first,) = await self.archive.list_calls(key.id, 0, 1)
        except NotFound:
            first = None
        if first is not None and is_beginning(first):
            begun = SessionRequest(**msgspec.json.decode(await self.archive.load_request(first.id)))
            model, system = model or begun.model, system or begun.system_prompt
        if not model:
            raise BadRequest("the first turn of a session says which model has answered: model")
        return _Terms(OWN_FORMAT, model, system)

    async def _respond(
        self, key: SessionKey, terms: "_Terms", turn: RecordedTurn, spelled: "_SpelledTurn", sent: bytes
    ) -> bytes:
        """Return the body of the response that came elsewhere. Without known tokens, those of `sent` are counted."""
        usage = turn.tokens
        if usage is not None:
            whole = usage.input + usage.cache_read + usage.cache_write
            counted = Usage(whole, usage.output, usage.cache_read, usage.cache_write)
        else:
            raws = list_raws(split_whole(sent, terms.form.items_key))
            counted = Usage(
                await self.count(key, terms.model, raws), await self.count(key, terms.model, spelled.answer)
            )
        number = self.ids.next_exchange()
        more = {"palimpsest": {"recorded": True, "usage": "estimated" if usage is None else "told"}}
        return write_response(
            terms.form,
            spelled.answer,
            number=number,
            model=terms.model,
            usage=counted,
            finish=turn.finish_reason if turn.finish_reason != "stop" else None,
            more=more,
        )

    async def count(self, key: SessionKey, model: str, raws: Sequence[bytes]) -> int:
        """Return the tokens of raw messages, as the model counts them."""
        counter = self.models.counter
        return counter.find_ratio(key.upstream, model).apply(sum(await counter.count_messages(model, raws)))

    async def _find_kept(self, session: str, once: str, spelled: "_SpelledTurn") -> KeptTurn | None:
        """Return what was recorded under a key, None if nothing was. Raises BadRequest if it was another turn."""
        known = await self.archive.list_held(session) if once else ()
        held = next((each for each in known if each.key == once), None)
        if held is None:
            return None
        if held.history != "record" or held.digest != sha256(spelled.told).digest():
            raise BadRequest("this idempotency-key was used with other messages")
        row = await self.find_row(session, held.exchange)
        is_recorded = row is not None and _is_complete(row)
        return (
            KeptTurn(await self._describe(row), row.id, is_repeated=True) if row is not None and is_recorded else None
        )

    async def find_row(self, session: str, exchange: str) -> ExchangeRow | None:
        """Return a call of a session with its responses, None if the log has not taken it yet."""
        n = (await self.archive.number_calls([exchange])).get(exchange, 0)
        rows = await self.archive.list_exchanges(session, n - 1, 1) if n else ()
        return next(iter(rows), None)

    async def _describe(self, row: ExchangeRow, *, is_begun: bool = False) -> RecordResult:
        """Return what a recorded call came to, from the log. `is_begun`: a summary began to be made behind it."""
        form, last = FORMATS[row.wire], row.rounds[-1]
        content = await self.archive.load_received(row.id, last.k)
        said = form.list_echoes(content)
        nodes = extend_chain(row.tip, [form.reader.read_item(raw).form for raw in said])
        usage = last.usage or form.read_answer(read_object(content.decode("utf-8", "replace")) or {}).usage
        opened = any(each.plan is not None and each.plan.rung == "plan" for each in row.rounds)
        return RecordResult(
            user_message_id=row.tip.hex(),
            assistant_message_id=(nodes[-1] if nodes else row.tip).hex(),
            tokens=count_usage(usage),
            compaction_triggered=opened or is_begun,
        )


class _SpelledTurn(NamedTuple):
    """A turn in the format of its session: the body of the request that brings it, and the raw messages of its answer.

    `told` is all that the turn says, as it was told.
    """

    body: bytes
    answer: tuple[bytes, ...]
    told: bytes


def _spell(terms: _Terms, turn: RecordedTurn) -> _SpelledTurn:
    form, brought = terms.form, (*turn.asked, *turn.answered[:-1])
    answer: tuple[bytes, ...] = turn.answered[-1:]
    leading = 0
    while leading < len(brought) and _read_role(brought[leading]) in _LEADING:
        leading += 1
    first, rest = brought[:leading], brought[leading:]
    if not first and terms.system:
        first = (OWN_FORMAT.write_message("system", encode_text(terms.system)),)
    instructions = ""
    if form is not OWN_FORMAT:
        instructions = "\n\n".join(OWN_FORMAT.parse_message(raw).text for raw in first)
        first = ()
        # A result is only translated behind its call, which may be the end of what was recorded before.
        calls = _write_calls(rest)
        before = len(translate(OWN_FORMAT, form, calls).items)
        stop = len(translate(OWN_FORMAT, form, (*calls, *rest)).items)
        items = translate(OWN_FORMAT, form, (*calls, *rest, *answer)).items
        rest, answer = items[before:stop], items[stop:]
    members = {form.items_key: join_array((*first, *rest)), "model": encode_text(terms.model)}
    if instructions and form.instructions_key:
        members[form.instructions_key] = encode_text(instructions)
    body = b"{%b}" % b",".join([b"%b:%b" % (encode_text(name), value) for name, value in members.items()])
    return _SpelledTurn(body, answer, join_array((*turn.asked, *turn.answered)))


def _list_no_roles(most: int) -> list[str]:
    return []


def _read_role(raw: bytes) -> str:
    return OWN_FORMAT.reader.read_item(raw).role


def _write_calls(raws: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a message with the calls whose results some messages begin with; none if they begin with no results."""
    ids: list[str] = []
    for raw in raws:
        results = OWN_FORMAT.reader.read_item(raw).results
        if not results:
            break
        ids += results
    if not ids:
        return ()
    calls = [{"id": id, "type": "function", "function": {"name": "call", "arguments": "{}"}} for id in ids]
    return (msgspec.json.encode({"role": "assistant", "content": None, "tool_calls": calls}),)


def is_beginning(row: ExchangeRow) -> bool:
    """Return whether a call is the one that a session begins with which was begun by hand."""
    return row.kind == "recorded" and not row.wire and row.target == _CREATED


def _is_complete(row: ExchangeRow) -> bool:
    return bool(row.rounds) and row.rounds[-1].completeness == "complete"
