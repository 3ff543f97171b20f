"""An engine with a model in this process, for operators: it says what a test has it say, and notes what it is asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.assembly import Engine, build_engine
from proxy.config import Settings, load_settings
from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.ports import RequestBody
from proxy.model.exchange import Headers

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


@dataclass
class Reply:
    """What a model says, or what an upstream answers in its place. It comes after `seconds`."""

    text: str = ""
    status: int = 200
    body: bytes | None = None
    headers: Headers = ()
    seconds: float = 0.0
    finish: str = "stop"
    calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] | None = field(default_factory=lambda: dict(USAGE))

    def render(self, request: dict[str, Any]) -> bytes:
        """Return the body of the response."""
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": self.text}}).encode()
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.calls:
            message["tool_calls"] = self.calls
        finish = "tool_calls" if self.calls else self.finish
        answer = {
            "id": "x",
            "object": "chat.completion",
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": self.usage,
        }
        if not request.get("stream"):
            return json.dumps(answer).encode()
        for each in message.get("tool_calls", []):
            each.setdefault("index", 0)
        choice = {"index": 0, "delta": message, "finish_reason": finish}
        chunk = {**answer, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"


class Model:
    """An upstream. `say` returns the reply to a request, given the number of the call, from 0."""

    def __init__(self, say: Callable[[dict[str, Any], int], Reply | Exception]) -> None:
        self.name = "model"
        self.say = say
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Headers] = []
        self.running = self.most = 0

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> WholeResponse:
        """Answer a request."""
        assert isinstance(body, bytes)
        request = json.loads(body)
        self.requests.append(request)
        self.headers.append(headers)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            reply = self.say(request, len(self.requests) - 1)
            if isinstance(reply, Exception):
                raise reply
            await asyncio.sleep(reply.seconds)
            response = WholeResponse(reply.status, (), reply.render(request))
        finally:
            self.running -= 1
        kind = b"text/event-stream" if request.get("stream") and reply.status == 200 else b"application/json"
        response.headers = ((b"content-type", kind), *reply.headers)
        return response

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


def answer_last(request: dict[str, Any], number: int) -> Reply:
    """Say what was asked last, as JSON."""
    return Reply(json.dumps({"said": request["messages"][-1]["content"]}))


def settings_for(folder: Path, **flags: object) -> Settings:
    """Return settings with the log in a directory, and a price."""
    upstreams = [{"name": "model", "base_url": "http://127.0.0.1:9/v1", "api_key": "k"}]
    pricing = {"m*": {"input": 1.0, "output": 10.0}}
    return load_settings(None, {"data": str(folder), "upstreams": upstreams, "pricing": pricing, **flags})


@asynccontextmanager
async def running_engine(folder: Path, model: Model, **flags: object) -> AsyncIterator[Engine]:
    """Run an engine whose only upstream is a model."""
    engine = await build_engine(settings_for(folder, **flags), connect=lambda *_: model)
    try:
        yield engine
    finally:
        await engine.close(5.0)
