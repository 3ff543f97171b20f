"""Calls whose bodies stream through unread, both ways. What passed is kept up to the cap."""

from functools import partial

from proxy.engine.call.calls import Calls, add_labels
from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.ports import Client, RequestBody
from proxy.engine.request_resolver import RequestResolver
from proxy.model.exchange import ClientRequest, Opening, Round
from proxy.model.log import Record
from proxy.model.manifest import Manifest, make_head_manifest, make_manifest


class UnreadCalls:
    """Carries calls on any path that is no call to a model, and all calls in mode bypass."""

    def __init__(self, calls: Calls, resolver: RequestResolver) -> None:
        self._calls = calls
        self._resolver = resolver

    async def carry(self, incoming: ClientRequest, body: RequestBody | None, client: Client) -> None:
        """Carry a request whose body, if any, streams through unread. See also `ExchangeService.carry`."""
        with self._calls.keep(client):
            self._calls.check_log()
            await self._carry(incoming, body, client)

    async def _carry(self, incoming: ClientRequest, body: RequestBody | None, client: Client) -> None:
        calls = self._calls
        request = self._resolver.resolve_stream(incoming, calls.read_plain_options(incoming.headers))
        add_labels(client, request)
        exchange, passed = calls.open(request, None, client), CappedBuffer(calls.policy.record_cap_bytes)

        def make_records() -> tuple[Opening, *tuple[Record, ...]]:
            opening = self._resolver.make_opening(request, partial(keep_passed, passed))
            return opening, Round(opening.exchange, 0, request.upstream.name, None)

        exchange.make_records, exchange.has_body = make_records, body is None
        content = CapturedBody(body, passed, exchange) if body is not None else b""
        await calls.relay.carry(exchange, calls.bind(request, exchange), content)


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


def keep_passed(passed: CappedBuffer) -> Manifest:
    """Return the manifest of what has passed."""
    if passed.is_capped:
        return make_head_manifest(passed.content, passed.size, passed.whole_digest)
    return make_manifest(passed.content)
