"""Recorded chat messages as clients of each wire send them, and back.

`messages` as Claude Code: system prompt and tools at the top level, results and words of a user in one message, cache
markers behind the system prompt and on the last two messages. `responses` as codex: `instructions`, items without ids,
`store: false`. What a request has is read back into the chat messages that it was made of. The answers of a scripted
upstream are written as the events of the wire; their usage says nothing of a cache.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

ChatMessage = dict[str, Any]
Body = dict[str, Any]

MODEL = "replay-model"
_MARK: Body = {"cache_control": {"type": "ephemeral"}}
_MARKED_MESSAGES = 2
_OUTPUT_TOKENS = 8192


class Spelling:
    """How the recorded client spelt arguments and tools, which a wire that has them as objects does not keep.

    The kit compares texts. What says the same as a recorded call or tool is read back as it was recorded.
    """

    def __init__(self) -> None:
        self._arguments: dict[str, list[str]] = {}  # some sessions use the id of a call again
        self._tools: dict[str, Any] = {}

    def note_message(self, message: ChatMessage) -> None:
        for call in message.get("tool_calls") or ():
            self._arguments.setdefault(call["id"], []).append(call["function"]["arguments"])

    def note_tools(self, tools: Sequence[Any]) -> None:
        self._tools.update((tool["function"]["name"], tool) for tool in tools)

    def spell(self, call_id: str, arguments: str) -> str:
        said, known = json.loads(arguments), self._arguments.get(call_id, ())
        return next((each for each in known if json.loads(each) == said), arguments)

    def spell_tool(self, tool: Any) -> Any:
        known = self._tools.get(tool["function"]["name"])
        return known if known == tool else tool


def get_text(content: Any) -> str:
    """Return the text of a message's content, or of a result's."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def strip(message: ChatMessage) -> ChatMessage:
    """Return a recorded message as a client sends it."""
    return {name: value for name, value in message.items() if not name.startswith("_")}


def make_call(call_id: str, name: str, arguments: str) -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Chat completions


def write_chat(messages: Sequence[ChatMessage], tools: Sequence[Any]) -> Body:
    body: Body = {"messages": [strip(message) for message in messages], "stream_options": {"include_usage": True}}
    return body | ({"tools": list(tools)} if tools else {})


def read_chat(body: Body, spelling: Spelling) -> list[ChatMessage]:
    return list(body.get("messages") or ())


def list_chat_events(answer: ChatMessage, usage: tuple[int, int]) -> Iterator[Body]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    calls = [{"index": index, **call} for index, call in enumerate(answer.get("tool_calls") or ())]
    delta = {"role": "assistant", "content": answer.get("content")} | ({"tool_calls": calls} if calls else {})
    yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    yield head | {"choices": [], "usage": counts}


def read_chat_events(events: Sequence[Body]) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": None}
    for choice in (choice for event in events for choice in event["choices"]):
        message.update(choice["delta"])
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in calls]
    return message


# Messages


def write_blocks(message: ChatMessage) -> list[Body]:
    """Return the content blocks of a chat message: one for a text or a result, one for each call."""
    if message["role"] == "tool":
        return [
            {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": get_text(message["content"])}
        ]
    text = get_text(message.get("content"))
    blocks: list[Body] = [{"type": "text", "text": text}] if text else []
    for call in message.get("tool_calls") or ():
        asked, name = json.loads(call["function"]["arguments"] or "{}"), call["function"]["name"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": asked})
    return blocks


def write_messages(messages: Sequence[ChatMessage], tools: Sequence[Any], *, is_joined: bool = True) -> Body:
    """Write a request as Claude Code does: all that is not the model's between two of its messages is one message.

    Unless it `is_joined`, words of a user are a message of their own, as other clients send them.
    """
    written: list[Body] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        is_next = not is_joined and message["role"] == "user"
        if not written or written[-1]["role"] != role or is_next:
            written.append({"role": role, "content": []})
        written[-1]["content"] += write_blocks(message)
    for message in written[-_MARKED_MESSAGES:]:
        message["content"][-1] |= _MARK
    system: list[Body] = [{"type": "text", "text": get_text(m["content"])} for m in messages if m["role"] == "system"]
    if system:
        system[-1] |= _MARK
    functions = [tool["function"] for tool in tools]
    schemas = [
        {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
        for each in functions
    ]
    body: Body = {"max_tokens": _OUTPUT_TOKENS, "system": system, "messages": written}
    return body | ({"tools": schemas} if schemas else {})


def read_messages(body: Body, spelling: Spelling) -> list[ChatMessage]:
    """Return the chat messages of a request: each result and each text of a user is one of its own."""
    system = body.get("system") or []
    parts = [{"text": system}] if isinstance(system, str) else system
    read: list[ChatMessage] = [{"role": "system", "content": part["text"]} for part in parts]
    for message in body.get("messages") or ():
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            read.append(read_assistant_blocks(blocks, spelling))
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                said = get_text(block.get("content"))
                read.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": said})
            else:
                read.append({"role": message["role"], "content": block.get("text") or ""})
    return read


def read_assistant_blocks(blocks: Sequence[Body], spelling: Spelling) -> ChatMessage:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    calls = [
        make_call(block["id"], block["name"], spelling.spell(block["id"], json.dumps(block["input"])))
        for block in blocks
        if block["type"] == "tool_use"
    ]
    message: ChatMessage = {"role": "assistant", "content": "\n".join(texts) if texts else None}
    return message | ({"tool_calls": calls} if calls else {})


def read_messages_tools(body: Body) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in body.get("tools") or ()
    ]


def list_messages_events(answer: ChatMessage, usage: tuple[int, int]) -> Iterator[Body]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    yield {
        "type": "message_start",
        "message": head | {"stop_reason": None, "usage": {"input_tokens": usage[0], "output_tokens": 1}},
    }
    for index, block in enumerate(write_blocks(answer)):
        is_text = block["type"] == "text"
        begun: Body = block | ({"text": ""} if is_text else {"input": dict[str, Any]()})
        said = json.dumps(block.get("input"))
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": said}
        )
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if answer.get("tool_calls") else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": usage[1]}}
    yield {"type": "message_stop"}


def read_messages_events(events: Sequence[Body]) -> ChatMessage:
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            block |= {"text": delta["text"]} if "text" in delta else {"input": json.loads(delta["partial_json"])}
    return read_assistant_blocks(blocks, Spelling())


# Responses


def write_items(message: ChatMessage) -> list[Body]:
    """Return the items of a chat message: one for a text or an output, one for each call."""
    if message["role"] == "tool":
        output = get_text(message["content"])
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}]
    text = get_text(message.get("content"))
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    items: list[Body] = []
    if text:
        items.append({"type": "message", "role": message["role"], "content": [{"type": kind, "text": text}]})
    for call in message.get("tool_calls") or ():
        asked = call["function"]
        items.append(
            {"type": "function_call", "name": asked["name"], "arguments": asked["arguments"], "call_id": call["id"]}
        )
    return items


