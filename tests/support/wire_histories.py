"""Histories of an agent with one tool, in all wires, as its requests have them."""

import json
from collections.abc import Sequence
from typing import Any

PATHS = {
    "chat_completions": "/v1/chat/completions",
    "anthropic_messages": "/v1/messages",
    "responses": "/v1/responses",
}


def list_items(body: Any) -> list[Any]:
    """The messages, or items, of a request."""
    items: list[Any] = body.get("messages") or body.get("input")
    return items


def ask(wire: str, text: str) -> Any:
    """Words of the user."""
    return {"role": "user", "content": text, **({"type": "message"} if wire == "responses" else {})}


def answer_call(wire: str, id: str, text: str) -> Any:
    """The output of one call."""
    if wire == "chat_completions":
        return {"role": "tool", "tool_call_id": id, "content": text}
    if wire == "responses":
        return {"type": "function_call_output", "call_id": id, "output": text}
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}


def call(wire: str, id: str, path: str) -> Any:
    """A call of the tool `read`."""
    arguments = json.dumps({"path": path})
    if wire == "chat_completions":
        function = {"name": "read", "arguments": arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        }
    if wire == "responses":
        return {"type": "function_call", "call_id": id, "name": "read", "arguments": arguments}
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "read", "input": {"path": path}}]}


def make_request(wire: str, items: Sequence[Any], *, is_stream: bool) -> bytes:
    """A request of an agent that has a tool `read`."""
    schema: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
    named = {"name": "read", "description": "Reads a file."}
    tool: Any = {"type": "function", **named, "parameters": schema}
    if wire == "chat_completions":
        tool = {"type": "function", "function": {**named, "parameters": schema}}
    if wire == "anthropic_messages":
        tool = {**named, "input_schema": schema}
    body: dict[str, Any] = {"model": "m", "stream": is_stream, "tools": [tool]}
    body |= {"input": items, "store": False} if wire == "responses" else {"messages": items}
    return json.dumps(body | ({"max_tokens": 500} if wire == "anthropic_messages" else {})).encode()
