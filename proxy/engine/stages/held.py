"""Calls that continue a history that we hold: each gets it, one at a time in a session, and adds its answer to it."""

from collections.abc import Iterable

from msgspec.structs import replace

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.history.held import HeldHistories
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest, add_nudge
from proxy.engine.stages.stage import Call, Stage
from proxy.model.log import Record


class HeldCalls(Stage):
    """Gives calls the histories that we hold."""

    def __init__(self, histories: HeldHistories) -> None:
        self._histories = histories

    async def arrive(self, call: Call) -> Call:
        """Return a call with its whole history. Refuse it if it has none, or if another call of its session goes on."""
        if call.options.history is None:
            return call
        held = await self._histories.hold(call.incoming, call.form, call.options)
        arrival = replace(call.arrival, is_whole=True)
        return replace(call, incoming=held.request, client=held.watch(call.client), arrival=arrival, held=held)

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        """Return a request with the nudge that stands behind it, if any."""
        return add_nudge(request, call.held.nudge.raw) if call.held is not None and call.held.nudge.raw else request

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Note the exchange that a call has become."""
        if call.held is not None:
            self._histories.note_sent(call.held, request.exchange)
        return exchange.client

    def list_records(self, call: Call, request: ManagedRequest) -> Iterable[Record]:
        """Return the record of what the client sent."""
        return (call.held.make_record(request),) if call.held is not None else ()

    def end(self, call: Call, request: ManagedRequest) -> None:
        """Forget the path of a session that a call without it has continued: the end of its newest path is another."""
        if call.held is None:
            self._histories.forget(request.session.id)

    async def leave(self, call: Call) -> None:
        """Take over the answer, and let the next call of the session begin."""
        if call.held is not None:
            await self._histories.release(call.held)

    def forget(self, session: str) -> None:
        """Ask the log for the path of a session when it is needed next."""
        self._histories.forget(session)
