"""One client call from end to end: its stages, what is sent for it, and the relay of the response."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from proxy.engine.call.calls import Calls, add_labels
from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.context.controller import ContextController
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.counting import CountCalls
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.request_resolver import BuildManifest, RequestResolver
from proxy.engine.stages.stage import Call, Pipeline, Stage
from proxy.engine.unread import UnreadCalls
from proxy.model.exchange import ClientRequest, Headers, LocalCall, Opening, ReceivedCall, Round
from proxy.model.log import Record
from proxy.model.manifest import make_encoded_manifest
from proxy.wire.format import Format


class ExchangeService:
    """Carries client calls: those that are read, here; requests to count by `counting`, all others by `unread`."""

    def __init__(
        self,
        calls: Calls,
        formats: Mapping[str, Format],
        resolver: RequestResolver,
        controller: ContextController,
        stages: Sequence[Stage] = (),
    ) -> None:
        self.calls = calls
        self.resolver = resolver
        self._formats = formats
        self._controller = controller
        self._pipeline = Pipeline(stages)
        self.counting = CountCalls(calls, formats, resolver, controller, self._pipeline)
        self.unread = UnreadCalls(calls, resolver)

    def reads(self, headers: Headers) -> bool:
        """Return whether a request in a wire format is read. A server that was started in mode bypass reads none.

        If bypass is asked for one request, it is read where epochs may have been opened. May raise BadRequest.
        """
        return self.calls.policy.mode != "bypass" or self.calls.read_options(headers).mode != "bypass"

    async def carry(self, incoming: ClientRequest, wire: str, client: Client, local: LocalCall | None = None) -> None:
        """Carry a request whose whole body is in memory, in the wire format named `wire`.

        If it is cancelled because the client disconnected, the call is recorded as far as it came. A `local`
        call belongs to the session that this names; one that was made elsewhere is recorded, and answered with the
        response that came there: nothing is sent.
        """
        with self.calls.keep(client):
            self.calls.check_log()
            options = self.calls.read_options(incoming.headers)
            options = options if local is None else replace(options, local=local)
            call = Call(incoming, self._formats[wire], client, options)
            try:
                for arrive in self._pipeline.arrive:
                    call = await arrive(call)
                await self._carry(call)
            finally:
                for leave in self._pipeline.leave:
                    await leave(call)

    def find_upstream(self, model: str) -> str:
        """Return the name of the upstream that requests to a model go to."""
        return self.resolver.find_upstream(model)

    def forget(self, sessions: Iterable[str]) -> None:
        """Ask the log for what it has of sessions when that is needed next."""
        self.resolver.forget_lost()
        for session in sessions:
            for forget in self._pipeline.forget:
                forget(session)

    async def _carry(self, call: Call) -> None:
        arrived = self.calls.relay.clock.monotonic()
        # adds its session, its upstream, and which of its messages are new
        request, build = await self.resolver.resolve(call.incoming, call.form, call.options, call.arrival)
        if isinstance(request, ManagedRequest):
            for shape in self._pipeline.shape:
                request = shape(call, request)
        exchange = self.calls.open(request, call.form, call.client)
        exchange.arrived = arrived
        if isinstance(request, ManagedRequest):
            for take in self._pipeline.open:
                exchange.client = take(call, request, exchange)
        add_labels(exchange.client, request)
        outgoing = self._controller.decide_at_once(request)
        if outgoing is not None:
            outgoing = self._plan(call, request, outgoing)
        exchange.make_records = partial(self._list_records, call, request, build, outgoing)
        if outgoing is None:
            exchange.record_opening()  # a later request may refer to it, and arrive before this one is decided
            outgoing = await self._decide(call, exchange, request)
        exchange.is_urgent = request.is_stream
        self._prepare(call, request, exchange, outgoing)
        send = call.send or self.calls.bind(request, exchange, call.form)
        await self.calls.relay.carry(exchange, send, outgoing.body)
        if isinstance(request, ManagedRequest):
            for end in self._pipeline.end:
                end(call, request)

    def _plan(self, call: Call, request: ResolvedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Let the stages tell more of what is sent."""
        if isinstance(request, ManagedRequest):
            for plan in self._pipeline.plan:
                outgoing = plan(call, request, outgoing)
        return outgoing

    async def _decide(self, call: Call, exchange: OpenExchange, request: ResolvedRequest) -> OutgoingRequest:
        """Decide what is sent if that needs the log, a count of many tokens, or a plan. Record the decision."""
        assert isinstance(request, ManagedRequest), "what is not understood is decided at once"
        try:
            outgoing = await self._controller.decide(request, partial(self.calls.commit, exchange))
        except asyncio.CancelledError:
            exchange.record(Round(exchange.id, 0, exchange.upstream, None))
            self.calls.relay.abandon(exchange)
            raise
        outgoing = self._plan(call, request, outgoing)
        exchange.record(*self._list_round(request, outgoing), is_urgent=request.is_stream)
        return outgoing

    def _prepare(self, call: Call, request: ResolvedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Set what is done beside the sending, and after a refusal."""
        exchange.plans.append(outgoing.plan)
        if isinstance(request, ManagedRequest):
            for prepare in self._pipeline.prepare:
                prepare(call, request, exchange, outgoing)
            exchange.begin_rounds(outgoing.body, outgoing.epoch)
        if outgoing.labels:
            add_labels(exchange.client, request, outgoing.labels)

    def _list_records(
        self, call: Call, request: ResolvedRequest, build: BuildManifest, outgoing: OutgoingRequest | None
    ) -> tuple[Opening, *tuple[Record, ...]]:
        """List the first records of an exchange, without the round if `outgoing` is not decided yet."""
        opening, lineage = self.resolver.make_opening(request, build), request.lineage
        records: list[Record] = self._list_round(request, outgoing) if outgoing is not None else []
        if request.encoded:
            records.append(self._keep_encoded(request))
        if not isinstance(request, ManagedRequest):
            return (opening, *records, *(() if lineage is None else (lineage,)))
        for list_records in self._pipeline.list_records:
            records += list_records(call, request)
        return (opening, *records)

    def _keep_encoded(self, request: ResolvedRequest) -> ReceivedCall:
        """Return the record of a body as it came, in its content-encoding or with references."""
        kept = make_encoded_manifest(request.session.tenant, request.encoded, self.calls.policy.record_cap_bytes)
        return ReceivedCall(request.exchange, "", "", b"", kept)

    def _list_round(self, request: ResolvedRequest, outgoing: OutgoingRequest) -> list[Record]:
        """List the records of what is sent: the round, and its plan if that is known already."""
        manifest = None
        if not request.is_as_it_came(outgoing.body):
            sent = request.find_sent(outgoing.body)
            manifest = self._controller.accounting.build_manifest(request, replace(outgoing, body=sent))
        records: list[Record] = [Round(request.exchange, 0, request.upstream.name, manifest)]
        return [*records, *(() if outgoing.plan is None else (outgoing.plan,)), *outgoing.records]
