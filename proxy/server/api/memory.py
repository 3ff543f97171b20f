"""The API of the memory of sessions under `/-/api`: items, bundles, what would be sent, and operations on them.

Changes need POST or DELETE, and are in the log before the response is sent.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.routing import Route

from proxy.context.conversation import SnapshotPolicy
from proxy.engine.compaction.job import ManualOptions
from proxy.engine.memory.compaction import MemoryCompaction, MemoryResult
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.recorded.documents import Listing, cut_listing
from proxy.engine.recorded.lookup import find_session
from proxy.model.epoch import SummaryLevel
from proxy.model.memory import ItemType, OrderKind, ToolInteraction
from proxy.read.memory import (
    DEFAULT_LIMIT,
    BundleDocument,
    MemoryReport,
    SendableDocument,
    SnapshotDocument,
    build_snapshot,
    load_bundle,
    load_report,
    load_sendable,
    load_tools,
)
from proxy.read.savings import SavingsInputs
from proxy.read.window import HeldCache
from proxy.server.api.parameters import Branch, Cursor, SessionPath
from proxy.server.endpoints import Endpoint

_MOST_LISTED = 10_000

Turn = Annotated[str, Meta(description="a turn: `12` or `turn_0012`")]
Listed = Annotated[int, Meta(ge=1, le=_MOST_LISTED, description="how many at most")]
Episodes = Annotated[int, Meta(ge=0, le=1000, description="the most reports")]
Facts = Annotated[int, Meta(ge=0, le=1000, description="the most facts")]
WireName = Annotated[str, Meta(description="the name of a wire; else that of the session")]


class MemoryQuery(msgspec.Struct, frozen=True):
    """Which items: of a kind, of a turn, the newest of each kind."""

    type: Annotated[ItemType, Meta(description="only this kind")] | None = None
    turn: Turn = ""
    limit: Listed = DEFAULT_LIMIT
    branch: Branch = ""


class ToolsQuery(msgspec.Struct, frozen=True):
    """Which calls of tools."""

    turn: Turn = ""
    branch: Branch = ""
    cursor: Cursor = ""
    limit: Listed = 1000


class BundleQuery(msgspec.Struct, frozen=True):
    """What a model would be shown; by default what the settings say (`snapshot`)."""

    max_episodic: Episodes | None = None
    max_semantic: Facts | None = None
    branch: Branch = ""


class SnapshotQuery(BundleQuery, frozen=True):
    """What a conversation would begin with."""

    raw_tail_turns: Annotated[int, Meta(ge=0, le=1000, description="turns before the current one")] | None = None
    tail: Annotated[Literal["messages", "text"], Meta(description="how these turns are shown")] | None = None
    wire: WireName = ""


class ContextQuery(msgspec.Struct, frozen=True):
    """Of which conversation, and in which format."""

    wire: WireName = ""
    branch: Branch = ""
    messages: Annotated[bool, Meta(description="false: without the messages")] = True


class ItemPath(msgspec.Struct, frozen=True):
    """An item of the memory of a session."""

    id: Annotated[str, Meta(description="a session's id, or a prefix of it")]
    item: Annotated[str, Meta(description="a report or a fact: `ep_0001`, `sem_0001`")]


class MemoryCompactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which turns memory is to be made; without any, of all that memory was not made of."""

    turn_ids: tuple[str, ...] = ()
    model: Annotated[str, Meta(description="the model that writes the reports")] = ""
    prompt: Annotated[str, Meta(description="the instruction for them")] = ""
    level: SummaryLevel = 1
    branch: Annotated[str, Meta(description="the tip of the branch")] = ""
    when: Annotated[
        Literal["now", "later", "never"], Meta(description="later: behind the next response; never: no longer later")
    ] = "now"


class MemoryItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be done with an item."""

    action: Literal["pin", "unpin", "retract"] = "pin"


class RequestedDocument(msgspec.Struct, frozen=True):
    """Memory is made behind the next response, or no longer."""

    session: str
    is_requested: bool


class ResetDocument(msgspec.Struct, frozen=True):
    """All items of a session were forgotten."""

    session: str
    is_reset: bool


class OrderDocument(msgspec.Struct, frozen=True):
    """What was done with an item."""

    session: str
    item: str
    action: OrderKind


class MemoryApi:
    """Endpoints that show and change the memory of sessions. `policy` says what is shown unless a request does."""

    def __init__(
        self, memory: SessionMemory, compaction: MemoryCompaction, policy: SnapshotPolicy, inputs: SavingsInputs
    ) -> None:
        self._memory = memory
        self._policy = policy
        self._compaction = compaction
        self._inputs = inputs
        self._held = HeldCache()

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        item = Endpoint().on("POST", self._change).on("DELETE", self._retract)
        return [
            Route(session + "/memory", Endpoint(self._list)),
            Route(session + "/memory/bundle", Endpoint(self._bundle)),
            Route(session + "/memory/snapshot", Endpoint(self._snapshot)),
            Route(session + "/memory/compact", Endpoint().on("POST", self._compact)),
            Route(session + "/memory/reset", Endpoint().on("POST", self._reset)),
            Route(session + "/memory/{item}", item),
            Route(session + "/tools", Endpoint(self._list_tools)),
            Route(session + "/context", Endpoint(self._show_context)),
        ]

    async def _list(self, path: SessionPath, query: MemoryQuery) -> MemoryReport:
        """Show what is remembered of a session: the newest items of each kind, and how many there are."""
        archive = self._memory.archive
        chosen = {"kind": query.type, "turn": query.turn, "limit": query.limit, "branch": query.branch}
        return await load_report(archive, path.id, **chosen)  # type: ignore[arg-type]

    async def _list_tools(self, path: SessionPath, query: ToolsQuery) -> Listing[ToolInteraction]:
        """List the calls of tools with their results, the oldest first."""
        found = await load_tools(self._memory.archive, path.id, query.turn, query.branch)
        return cut_listing("tools", found, query.cursor, query.limit)

    async def _bundle(self, path: SessionPath, query: BundleQuery) -> BundleDocument:
        """Show the items that a model is shown, and their text."""
        counts = self._read_counts(query)
        return await load_bundle(self._memory.archive, path.id, *counts, query.branch)

    async def _snapshot(self, path: SessionPath, query: SnapshotQuery) -> SnapshotDocument:
        """Show what the conversation would begin with if it were sent from memory now."""
        max_episodic, max_semantic = self._read_counts(query)
        turns = self._policy.raw_tail_turns if query.raw_tail_turns is None else query.raw_tail_turns
        return await build_snapshot(
            self._memory.archive,
            path.id,
            max_episodic=max_episodic,
            max_semantic=max_semantic,
            raw_tail_turns=turns,
            is_text=(query.tail or self._policy.tail) == "text",
            wire=query.wire,
            branch=query.branch,
        )

    async def _show_context(self, path: SessionPath, query: ContextQuery) -> SendableDocument:
        """Show what would be sent now if the client went on with its conversation."""
        return await load_sendable(
            self._memory.archive,
            self._compaction.manual,
            path.id,
            self._inputs,
            wire=query.wire,
            branch=query.branch,
            has_messages=query.messages,
            known=self._held,
        )

    async def _compact(self, path: SessionPath, body: MemoryCompactionRequest) -> MemoryResult | RequestedDocument:
        """Make reports and facts of turns now, or behind the next response."""
        session = await find_session(self._memory.archive, path.id)
        if body.when != "now":
            is_requested = body.when == "later"
            await self._memory.order(session, "request" if is_requested else "clear")
            return RequestedDocument(session, is_requested)
        options = ManualOptions(body.model, body.prompt, body.level)
        return await self._compaction.compact(session, body.turn_ids, options, body.branch)

    async def _reset(self, path: SessionPath) -> ResetDocument:
        """Forget all items of a session so far; the log keeps everything."""
        session = await find_session(self._memory.archive, path.id)
        await self._memory.order(session, "reset")
        return ResetDocument(session, is_reset=True)

    async def _change(self, path: ItemPath, body: MemoryItemRequest) -> OrderDocument:
        """Have an item come first, no longer, or be shown never again."""
        return await self._order(path, body.action)

    async def _retract(self, path: ItemPath) -> OrderDocument:
        """Have an item shown never again."""
        return await self._order(path, "retract")

    async def _order(self, path: ItemPath, action: OrderKind) -> OrderDocument:
        session = await find_session(self._memory.archive, path.id)
        await self._memory.order(session, action, path.item)
        return OrderDocument(session, path.item, action)

    def _read_counts(self, query: BundleQuery) -> tuple[int, int]:
        """Return how many reports and facts a bundle has at most."""
        policy = self._policy
        return (
            policy.max_episodic_items if query.max_episodic is None else query.max_episodic,
            policy.max_semantic_items if query.max_semantic is None else query.max_semantic,
        )
