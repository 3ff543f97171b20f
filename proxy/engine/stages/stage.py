"""What a stage of a call is, and the call as its stages see it."""

from collections.abc import Iterable, Sequence

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.relay import Send
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.history.held import HeldExchange
from proxy.engine.ports import Client
from proxy.engine.request import PLAIN_ARRIVAL, Arrival, Counted, ManagedRequest
from proxy.model import Value
from proxy.model.exchange import ClientRequest, RequestOptions
from proxy.model.log import Record
from proxy.wire.format import Format


class Call(Value, eq=False):
    """A client's call as it arrived, or as the stages before have made it.

    `send` is set if something else than the upstream answers, `held` if we hold the history that it continues.
    """

    incoming: ClientRequest
    form: Format
    client: Client
    options: RequestOptions
    arrival: Arrival = PLAIN_ARRIVAL
    send: Send | None = None
    held: HeldExchange | None = None


class Stage:
    """What a feature does in each call. Every hook does nothing by default; one that is not overridden costs nothing.

    Hooks with a `request` are called only where that was read message by message.
    """

    async def arrive(self, call: Call) -> Call:
        """Return a call before it is resolved, perhaps with another request or client. Refuse it with a ProxyError."""
        return call

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        """Return a resolved request with what is sent beside the client's. Also asked where tokens are counted."""
        return request

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Return who gets the response: `exchange.client`, or one that passes it on to that. Nothing is decided yet."""
        return exchange.client

    def count(self, call: Call, exchange: OpenExchange, counted: Counted) -> Counted:
        """Return what is sent of a request to count, whether it was read message by message or not."""
        return counted

    def plan(self, call: Call, request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Return what is sent, perhaps with more told of it. It is decided, and nothing of it is recorded yet."""
        return outgoing

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Prepare for the response. It is decided what is sent, and nothing was sent yet."""

    def list_records(self, call: Call, request: ManagedRequest) -> Iterable[Record]:
        """Return what is recorded with the opening and the first round."""
        return ()

    def end(self, call: Call, request: ManagedRequest) -> None:
        """Note that the client has its response, or that it was refused."""

    async def leave(self, call: Call) -> None:
        """Undo what `arrive` did, however the call ended. Where a stage refused it, `arrive` may not have run."""

    def forget(self, session: str) -> None:
        """Ask the log for what it has of a session when that is needed next."""


class Pipeline:
    """The stages of calls in their order; for each hook the methods that override it."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self.arrive = [each.arrive for each in stages if type(each).arrive is not Stage.arrive]
        self.shape = [each.shape for each in stages if type(each).shape is not Stage.shape]
        self.open = [each.open for each in stages if type(each).open is not Stage.open]
        self.plan = [each.plan for each in stages if type(each).plan is not Stage.plan]
        self.prepare = [each.prepare for each in stages if type(each).prepare is not Stage.prepare]
        self.count = [each.count for each in stages if type(each).count is not Stage.count]
        self.list_records = [each.list_records for each in stages if type(each).list_records is not Stage.list_records]
        self.end = [each.end for each in stages if type(each).end is not Stage.end]
        self.leave = [each.leave for each in stages if type(each).leave is not Stage.leave]
        self.forget = [each.forget for each in stages if type(each).forget is not Stage.forget]
