"""A turn of a scripted model as a provider writes it, in all wire formats, streamed or whole.

Rule: pure; ids follow from `n`, the number of the answer, so that they are unique within a journey as real ones are.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.upstream import Answer, ScriptedCall, ScriptedUpstream, serve_upstream
from proxy.model.exchange import Headers
from tests.clients.script import Json, Turn


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer reports: tokens of the prompt, how many of these were read from a cache, and its own."""

    prompt: int = 7
    cached: int = 0
    answer: int = 11

    @property
    def total(self) -> int:
        """All tokens of a call."""
        return self.prompt + self.answer


_FEW = Tokens()
STREAM: Headers = ((b"content-type", b"text/event-stream"),)


def sse(*chunks: Any, end: str = "data: [DONE]\n\n") -> list[bytes]:
    """Events without names."""
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [end.encode()]


def chat_chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    """A piece of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **more}


def serve_answers(answer: Answer) -> AbstractContextManager[str]:
    """Serve an upstream that answers by a rule; its base URL."""
    return serve_upstream(ScriptedUpstream("main", answer))


def reply(call: ScriptedCall, turn: Turn, tokens: Tokens = _FEW, n: int = 1) -> WholeResponse:
    """The response of a scripted upstream with a turn, a stream if one was asked for."""
    asked = json.loads(call.body)
    pieces = WRITERS["/v1" + call.form.path_ending](turn, n, asked, tokens)
    return WholeResponse(200, STREAM if asked.get("stream") else (), b"".join(pieces))


def write_chat(turn: Turn, n: int, asked: Json, tokens: Tokens = _FEW) -> list[bytes]:
    """The pieces of an answer to `/v1/chat/completions`."""
    usage: Json = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.answer,
        "total_tokens": tokens.total,
    }
    if tokens.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    calls = [
        {
            "id": f"call_{n}_{k}",
            "type": "function",
            "function": {"name": call.name, "arguments": _spell(call.arguments)},
        }
        for k, call in enumerate(turn.calls)
    ]
    finish = "tool_calls" if calls else "stop"
    own = {"id": f"chatcmpl-{n}", "model": asked.get("model", "")}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": turn.text, "refusal": None} | (
            {"tool_calls": calls} if calls else {}
        )
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        whole = {"object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}
        return [json.dumps(own | whole).encode()]
    chunks = [chat_chunk({"role": "assistant", "content": ""}, **own)]
    chunks += [chat_chunk({"content": word}, **own) for word in _cut(turn.text)]
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]  # type: ignore[index]
        opening = {**call, "index": index, "function": {"name": name, "arguments": ""}}
        chunks.append(chat_chunk({"tool_calls": [opening]}, **own))
        pieces = [{"index": index, "function": {"arguments": piece}} for piece in _cut(arguments)]
        chunks += [chat_chunk({"tool_calls": [piece]}, **own) for piece in pieces]
    chunks.append(chat_chunk({}, finish, **own))
    if (asked.get("stream_options") or {}).get("include_usage"):
        chunks.append(chat_chunk({}, **own) | {"choices": [], "usage": usage})
    return sse(*chunks)


def write_response(turn: Turn, n: int, asked: Json, tokens: Tokens = _FEW) -> list[bytes]:
    """The pieces of an answer to `/v1/responses`."""
    text = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed", "content": [text]}
    output: list[Json] = [message]
    for k, call in enumerate(turn.calls):
        item = {"type": "function_call", "id": f"fc_{n}_{k}", "call_id": f"call_{n}_{k}", "name": call.name}
        output.append(item | {"arguments": _spell(call.arguments), "status": "completed"})
    whole = _describe_response(n, asked)
    counts = {"input_tokens": tokens.prompt, "output_tokens": tokens.answer, "total_tokens": tokens.total}
    details: Json = {"input_tokens_details": {"cached_tokens": tokens.cached}}
    details["output_tokens_details"] = {"reasoning_tokens": 0}
    done = whole | {"status": "completed", "output": output, "usage": counts | details}
    if not asked.get("stream"):
        return [json.dumps(done).encode()]
    events: list[Json] = [{"type": f"response.{kind}", "response": whole} for kind in ("created", "in_progress")]
    for index, item in enumerate(output):
        events += _stream_item(item, index)
    events.append({"type": "response.completed", "response": done})
    return _name_events(event | {"sequence_number": k} for k, event in enumerate(events))


def write_message(turn: Turn, n: int, asked: Json, tokens: Tokens = _FEW) -> list[bytes]:
    """The pieces of an answer to `/v1/messages`."""
    # A provider writes no block without a text.
    blocks: list[Json] = [{"type": "text", "text": turn.text}] * bool(turn.text)
    blocks += [
        {"type": "tool_use", "id": f"toolu_{n}_{k}", "name": call.name, "input": call.arguments}
        for k, call in enumerate(turn.calls)
    ]
    end = {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None}
    usage = {"input_tokens": tokens.prompt - tokens.cached, "output_tokens": tokens.answer}
    if tokens.cached:
        usage["cache_read_input_tokens"] = tokens.cached
    message: Json = {"id": f"msg_{n}", "type": "message", "role": "assistant", "model": asked.get("model", "")}
    if not asked.get("stream"):
        return [json.dumps(message | end | {"content": blocks, "usage": usage}).encode()]
    opening = message | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[Json] = [{"type": "message_start", "message": opening}]
    for index, block in enumerate(blocks):
        events += _stream_block(block, index)
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    return _name_events([*events, {"type": "message_stop"}])


def write_content(turn: Turn, n: int, asked: Json, tokens: Tokens = _FEW) -> list[bytes]:
    """The pieces of an answer to `/v1beta/models/NAME:streamGenerateContent?alt=sse`."""
    parts: list[Json] = [{"text": turn.text}]
    parts += [{"functionCall": {"name": call.name, "args": call.arguments}} for call in turn.calls]
    usage = {
        "promptTokenCount": tokens.prompt,
        "candidatesTokenCount": tokens.answer,
        "totalTokenCount": tokens.total,
    }
    own: Json = {"usageMetadata": usage, "modelVersion": "scripted", "responseId": f"resp_{n}"}
    chunks = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} | own for part in parts[:-1]
    ]
    last = {"content": {"role": "model", "parts": parts[-1:]}, "finishReason": "STOP", "index": 0}
    return sse(*chunks, {"candidates": [last]} | own, end="")


def _stream_block(block: Json, index: int) -> Iterator[Json]:
    """The events by which one block of a message comes."""
    member, delta, kind = "text", "text_delta", "text"
    if block["type"] == "tool_use":
        member, delta, kind = "input", "input_json_delta", "partial_json"
    whole = block[member] if member == "text" else _spell(block[member])
    empty: Json = {member: "" if member == "text" else {}}
    yield {"type": "content_block_start", "index": index, "content_block": block | empty}
    for piece in _cut(whole):
        yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, kind: piece}}
    yield {"type": "content_block_stop", "index": index}


def _describe_response(n: int, asked: Json) -> Json:
    """A response under way, with what its object has to have."""
    echoed = {name: asked.get(name) for name in ("model", "instructions")}
    return echoed | {
        "id": f"resp_{n}", "object": "response", "created_at": 1, "status": "in_progress", "error": None,
        "incomplete_details": None, "metadata": {}, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto",
        "temperature": 1.0, "top_p": 1.0, "output": [], "usage": None,
    }  # fmt: skip


def _stream_item(item: Json, index: int) -> Iterator[Json]:
    """The events by which one item of the output comes."""
    place = {"item_id": item["id"], "output_index": index}
    empty: Json = {"content": []} if "content" in item else {"arguments": ""}
    opening = item | {"status": "in_progress"} | empty
    yield {"type": "response.output_item.added", "output_index": index, "item": opening}
    if item["type"] == "function_call":
        for piece in _cut(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
        whole = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **whole}
    else:
        place["content_index"] = 0
        part = item["content"][0]
        yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
        for piece in _cut(part["text"]):
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _name_events(events: Iterable[Json]) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def _spell(arguments: Json) -> str:
    """Arguments as models write them: with spaces, and characters beyond ASCII as they are."""
    return json.dumps(arguments, ensure_ascii=False)


def _cut(text: str) -> list[str]:
    """A text in three pieces, as fragments of a stream."""
    size = max(1, -(-len(text) // 3))
    return [text[start : start + size] for start in range(0, len(text), size)]


def write_refusal(path: str, tokens: int, window: int) -> bytes:
    """The body with which a provider refuses a request that is too long."""
    if path == "/v1/messages":
        message = f"prompt is too long: {tokens} tokens > {window} maximum"
        return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()
    error: Json = {"type": "invalid_request_error", "code": "context_length_exceeded"}
    if path == "/v1/responses":
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return json.dumps({"error": error | {"message": message, "param": "input"}}).encode()
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
        " Please reduce the length of the messages."
    )
    return json.dumps({"error": error | {"message": message, "param": "messages"}}).encode()


WRITERS: dict[str, Any] = {
    "/v1/chat/completions": write_chat,
    "/v1/responses": write_response,
    "/v1/messages": write_message,
    "/v1beta/models/scripted:streamGenerateContent": write_content,
}
