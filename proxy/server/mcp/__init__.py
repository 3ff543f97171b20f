"""The MCP server: its tools, over HTTP at `/-/mcp` and on standard input and output."""
