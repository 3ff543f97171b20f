"""What is learned of calls: which prompts were sent, what their responses should show, and which epoch is near."""

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.context.accounting import tell_recorded
from proxy.engine.context.controller import ContextController
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.lineage.chain import digest_layers
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.stage import Call, Stage
from proxy.model.events import Planned, PromptSent
from proxy.model.log import Record
from proxy.wire import FORMATS


class Usage(Stage):
    """Tells of requests that are sent, and prepares for what follows from them."""

    def __init__(self, controller: ContextController) -> None:
        self._accounting, self._chain, self._bus = controller.accounting, controller.chain, controller.bus
        self._prompts = controller.states.caches.prompts

    def plan(self, call: Call, request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Note what is sent, and tell of its plan."""
        self._prompts.note_sent(request, outgoing.epoch)
        if outgoing.plan is not None:
            self._bus.publish(Planned(request.session.id, outgoing.plan))
        return outgoing

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Plan the next epoch behind this call if it is near, or watch the response to what never will be counted."""
        if outgoing.state is None:
            if outgoing.is_managed:
                self._accounting.watch(request, outgoing.body)
        elif not outgoing.is_opened:  # in a callback: an error must not fail this call
            asyncio.get_running_loop().call_soon(self._chain.draft_ahead, outgoing.state)

    def list_records(self, call: Call, request: ManagedRequest) -> Iterable[Record]:
        """Return the place of a request in its session, with the digests of its layers. Tell of both."""
        tell_recorded(self._bus, request)
        lineage = request.lineage
        if lineage is None:
            return ()
        lineage = replace(lineage, layers=digest_layers(request.split, request.chain.preamble))
        if request.kind != "recorded":  # nothing was sent, so that no cache of ours has it
            session, terms = request.session, FORMATS[request.wire].read_terms(request.split)
            named = request.exchange, session.id, session.upstream, request.model, request.chain.nodes
            self._bus.publish(PromptSent(*named, lineage.layers, request.opened_ms, terms))
        return (lineage,)
