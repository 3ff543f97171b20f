"""The path `/-/mcp`: who may use it, and the import of what serves it."""

import asyncio
from importlib import import_module
from typing import Protocol, cast

from starlette.types import Receive, Scope, Send

from proxy.engine.lineage.identity import Tenants
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.server.access import AccessRules
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS, Refused
from proxy.server.mcp.tools import McpTools
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import find_credential

INSTALL = (
    "the MCP server needs the extra mcp: install it by make run EXTRAS=mcp, pip install 'palimpsest[mcp]', "
    "or for an image by docker build --build-arg EXTRAS=mcp"
)
_SDK = "proxy.server.mcp.sdk"
_POST_ONLY: Headers = ((b"allow", b"POST"),)


class Sdk(Protocol):
    """The module `sdk`, which needs an extra."""

    async def serve_request(
        self, tools: McpTools, tenant: bytes | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve one HTTP request."""
        ...

    async def serve_stdio(self, tools: McpTools) -> None:
        """Serve standard input and output."""
        ...


def load_sdk() -> Sdk:
    """Import what serves the protocol. Raises Refused if it is not installed. Blocks for half a second at first."""
    try:
        return cast(Sdk, import_module(_SDK))
    except ModuleNotFoundError as error:
        raise Refused(501, "not_installed", INSTALL) from error


class McpEndpoint:
    """The ASGI application at `/-/mcp`. It takes the admin token, or the credential with which a client calls."""

    def __init__(self, tools: McpTools, rules: AccessRules, tenants: Tenants, policy: ServerPolicy) -> None:
        self._tools = tools
        self._rules = rules
        self._tenants = tenants
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it before anything is read."""
        try:
            tenant = self.find_tenant(scope["headers"])
            if scope["method"] != "POST":
                raise Refused(
                    405, "method_not_allowed", "this path takes POST: it has no stream to listen to", _POST_ONLY
                )
            sdk = await asyncio.to_thread(load_sdk)
        except ProxyError as error:
            client = ServedClient(scope, self._policy)
            client.expect_nothing()
            client.label(PAGE_GUARDS)
            return client.fail(error)
        await sdk.serve_request(self._tools, tenant, scope, receive, send)

    def find_tenant(self, headers: Headers) -> bytes | None:
        """Return the requester's tenant, None for the administrator. Raises Refused.

        A credential counts as it does for calls: one that the upstream must confirm first has to have been used.
        """
        self._rules.check_page(headers)
        if self._rules.is_admin(headers):
            return None
        self._rules.check_tenant(headers)
        if not find_credential(headers):
            raise Refused(
                401, "unauthorized", "send the admin token, or the key of your client, as 'Authorization: Bearer'"
            )
        caller = self._tenants.identify(headers)
        if not self._tenants.trusts(caller):
            raise Refused(
                401, "unauthorized", "the upstream has not confirmed this credential lately; make a call with it first"
            )
        return caller.tenant
