"""A scripted provider: an OpenAI- and Anthropic-like server that answers by what it is asked and keeps what it was
sent.

Rule: deterministic; the same request gives the same bytes, so that a call through the proxy can be compared with a
direct one. Runs in a thread of its own on a loopback port and stops with its context.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.scripted import LIMIT

WORDS = ("Once", " upon", " a", " time", " there", " was", " a", " log", "." * 3, " é", "\U0001f600")


@dataclass(slots=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True)
class Provider:
    """A running provider."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def sse(*chunks: Any, end: str = "data: [DONE]\n\n") -> list[bytes]:
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [end.encode()]


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def _chat_stream(asked: dict[str, Any]) -> list[bytes]:
    chunks = [chat_chunk({"role": "assistant", "content": ""})]
    if asked.get("tools"):
        for index, name in enumerate(("read", "list")):
            call = {
                "index": index,
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            chunks.append(chat_chunk({"tool_calls": [call]}))
            chunks.append(chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": '{"path": '}}]}))
            chunks.append(chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": '"a.py"}'}}]}))
        chunks.append(chat_chunk({}, "tool_calls"))
    else:
        chunks += [chat_chunk({"content": word}) for word in WORDS]
        chunks.append(chat_chunk({}, "stop"))
    if (asked.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
        chunks.append({**chat_chunk({}), "choices": [], "usage": usage})
    return sse(*chunks)


def _chat_answer(asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    if asked.get("response_format"):
        message["content"] = json.dumps({"name": "palimpsest", "pages": 3})
    finish = "stop"
    if asked.get("tools") and asked["messages"][-1]["role"] == "user":
        function = {"name": "read", "arguments": '{"path": "a.py"}'}
        message |= {"content": None, "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}
        finish = "tool_calls"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def _response_object(status: str) -> dict[str, Any]:
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}
    output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}]
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m", "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True, "tools": [],
        "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "output": output if status == "completed" else [],
        "usage": {
            "input_tokens": 7, "output_tokens": 11, "total_tokens": 18,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        } if status == "completed" else None,
    }  # fmt: skip


def _responses_stream() -> list[bytes]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": _response_object("in_progress")}]
    events += [
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word,
         "logprobs": []}
        for word in WORDS
    ]  # fmt: skip
    events.append({"type": "response.completed", "response": _response_object("completed")})
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': n})}\n\n".encode()
        for n, event in enumerate(events)
    ]


def _anthropic_stream() -> list[bytes]:
    usage = {"input_tokens": 7, "output_tokens": 1}
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"usage": usage, "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS
    ]
    events.append({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 11}})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


class _Endpoints:
    """Answers requests, and notes them."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def chat(self, request: Request) -> Response:
        asked = json.loads(await self._note(request))
        if refusal := _refuse(asked.get("model", "")):
            return refusal
        if not asked.get("stream"):
            return JSONResponse(_chat_answer(asked), headers={"x-request-id": "req_1"})
        if asked["model"] == "endless":
            return StreamingResponse(self._endless(), media_type="text/event-stream")
        return _stream(_chat_stream(asked))

    async def responses(self, request: Request) -> Response:
        asked = json.loads(await self._note(request))
        return _stream(_responses_stream()) if asked.get("stream") else JSONResponse(_response_object("completed"))

    async def messages(self, request: Request) -> Response:
        await self._note(request)
        return _stream(_anthropic_stream())

    async def embeddings(self, request: Request) -> Response:
        await self._note(request)
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
        return JSONResponse(
            {"object": "list", "model": "e", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        )

    async def models(self, request: Request) -> Response:
        await self._note(request)
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]})

    async def files(self, request: Request) -> Response:
        body = await self._note(request)
        return JSONResponse({"id": "file-1", "object": "file", "bytes": len(body), "created_at": 1,
                             "filename": "a", "purpose": "batch", "status": "processed"})  # fmt: skip

    async def _endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: " + json.dumps(chat_chunk({"content": "tick "})).encode() + b"\n\n"
                await asyncio.sleep(0.02)
        finally:
            self._provider.left.set()

    async def _note(self, request: Request) -> bytes:
        body = await request.body()
        headers = tuple((name.decode(), value.decode("latin-1")) for name, value in request.headers.raw)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self._provider.seen.append(Seen(request.method, target, headers, body))
        return body


def _refuse(model: str) -> Response | None:
    if not model.startswith("status-"):
        return None
    status = int(model.removeprefix("status-"))
    error = {"message": f"refused with {status}", "type": "invalid_request_error", "param": None, "code": "scripted"}
    return JSONResponse(
        {"error": error}, status, {"retry-after": "7", "x-request-id": "req_9", "x-should-retry": "false"}
    )


def _stream(events: list[bytes]) -> Response:
    async def send() -> AsyncIterator[bytes]:
        for event in events:
            yield event

    return StreamingResponse(send(), media_type="text/event-stream", headers={"x-request-id": "req_1"})


@contextlib.contextmanager
def run_provider() -> Iterator[Provider]:
    """A provider for the length of a `with` block."""
    provider = Provider()
    endpoints = _Endpoints(provider)
    routes = [
        Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
        Route("/v1/responses", endpoints.responses, methods=["POST"]),
        Route("/v1/messages", endpoints.messages, methods=["POST"]),
        Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/files", endpoints.files, methods=["POST"]),
    ]
    with run_application(Starlette(routes=routes)) as provider.port:
        yield provider


@contextlib.contextmanager
def run_application(application: Starlette) -> Iterator[int]:
    """Any application on a loopback port for the length of a `with` block; the port."""
    config = uvicorn.Config(application, port=0, log_config=None, ws="none", lifespan="off", http="httptools")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    sock = config.bind_socket()
    sock.listen()  # so that who asks at once waits, and is not refused
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LIMIT)
        sock.close()
