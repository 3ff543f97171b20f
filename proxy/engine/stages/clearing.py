"""Clearing in a provider's place: the client is told what was cleared as that provider would tell it."""

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.response_stream import EditingClient
from proxy.engine.context.client_orders import find_cleared
from proxy.engine.context.request_state import StateReader
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.stage import Call, Stage


class Clearing(Stage):
    """Adds to responses what was cleared for them."""

    def __init__(self, states: StateReader) -> None:
        self._states = states

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Return a client that passes on a response with what was cleared for what was sent last."""
        terms = request.clearing
        if terms is None:
            return exchange.client
        plans, states = exchange.plans, self._states

        def add(raw: bytes) -> bytes:
            return call.form.add_cleared(raw, terms, find_cleared(states, request, plans[-1]))

        return EditingClient(exchange.client, add, call.form.clearing_sign)
