"""Calls in whose answers a model may recall: its calls of our tool are executed in further rounds."""

from functools import partial

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.recall.rounds import RecallRounds
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.stage import Call, Stage


class Recalling(Stage):
    """Expects calls of our tool in responses."""

    def __init__(self, rounds: RecallRounds) -> None:
        self._rounds = rounds

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Expect calls of our tool in the response, unless that came elsewhere."""
        if call.send is None:
            exchange.make_rounds = partial(self._rounds.begin, request, exchange)
