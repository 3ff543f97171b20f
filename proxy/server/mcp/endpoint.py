"""The path `/-/mcp`: who may use it, and the import of what serves it."""

import asyncio
from importlib import import_module
from typing import Protocol, cast

from starlette.types import Receive, Scope, Send

from proxy.model.errors import ProxyError, tell_install
from proxy.model.exchange import Headers
from proxy.server.access import AccessRules, FindTenant
from proxy.server.client import ServedClient
from proxy.server.errors import PAGE_GUARDS, Refused
from proxy.server.mcp.tools import McpTools, Reader
from proxy.server.policy import ServerPolicy
from proxy.wire.headers import find_credential

INSTALL = f"the MCP server needs the extra mcp: {tell_install('mcp')}"
_SDK = "proxy.server.mcp.sdk"
_UNAUTHORIZED = 401
_POST_ONLY: Headers = ((b"allow", b"POST"),)


class Sdk(Protocol):
    """The module `sdk`, which needs an extra."""

    async def serve_request(self, tools: McpTools, reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
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
    """The ASGI application at `/-/mcp`. It takes the admin token, or the credential with which a client calls.

    A client connects before its first call, when nothing proves its credential yet. It may list the tools then, and
    each result tells what is missing.
    """

    def __init__(self, tools: McpTools, rules: AccessRules, find_tenant: FindTenant, policy: ServerPolicy) -> None:
        self.tools = tools
        self._rules = rules
        self._find_tenant = find_tenant
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it before anything is read."""
        try:
            reader = self.find_reader(scope["headers"])
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
        await sdk.serve_request(self.tools, reader, scope, receive, send)

    def find_reader(self, headers: Headers) -> Reader:
        """Return what the requester may read. Raises Refused for foreign pages, and where there is no credential."""
        try:
            tenant = self._rules.check_reader(headers, self._find_tenant)
        except Refused as error:
            if error.status != _UNAUTHORIZED or not find_credential(headers):
                raise
            return Reader(b"", str(error))
        return Reader(None if tenant is None else bytes.fromhex(tenant))
