"""The API of what conversations consist of under `/-/api`: messages with their parts, turns, and files."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.routing import Route

from proxy.engine.memory.messages import MessageDocument, load_messages
from proxy.engine.memory.path import MemoryReader, load_path
from proxy.engine.recall.files import FileDocument, list_files
from proxy.engine.recall.history import History
from proxy.engine.recorded.documents import Listing, cut_listing, make_cursor, read_cursor
from proxy.engine.recorded.lookup import find_exchange, find_session
from proxy.read.dialogue import AddedDocument, DialogueDocument, Dialogues, load_added
from proxy.server.api.parameters import Branch, BranchQuery, Limit, ListingQuery, Number, NumberedPath, SessionPath
from proxy.server.endpoints import Endpoint


class PartsQuery(ListingQuery, frozen=True):
    """A page of a listing of the newest conversation of a session, or of a branch."""

    branch: Branch = ""


_NAME = "the `name` of a message: the number of the call that brought it, and of several its place, such as 12-2"


class PieceQuery(msgspec.Struct, frozen=True):
    """Which messages of which conversation: from a place on, or around one, or else the newest."""

    message: Annotated[str, Meta(pattern=r"^(\d{1,9}(-\d{1,9})?)?$", description=_NAME)] = ""
    start: Annotated[Number, Meta(description="the place of the first message, counted from 0")] | None = None
    branch: Branch = ""
    limit: Limit = 100
    turns: Annotated[bool, Meta(description="list the turns, too")] = True


class MessagePath(msgspec.Struct, frozen=True):
    """A message of a session."""

    id: Annotated[str, Meta(description="a session's id, or a prefix of it")]
    node: Annotated[str, Meta(description="the `id` of a message")]


class MessagesApi:
    """Endpoints that show what the conversation of a session consists of."""

    def __init__(self, log: MemoryReader) -> None:
        self._log = log
        self._dialogues = Dialogues(log)

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        return [
            Route(session + "/messages", Endpoint(self._list_messages)),
            Route(session + "/messages/{node}", Endpoint(self._show_message)),
            Route(session + "/conversation", Endpoint(self._show_piece)),
            Route(session + "/exchanges/{n}/messages", Endpoint(self._show_added)),
            Route(session + "/files", Endpoint(self._list_files)),
        ]

    async def _list_messages(self, path: SessionPath, query: PartsQuery) -> Listing[MessageDocument]:
        """List the messages of a conversation with their parts, the oldest first."""
        conversation = await load_path(self._log, await find_session(self._log, path.id), query.branch)
        return cut_listing("messages", await load_messages(self._log, conversation), query.cursor, query.limit)

    async def _show_message(self, path: MessagePath, query: BranchQuery) -> MessageDocument:
        """Show one message of a conversation with its parts, all of it."""
        return await self._dialogues.load_message(path.id, query.branch, path.node)

    async def _show_piece(self, path: SessionPath, query: PieceQuery) -> DialogueDocument:
        """Show the turns of a conversation, and some of its messages; long texts of these are cut."""
        found = await self._dialogues.load_piece(path.id, query.branch, query.message, query.start, query.limit)
        return found if query.turns else msgspec.structs.replace(found, turns=[])

    async def _show_added(self, path: NumberedPath) -> AddedDocument:
        """Show the messages that a call added to its conversation, and those of its answer."""
        return await load_added(self._log, await find_exchange(self._log, path.id, path.n))

    async def _list_files(self, path: SessionPath, query: PartsQuery) -> Listing[FileDocument]:
        """List the files that calls of tools read and wrote, the newest first."""
        conversation = await load_path(self._log, await find_session(self._log, path.id), query.branch)
        start = read_cursor("files", query.cursor)
        stop = start + query.limit
        history = History(conversation.row.wire, conversation.nodes, conversation.raws)
        items, count = await asyncio.to_thread(list_files, history, start, stop)
        return Listing(items, make_cursor("files", stop) if stop < count else None)
