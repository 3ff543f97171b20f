"""The upstream of the golden corpus: it answers with what the story told it to, and keeps what came."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP = "x-golden-step"
"""Names the call; the proxy passes it on as it does every header it does not know."""
_OWN_CALL = b"written by the proxy palimpsest", b'"You write '
_CHARACTERS_PER_TOKEN = 4
_REPORT = """## Goal
- What was asked for is to be done.

## Completed
- The parts up to here were looked at.

## Remaining
- The other parts are pending.
"""

Message = dict[str, Any]


@dataclass(slots=True)
class Reply:
    """What one call is answered. `window`: longer prompts are refused, in tokens; `is_strict`: rewritten ones are."""

    message: Message = field(default_factory=lambda: {"role": "assistant", "content": "Yes."})
    status: int = 200
    body: bytes = b""
    window: int = 0
    is_strict: bool = False


class Upstream:
    """A provider with three wires. `sent` has the bodies of each step in the order in which they came."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.sent: dict[str, list[bytes]] = {}
        self.own_calls: list[bytes] = []
        self._before: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def note(self, step: str, body: bytes) -> int:
        """Keep a request; how many tokens of it a prefix cache would have."""
        story = step.rpartition("/")[0]
        with self._lock:
            self.sent.setdefault(step, []).append(body)
            before = self._before.get(story, b"")
            self._before[story] = body
        shared = next((at for at, (old, new) in enumerate(zip(before, body, strict=False)) if old != new), None)
        return (min(len(before), len(body)) if shared is None else shared) // _CHARACTERS_PER_TOKEN

    def note_own(self, body: bytes) -> bytes:
        """Answer a call of the proxy's own."""
        with self._lock:
            self.own_calls.append(body)
        return _render_chat({"role": "assistant", "content": _REPORT}, _count(len(body) // _CHARACTERS_PER_TOKEN, 0))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, json.dumps({"object": "list", "data": [{"id": "gpt-4o", "object": "model"}]}).encode())
        else:
            self._answer(404, b'{"error":{"message":"not found"}}')

    def do_POST(self) -> None:
        body = self._read()
        if any(mark in body for mark in _OWN_CALL):
            self._answer(200, self.upstream.note_own(body))
            return
        step = self.headers.get(STEP, "")
        cached = self.upstream.note(step, body)
        reply = self.upstream.replies.get(step, Reply())
        if reply.body or reply.status >= 400:
            self._answer(reply.status, reply.body or b'{"error":{"message":"the story says so"}}')
            return
        tokens = len(body) // _CHARACTERS_PER_TOKEN
        if reply.window and tokens > reply.window:
            text = f"This model's maximum context length is {reply.window} tokens. However, your messages resulted in "
            error = {"message": f"{text}{tokens} tokens.", "code": "context_length_exceeded", "type": "invalid"}
            self._answer(400, json.dumps({"error": error}).encode())
        elif reply.is_strict and b"palimpsest" in body:
            self._answer(400, b'{"error":{"message":"messages.3: invalid signature in thinking block"}}')
        else:
            self._answer_message(reply.message, _count(tokens, cached), is_streamed=b'"stream": true' in body)

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def _read(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        pieces: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer_message(self, message: Message, usage: dict[str, Any], *, is_streamed: bool) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/chat/completions":
            content = _stream_chat(message, usage) if is_streamed else _render_chat(message, usage)
        elif path == "/v1/responses":
            content = _render_response(message, usage, is_streamed=is_streamed)
        elif path == "/v1/messages":
            content = _render_anthropic(message, usage, is_streamed=is_streamed)
        else:
            content, is_streamed = b'{"object":"list","data":[]}', False
        self._answer(200, content, "text/event-stream" if is_streamed else "application/json")

    def _answer(self, status: int, content: bytes, media: str = "application/json") -> None:
        self.send_response_only(status)
        self.send_header("content-type", media)
        self.send_header("x-request-id", "req_golden")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def serve_upstream() -> Iterator[tuple[Upstream, str]]:
    """The provider on a loopback port, for the length of a `with` block; with its base URL."""
    upstream = Upstream()
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield upstream, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _count(tokens: int, cached: int) -> dict[str, Any]:
    return {"prompt": tokens, "cached": cached, "completion": 20}


def _chat_usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["prompt"],
        "completion_tokens": usage["completion"],
        "total_tokens": usage["prompt"] + usage["completion"],
        "prompt_tokens_details": {"cached_tokens": usage["cached"]},
    }


def _render_chat(message: Message, usage: dict[str, Any]) -> bytes:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-4o",
            "choices": [choice],
            "usage": _chat_usage(usage),
        }
    ).encode()


def _stream_chat(message: Message, usage: dict[str, Any]) -> bytes:
    deltas: list[Message] = [{"role": "assistant", "content": ""}]
    text = message.get("content") or ""
    deltas += [{"content": text[at : at + 40]} for at in range(0, len(text), 40)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    chunks: list[Message] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({**base, "choices": [], "usage": _chat_usage(usage)})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def _render_response(message: Message, usage: dict[str, Any], *, is_streamed: bool) -> bytes:
    text: Message = {"type": "output_text", "text": message.get("content") or "", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-4o",
        "output": [item],
        "usage": {
            "input_tokens": usage["prompt"],
            "output_tokens": usage["completion"],
            "total_tokens": usage["prompt"] + usage["completion"],
            "input_tokens_details": {"cached_tokens": usage["cached"]},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    if not is_streamed:
        return json.dumps(response).encode()
    events: list[Message] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text["text"]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return _render_events(events)


def _render_anthropic(message: Message, usage: dict[str, Any], *, is_streamed: bool) -> bytes:
    block = {"type": "text", "text": message.get("content") or ""}
    counted = {
        "input_tokens": usage["prompt"] - usage["cached"],
        "cache_read_input_tokens": usage["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": usage["completion"],
    }
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}
    if not is_streamed:
        return json.dumps({**whole, "content": [block], "usage": counted}).encode()
    events: list[Message] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "usage": counted}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    return _render_events(events)


def _render_events(events: list[Message]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events)
