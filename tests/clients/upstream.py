"""The scripted upstream of a journey: answers as the script says, whatever the client asks, and keeps every exchange.

Rule: nothing is refused that a client may live on; what we do not know gets 404, as from a provider that lacks it.
"""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.answers import WRITERS
from tests.clients.script import Script
from tests.journeys.provider import run_application

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_MOST_ANSWERS = 1000  # of one run
_MODELS = [{"id": "scripted", "object": "model", "created": 1, "owned_by": "journeys"}]


@dataclass(slots=True)
class Exchange:
    """A request as it arrived, and the body of what it got."""

    method: str
    target: str
    body: bytes
    answer: bytes = b""


@dataclass(slots=True)
class Upstream:
    """A running upstream and its recording, in the order in which requests came."""

    script: Script
    port: int = 0
    recording: list[Exchange] = field(default_factory=list)
    numbers: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1 + _MOST_ANSWERS * self.script.run)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: Request) -> Response:
        """Any call."""
        body = await request.body()
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        exchange = Exchange(request.method, target, body)
        self.recording.append(exchange)
        if write := WRITERS.get(request.url.path) if request.method == "POST" else None:
            asked = json.loads(body)
            turn = self.script.answer(asked)
            # Only answers that open a tool call or end a turn with tools count: side calls may run beside the others,
            # and would give these other ids each time.
            n = next(self.numbers) if asked.get("tools") else 0
            pieces = write(turn, n, asked)
            exchange.answer = b"".join(pieces)
            kind = "text/event-stream" if asked.get("stream") else "application/json"
            return StreamingResponse(_send(pieces), media_type=kind)
        answer = _answer_aside(request.method, request.url.path)
        exchange.answer = b"" if request.method == "HEAD" else bytes(answer.body)
        return answer


def _answer_aside(method: str, path: str) -> Response:
    """What is asked beside conversations."""
    if path == "/v1/models":
        return JSONResponse({"object": "list", "data": _MODELS})
    if path == "/v1/messages/count_tokens":
        return JSONResponse({"input_tokens": 7})
    if method == "HEAD":
        return Response()
    error = {"message": f"{path} is not served here", "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, 404)


async def _send(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@contextlib.contextmanager
def run_upstream(script: Script) -> Iterator[Upstream]:
    """An upstream for the length of a `with` block."""
    upstream = Upstream(script)
    application = Starlette(routes=[Route("/{path:path}", upstream.answer, methods=_METHODS)])
    with run_application(application) as upstream.port:
        yield upstream
