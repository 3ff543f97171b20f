"""The API of managed context under `/-/api`: epochs, summaries, pins, and how sent requests differ.

It complements `server/sessions_api`. Changes need POST or DELETE, and are in the log before the response is sent.
"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.ports import LogReader
from proxy.engine.reports.context import (
    Document,
    describe_compaction,
    describe_pinned,
    describe_reversion,
    describe_summaries,
    load_epoch,
    load_summaries,
    load_summary,
)
from proxy.engine.reports.conversation import find_end
from proxy.engine.reports.diff import Tally, describe_difference, load_difference
from proxy.engine.reports.export import load_handoff, write_handoff
from proxy.engine.reports.lookup import find_exchange, find_session, pick_branch
from proxy.model.epoch import SummaryLevel
from proxy.model.errors import BadRequest
from proxy.model.log import ExchangeRow
from proxy.server.endpoints import GUARDS, Endpoint, read_body, read_document, read_number, read_switch

_MARKDOWN = "text/markdown"
_MAX_BODY_BYTES = 64 * 1024


class CompactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to compact a session."""

    model: str = ""  # writes the summary
    prompt: str = ""  # the instruction for it
    level: SummaryLevel = 1
    view: str = ""  # the conversation's model, if the session has several
    branch: str = ""  # the tip of the branch


class ContextApi:
    """Endpoints that show and change the managed context of sessions."""

    def __init__(self, log: LogReader, epochs: EpochAdmin, compaction: ManualCompaction, tally: Tally) -> None:
        self._log = log
        self._epochs = epochs
        self._compaction = compaction
        self._tally = tally

    def list_routes(self) -> Sequence[BaseRoute]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        where = ("exchange", "place", "newest", "branch")
        pins = Endpoint(self._list_pins).on("POST", self._pin, *where).on("DELETE", self._unpin, *where, "node")
        return [
            Route(session + "/epochs/{n}", Endpoint(self._show_epoch)),
            Route(session + "/epochs/{n}/revert", Endpoint().on("POST", self._revert, "dry_run")),
            Route(session + "/compact", Endpoint().on("POST", self._compact)),
            Route(session + "/summaries", Endpoint(self._list_summaries)),
            Route(session + "/summaries/{sid}", Endpoint(self._show_summary)),
            Route(session + "/exchanges/{n}/diff", Endpoint(self._compare, "k")),
            Route(session + "/handoff", Endpoint(self._hand_off, "branch")),
            Route(session + "/pins", pins),
        ]

    async def _show_epoch(self, request: Request) -> Document:
        return await load_epoch(self._log, request.path_params["id"], _read_epoch(request))

    async def _revert(self, request: Request) -> Document:
        session, n = await self._find_session(request), _read_epoch(request)
        is_done = not read_switch(request, "dry_run")
        reversion = await (self._epochs.revert(session, n) if is_done else self._epochs.quote(session, n))
        return describe_reversion(reversion, is_done=is_done)

    async def _compact(self, request: Request) -> Document:
        session = await self._find_session(request)
        asked = read_document(await read_body(request, _MAX_BODY_BYTES), CompactionRequest)
        options = ManualOptions(asked.model, asked.prompt, asked.level)
        found = await self._compaction.compact(session, options, asked.view, asked.branch)
        return describe_compaction(found)

    async def _list_summaries(self, request: Request) -> list[Document]:
        summaries = await load_summaries(self._log, request.path_params["id"])
        return describe_summaries(summaries)

    async def _show_summary(self, request: Request) -> Document:
        id, name = request.path_params["id"], request.path_params["sid"]
        return await load_summary(self._log, id, name)

    async def _compare(self, request: Request) -> Document:
        n = read_number(request.path_params["n"], "the number of an exchange")
        asked = request.query_params.get("k")
        k = None if asked is None else read_number(asked, "k")
        found = await load_difference(self._log, request.path_params["id"], n, self._tally, k)
        return describe_difference(found)

    async def _hand_off(self, request: Request) -> Response:
        tip = request.query_params.get("branch", "")
        text = write_handoff(await load_handoff(self._log, request.path_params["id"], tip))
        return Response(text.encode("utf-8", "replace"), headers=GUARDS, media_type=_MARKDOWN)

    async def _list_pins(self, request: Request) -> list[Document]:
        session = await self._find_session(request)
        pins = await self._epochs.list_pins(session, await self._log.list_branches(session))
        return [describe_pinned(each) for each in pins]

    async def _pin(self, request: Request) -> Document:
        pinned = await self._epochs.pin(*await self._find_message(request))
        return describe_pinned(pinned)

    async def _unpin(self, request: Request) -> list[Document]:
        if node := request.query_params.get("node"):
            await self._epochs.unpin_node(await self._find_session(request), _read_node(node))
        else:
            await self._epochs.unpin(*await self._find_message(request))
        return await self._list_pins(request)

    async def _find_message(self, request: Request) -> tuple[ExchangeRow, int | None]:
        """Return the exchange and the place of the message that the parameters name; no place means its newest."""
        query, prefix = request.query_params, request.path_params["id"]
        place = None if "place" not in query else read_number(query["place"], "place")
        if "exchange" in query and not read_switch(request, "newest"):
            return await find_exchange(self._log, prefix, read_number(query["exchange"], "exchange")), place
        if not read_switch(request, "newest") or "exchange" in query or place is not None:
            raise BadRequest(
                "say which message: exchange=N and place=P, or newest=true, of the branch=TIP if not of all"
            )
        session = await find_session(self._log, prefix)
        tip = query.get("branch", "")
        branch = pick_branch(await self._log.list_branches(session), tip) if tip else None
        return await find_end(self._log, session, branch), None

    async def _find_session(self, request: Request) -> str:
        return await find_session(self._log, request.path_params["id"])


def _read_epoch(request: Request) -> int:
    return read_number(request.path_params["n"], "the number of an epoch")


def _read_node(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"node is in hexadecimal digits, not {text[:40]!r}") from error
