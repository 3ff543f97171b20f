"""One client call, end to end: receive, record, send, relay.

Rule: the TaskRunner holds the call; whatever the client does, its record is completed.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from proxy.engine.behind import Behind
from proxy.engine.context.accounting import Sending
from proxy.engine.context.controller import ContextController
from proxy.engine.context.refusal_retry import Reach
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Client, RequestBody
from proxy.engine.relay import Relay, Send
from proxy.engine.request import ManagedRequest
from proxy.engine.request_resolver import RequestResolver, ResolvedRequest
from proxy.engine.round import CappedBuffer, PendingRecord, RoundState
from proxy.engine.runtime import TaskRunner
from proxy.model.epoch import Epoch
from proxy.model.errors import BadRequest, ProxyError, StoreUnavailable
from proxy.model.exchange import ClientRequest, Headers, Mode, Opening, Round
from proxy.model.log import Record
from proxy.model.manifest import Manifest, keep_head, keep_whole
from proxy.wire.format import Format
from proxy.wire.headers import ask_plainly, find, list_credentials

_MODES = ("manage", "observe", "bypass")
# A body of fewer bytes is below any soft mark that is worth managing.
_LARGE_BYTES = 64 * 1024
_UNREADABLE = ((b"x-palimpsest-mode", b"observe; stood-down:its body could not be read message by message"),)
_LONGEST_NUMBER = 9
# What a request may ask for by names that are reserved: what is done anyway (BEHAVIOUR B38).
_SERVED = {b"x-palimpsest-strategy": ("epochs",), b"x-palimpsest-history": (), b"x-palimpsest-source": ("direct",)}


class ExchangeService:
    """Carries client calls. `formats` are by name."""

    def __init__(
        self,
        policy: EnginePolicy,
        formats: Mapping[str, Format],
        reception: RequestResolver,
        relay: Relay,
        tasks: TaskRunner,
        steward: ContextController,
    ) -> None:
        self._policy = policy
        self._formats = formats
        self._reception = reception
        self._relay = relay
        self._tasks = tasks
        self._steward = steward
        named = (principal.header for principal in policy.principals.values() if principal.header)
        self._tenant_fields = tuple(name.lower().encode("latin-1") for name in named)

    def read_mode(self, headers: Headers) -> Mode:
        """The mode a request asks for, else the configured one.

        Raises BadRequest, also where it asks for what is not served: to do something else would be no answer to it.
        """
        _check_reserved(headers)
        asked = find(headers, b"x-palimpsest-mode").decode("latin-1").strip().lower()
        if not asked:
            return self._policy.mode
        if asked not in _MODES:
            raise BadRequest(f"x-palimpsest-mode is one of {', '.join(_MODES)}, not {asked[:40]!r}")
        return cast(Mode, asked)

    async def carry(self, request: ClientRequest, wire: str, client: Client) -> None:
        """Carry a request whose body is at hand, in the wire format named.

        Cancelled when the client has left, it leaves the record of an aborted call.
        """
        await self._tasks.host(self._answer_errors(self._carry(request, self._formats[wire], client), client))

    async def carry_stream(self, request: ClientRequest, body: RequestBody | None, client: Client) -> None:
        """Carry a request whose body, if any, streams through unread; to be cancelled as `carry`."""
        await self._tasks.host(self._answer_errors(self._carry_stream(request, body, client), client))

    async def _answer_errors(self, carrying: Coroutine[Any, Any, None], client: Client) -> None:
        try:
            await carrying
        except ProxyError as error:
            client.fail(error)
        except asyncio.CancelledError:
            client.dismiss()
            raise
        finally:
            client.abort()

    async def _carry(self, request: ClientRequest, form: Format, client: Client) -> None:
        self._check_log()
        mode, ceiling = self.read_mode(request.headers), read_ceiling(request.headers)
        received = await self._reception.receive(request, form, mode)
        subject = received.subject
        sending = self._steward.glance(subject, mode, ceiling) if subject is not None else Sending(request.body)
        is_managed = sending is None
        entry = self._relay.enter(
            lambda: _list_records(received, received.take_opening(), is_managed=is_managed),
            is_urgent=received.is_stream and not is_managed,
        )
        flight = self._take_off(request, received, entry, form, client)
        settling = self._settle(flight, received, sending, ceiling)
        body = await (settling if sending is not None else Behind(settling, entry.append_for_wait))
        await self._relay.carry(flight, _bind(request, received, flight), body)

    async def _settle(
        self, flight: RoundState, received: ResolvedRequest, glanced: Sending | None, ceiling: int | None
    ) -> bytes:
        """The body that is sent; who stands by the call, and what its client is told, is settled with it."""
        subject = received.subject
        if subject is None:
            assert glanced is not None, "what is not understood goes on as it came"
            if received.mode == "manage" and len(glanced.body) >= _LARGE_BYTES:
                _tell(flight.client, received, _UNREADABLE)
            return glanced.body
        sending = glanced or await self._manage(flight, received, subject, ceiling)
        tell = partial(_tell, flight.client, received)
        if sending.is_managed:
            reach = Reach(partial(self._commit, flight.entry), tell, flight.entry.settle)
            flight.rescuer = self._steward.stand_by(subject, sending, reach)
        if sending.labels:
            tell(sending.labels)
        return sending.body

    async def _manage(
        self, flight: RoundState, received: ResolvedRequest, subject: ManagedRequest, ceiling: int | None
    ) -> Sending:
        """What is sent for a request, once what it refers to is in the log.

        Where this waits, the opening is queued: later requests lean on it, and may be there before this one is decided
        on.
        """
        entry, commit = flight.entry, partial(self._commit, flight.entry)
        try:
            sending = await self._steward.prepare(subject, received.mode, ceiling, commit)
        except asyncio.CancelledError:
            entry.extend(Round(flight.exchange, 0, flight.upstream, None))
            self._relay.abandon(flight)
            raise
        if sending.complete is None:
            self._enter(flight, received, sending)
        else:
            keep = partial(self._keep, flight, received, sending)
            entry.postpone(keep, partial(self._complete, flight, received, sending))
        return sending

    def _keep(self, flight: RoundState, received: ResolvedRequest, sending: Sending) -> None:
        """Record what is on its way."""
        assert sending.keep is not None, "what is completed later is kept before"
        self._enter(flight, received, replace(sending, manifest=sending.keep(), plan=None))

    def _complete(self, flight: RoundState, received: ResolvedRequest, sending: Sending) -> None:
        """Record and tell what was left open: tokens only where they are there before the head of the answer goes."""
        assert sending.complete is not None, "else nothing is left"
        whole = sending.complete()
        _tell(flight.client, received, tuple(dict.fromkeys((*sending.labels, *whole.labels))))
        if whole.plan is not None:
            flight.entry.extend(whole.plan, is_urgent=received.is_stream)

    def _enter(self, flight: RoundState, received: ResolvedRequest, sending: Sending) -> None:
        """Record what is sent for a request."""
        first = Round(flight.exchange, 0, flight.upstream, sending.manifest)
        more = [record for record in (sending.plan, sending.pin) if record is not None]
        flight.entry.extend(first, *more, is_urgent=received.is_stream)

    async def _commit(self, entry: PendingRecord, epoch: Epoch) -> bool:
        """Have the log keep an epoch behind the opening of its exchange; whether that is done."""
        entry.extend(epoch)
        return await self._relay.confirm(entry)

    async def _carry_stream(self, request: ClientRequest, body: RequestBody | None, client: Client) -> None:
        self._check_log()
        received = self._reception.receive_stream(request, self.read_mode(request.headers))
        tape = CappedBuffer(self._policy.record_cap_bytes)

        def make() -> tuple[Opening, *tuple[Record, ...]]:
            return _list_records(received, replace(received.opening, body=_keep_tape(tape)))

        entry = self._relay.enter(make)
        flight = self._take_off(request, received, entry, None, client)
        flight.is_whole = body is None
        passing = TapedBody(body, tape, entry) if body is not None else b""
        await self._relay.carry(flight, _bind(request, received, flight), passing)

    def _check_log(self) -> None:
        """Raises StoreUnavailable where calls are not to be carried unrecorded."""
        if self._policy.on_failure == "refuse" and (problem := self._relay.problem):
            raise StoreUnavailable(f"calls are refused while they cannot be recorded (store.on_failure): {problem}")

    def _take_off(
        self,
        request: ClientRequest,
        received: ResolvedRequest,
        entry: PendingRecord,
        form: Format | None,
        client: Client,
    ) -> RoundState:
        _tell(client, received)
        return RoundState(
            received.exchange,
            entry,
            form,
            received.upstream.name,
            client,
            CappedBuffer(self._policy.record_cap_bytes),
            (*self._policy.own_keys, *list_credentials(request.headers, request.target, self._tenant_fields)),
        )


class TapedBody:
    """A streaming request body that is kept as it passes; its opening is recorded when it has passed whole."""

    def __init__(self, body: RequestBody, tape: CappedBuffer, entry: PendingRecord) -> None:
        self._body = body
        self._tape = tape
        self._entry = entry

    async def read(self) -> bytes:
        """The next bytes, empty at the end."""
        content = await self._body.read()
        if content:
            self._tape.add(content)
        else:
            self._entry.append()
        return content


def _check_reserved(headers: Headers) -> None:
    for name, value in headers:
        served = _SERVED.get(name)
        if served is None:
            continue
        asked = value.decode("latin-1").strip().lower()
        if asked and asked not in served:
            what = f"is {', '.join(served)} or absent" if served else "is to be absent"
            raise BadRequest(f"{name.decode()} {what} in this version, not {asked[:40]!r}")


def read_ceiling(headers: Headers) -> int | None:
    """The ceiling a request asks for, in tokens; None where it does not. Raises BadRequest."""
    asked = find(headers, b"x-palimpsest-ceiling").strip()
    if not asked:
        return None
    if not asked.isdigit() or len(asked) > _LONGEST_NUMBER or not int(asked):
        raise BadRequest(f"x-palimpsest-ceiling is a number of tokens, not {asked[:40].decode('latin-1')!r}")
    return int(asked)


def _bind(request: ClientRequest, received: ResolvedRequest, flight: RoundState) -> Send:
    """What sends a body with all else that the client asked for; an answer that may be held back must be readable."""
    is_guarded = flight.rescuer is not None and flight.rescuer.is_guarded
    headers = ask_plainly(request.headers) if is_guarded else request.headers
    return partial(received.upstream.send, request.method, request.target, headers)


def _tell(client: Client, received: ResolvedRequest, labels: Headers = ()) -> None:
    """Let a client find its call in the log, and know what was done with it."""
    if received.mode == "bypass":
        return
    session, exchange = received.session.id.encode(), received.exchange.encode()
    client.label(((b"x-palimpsest-session", session), (b"x-palimpsest-exchange", exchange), *labels))


def _list_records(
    received: ResolvedRequest, opening: Opening, *, is_managed: bool = False
) -> tuple[Opening, *tuple[Record, ...]]:
    """What is known at once; what is sent for a managed request is decided later."""
    sent = () if is_managed else (Round(opening.exchange, 0, received.upstream.name, None),)
    return (opening, *sent) if received.step is None else (opening, *sent, received.step)


def _keep_tape(tape: CappedBuffer) -> Manifest:
    if tape.is_capped:
        return keep_head(tape.content, tape.size, tape.whole_digest)
    return keep_whole(tape.content)
