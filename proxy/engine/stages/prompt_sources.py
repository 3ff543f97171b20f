"""What a request tells of its newest message: which kind of prompt source it is (`context/strategies/sources`)."""

from collections.abc import Iterable

from msgspec.structs import replace

from proxy.context.strategies.sources import is_nudge
from proxy.engine.context.session_context import SessionContexts
from proxy.engine.history.path import expect_messages
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.stage import Call, Stage
from proxy.model.epoch import SourceNote
from proxy.model.log import Record


class PromptSources(Stage):
    """Keeps the kinds of the newest messages of requests."""

    def __init__(self, contexts: SessionContexts) -> None:
        self._contexts = contexts

    async def arrive(self, call: Call) -> Call:
        """Refuse a request that asks for a nudge: only a history that we hold can have one."""
        if call.held is None and is_nudge(call.options.source):
            expect_messages(call.incoming, call.form)
        return call

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        """Return a request with the kind of its newest message."""
        told = call.options.source if call.held is None else call.held.source
        return replace(request, source=told) if told else request

    def list_records(self, call: Call, request: ManagedRequest) -> Iterable[Record]:
        """Note what a request tells of its newest message, if it has one. Return the record of it."""
        if not request.source or request.lineage is None:
            return ()
        noted = [SourceNote(request.session.id, request.exchange, node, request.source) for node in request.nodes[-1:]]
        for note in noted:
            self._contexts.note_source(note)
        return noted
