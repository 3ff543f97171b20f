"""Requests of ours that an upstream may refuse: they are sent again in another form (`context/refusal_retry`)."""

from functools import partial

from proxy.engine.call.calls import Calls, add_labels
from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.context.controller import ContextController
from proxy.engine.context.refusal_retry import RefusalRetry
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.stage import Call, Stage


class Refusals(Stage):
    """Expects refusals of what is sent in place of a client's request, and of what may be too long."""

    def __init__(self, controller: ContextController, calls: Calls) -> None:
        self._states, self._chain, self._bus = controller.states, controller.chain, controller.bus
        self._calls = calls

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Say what is sent after a refusal, and whether one may come with status 200."""
        if not (outgoing.is_managed or outgoing.is_mendable):
            return
        exchange.is_guarded = outgoing.is_guarded or outgoing.is_opened
        exchange.make_retries = partial(
            RefusalRetry,
            *(self._states, self._chain, self._bus),
            request,
            outgoing,
            commit=partial(self._calls.commit, exchange),
            add_labels=partial(add_labels, exchange.client, request),
        )
