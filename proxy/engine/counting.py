"""Requests whose tokens the upstream is to count: what is counted is what would be sent for such a request now."""

import logging
from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from proxy.engine.call.calls import Calls, add_labels
from proxy.engine.call.open_exchange import CappedBuffer, Refusal, Retry, Start
from proxy.engine.context.controller import ContextController, write_counted
from proxy.engine.ports import Client
from proxy.engine.request import Counted, ManagedRequest
from proxy.engine.request_resolver import RequestResolver
from proxy.engine.runtime import attempt
from proxy.engine.stages.stage import Call, Pipeline
from proxy.engine.unread import keep_passed
from proxy.model.exchange import ClientRequest, Opening, Round
from proxy.model.log import Record
from proxy.model.manifest import Manifest, make_capped_manifest
from proxy.wire.format import Format

_REFUSED_FORM = frozenset({400, 413, 422})

_log = logging.getLogger("palimpsest.requests")


class CountCalls:
    """Carries requests to count tokens. They open no epoch, and are no part of the session that they would continue."""

    def __init__(
        self,
        calls: Calls,
        formats: Mapping[str, Format],
        resolver: RequestResolver,
        controller: ContextController,
        pipeline: Pipeline,
    ) -> None:
        self._calls = calls
        self._formats = formats
        self._resolver = resolver
        self._controller = controller
        self._pipeline = pipeline

    async def carry(self, incoming: ClientRequest, wire: str, client: Client) -> None:
        """Carry a request whose tokens the upstream is to count. See also `ExchangeService.carry`."""
        with self._calls.keep(client):
            self._calls.check_log()
            await self._carry(incoming, self._formats[wire], client)

    async def _carry(self, incoming: ClientRequest, form: Format, client: Client) -> None:
        calls, resolver, cap = self._calls, self._resolver, self._calls.policy.record_cap_bytes
        options = calls.read_plain_options(incoming.headers)
        unread = resolver.resolve_stream(incoming, options)
        call, counted = Call(incoming, form, client, options), Counted(incoming.body, incoming.body)
        request = await attempt(resolver.find_counted(incoming, form, unread), _note_uncounted) or unread
        if isinstance(request, ManagedRequest):
            for shape in self._pipeline.shape:
                request = shape(call, request)
            counted = await attempt(write_counted(self._controller, request), _note_uncounted) or counted
        exchange, passed = calls.open(request, None, client), CappedBuffer(cap)
        for count in self._pipeline.count:
            counted = count(call, exchange, counted)
        add_labels(exchange.client, request)
        passed.add(request.encoded or request.body)

        def make_records() -> tuple[Opening, *tuple[Record, ...]]:
            opening = replace(resolver.make_opening(request, partial(keep_passed, passed)), wire="")
            return opening, Round(opening.exchange, 0, request.upstream.name, keep_sent(counted.body))

        def keep_sent(content: bytes) -> Manifest | None:
            return None if content == request.body else make_capped_manifest(content, cap)

        exchange.make_records = make_records
        if counted.body != counted.own:
            unmanaged = Retry(counted.own, Round(exchange.id, 1, exchange.upstream, keep_sent(counted.own)))
            exchange.make_retries = partial(UnmanagedRetry, unmanaged)
        await calls.relay.carry(exchange, calls.bind(request, exchange, form), counted.body)


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


def _note_uncounted(error: Exception) -> None:
    _log.error(
        "a request to count tokens could not be rewritten, so the client's own is counted. Please report this line",
        exc_info=error,
    )
