"""The whole server in this process: engine, log on disk and application as they are wired, on a loopback port."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from proxy.app import build_app, configure
from proxy.assembly import Engine, build_engine
from proxy.config import Settings, load_settings
from tests.support.managing import make_history, spell
from tests.support.scripted import LIMIT, ScriptedUpstream, Wire, answer

TOKEN = "test-admin-token"
SAID = {"role": "assistant", "content": "well"}
ANSWER = {"choices": [{"index": 0, "message": SAID, "finish_reason": "stop"}], "usage": {"prompt_tokens": 900}}
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class WholeServer:
    """A running server. Requests of `client` have the admin token."""

    app: ASGIApp
    engine: Engine
    port: int
    client: httpx.AsyncClient

    async def talk(self, name: str, steps: int) -> str:
        """Carry a conversation of so many steps under a small ceiling, and return the id of its session."""
        history = make_history(steps, 300)
        later = [*history, {"role": "assistant", "content": "done"}, {"role": "user", "content": "Now the docs."}]
        fields = {"x-palimpsest-session": name, "authorization": "Bearer k"}
        for messages in (*(history[: 2 + 2 * step] for step in range(1, steps + 1)), later):
            got = await self.client.post(CHAT, content=spell(messages), headers=fields)
            assert got.status_code == 200, got.text
        session: str = got.headers["x-palimpsest-session"]
        return session


@contextlib.asynccontextmanager
async def serving_whole(data: Path, upstream: ScriptedUpstream, **flags: object) -> AsyncIterator[WholeServer]:
    """Serve until the block ends, with the log in a directory; the upstream says the same to every request."""

    async def play(wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                upstream.requests.append(await wire.read_request())
                wire.send(answer(json.dumps(ANSWER).encode(), "Content-Type: application/json"))

    upstream.script = play
    upstreams = [{"name": "scripted", "base_url": upstream.url}]
    # A plan is waited for however busy the machine is: with the default it would decide what is sent.
    own = {"data": str(data), "upstreams": upstreams, "server.admin_token": TOKEN}
    settings = load_settings(None, {**own, "compaction.hard_wait_seconds": LIMIT, **flags})
    engine = await build_engine(settings)
    try:
        async with serving_engine(engine, settings) as served:
            yield served
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def serving_engine(engine: Engine, settings: Settings) -> AsyncIterator[WholeServer]:
    """Serve an engine until the block ends. It is not closed then."""
    policy = replace(settings.server_policy(), hop_id=engine.network.hop_id)
    app, _ = build_app(engine, settings, policy)
    config = configure(app, policy, engine)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    make: Any = config.http_protocol_class
    server = await loop.create_server(
        lambda: make(config=config, server_state=state, app_state={}, _loop=loop), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    fields = {"authorization": f"Bearer {TOKEN}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=fields, timeout=LIMIT, trust_env=False)
    try:
        yield WholeServer(app, engine, port, client)
    finally:
        await client.aclose()
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
