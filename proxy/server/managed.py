"""The paths whose wire format we read.

Rule: read the body, hand the call to the engine, watch for the client leaving.
"""

import asyncio

from starlette.types import Receive, Scope, Send

from proxy.engine.exchange import ExchangeService
from proxy.model.errors import ProxyError
from proxy.server.client import BodyBudget, ServedClient, Share, read_request
from proxy.server.passthrough import Passthrough
from proxy.server.policy import ServerPolicy


class Managed:
    """The endpoint of one wire format; a request in mode `bypass` goes the way of the other paths."""

    def __init__(
        self, wire: str, exchanges: ExchangeService, policy: ServerPolicy, passthrough: Passthrough, bodies: BodyBudget
    ) -> None:
        self._wire = wire
        self._exchanges = exchanges
        self._policy = policy
        self._passthrough = passthrough
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        client, share = ServedClient(scope, self._policy), Share(self._bodies)
        try:
            if self._exchanges.read_mode(scope["headers"]) == "bypass":
                return await self._passthrough(scope, receive, send)
            body = await client.read_whole(share)
            await client.see_through(self._exchanges.carry(read_request(scope, body), self._wire, client))
        except ProxyError as error:
            client.fail(error)
        except asyncio.CancelledError:  # the server stops before the request is whole; this task ends with it
            client.dismiss()
        finally:
            share.close()
