"""The API of what conversations consist of under `/-/api`: messages with their parts, and files."""

import asyncio
from collections.abc import Sequence

from starlette.routing import Route

from proxy.engine.memory.messages import MessageDocument, load_messages
from proxy.engine.memory.path import MemoryReader, load_path
from proxy.engine.recall.files import FileDocument, list_files
from proxy.engine.recall.history import History
from proxy.engine.reports.listing import Listing, cut_listing, make_cursor, read_cursor
from proxy.engine.reports.lookup import find_session
from proxy.server.api.parameters import Branch, ListingQuery, SessionPath
from proxy.server.endpoints import Endpoint


class PartsQuery(ListingQuery, frozen=True):
    """A page of a listing of the newest conversation of a session, or of a branch."""

    branch: Branch = ""


class MessagesApi:
    """Endpoints that show what the conversation of a session consists of."""

    def __init__(self, log: MemoryReader) -> None:
        self._log = log

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        return [
            Route(session + "/messages", Endpoint(self._list_messages)),
            Route(session + "/files", Endpoint(self._list_files)),
        ]

    async def _list_messages(self, path: SessionPath, query: PartsQuery) -> Listing[MessageDocument]:
        """List the messages of a conversation with their parts, the oldest first."""
        conversation = await load_path(self._log, await find_session(self._log, path.id), query.branch)
        return cut_listing("messages", await load_messages(self._log, conversation), query.cursor, query.limit)

    async def _list_files(self, path: SessionPath, query: PartsQuery) -> Listing[FileDocument]:
        """List the files that calls of tools read and wrote, the newest first."""
        conversation = await load_path(self._log, await find_session(self._log, path.id), query.branch)
        start = read_cursor("files", query.cursor)
        stop = start + query.limit
        history = History(conversation.row.wire, conversation.nodes, conversation.raws)
        items, count = await asyncio.to_thread(list_files, history, start, stop)
        return Listing(items, make_cursor("files", stop) if stop < count else None)
