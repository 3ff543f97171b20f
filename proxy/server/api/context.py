"""The API of managed context under `/-/api`: epochs, summaries, pins, and how sent requests differ.

It complements `server/api/sessions`. Changes need POST or DELETE, and are in the log before the response is sent.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.routing import Route

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.compaction.preview import PreviewKind
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_end
from proxy.engine.recorded.documents import Listing, cut_listing
from proxy.engine.recorded.lookup import find_exchange, find_session, pick_branch
from proxy.model.epoch import SummaryLevel
from proxy.model.errors import BadRequest
from proxy.model.log import ExchangeRow
from proxy.read.context import (
    CompactionDocument,
    PinDocument,
    ReversionDocument,
    SummaryDocument,
    WholeEpoch,
    describe_compaction,
    describe_pinned,
    describe_reversion,
    load_epoch,
    load_summaries,
    load_summary,
)
from proxy.read.diff import DifferenceDocument, Tally, load_difference
from proxy.read.export import write_handoff
from proxy.read.preview import EpochPreview, preview_epoch
from proxy.server.api.parameters import Branch, BranchQuery, ListingQuery, Number, NumberedPath, RoundQuery, SessionPath
from proxy.server.endpoints import GUARDS, Endpoint, Media

_MARKDOWN = "text/markdown"


class CompactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a compaction is to be: who is asked, with which instruction, and for which conversation."""

    model: Annotated[str, Meta(description="the model that writes the summary")] = ""
    prompt: Annotated[str, Meta(description="the instruction for it")] = ""
    level: Annotated[SummaryLevel, Meta(description="1: a report, 2: a short form, 3: made without a model")] = 1
    view: Annotated[str, Meta(description="the model of the conversation, if the session has several")] = ""
    branch: Annotated[str, Meta(description="the tip of its branch, or a prefix of it")] = ""


class RevertQuery(msgspec.Struct, frozen=True):
    """How to revert."""

    dry_run: Annotated[bool, Meta(description="only state the price")] = False


class NextQuery(msgspec.Struct, frozen=True):
    """Which epoch, of which conversation."""

    why: Annotated[PreviewKind, Meta(description="what a call would open next, or a compaction by hand")] = "automatic"
    view: Annotated[str, Meta(description="the model of the conversation, if the session has several")] = ""
    branch: Branch = ""


class CompactQuery(msgspec.Struct, frozen=True):
    """How to compact."""

    dry_run: Annotated[bool, Meta(description="only show the epoch that would open, without a summary")] = False


class MessageQuery(msgspec.Struct, frozen=True):
    """A message: of a call, at a place; or the newest one, of a branch if not of all."""

    exchange: Annotated[Number, Meta(description="the number of a call")] | None = None
    place: Annotated[Number, Meta(description="the place of a message in it, counted from 0")] | None = None
    newest: Annotated[bool, Meta(description="the newest message")] = False
    branch: Annotated[str, Meta(description="the tip of a branch, or a prefix of it")] = ""


class PinQuery(MessageQuery, frozen=True):
    """A message, and whether it is to be pinned."""

    dry_run: Annotated[bool, Meta(description="only state the price")] = False


class PinnedQuery(MessageQuery, frozen=True):
    """A message, which may also be named by its node."""

    node: Annotated[str, Meta(description="the node of a message, in hexadecimal digits")] = ""


class SummaryPath(msgspec.Struct, frozen=True):
    """A summary of a session."""

    id: Annotated[str, Meta(description="a session's id, or a prefix of it")]
    sid: Annotated[str, Meta(description="the id of a summary")]


