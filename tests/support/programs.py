"""What programs with sessions need: a provider in their event loop that says what the test has queued, and settings."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.config import Settings, make_settings
from tests.support.scripted import LIMIT

Reply = dict[str, Any]
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def say(text: str, **more: Any) -> Reply:
    """An answer with a text. `more` are members of its message; `usage` and `finish` are those of the answer."""
    return {"content": text, **more}


def call(*calls: tuple[str, str, Any], text: str | None = None) -> Reply:
    """An answer that calls tools: their ids, names and arguments."""
    made = [
        {
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for id, name, given in calls
    ]
    return {"content": text, "tool_calls": made, "finish": "tool_calls"}


class ChatProvider:
    """Answers chat completions, streamed or not. Without anything queued it says another word each time.

    While `gate` is closed, its answers stop before their last piece.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.queue: deque[Reply] = deque()
        self.holds: Callable[[dict[str, Any]], bool] = lambda asked: True  # whom a closed gate stops
        self.respond: Callable[[dict[str, Any]], Reply] | None = None  # says what is not queued
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.port = 0
        self.usage: dict[str, int] | None = USAGE

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def said(self) -> list[str]:
        """What the messages say that were sent last."""
        return [str(each.get("content") or "") for each in self.seen[-1]["messages"]]

    def settings(self, data: Path, **more: Any) -> Settings:
        """Settings with this provider as the only upstream. A busy machine makes no call go on without its plan."""
        patient = {"compaction.hard_wait_seconds": LIMIT, "store.commit_wait_ms": round(1000 * LIMIT)}
        return make_settings({"data": str(data), "upstreams": [{"base_url": self.base_url}], **patient, **more})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.seen.append(asked)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.called.set()
        reply = dict(self.queue.popleft() if self.queue else self._say_next(asked))
        status = reply.pop("status", 200)
        if status != 200:
            return web.json_response(reply, status=status)
        usage, finish = reply.pop("usage", self.usage), reply.pop("finish", "stop")
        if asked.get("stream"):
            return await self._stream(request, reply, usage, finish)
        if self.holds(asked):
            await self.gate.wait()
        choice = {"index": 0, "message": {"role": "assistant", **reply}, "finish_reason": finish}
        return web.json_response({"id": "c", "choices": [choice], "usage": usage})

    def _say_next(self, asked: dict[str, Any]) -> Reply:
        return say(f"word {len(self.seen)}") if self.respond is None else self.respond(asked)

    async def _stream(self, request: web.Request, reply: Reply, usage: Any, finish: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        deltas = [{"reasoning_content": word} for word in (reply.get("reasoning_content") or "").split("|") if word]
        deltas += [{"content": word} for word in (reply.get("content") or "").split("|") if word]
        deltas += [{"tool_calls": [{"index": i, **each}]} for i, each in enumerate(reply.get("tool_calls") or ())]
        for delta in deltas:
            await _write(response, {"choices": [{"index": 0, "delta": delta}]})
        await self.gate.wait()
        if reply.get("fault"):
            await _write(response, {"error": {"message": reply["fault"]}})
        await _write(response, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        await _write(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _write(response: web.StreamResponse, value: object) -> None:
    await response.write(b"data: %b\n\n" % json.dumps(value).encode())


@asynccontextmanager
async def run_chat_provider() -> AsyncIterator[ChatProvider]:
    """A provider that runs on a free port."""
    provider, app = ChatProvider(), web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", provider.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.port = runner.addresses[0][1]
    try:
        yield provider
    finally:
        provider.gate.set()
        await runner.cleanup()