def write_responses(messages: Sequence[ChatMessage], tools: Sequence[Any]) -> Body:
    system = [get_text(message["content"]) for message in messages if message["role"] == "system"]
    items = [item for message in messages if message["role"] != "system" for item in write_items(message)]
    body: Body = {"instructions": "\n".join(system), "input": items, "store": False, "parallel_tool_calls": True}
    body |= {"include": ["reasoning.encrypted_content"], "tool_choice": "auto"}
    return body | ({"tools": [{"type": "function", **tool["function"]} for tool in tools]} if tools else {})


def read_responses(body: Body, spelling: Spelling) -> list[ChatMessage]:
    """Return the chat messages of a request. The items of the model up to the next that is not its are one message."""
    instructions = body.get("instructions")
    read: list[ChatMessage] = [{"role": "system", "content": instructions}] if instructions else []
    for item in body.get("input") or ():
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            said = get_text(item["output"])
            read.append({"role": "tool", "tool_call_id": item["call_id"], "content": said})
        elif kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            read.append({"role": role, "content": get_text(item["content"])})
        elif kind == "function_call":
            if not read or read[-1]["role"] != "assistant":
                read.append({"role": "assistant", "content": None})
            read[-1].setdefault("tool_calls", []).append(make_call(item["call_id"], item["name"], item["arguments"]))
    return read


def read_responses_tools(body: Body) -> list[Any]:
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
        for tool in body.get("tools") or ()
    ]


def list_responses_events(answer: ChatMessage, usage: tuple[int, int]) -> Iterator[Body]:
    head = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "in_progress",
        "output": [],
    }
    items = [{"id": f"item_{index}", "status": "completed", **item} for index, item in enumerate(write_items(answer))]
    yield {"type": "response.created", "response": head}
    for index, item in enumerate(items):
        yield {"type": "response.output_item.added", "output_index": index, "item": item | {"status": "in_progress"}}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    counts = {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)}
    yield {"type": "response.completed", "response": head | {"status": "completed", "output": items, "usage": counts}}


def read_responses_events(events: Sequence[Body]) -> ChatMessage:
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return (read_responses({"input": items}, Spelling()) or [{"role": "assistant", "content": None}])[0]


class Wire(NamedTuple):
    """How one API writes and reads what the kit has as chat messages."""

    path: str
    write: Callable[[Sequence[ChatMessage], Sequence[Any]], Body]
    read: Callable[[Body, Spelling], list[ChatMessage]]
    read_tools: Callable[[Body], list[Any]]
    list_events: Callable[[ChatMessage, tuple[int, int]], Iterator[Body]]
    read_events: Callable[[Sequence[Body]], ChatMessage]


WIRES = {
    "chat": Wire(
        "/v1/chat/completions",
        write_chat,
        read_chat,
        lambda body: list(body.get("tools") or ()),
        list_chat_events,
        read_chat_events,
    ),
    "responses": Wire(
        "/v1/responses",
        write_responses,
        read_responses,
        read_responses_tools,
        list_responses_events,
        read_responses_events,
    ),
    "messages": Wire(
        "/v1/messages", write_messages, read_messages, read_messages_tools, list_messages_events, read_messages_events
    ),
}
WIRES["messages-apart"] = WIRES["messages"]._replace(write=partial(write_messages, is_joined=False))
"""How each wire is written and read. `messages-apart`: words of a user are a message of their own."""
