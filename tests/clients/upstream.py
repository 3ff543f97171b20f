"""The scripted upstream of a journey: answers as the script says, whatever the client asks, and keeps every exchange.

Rule: nothing is refused that a client may live on; what we do not know gets 404, as from a provider that lacks it. With
a meter it reports the tokens that it was sent, and refuses what is above its window as the provider does.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.clients.counting import Meter
from tests.clients.script import Json, Turn
from tests.clients.task import find_step
from tests.support.answers import WRITERS, Tokens, write_refusal

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_MOST_ANSWERS = 1000  # of one run
_MODELS = [{"id": "scripted", "object": "model", "created": 1, "owned_by": "journeys"}]


class Model(Protocol):
    """What answers; `run` is how many runs of the client it answered before."""

    @property
    def run(self) -> int: ...

    def answer(self, asked: Json) -> Turn: ...


@dataclass(slots=True)
class Exchange:
    """A request as it arrived, and the body of what it got; of a conversation also the turn, and what was counted."""

    method: str
    target: str
    body: bytes
    answer: bytes = b""
    turn: Turn | None = None
    tokens: Tokens | None = None
    is_refused: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What happens once, before the first request is answered that shows a part. `cuts`: nobody gets that answer."""

    act: Callable[[], object]
    cuts: bool = False


@dataclass(slots=True)
class Upstream:
    """A running upstream and its recording, in the order in which requests came. `trials` are by the part that they
    wait for; `rescued` answers what is sent in place of a request that was refused. `items` are those of answers on
    Responses, which later requests may name by their ids.
    """

    script: Model
    meter: Meter | None = None
    rescued: Callable[[Json], Turn] | None = None
    trials: dict[int, Trial] = field(default_factory=dict)
    port: int = 0
    recording: list[Exchange] = field(default_factory=list)
    items: dict[str, Json] = field(default_factory=dict)
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
            try:
                asked = self._restore_items(json.loads(body))
            except KeyError as error:
                exchange.answer = bytes(_refuse(f"Item with id {error} not found.").body)
                return Response(exchange.answer, 404, media_type="application/json")
            if self.trials and (trial := self.trials.pop(find_step(asked).n, None)):
                exchange.is_cut = trial.cuts
                await asyncio.to_thread(trial.act)
            exchange.turn = turn = self._choose(asked)
            exchange.tokens = self._count(asked, turn)
            if self.meter and exchange.tokens.prompt > self.meter.window:
                exchange.is_refused = True
                exchange.answer = write_refusal(request.url.path, exchange.tokens.prompt, self.meter.window)
                return Response(exchange.answer, 400, media_type="application/json")
            # Only answers that open a tool call or end a turn with tools count: side calls may run beside the others,
            # and would give these other ids each time.
            n = next(self.numbers) if asked.get("tools") else 0
            pieces = write(turn, n, asked, exchange.tokens)
            exchange.answer = b"".join(pieces)
            self.items |= _read_items(exchange.answer) if request.url.path == "/v1/responses" else {}
            is_streamed = asked.get("stream") or request.query_params.get("alt") == "sse"
            kind = "text/event-stream" if is_streamed else "application/json"
            return StreamingResponse(_send(pieces), media_type=kind)
        answer = self._answer_aside(request.method, request.url.path, body)
        exchange.answer = b"" if request.method == "HEAD" else bytes(answer.body)
        return answer

    def _restore_items(self, asked: Json) -> Json:
        """A request with the items that it names written out. Raises KeyError for one that is not known."""
        if not isinstance(asked.get("input"), list):
            return asked
        items = (self.items[item["id"]] if item.get("type") == "item_reference" else item for item in asked["input"])
        return asked | {"input": list(items)}

    def _choose(self, asked: Json) -> Turn:
        is_rescued = len(self.recording) > 1 and self.recording[-2].is_refused
        return self.rescued(asked) if is_rescued and self.rescued else self.script.answer(asked)

    def _count(self, asked: Json, turn: Turn) -> Tokens:
        if self.meter is None:
            return Tokens()
        return replace(self.meter.measure(asked), answer=self.meter.count_turn(turn))

    def _answer_aside(self, method: str, path: str, body: bytes) -> Response:
        """What is asked beside conversations."""
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": _MODELS})
        if path == "/v1/messages/count_tokens":
            counted = self.meter.measure(json.loads(body), is_kept=False) if self.meter else Tokens()
            return JSONResponse({"input_tokens": counted.prompt})
        if method == "HEAD":
            return Response()
        return _refuse(f"{path} is not served here")


def _refuse(message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, 404)


def _read_items(answer: bytes) -> dict[str, Json]:
    """The items of an answer on Responses, whole or streamed, by id."""
    last = answer.rpartition(b"data: ")[2] if answer.startswith(b"event: ") else answer
    told = json.loads(last)
    return {item["id"]: item for item in told.get("response", told)["output"]}


async def _send(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@contextlib.contextmanager
def run_upstream(
    script: Model, meter: Meter | None = None, rescued: Callable[[Json], Turn] | None = None
) -> Iterator[Upstream]:
    """An upstream for the length of a `with` block."""
    upstream = Upstream(script, meter, rescued)
    application = Starlette(routes=[Route("/{path:path}", upstream.answer, methods=_METHODS)])
    with serve_application(application) as upstream.port:
        yield upstream
