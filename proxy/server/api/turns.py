"""The API of turns that programs make elsewhere, with a provider's own SDK: sessions to begin, and turns to record."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Route

from proxy.engine.recorded.lookup import find_session
from proxy.engine.turns.recording import SessionRequest, TurnRecorder, make_turn
from proxy.model.results import FinishReason, RecordResult, TokenUsage
from proxy.server.api.parameters import SessionPath
from proxy.server.endpoints import Answered, Endpoint

MOST_BYTES = 64 * 1024 * 1024
"""Of a turn. `store.record_cap_bytes` bounds what of it is taken."""

_KEY = "idempotency-key"
_CREATED, _REPEATED = 201, 200

Told = str | dict[str, Any] | list[dict[str, Any]]


class SessionBegun(msgspec.Struct, frozen=True):
    """A session that was begun, and is in the log."""

    id: str
    name: str
    model: str
    upstream: str
    parent: str


class TurnRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn that was made elsewhere: texts, or messages as the API of chat completions has them."""

    user: Annotated[Told, Meta(description="what was sent: the user's text or messages, or the results of tools")]
    assistant: Annotated[Told, Meta(description="the answer, and what went before it within the turn")]
    tokens: Annotated[TokenUsage, Meta(description="as the provider told; estimated without it")] | None = None
    finish_reason: Annotated[FinishReason, Meta(description="why the answer ended")] = "stop"
    model: Annotated[str, Meta(description="the model that answered, else that of the session")] = ""


class TurnsApi:
    """Endpoints that begin sessions, and record turns in them."""

    def __init__(self, turns: TurnRecorder) -> None:
        self._turns = turns

    def add_to(self, sessions: Endpoint) -> Endpoint:
        """Add the method to the path of all sessions."""
        return sessions.on("POST", self._create, statuses=(_CREATED,))

    def list_routes(self) -> list[Route]:
        """Return the routes, below `/-`."""
        record = Endpoint().on("POST", self._record, statuses=(_CREATED, _REPEATED), most_bytes=MOST_BYTES)
        return [Route("/api/sessions/{id}/record", record)]

    async def _create(self, body: SessionRequest) -> Answered[SessionBegun]:
        """Begin a session, in which turns can be recorded; 409 if there is one of this name."""
        parent = await find_session(self._turns.archive, body.parent) if body.parent else ""
        key = await self._turns.create(replace(body, parent=parent))
        return Answered(SessionBegun(key.id, key.family, body.model, key.upstream, key.parent), _CREATED)

    async def _record(self, path: SessionPath, body: TurnRequest, request: Request) -> Answered[RecordResult]:
        """Record a turn that was made elsewhere, once for each `idempotency-key`; 200 if it had been recorded."""
        key = await self._turns.archive.find_key(await find_session(self._turns.archive, path.id))
        user = [body.user] if isinstance(body.user, dict) else body.user
        turn = make_turn(user, body.assistant, tokens=body.tokens, finish_reason=body.finish_reason, model=body.model)
        kept = await self._turns.record(key, turn, request.headers.get(_KEY, "").strip())
        return Answered(kept.result, _REPEATED if kept.is_repeated else _CREATED)
