"""The read-only API of recorded sessions under `/-/api`.

Its documents are those of the command line. Memory is bounded: a listing has a limit and no bodies, and an export is
streamed with the bodies of one exchange at a time in memory.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.engine.ports import ALL_SESSIONS, LogReader
from proxy.engine.recorded.documents import Listing, cut_listing, make_cursor, read_cursor
from proxy.engine.recorded.lookup import Part, find_exchange, find_session, list_matching, load_part, read_pages
from proxy.model.events import SessionsErased
from proxy.read.cache import CacheReport
from proxy.read.calls import CallDocument, WholeCall, describe_whole, list_calls
from proxy.read.export import Form, open_export
from proxy.read.savings import SavingsInputs, SavingsReport, load_savings
from proxy.read.session_reports import SessionReports
from proxy.read.session_summary import (
    SessionStatus,
    SessionSummary,
    TitleCache,
    summarize_sessions,
)
from proxy.read.sessions import BranchWords, OverviewDocument, load_overview
from proxy.read.timeline import MOST_CALLS, EpochSummary, Timeline
from proxy.server.api.erase import EraseApi
from proxy.server.api.parameters import Branch, Cursor, Limit, ListingQuery, NumberedPath, RoundQuery, SessionPath
from proxy.server.api.turns import TurnsApi
from proxy.server.endpoints import GUARDS, JSON, Endpoint, Media

# Of a search among sessions, pages of the log that are read for one page of the listing.
_MOST_PAGES = 20
_LINES = "application/x-ndjson"
_MEDIA: dict[Form, str] = {"json": JSON, "jsonl": _LINES, "openai": JSON}
_BYTES = "application/octet-stream"


class SessionsQuery(msgspec.Struct, frozen=True):
    """Which sessions, the newest call first. Of `q`, each word has to be in the title, a name, the client or the id."""

    q: Annotated[str, Meta(description="words of the title, a name, the client, the model or the id")] = ""
    client: Annotated[str, Meta(description="sessions whose client begins with this")] = ""
    model: Annotated[str, Meta(description="sessions whose model begins with this")] = ""
    status: Annotated[SessionStatus, Meta(description="only those that go on now, or only others")] | None = None
    family: Annotated[str, Meta(description="sessions whose family begins with this")] = ""
    parent: Annotated[str, Meta(description="sessions that the one with this id, or prefix of one, started")] = ""
    cursor: Cursor = ""
    limit: Limit = 50

    def matches(self, session: SessionSummary) -> bool:
        """Return whether a session has what is asked for of its summary."""
        text = " ".join((session.title, session.name, session.family, session.client, session.model, session.id))
        return (
            session.client.lower().startswith(self.client.lower())
            and session.model.lower().startswith(self.model.lower())
            and self.status in (None, session.status)
            and all(word in text.lower() for word in self.q.lower().split())
        )


class CallsQuery(msgspec.Struct, frozen=True):
    """Which calls, the oldest first."""

    after: Annotated[int, Meta(ge=0, le=999_999_999, description="begin after the call of this number")] = 0
    cursor: Cursor = ""
    limit: Limit = 100


class TimelineQuery(msgspec.Struct, frozen=True):
    """Which calls, the oldest first."""

    after: Annotated[int, Meta(ge=0, le=999_999_999, description="begin after the call of this number")] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_CALLS, description="how many calls at most")] = MOST_CALLS


class ExportQuery(msgspec.Struct, frozen=True):
    """What is exported, and how."""

    form: Annotated[Form, Meta(description="one document, a line for each call, or the messages alone")] = "json"
    branch: Branch = ""


class SessionsApi:
    """Endpoints that show sessions, exchanges and savings, including what was recorded last."""

    def __init__(
        self, log: LogReader, inputs: SavingsInputs, erasing: EraseApi, turns: TurnsApi, loop_threshold: int = 0
    ) -> None:
        self._log = log
        self._turns = turns
        self._erasing = erasing
        self._inputs = inputs
        self.titles = TitleCache()
        self._words = BranchWords(log)
        self.reports = SessionReports(log, inputs, loop_threshold)

    def forget(self, event: SessionsErased) -> None:
        """Forget what was read of sessions that were erased."""
        self._words.forget()
        for session in event.sessions:
            self.titles.pop(session)
            self.reports.forget(session)

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        exchange = "/api/sessions/{id}/exchanges/{n}"
        return [
            Route("/api/sessions", self._turns.add_to(Endpoint(self._list_sessions))),
            *self._turns.list_routes(),
            Route("/api/sessions/{id}", self._erasing.add_to(Endpoint(self._show_session))),
            Route("/api/sessions/{id}/cache", Endpoint(self._show_cache)),
            Route("/api/sessions/{id}/epochs", Endpoint(self._list_epochs)),
            Route("/api/sessions/{id}/timeline", Endpoint(self._show_timeline)),
            Route("/api/sessions/{id}/export", Endpoint(self._export)),
            Route("/api/sessions/{id}/exchanges", Endpoint(self._list_exchanges)),
            Route(exchange, Endpoint(self._show_exchange)),
            Route(exchange + "/sent", Endpoint(self._load_sent)),
            Route(exchange + "/held", Endpoint(self._load_held)),
            Route(exchange + "/received", Endpoint(self._load_received)),
            Route("/api/savings", Endpoint(self._show_savings)),
        ]

    async def _list_sessions(self, query: SessionsQuery) -> Listing[SessionSummary]:
        """List sessions, the newest call first. A page may have fewer than asked for though there are more."""
        before = read_cursor("sessions", query.cursor, ALL_SESSIONS.before)
        selection = replace(ALL_SESSIONS, family=query.family, parent=query.parent, before=before)
        found: list[SessionSummary] = []
        for _ in range(_MOST_PAGES):
            wanted = query.limit - len(found)
            rows = await list_matching(self._log, wanted + 1, selection)
            is_last, rows = len(rows) <= wanted, rows[:wanted]
            summaries = await summarize_sessions(self._log, rows, self._inputs, self.titles)
            found += filter(query.matches, summaries)
            if is_last:
                return Listing(found, None)
            selection = replace(selection, before=rows[-1].seq)
            if len(found) == query.limit:
                break
        return Listing(found, make_cursor("sessions", selection.before))

    async def _show_session(self, path: SessionPath) -> OverviewDocument:
        """Show a session with its branches and the newest sessions that it started."""
        return await load_overview(self._log, path.id, self._inputs, self.titles, self._words)

    async def _list_exchanges(self, path: SessionPath, query: CallsQuery) -> Listing[CallDocument]:
        """List the calls of a session without bodies, the oldest first."""
        after = read_cursor("calls", query.cursor, query.after)
        session = await find_session(self._log, path.id)
        calls = [call async for page in read_pages(self._log, session, after, query.limit) for call in list_calls(page)]
        end = calls[-1].n if calls else after
        is_last = end >= (await self._log.find_session(session)).recorded
        return Listing(calls, None if is_last else make_cursor("calls", end))

    async def _show_exchange(self, path: NumberedPath) -> WholeCall:
        """Show a call with its request, headers and response, and the plan of each round."""
        return await describe_whole(self._log, await find_exchange(self._log, path.id, path.n))

    async def _load_sent(
        self, path: NumberedPath, query: RoundQuery
    ) -> Annotated[Response, Media(_BYTES, "the bytes that were sent to the upstream")]:
        """Show the exact bytes that were sent in a round of a call."""
        return await self._load("sent", path, query)

    async def _load_received(
        self, path: NumberedPath, query: RoundQuery
    ) -> Annotated[Response, Media(_BYTES, "the bytes of the upstream's response")]:
        """Show the exact bytes that were received in a round of a call."""
        return await self._load("received", path, query)

    async def _load_held(
        self, path: NumberedPath
    ) -> Annotated[Response, Media(_BYTES, "the bytes that the client itself sent")]:
        """Show the exact bytes that the client sent of a call: without the history where we hold that."""
        return await self._load("held", path, RoundQuery())

    async def _load(self, part: Part, path: NumberedPath, query: RoundQuery) -> Response:
        content = await load_part(self._log, await find_exchange(self._log, path.id, path.n), part, query.k)
        return Response(content, headers=GUARDS, media_type=_BYTES)

    async def _export(
        self, path: SessionPath, query: ExportQuery, request: Request
    ) -> Annotated[Response, Media(JSON, "the whole session"), Media(_LINES, "a line for each call")]:
        """Write a whole session, in pieces."""
        opened = await open_export(self._log, path.id, query.form, query.branch)
        pieces = opened if request.method == "GET" else _write_nothing()
        return StreamingResponse(pieces, headers=GUARDS, media_type=_MEDIA[query.form])

    async def _show_cache(self, path: SessionPath) -> CacheReport:
        """Show why the calls of a session missed the provider's cache."""
        return await self.reports.load_cache(path.id)

    async def _show_timeline(self, path: SessionPath, query: TimelineQuery) -> Timeline:
        """Show the calls of a session as columns, with what happened at them."""
        return await self.reports.load_timeline(path.id, query.after, query.limit)

    async def _list_epochs(self, path: SessionPath, query: ListingQuery) -> Listing[EpochSummary]:
        """List the epochs of a session, the oldest first: why, at what cost, and what each has paid back."""
        return cut_listing("epochs", await self.reports.load_epochs(path.id), query.cursor, query.limit)

    async def _show_savings(self) -> SavingsReport:
        """Show what managing saves, by model and day, and compared with sessions that were only observed."""
        return await load_savings(self._log, self._inputs)


async def _write_nothing() -> AsyncIterator[bytes]:
    """Yield the empty body of a response to HEAD."""
    return
    yield b""
