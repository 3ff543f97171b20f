"""One client call from end to end: resolve the request, decide what is sent, send it, relay the response."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from proxy.context.strategies.sources import is_nudge
from proxy.engine.context.client_orders import find_cleared
from proxy.engine.context.controller import ContextController, write_counted
from proxy.engine.context.loop_watch import LoopWatch
from proxy.engine.context.request_state import OutgoingRequest, StateReader
from proxy.engine.history.held import HeldExchange, HeldHistories
from proxy.engine.history.path import expect_messages
from proxy.engine.lineage.chain import digest_layers
from proxy.engine.lineage.misplaced_keys import MisplacedKeys
from proxy.engine.open_exchange import CappedBuffer, OpenExchange, Refusal, Retry, Start
from proxy.engine.options import read_options
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Client, RequestBody, UpstreamResponse
from proxy.engine.recall.rounds import RecallRounds
from proxy.engine.relay import Relay, Send
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.request_resolver import BuildManifest, RequestResolver
from proxy.engine.response_stream import EditingClient, WholeResponse
from proxy.engine.runtime import TaskRunner, attempt
from proxy.model.epoch import ClearingTerms, Epoch, Plan, SourceNote
from proxy.model.errors import BadRequest, ProxyError, StoreUnavailable
from proxy.model.exchange import ClientRequest, Headers, HeldCall, Opening, ProgramCall, RequestOptions, Round
from proxy.model.log import Record
from proxy.model.manifest import (
    Manifest,
    make_capped_manifest,
    make_encoded_manifest,
    make_head_manifest,
    make_manifest,
)
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.headers import OWN_PREFIX, accept_identity_only, drop_beta, drop_encoding, list_credentials

_log = logging.getLogger("palimpsest.requests")

TraceHeaders = Callable[[OpenExchange, Headers, bytes], Headers]
"""Returns the headers of a request as they are sent, with its place in a trace. The body is empty if it streams."""

_OK = 200
_REFUSED_FORM = frozenset({400, 413, 422})


class ExchangeService:
    """Carries client calls. A TaskRunner keeps every call until its record is complete.

    `trace` is None unless calls are traced.
    """

    def __init__(
        self,
        policy: EnginePolicy,
        formats: Mapping[str, Format],
        *,
        resolver: RequestResolver,
        relay: Relay,
        tasks: TaskRunner,
        controller: ContextController,
        recall: RecallRounds | None = None,
        histories: HeldHistories | None = None,
        loops: LoopWatch | None = None,
        trace: TraceHeaders | None = None,
    ) -> None:
        self._trace = trace
        self._histories = histories
        self._loops = loops
        self._recall = recall
        self._policy = policy
        self._formats = formats
        self.resolver = resolver
        self.relay = relay
        self.tasks = tasks
        self.misplaced = MisplacedKeys(policy.places)
        self._sessions: dict[asyncio.Task[Any], str] = {}  # of the calls under way
        self._controller = controller
        self._unasked = RequestOptions(policy.mode)
        named = (principal.header for principal in policy.principals.values() if principal.header)
        self._tenant_headers = tuple(name.lower().encode("latin-1") for name in named)

    def read_options(self, headers: Headers) -> RequestOptions:
        """Return what the headers of a request ask for. Its mode is the configured one if they ask for none.

        Raises BadRequest for unknown values.
        """
        own = tuple([header for header in headers if header[0].startswith(OWN_PREFIX)])
        return read_options(own, self._policy.mode) if own else self._unasked

    def reads(self, headers: Headers) -> bool:
        """Return whether a request in a wire format is read. A server that was started in mode bypass reads none.

        If bypass is asked for one request, it is read where epochs may have been opened. May raise BadRequest.
        """
        return self._policy.mode != "bypass" or self.read_options(headers).mode != "bypass"

    async def carry(
        self, incoming: ClientRequest, wire: str, client: Client, program: ProgramCall | None = None
    ) -> None:
        """Carry a request whose whole body is in memory, in the wire format named `wire`.

        If it is cancelled because the client disconnected, the call is recorded as far as it came. The call of a
        `program` in this process belongs to the session that this names; one that was made elsewhere is recorded, and
        answered with the response that came there: nothing is sent.
        """
        with self._keep_running(client):
            await self._carry(incoming, self._formats[wire], client, program)

    async def carry_count(self, incoming: ClientRequest, wire: str, client: Client) -> None:
        """Carry a request whose tokens the upstream is to count. See also `carry`.

        What is counted is what would be sent for such a request now. It opens no epoch and is no part of its session.
        """
        with self._keep_running(client):
            await self._carry_count(incoming, self._formats[wire], client)

    async def carry_stream(self, incoming: ClientRequest, body: RequestBody | None, client: Client) -> None:
        """Carry a request whose body, if any, streams through unread. See also `carry`."""
        with self._keep_running(client):
            await self._carry_stream(incoming, body, client)

    @contextmanager
    def _keep_running(self, client: Client) -> Iterator[None]:
        """Register the current task until the call has ended. Report errors to the client."""
        task = _get_task()
        self.tasks.running.add(task)
        try:
            yield
        except ProxyError as error:
            client.fail(error)
        except asyncio.CancelledError:
            client.dismiss()
            raise
        finally:
            client.abort()
            self.tasks.running.discard(task)
            self._sessions.pop(task, None)

    def is_looping(self, session: str) -> bool:
        """Return whether the newest response of a session with calls goes on with a loop."""
        return self._loops is not None and self._loops.is_looping(session)

    def find_upstream(self, model: str) -> str:
        """Return the name of the upstream that requests to a model go to."""
        return self.resolver.find_upstream(model)

    def is_open(self, session: str) -> bool:
        """Return whether a call of a session is under way."""
        return session in self._sessions.values()

    def forget(self, sessions: Sequence[str]) -> None:
        """Ask the log for what it has of sessions when that is needed next."""
        self.resolver.forget_lost()
        if self._histories is not None:
            for session in sessions:
                self._histories.forget(session)

    async def _carry(self, incoming: ClientRequest, form: Format, client: Client, program: ProgramCall | None) -> None:
        self._check_log()
        options = self.read_options(incoming.headers)
        if program is not None:
            is_made = program.respond is not None
            options = replace(options, history="record" if is_made else "program", program=program)
        if options.history is None:
            if is_nudge(options.source):
                expect_messages(incoming, form)
            return await self._carry_read(incoming, form, client, options)
        if problem := self.relay.archive.health.problem:
            raise StoreUnavailable(f"the log holds the history, and cannot take what is new: {problem}")
        assert self._histories is not None, "the assembly sets them"
        async with self._histories.hold(incoming, form, options) as held:
            await self._carry_read(held.request, form, held.watch(client), options, held)

    async def _carry_read(
        self,
        incoming: ClientRequest,
        form: Format,
        client: Client,
        options: RequestOptions,
        held: HeldExchange | None = None,
    ) -> None:
        arrived = self.relay.clock.monotonic()
        # adds its session, its upstream, and which of its messages are new
        request, build = await self.resolver.resolve(incoming, form, options, held)
        if held is not None and self._histories is not None:
            self._histories.note_sent(held, request.exchange)
        loops = self._loops  # most calls are too short to be looked at
        if loops is not None and isinstance(request, ManagedRequest) and len(request.split.items) > loops.least:
            client, request = loops.watch(request, client), loops.annotate(request)
        _add_labels(client, request)
        exchange = self._open(request, form, client)
        exchange.arrived = arrived
        if isinstance(request, ManagedRequest) and request.clearing is not None:
            add = partial(_add_cleared, self._controller.states, request, request.clearing, exchange.plans)
            exchange.client = EditingClient(client, add, form.clearing_sign)
        outgoing = self._controller.decide_at_once(request)
        exchange.make_records = partial(self._list_records, request, build, outgoing, held)
        if outgoing is None:
            exchange.record_opening()  # a later request may refer to it, and arrive before this one is decided
            outgoing = await self._decide(exchange, request)
        exchange.is_urgent = request.is_stream
        self._prepare(request, exchange, outgoing)
        is_edited = isinstance(request, ManagedRequest) and request.clearing is not None
        respond = options.program.respond if options.program is not None else None
        send = (
            self._bind(request, exchange, form, is_edited=is_edited) if respond is None else partial(_answer, respond)
        )
        await self.relay.carry(exchange, send, outgoing.body)
        if held is None and self._histories is not None:
            self._histories.forget(request.session.id)  # its answer is the end of the newest path now

    async def _decide(self, exchange: OpenExchange, request: ResolvedRequest) -> OutgoingRequest:
        """Decide what is sent if that needs the log, a count of many tokens, or a plan. Record the decision."""
        assert isinstance(request, ManagedRequest), "what is not understood is decided at once"
        try:
            outgoing = await self._controller.decide(request, partial(self._commit, exchange))
        except asyncio.CancelledError:
            exchange.record(Round(exchange.id, 0, exchange.upstream, None))
            self.relay.abandon(exchange)
            raise
        exchange.record(*self._list_round(request, outgoing), is_urgent=request.is_stream)
        return outgoing

    def _prepare(self, request: ResolvedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Set what is done beside the sending, and after a refusal."""
        exchange.plans.append(outgoing.plan)
        if outgoing.state is not None:
            self._controller.draft_ahead(outgoing)
        elif outgoing.is_managed and isinstance(request, ManagedRequest):
            self._controller.watch(request, outgoing)
        if (outgoing.is_managed or outgoing.is_mendable) and isinstance(request, ManagedRequest):
            exchange.is_guarded = outgoing.is_guarded or outgoing.is_opened  # a refusal may come with 200
            exchange.make_retries = partial(
                self._controller.make_retries,
                request,
                outgoing,
                commit=partial(self._commit, exchange),
                add_labels=partial(_add_labels, exchange.client, request),
            )
        if self._recall is not None and isinstance(request, ManagedRequest) and request.kind != "recorded":
            exchange.make_rounds = partial(self._recall.begin, request, exchange)
            exchange.begin_rounds(outgoing.body, outgoing.epoch)
        if outgoing.labels:
            _add_labels(exchange.client, request, outgoing.labels)

    def _list_records(
        self,
        request: ResolvedRequest,
        build: BuildManifest,
        outgoing: OutgoingRequest | None,
        held: HeldExchange | None,
    ) -> tuple[Opening, *tuple[Record, ...]]:
        """List the first records of an exchange, without the round if `outgoing` is not decided yet."""
        opening = self.resolver.make_opening(request, build)
        records: list[Record] = self._list_round(request, outgoing) if outgoing is not None else []
        if isinstance(request, ManagedRequest):
            self._controller.note_recorded(request)
            if held is not None:
                records.append(held.make_record(request))
        if request.encoded:
            records.append(self._keep_encoded(request))
        lineage = request.lineage
        if lineage is None:
            return (opening, *records)
        if isinstance(request, ManagedRequest):
            lineage = replace(lineage, layers=digest_layers(request.split, request.chain.preamble))
            if request.kind != "recorded":  # nothing was sent, so that no cache has it
                self._controller.note_prompt(request, lineage.layers)
        records.append(lineage)
        if isinstance(request, ManagedRequest) and request.source:
            records += _note_source(self._controller.states, request)
        return (opening, *records)

    def _keep_encoded(self, request: ResolvedRequest) -> HeldCall:
        """Return the record of a body as it came, in its content-encoding or with references."""
        cap = self._policy.record_cap_bytes
        kept = make_encoded_manifest(request.session.tenant, request.encoded, cap)
        return HeldCall(request.exchange, "", "", b"", kept)

    def _list_round(self, request: ResolvedRequest, outgoing: OutgoingRequest) -> list[Record]:
        """List the records of what is sent: the round, its plan if that is known already, and a pin."""
        manifest = None
        if not request.is_as_it_came(outgoing.body):
            sent = request.find_sent(outgoing.body)
            manifest = self._controller.build_manifest(request, replace(outgoing, body=sent))
        records: list[Record] = [Round(request.exchange, 0, request.upstream.name, manifest)]
        if outgoing.plan is not None:
            records.append(outgoing.plan)
        if outgoing.pin is not None:
            records.append(outgoing.pin)
        return records

    async def _commit(self, exchange: OpenExchange, epoch: Epoch) -> bool:
        """Write an epoch to the log after the opening of its exchange. Return whether it is durable.

        The wait is longer for an epoch that the ceiling needs: without it the request is sent above that.
        """
        exchange.record(epoch)
        seconds = self._policy.hard_wait_seconds if epoch.why in ("hard", "overflow") else 0.0
        return await self.relay.confirm(exchange, seconds)

    async def _carry_count(self, incoming: ClientRequest, form: Format, client: Client) -> None:
        self._check_log()
        unread = self.resolver.resolve_stream(incoming, self._read_unheld(incoming.headers))
        found = await attempt(self.resolver.find_counted(incoming, form, unread), _note_uncounted)
        if found is not None and self._loops is not None:
            found = self._loops.annotate(found)
        written = await attempt(write_counted(self._controller, found), _note_uncounted) if found is not None else None
        request, client_body = found or unread, self.resolver.strip_counted(incoming, form, unread.mode)
        body, own, cleared = written or (client_body, client_body, 0)
        is_edited = client_body is not incoming.body
        if is_edited:
            client = EditingClient(client, partial(form.add_original_count, cleared=cleared), form.clearing_sign)
        _add_labels(client, request)
        exchange, passed = self._open(request, None, client), CappedBuffer(self._policy.record_cap_bytes)
        passed.add(request.encoded or request.body)

        def make_records() -> tuple[Opening, *tuple[Record, ...]]:
            opening = replace(self.resolver.make_opening(request, partial(_keep, passed)), wire="")
            return opening, Round(opening.exchange, 0, request.upstream.name, keep_sent(body))

        def keep_sent(content: bytes) -> Manifest | None:
            return None if content == request.body else make_capped_manifest(content, self._policy.record_cap_bytes)

        exchange.make_records = make_records
        if body != own:
            unmanaged = Retry(own, Round(exchange.id, 1, exchange.upstream, keep_sent(own)))
            exchange.make_retries = partial(UnmanagedRetry, unmanaged)
        await self.relay.carry(exchange, self._bind(request, exchange, form, is_edited=is_edited), body)

    async def _carry_stream(self, incoming: ClientRequest, body: RequestBody | None, client: Client) -> None:
        self._check_log()
        request = self.resolver.resolve_stream(incoming, self._read_unheld(incoming.headers))
        _add_labels(client, request)
        exchange, passed = self._open(request, None, client), CappedBuffer(self._policy.record_cap_bytes)

        def make_records() -> tuple[Opening, *tuple[Record, ...]]:
            opening = self.resolver.make_opening(request, partial(_keep, passed))
            return opening, Round(opening.exchange, 0, request.upstream.name, None)

        exchange.make_records, exchange.has_body = make_records, body is None
        content = CapturedBody(body, passed, exchange) if body is not None else b""
        await self.relay.carry(exchange, self._bind(request, exchange), content)

    def _bind(
        self, request: ResolvedRequest, exchange: OpenExchange, form: Format | None = None, *, is_edited: bool = False
    ) -> Send:
        """Return a function that sends a body with the method, target and headers of the client's request.

        A response that may be withheld must be readable, and so must one that `is_edited`: such requests ask for no
        content-encoding. A body of ours may need a header that the client does not send, and has no content-encoding.
        """
        is_read = exchange.is_guarded or exchange.rounds is not None or is_edited
        own = accept_identity_only(request.headers) if is_read else request.headers
        trace = self._trace
        own = drop_beta(own, form.clearing_beta) if form is not None and is_edited else own

        def send(body: bytes | RequestBody) -> Awaitable[UpstreamResponse]:
            # a retry may have rounds where what it replaces had none
            headers, sent = (own if exchange.rounds is None or is_read else accept_identity_only(own)), body
            if isinstance(body, bytes):
                sent = request.find_sent(body)
            if request.encoded and sent is body:
                headers = drop_encoding(headers)
            if form is not None and isinstance(body, bytes) and body is not request.body:
                headers = form.add_needed_headers(headers, body)
            if trace is not None:
                headers = trace(exchange, headers, body if isinstance(body, bytes) else b"")
            return request.upstream.send(request.method, request.target, headers, sent)

        return send

    def _read_unheld(self, headers: Headers) -> RequestOptions:
        """Return the options of a request that has no history. Raises BadRequest."""
        options = self.read_options(headers)
        if options.history is not None:
            raise BadRequest("x-palimpsest-history is for calls to a model that are read, not for this path or mode")
        return options

    def _check_log(self) -> None:
        """Raise StoreUnavailable if calls cannot be recorded and must not be carried unrecorded."""
        if self._policy.on_failure == "refuse" and (problem := self.relay.problem):
            raise StoreUnavailable(f"calls are refused while they cannot be recorded (store.on_failure): {problem}")

    def _open(self, request: ResolvedRequest, form: Format | None, client: Client) -> OpenExchange:
        self._sessions[_get_task()] = request.session.id
        credentials = list_credentials(request.headers, request.target, self._tenant_headers)
        self.misplaced.note(request.upstream.name, credentials)
        return OpenExchange(
            request.exchange,
            self.relay.archive,
            None,
            form,
            request.upstream.name,
            client,
            CappedBuffer(self._policy.record_cap_bytes),
            (*self._policy.own_keys, *credentials),
        )


