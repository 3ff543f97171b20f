"""Clearing in a provider's place: our epochs do it, and the client is told of it as that provider would tell it."""

from functools import partial

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.response_stream import EditingClient
from proxy.engine.context.client_orders import find_cleared, read_clearing, take_clearing, tell_unserved
from proxy.engine.context.request_state import OutgoingRequest, StateReader
from proxy.engine.policy import UNKNOWN_PROVIDER
from proxy.engine.ports import Client
from proxy.engine.request import Counted, ManagedRequest
from proxy.engine.stages.stage import Call, Stage
from proxy.wire.body import remove_member, split_body


class Clearing(Stage):
    """Takes from requests what their upstreams cannot clear, and adds to responses what was cleared for them."""

    def __init__(self, states: StateReader) -> None:
        self._states = states

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        """Return a request without what it asks to be cleared, if that is our work."""
        return take_clearing(request, self._states.models.providers)

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Let a client pass on a response with what was cleared for what was sent last."""
        terms = request.clearing
        if terms is None:
            return exchange.client
        plans, states, form = exchange.plans, self._states, call.form

        def add(raw: bytes) -> bytes:
            return form.add_cleared(raw, terms, find_cleared(states, request, plans[-1]))

        exchange.edit(EditingClient(exchange.client, add, form.clearing_sign), without=form.clearing_beta)
        return exchange.client

    def plan(self, call: Call, request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Tell what is cleared otherwise than it was asked for."""
        return tell_unserved(request, outgoing)

    def count(self, call: Call, exchange: OpenExchange, counted: Counted) -> Counted:
        """Send nothing to count that the upstream cannot clear. Tell the client what it would be without clearing."""
        form, own = call.form, self._strip(call, exchange.upstream)
        if own is None:
            return counted
        add = partial(form.add_original_count, cleared=counted.shortened)
        exchange.edit(EditingClient(exchange.client, add, form.clearing_sign), without=form.clearing_beta)
        return counted if counted.own is not call.incoming.body else Counted(own, own)

    def _strip(self, call: Call, upstream: str) -> bytes | None:
        """Return the body of a request to count without what it asks to be cleared, None if it is sent as it is."""
        form, provider = call.form, self._states.models.providers.get(upstream, UNKNOWN_PROVIDER)
        may_ask = form.clearing_key and not provider.edits_context  # most bodies need not be split again
        split = split_body(call.incoming.body, form.items_key) if may_ask else None
        if split is None or read_clearing(form, split, provider, call.options.mode) is None:
            return None
        return remove_member(split, form.clearing_key).content
