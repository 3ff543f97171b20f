"""`/-/api/events`: what happens, while it happens, as server-sent events (`engine/events`)."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from proxy.engine.events.stream import EventReader, EventStream, Wanted
from proxy.engine.ports import LogReader
from proxy.engine.recorded.lookup import find_session, list_matching
from proxy.model.errors import BadRequest, NotFound
from proxy.model.events import EVENT_TYPES
from proxy.model.log import Selection
from proxy.server.endpoints import GUARDS, Endpoint, Media

_MEDIA = "text/event-stream"
# A proxy before us must not hold events back to fill its buffer.
_HEADERS = {**GUARDS, "x-accel-buffering": "no"}
_ALWAYS = frozenset({"RESET", "STREAM_ENDED"})
_MOST_OF_A_NAME = 1000
_LONGEST_ID = 100


class EventsApi:
    """The endpoint of the stream of events."""

    def __init__(self, log: LogReader, stream: EventStream) -> None:
        self._log = log
        self._stream = stream

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        return [Route("/api/events", Endpoint(self._follow, "session", "type", "after"))]

    async def _follow(self, request: Request) -> Annotated[Response, Media(_MEDIA, "a stream of server-sent events")]:
        """Respond with the events from now on, or after the one that `Last-Event-ID`, or `after`, names."""
        query = request.query_params
        after = request.headers.get("last-event-id") or query.get("after", "")
        if len(after) > _LONGEST_ID:
            raise BadRequest("the id of an event is shorter; send it as it came, or leave it out")
        types = _read_types(query.getlist("type"))
        sessions = await self._find_sessions(query["session"]) if query.get("session") else None
        if request.method == "HEAD":
            return Response(headers=_HEADERS, media_type=_MEDIA)
        return EventStreamResponse(self._stream, self._stream.open(Wanted(sessions, types), after))

    async def _find_sessions(self, text: str) -> frozenset[str]:
        """Return the session with this id or prefix of one, or all that the client named so. Raises NotFound."""
        try:
            return frozenset({await find_session(self._log, text)})
        except NotFound:
            rows = await list_matching(self._log, _MOST_OF_A_NAME, Selection(family=text))
            named = frozenset(row.id for row in rows if row.family == text)
            if not named:
                raise
            return named


class EventStreamResponse(StreamingResponse):
    """A response that passes on what its reader gets, until the stream ends or the client leaves."""

    def __init__(self, stream: EventStream, reader: EventReader) -> None:
        super().__init__(self._read(), headers=_HEADERS, media_type=_MEDIA)
        self._stream = stream
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream, and give its place free, however it ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.leave(self._reader)

    async def _read(self) -> AsyncIterator[bytes]:
        while content := await self._reader.read():
            yield content


def _read_types(given: Sequence[str]) -> frozenset[str] | None:
    """Return the types that were asked for, None for all. Raises BadRequest."""
    types = {name.strip() for text in given for name in text.split(",") if name.strip()}
    for name in sorted(types):
        if name not in EVENT_TYPES:
            raise BadRequest(f"{name[:40]!r} is no type of event; there are {', '.join(EVENT_TYPES)}")
    return frozenset(types) | _ALWAYS if types else None
