"""Every other path and method. Rule: streams both ways, unread; the upstream is the one to judge it (BEHAVIOUR B35)."""

from starlette.types import Receive, Scope, Send

from proxy.engine.exchange import Exchanges
from proxy.server.client import ServedClient, read_request
from proxy.server.policy import ServerPolicy


class Passthrough:
    """The endpoint of what has no other."""

    def __init__(self, exchanges: Exchanges, policy: ServerPolicy) -> None:
        self._exchanges = exchanges
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        client = ServedClient(scope, self._policy)
        body = client if client.has_body else None
        if body is None:
            client.expect_nothing()
        await client.see_through(self._exchanges.carry_stream(read_request(scope), body, client))
