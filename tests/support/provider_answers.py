"""What providers answer, as bytes on the wire: OpenAI's chat completions and responses, Anthropic, Gemini, Bedrock."""

import json
import struct
from collections.abc import Iterable, Mapping
from zlib import crc32

from tests.support.scripted import LAST_CHUNK, answer, chunk, stream_head

Event = Mapping[str, object]
JSON = "Content-Type: application/json"

TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}


def whole(value: object, *fields: str, status: str = "200 OK") -> bytes:
    """An answer in JSON."""
    return answer(json.dumps(value).encode(), JSON, *fields, status=status)


def stream(events: Iterable[bytes]) -> bytes:
    """An answer in events, each in a chunk of its own."""
    return stream_head() + b"".join(map(chunk, events)) + LAST_CHUNK


def data(value: Event) -> bytes:
    """An event without a name."""
    return b"data: %s\n\n" % json.dumps(value).encode()


def named(value: Event) -> bytes:
    """An event with its type as its name."""
    return b"event: %s\n%s" % (str(value["type"]).encode(), data(value))


def chat_chunk(delta: Event, finish: str | None = None) -> Event:
    """A piece of a chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CHAT = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}
CHAT_EVENTS = [
    *map(
        data,
        (
            chat_chunk({"role": "assistant", "content": "hel"}),
            chat_chunk({"content": "lo"}),
            chat_chunk({"tool_calls": [{"index": 0, **TOOL_CALL, "function": {"name": "read", "arguments": '{"pa'}}]}),
            chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": 'th":"a"}'}}]}),
            chat_chunk({}, "tool_calls"),
            {**chat_chunk({}), "choices": [], "usage": USAGE},
        ),
    ),
    b"data: [DONE]\n\n",
]

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 100},
}
MESSAGE_EVENTS = [
    named(event)
    for event in (
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "hello"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    )
]

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 5,
        "output_tokens": 2,
        "total_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
RESPONSE_EVENTS = [
    named(event)
    for event in (
        {
            "type": "response.created",
            "sequence_number": 0,
            "response": {**RESPONSE, "status": "in_progress", "output": [], "usage": None},
        },
        {
            "type": "response.output_text.delta",
            "sequence_number": 1,
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": "hello",
            "logprobs": [],
        },
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
    )
]

GEMINI = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7},
}

CONVERSE = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 5, "outputTokens": 1, "totalTokens": 6},
}


def frame(value: Event, kind: str = "event", **headers: str) -> bytes:
    """A message of an AWS event stream. `headers` are named without the colon, with `_` for `-`."""
    fields = {"message_type": kind, "content_type": "application/json", **headers}
    told = b"".join([write_header(f":{name.replace('_', '-')}", text) for name, text in fields.items()])
    content = json.dumps(value).encode()
    prelude = struct.pack("!II", 16 + len(told) + len(content), len(told))
    message = prelude + struct.pack("!I", crc32(prelude)) + told + content
    return message + struct.pack("!I", crc32(message))


def write_header(name: str, text: str) -> bytes:
    """A header of a message, of type string."""
    return struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(text)) + text.encode()


def event_stream(frames: Iterable[bytes]) -> bytes:
    """An answer in an AWS event stream, each message in a chunk of its own."""
    head = stream_head().replace(b"text/event-stream", b"application/vnd.amazon.eventstream")
    return head + b"".join(map(chunk, frames)) + LAST_CHUNK


CONVERSE_FRAMES = [
    frame(value, event_type=kind)
    for kind, value in (
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "c2ln"}}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "hello"}}),
        ("contentBlockStop", {"contentBlockIndex": 1}),
        ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "call_1", "name": "read"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"path":"a"}'}}}),
        ("contentBlockStop", {"contentBlockIndex": 2}),
        ("messageStop", {"stopReason": "tool_use"}),
        (
            "metadata",
            {
                "usage": {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8, "cacheReadInputTokens": 100},
                "metrics": {},
            },
        ),
    )
]

OPENAI_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. "
    "Please reduce the length of the messages."
)
GEMINI_TOO_LONG = "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."
BEDROCK_TOO_LONG = "Input is too long for requested model."
ANTHROPIC_TOO_LONG = "prompt is too long: 9000 tokens > 8192 maximum"


def openai_error(message: str, code: str | None = None) -> Event:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": "t", "param": None, "code": code}}


def anthropic_error(message: str, kind: str = "invalid_request_error") -> Event:
    """An error in Anthropic's shape."""
    return {"type": "error", "error": {"type": kind, "message": message}}