class ContextApi:
    """Endpoints that show and change the managed context of sessions."""

    def __init__(
        self, log: LogReader, epochs: EpochAdmin, compaction: ManualCompaction, tally: Tally, prices: PriceList
    ) -> None:
        self._log = log
        self._epochs = epochs
        self._compaction = compaction
        self._tally = tally
        self._prices = prices

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        session = "/api/sessions/{id}"
        pins = Endpoint(self._list_pins).on("POST", self._pin).on("DELETE", self._unpin)
        return [
            Route(session + "/epochs/next", Endpoint(self._show_next)),
            Route(session + "/epochs/{n}", Endpoint(self._show_epoch)),
            Route(session + "/epochs/{n}/revert", Endpoint().on("POST", self._revert)),
            Route(session + "/compact", Endpoint().on("POST", self._compact)),
            Route(session + "/summaries", Endpoint(self._list_summaries)),
            Route(session + "/summaries/{sid}", Endpoint(self._show_summary)),
            Route(session + "/exchanges/{n}/diff", Endpoint(self._compare)),
            Route(session + "/handoff", Endpoint(self._hand_off)),
            Route(session + "/pins", pins),
        ]

    async def _show_epoch(self, path: NumberedPath) -> WholeEpoch:
        """Show an epoch with its edits and the messages that it sends."""
        return await load_epoch(self._log, path.id, path.n)

    async def _show_next(self, path: SessionPath, query: NextQuery) -> EpochPreview:
        """Show the epoch that would open next: what it would cut, what that costs and saves. Nothing is changed."""
        return await self._preview(path.id, query.why, query.view, query.branch)

    async def _preview(self, prefix: str, kind: PreviewKind, view: str, branch: str) -> EpochPreview:
        session = await find_session(self._log, prefix)
        return await preview_epoch(self._compaction, self._prices, session, kind=kind, view=view, branch=branch)

    async def _revert(self, path: NumberedPath, query: RevertQuery) -> ReversionDocument:
        """Go back to before an epoch, until a request reaches the end of its budget, or state what that costs."""
        session, is_done = await find_session(self._log, path.id), not query.dry_run
        reversion = await (self._epochs.revert(session, path.n) if is_done else self._epochs.quote(session, path.n))
        return describe_reversion(reversion, is_done=is_done)

    async def _compact(
        self, path: SessionPath, query: CompactQuery, body: CompactionRequest
    ) -> CompactionDocument | EpochPreview:
        """Summarise the newest conversation now, and send it in short from the next call on, or show what would go."""
        if query.dry_run:
            return await self._preview(path.id, "manual", body.view, body.branch)
        session = await find_session(self._log, path.id)
        options = ManualOptions(body.model, body.prompt, body.level)
        found = await self._compaction.compact(session, options, body.view, body.branch)
        return describe_compaction(found)

    async def _list_summaries(self, path: SessionPath, query: ListingQuery) -> Listing[SummaryDocument]:
        """List the summaries of a session, the oldest first."""
        return cut_listing("summaries", await load_summaries(self._log, path.id), query.cursor, query.limit)

    async def _show_summary(self, path: SummaryPath) -> SummaryDocument:
        """Show a summary."""
        return await load_summary(self._log, path.id, path.sid)

    async def _compare(self, path: NumberedPath, query: RoundQuery) -> DifferenceDocument:
        """Compare what was sent in a round of a call with what the client sent."""
        return await load_difference(self._log, await find_exchange(self._log, path.id, path.n), self._tally, query.k)

    async def _hand_off(
        self, path: SessionPath, query: BranchQuery
    ) -> Annotated[Response, Media(_MARKDOWN, "the conversation in short, as Markdown")]:
        """Write the conversation in short, for another agent."""
        text = await write_handoff(self._log, path.id, query.branch)
        return Response(text.encode("utf-8", "replace"), headers=GUARDS, media_type=_MARKDOWN)

    async def _list_pins(self, path: SessionPath) -> Listing[PinDocument]:
        """List the pinned messages of a session."""
        pins = await self._epochs.list_pins(await find_session(self._log, path.id))
        return Listing([describe_pinned(each) for each in pins], None)

    async def _pin(self, path: SessionPath, query: PinQuery) -> PinDocument:
        """Pin a message, which then stays as it is in every epoch, or state what that costs."""
        row, place = await self._find_message(path, query)
        return describe_pinned(await self._epochs.pin(row, place, is_quote=query.dry_run))

    async def _unpin(self, path: SessionPath, query: PinnedQuery) -> Listing[PinDocument]:
        """Remove a pin, and list those that are left."""
        if query.node:
            await self._epochs.unpin_node(await find_session(self._log, path.id), _read_node(query.node))
        else:
            await self._epochs.unpin(*await self._find_message(path, query))
        return await self._list_pins(path)

    async def _find_message(self, path: SessionPath, query: MessageQuery) -> tuple[ExchangeRow, int | None]:
        """Return the exchange and the place of the message that the parameters name; no place means its newest."""
        if query.exchange is not None and not query.newest:
            return await find_exchange(self._log, path.id, query.exchange), query.place
        if not query.newest or query.exchange is not None or query.place is not None:
            raise BadRequest(
                "say which message: exchange=N and place=P, or newest=true, of the branch=ID if not of all"
            )
        session = await find_session(self._log, path.id)
        branch = pick_branch(await self._log.list_branches(session), query.branch) if query.branch else None
        return await find_end(self._log, session, branch), None


def _read_node(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"node is in hexadecimal digits, not {text[:40]!r}") from error
