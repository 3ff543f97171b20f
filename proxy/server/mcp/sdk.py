"""The MCP protocol by its official SDK. Nothing else imports it, and this is imported when the first client asks.

The import takes half a second and 34 MB. Each HTTP request is served by itself: there are no sessions to keep, and
nothing that a later request of another credential could continue.
"""

from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.types import Receive, Scope, Send

from proxy import __version__
from proxy.server.mcp.tools import INSTRUCTIONS, TOOLS, McpTools, Reader

NAME = "palimpsest"
_MAX_BODY_BYTES = 256 * 1024


def build_server(tools: McpTools, reader: Reader) -> Server[Any]:
    """Return the server of one requester."""

    async def list_tools(context: object, parameters: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=dict(tool.schema),
                    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
                for tool in TOOLS
            ]
        )

    async def call_tool(context: object, parameters: CallToolRequestParams) -> CallToolResult:
        result = await tools.call(reader, parameters.name, parameters.arguments or {})
        return CallToolResult(content=[TextContent(type="text", text=result.text)], is_error=result.is_error)

    return Server(
        NAME, version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_request(tools: McpTools, reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one HTTP request. Its Host and Origin have been checked."""
    manager = StreamableHTTPSessionManager(
        build_server(tools, reader), json_response=True, stateless=True, max_request_body_size=_MAX_BODY_BYTES
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def serve_stdio(tools: McpTools) -> None:
    """Serve whoever has started this process, until its input ends."""
    server = build_server(tools, Reader(None))
    async with stdio_server() as (source, sink):
        await server.run(source, sink, server.create_initialization_options())
