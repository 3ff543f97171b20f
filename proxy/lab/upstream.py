"""An upstream that answers by a rule: in memory, for an engine of its own, or on the loopback, for a server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.assembly import Engine, build_engine
from proxy.config import Settings
from proxy.engine.call.response_stream import LocalClient, WholeResponse
from proxy.engine.ports import Clock, RequestBody, Upstream
from proxy.engine.turns.calls import make_request
from proxy.model.exchange import Headers
from proxy.wire import FORMATS, find_wire
from proxy.wire.format import Format
from proxy.wire.json_values import format_json

_PATIENCE_SECONDS = 60.0
_IDLE_SECONDS = 5.0
_JOIN_SECONDS = 10.0
_MISSING = b'{"error":{"type":"not_found","message":"a script answers its own calls only"}}'


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call that an upstream got, in the format of its path."""

    upstream: str
    form: Format
    headers: Headers
    body: bytes


Answer = Callable[[ScriptedCall], Awaitable[WholeResponse | None]]
"""The rule by which calls are answered. With None there is no answer to one, as to a path that the upstream has not."""


class ScriptedUpstream:
    """Answers calls of a model by a rule, and lists `model`; implements the port `Upstream`."""

    def __init__(self, name: str, answer: Answer, model: str = "") -> None:
        self.name = name
        self._answer = answer
        self._model = model

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> WholeResponse:
        """Answer a call."""
        form = FORMATS.get(find_wire(target.decode("latin-1")))
        response = None
        if isinstance(body, bytes) and method == "POST" and form is not None:
            response = await self._answer(ScriptedCall(self.name, form, headers, body))
        elif self._model and target.endswith(b"/models"):
            listed = {"id": self._model, "object": "model", "created": 1_790_000_000, "owned_by": self.name}
            response = WholeResponse(200, (), format_json({"object": "list", "data": [listed]}).encode())
        return response or WholeResponse(404, (), _MISSING)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


@contextmanager
def serve_application(app: ASGIApp) -> Iterator[int]:
    """Serve an application on a free port of the loopback, in a thread, for a `with` block. Yields the port."""
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="off", timeout_graceful_shutdown=1)
    server, listener = uvicorn.Server(config), config.bind_socket()
    listener.listen()  # so that who asks at once waits, and is not refused
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(_JOIN_SECONDS)
        listener.close()


@contextmanager
def serve_upstream(upstream: Upstream) -> Iterator[str]:
    """Serve an upstream as an application. Yields its base URL."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        sent = (request.method, request.url.path.encode(), tuple(request.headers.raw), await request.body())
        response = await upstream.send(*sent)
        fields = {name.decode(): value.decode() for name, value in response.headers}
        await Response(await response.read(), response.status, fields)(scope, receive, send)

    with serve_application(app) as port:
        yield f"http://127.0.0.1:{port}/v1"


@asynccontextmanager
async def open_engine(
    settings: Settings, folder: Path, answer: Answer, clock: Clock | None = None
) -> AsyncIterator[Engine]:
    """Run an engine whose upstreams answer by a rule, with a log in a folder. Raises StoreUnavailable.

    Summaries and holdout are off: there is no model that could write the ones, and the others would not be managed. A
    plan may take long, for what comes of a call must not depend on how busy this machine is.
    """
    quiet = replace(settings.compaction, auto=False, holdout_fraction=0.0, hard_wait_seconds=_PATIENCE_SECONDS)
    own = settings.model_copy(update={"data": folder, "compaction": quiet})
    engine = await build_engine(own, clock=clock, connect=lambda policy, *_: ScriptedUpstream(policy.name, answer))
    try:
        engine.prepare()
        await engine.warm()
        yield engine
    finally:
        await engine.close(_IDLE_SECONDS)


async def make_call(engine: Engine, form: Format, body: bytes, headers: Headers) -> LocalClient:
    """Make a call, and return its client."""
    client = LocalClient()
    await asyncio.shield(engine.exchanges.carry(make_request(form, body, *headers), form.name, client))
    return client
