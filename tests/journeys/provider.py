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

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.clients.script import Call, Json, Turn
from tests.support.answers import WRITERS, chat_chunk

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


_READ = Call("read", {"path": "a.py"})


def _tell(asked: Json) -> Turn:
    """What is answered: where tools are offered, one is called by a whole answer to a user, and two by a stream."""
    if asked.get("tools") and asked.get("stream"):
        return Turn("", (_READ, Call("list", {"path": "a.py"})))
    if asked.get("tools") and asked["messages"][-1]["role"] == "user":
        return Turn("", (_READ,))
    return Turn(json.dumps({"name": "palimpsest", "pages": 3}) if asked.get("response_format") else "".join(WORDS))


class _Endpoints:
    """Answers requests, and notes them."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def chat(self, request: Request) -> Response:
        asked = json.loads(await self._note(request))
        if refusal := _refuse(asked.get("model", "")):
            return refusal
        if asked.get("stream") and asked["model"] == "endless":
            return StreamingResponse(self._endless(), media_type="text/event-stream")
        return _answer(request, asked, _tell(asked))

    async def say(self, request: Request) -> Response:
        asked = json.loads(await self._note(request))
        return _answer(request, asked, Turn("".join(WORDS)))

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


def _answer(request: Request, asked: Json, turn: Turn) -> Response:
    pieces = WRITERS[request.url.path](turn, 1, asked)
    kind = "text/event-stream" if asked.get("stream") else "application/json"
    return StreamingResponse(iter(pieces), media_type=kind, headers={"x-request-id": "req_1"})


@contextlib.contextmanager
def run_provider() -> Iterator[Provider]:
    """A provider for the length of a `with` block."""
    provider = Provider()
    endpoints = _Endpoints(provider)
    routes = [
        Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
        Route("/v1/responses", endpoints.say, methods=["POST"]),
        Route("/v1/messages", endpoints.say, methods=["POST"]),
        Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/files", endpoints.files, methods=["POST"]),
    ]
    with serve_application(Starlette(routes=routes)) as provider.port:
        yield provider