def _get_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None, "every call is carried in a task"
    return task


class UnmanagedRetry:
    """Sends the client's own request, once, if the upstream refuses to count what was sent in its place."""

    def __init__(self, retry: Retry) -> None:
        self._retry: Retry | None = retry

    def read_start(self, content: bytes) -> Start:
        """Return that a stream has begun: a count is none."""
        return "content"

    async def find_retry(self, refusal: Refusal, hop: int = 0) -> Retry | None:
        """Return the client's own request after the first refusal of the form of what was sent."""
        if refusal.status not in _REFUSED_FORM:
            return None
        retry, self._retry = self._retry, None
        return retry

    async def accept(self) -> None:
        """Do nothing."""


class CapturedBody:
    """A streaming request body that is kept as it passes. Its end records the opening."""

    def __init__(self, body: RequestBody, passed: CappedBuffer, exchange: OpenExchange) -> None:
        self._body = body
        self._passed = passed
        self._exchange = exchange

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end."""
        content = await self._body.read()
        if content:
            self._passed.add(content)
        else:
            self._exchange.record_opening()
        return content


async def _answer(respond: Callable[[bytes], Awaitable[bytes]], body: bytes | RequestBody) -> UpstreamResponse:
    """Return the response to a call that was made elsewhere."""
    assert isinstance(body, bytes), "it is read"
    return WholeResponse(_OK, (), await respond(body))


def _note_uncounted(error: Exception) -> None:
    _log.error(
        "a request to count tokens could not be rewritten, so the client's own is counted. Please report this line",
        exc_info=error,
    )


def _note_source(states: StateReader, request: ManagedRequest) -> list[Record]:
    """Note what a request tells of its newest message. Return the record of it, if it has one."""
    noted = [SourceNote(request.session.id, request.exchange, node, request.source) for node in request.nodes[-1:]]
    for note in noted:
        states.caches.contexts.note_source(note)
    return [*noted]


def _add_cleared(
    states: StateReader, request: ManagedRequest, terms: ClearingTerms, plans: Sequence[Plan | None], raw: bytes
) -> bytes:
    """Return a response, or an event of it, with what was cleared in the provider's place for what was sent last."""
    return FORMATS[request.wire].add_cleared(raw, terms, find_cleared(states, request, plans[-1]))


def _add_labels(client: Client, request: ResolvedRequest, labels: Headers = ()) -> None:
    """Add response headers with the session and exchange of the call in the log, unless bypassed, and the labels."""
    session, exchange = request.session.id.encode(), request.exchange.encode()
    named = ((b"x-palimpsest-session", session), (b"x-palimpsest-exchange", exchange))
    client.label(labels if request.mode == "bypass" else (*named, *labels))


def _keep(passed: CappedBuffer) -> Manifest:
    if passed.is_capped:
        return make_head_manifest(passed.content, passed.size, passed.whole_digest)
    return make_manifest(passed.content)
