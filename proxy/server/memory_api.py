"""The API of the memory of sessions under `/-/api`: items, bundles, what would be sent, and operations on them.

Changes need POST or DELETE, and are in the log before the response is sent.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.memory.compaction import MemoryCompaction
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.reports import (
    DEFAULT_LIMIT,
    build_snapshot,
    load_bundle,
    load_report,
    load_sendable,
    load_tools,
)
from proxy.engine.policy import SnapshotPolicy
from proxy.engine.reports.context import Document
from proxy.engine.reports.lookup import find_session
from proxy.model.epoch import SummaryLevel
from proxy.model.errors import BadRequest
from proxy.model.memory import ItemType
from proxy.server.endpoints import Endpoint, read_body, read_document, read_limit, read_number

_MAX_BODY_BYTES = 64 * 1024
_MOST_LISTED = 10_000
_MOST_ITEMS = 1000
_MOST_TAIL_TURNS = 1000
_TAILS = ("messages", "text")


class MemoryCompactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to make memory of turns; without any, of all that memory was not made of."""

    turn_ids: tuple[str, ...] = ()
    model: str = ""  # writes the reports
    prompt: str = ""  # the instruction for them
    level: SummaryLevel = 1
    branch: str = ""  # the tip of the branch
    # later: behind the session's next response; never: no longer later
    when: Literal["now", "later", "never"] = "now"


class MemoryItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request about an item."""

    action: Literal["pin", "unpin", "retract"] = "pin"


class MemoryApi:
    """Endpoints that show and change the memory of sessions. `policy` says what is shown unless a request does."""

    def __init__(self, memory: SessionMemory, compaction: MemoryCompaction, policy: SnapshotPolicy) -> None:
        self._memory = memory
        self._policy = policy
        self._compaction = compaction

    def list_routes(self) -> Sequence[BaseRoute]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        chosen = ("max_episodic", "max_semantic", "branch")
        compact = Endpoint().on("POST", self._compact)
        item = Endpoint().on("POST", self._change).on("DELETE", self._retract)
        return [
            Route(session + "/memory", Endpoint(self._list, "type", "turn", "limit", "branch")),
            Route(session + "/memory/bundle", Endpoint(self._bundle, *chosen)),
            Route(session + "/memory/snapshot", Endpoint(self._snapshot, *chosen, "raw_tail_turns", "tail", "wire")),
            Route(session + "/memory/compact", compact),
            Route(session + "/memory/reset", Endpoint().on("POST", self._reset)),
            Route(session + "/memory/{item}", item),
            Route(session + "/tools", Endpoint(self._list_tools, "turn", "branch")),
            Route(session + "/context", Endpoint(self._show_context, "wire", "branch")),
        ]

    async def _list(self, request: Request) -> object:
        query, kind = request.query_params, None
        if "type" in query:
            kind = _read_type(query["type"])
        return await load_report(
            self._memory.archive,
            request.path_params["id"],
            kind=kind,
            turn=query.get("turn", ""),
            limit=read_limit(request, DEFAULT_LIMIT, _MOST_LISTED),
            branch=query.get("branch", ""),
        )

    async def _list_tools(self, request: Request) -> object:
        query, id = request.query_params, request.path_params["id"]
        return await load_tools(self._memory.archive, id, query.get("turn", ""), query.get("branch", ""))

    async def _bundle(self, request: Request) -> Document:
        counts, branch = self._read_counts(request), request.query_params.get("branch", "")
        bundle, text = await load_bundle(self._memory.archive, request.path_params["id"], *counts, branch)
        return {"episodic": bundle.episodic, "semantic": bundle.semantic, "text": text}

    async def _snapshot(self, request: Request) -> Document:
        query = request.query_params
        tail = query.get("tail", self._policy.tail)
        if tail not in _TAILS:
            raise BadRequest(f"tail is {' or '.join(_TAILS)}, not {tail[:40]!r}")
        max_episodic, max_semantic = self._read_counts(request)
        return await build_snapshot(
            self._memory.archive,
            request.path_params["id"],
            max_episodic=max_episodic,
            max_semantic=max_semantic,
            raw_tail_turns=_read_count(request, "raw_tail_turns", self._policy.raw_tail_turns, _MOST_TAIL_TURNS),
            is_text=tail == "text",
            wire=query.get("wire", ""),
            branch=query.get("branch", ""),
        )

    async def _show_context(self, request: Request) -> Document:
        query = request.query_params
        return await load_sendable(
            self._memory.archive,
            self._compaction.manual,
            request.path_params["id"],
            query.get("wire", ""),
            query.get("branch", ""),
        )

    async def _compact(self, request: Request) -> object:
        session = await self._find_session(request)
        asked = read_document(await read_body(request, _MAX_BODY_BYTES), MemoryCompactionRequest)
        if asked.when != "now":
            is_requested = asked.when == "later"
            await self._memory.order(session, "request" if is_requested else "clear")
            return {"session": session, "is_requested": is_requested}
        options = ManualOptions(asked.model, asked.prompt, asked.level)
        return await self._compaction.compact(session, asked.turn_ids, options, asked.branch)

    async def _reset(self, request: Request) -> Document:
        session = await self._find_session(request)
        await self._memory.order(session, "reset")
        return {"session": session, "is_reset": True}

    async def _change(self, request: Request) -> Document:
        asked = read_document(await read_body(request, _MAX_BODY_BYTES), MemoryItemRequest)
        session, item = await self._find_session(request), request.path_params["item"]
        await self._memory.order(session, asked.action, item)
        return {"session": session, "item": item, "action": asked.action}

    async def _retract(self, request: Request) -> Document:
        session, item = await self._find_session(request), request.path_params["item"]
        await self._memory.order(session, "retract", item)
        return {"session": session, "item": item, "action": "retract"}

    def _read_counts(self, request: Request) -> tuple[int, int]:
        return (
            _read_count(request, "max_episodic", self._policy.max_episodic_items, _MOST_ITEMS),
            _read_count(request, "max_semantic", self._policy.max_semantic_items, _MOST_ITEMS),
        )

    async def _find_session(self, request: Request) -> str:
        return await find_session(self._memory.archive, request.path_params["id"])


def _read_type(text: str) -> ItemType:
    for kind in get_args(ItemType):
        if text == kind:
            found: ItemType = kind
            return found
    raise BadRequest(f"type is {', '.join(get_args(ItemType))}, not {text[:40]!r}")


def _read_count(request: Request, name: str, default: int, most: int) -> int:
    """Return a parameter that is a number from 0 up to `most`. Raises BadRequest."""
    count = read_number(request.query_params.get(name, str(default)), name)
    if count > most:
        raise BadRequest(f"{name} is at most {most}, not {count}")
    return count
