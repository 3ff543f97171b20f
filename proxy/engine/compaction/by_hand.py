"""Compaction by hand: a person has a session's newest conversation reported, and sent in short from the next call on.

Rule: nothing is sent for it but what models are asked; summary and epoch are in the log before they are used. It takes
no credential to be done: where no model can be asked, the report is put together without (BEHAVIOUR B10).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from proxy.engine.compaction.work import Latest, Made, Wish
from proxy.engine.compaction.worker import Worker
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.request_state import RequestState, StateReader
from proxy.engine.context.rewriter import Invalid
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.exchange import read_ceiling
from proxy.engine.ports import Archive, Clock, Ids, Upstream
from proxy.engine.reports.context import Compaction
from proxy.engine.reports.conversation import find_format, load_chain
from proxy.engine.reports.lookup import pick_branch, read_back, read_branch_back
from proxy.engine.request import ManagedRequest
from proxy.engine.request_resolver import Route, read_output_limit
from proxy.model.epoch import Epoch
from proxy.model.errors import Conflict
from proxy.model.lineage import Step
from proxy.model.log import ExchangeRow
from proxy.wire.request_rules import find_management

_WIRE = "chat_completions"
_ACCEPTED = range(200, 300)
_PATIENCE_SECONDS = 120.0
# Summaries get no shorter for a conversation that has fewer tokens than this.
_LEAST_BUDGET = 20_000
_WAITED = "another summary of this conversation was being made, and was waited for"
_NO_SHORTER = "no epoch was opened: what is sent would get no shorter; the next one has what was made"
_NO_SUMMARY = "no summary was made: what there is none of yet is too little"
_NOTHING = (
    "there is nothing to compact: what may go is too little, for the newest three groups of calls and the user's newest"
    " turns stay; go on with the session, or see what was made of it under /-/api/sessions/SESSION/summaries"
)


@dataclass(frozen=True, slots=True)
class Tools:
    """With what it is done. `routes` are all upstreams there are."""

    archive: Archive
    gate: DurabilityWaiter
    worker: Worker
    lookout: StateReader
    ladder: FallbackChain
    routes: Sequence[Route]
    clock: Clock
    ids: Ids


class Compactor:
    """Compacts. Sessions are those of the log; whoever asks has found them there."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def compact(self, session: str, wish: Wish, view: str = "", branch: str = "") -> Compaction:
        """Compact the newest conversation of a session, or the newest with the model `view`.

        With `branch` it is the one to that tip, given in hexadecimal digits, or by how these begin.

        Raises NotFound, StoreUnavailable, and Conflict where there is nothing to be had.
        """
        tools = self._tools
        began = tools.clock.monotonic()
        row = await self._find_newest(session, view, branch)
        _check_managed(row)
        subject = await self._load(row)
        if has_waited := await tools.worker.wait_out(subject, _PATIENCE_SECONDS):
            row = await self._find_newest(session, view, branch)
            subject = await self._load(row)
        case = await self._look_at(subject, row)
        _check_unmanaged_by_others(case)
        made = await tools.worker.compact(self._stand_in(case), wish)
        if has_waited:
            made.say(_WAITED)
        case = await self._look_at(subject, row)  # epochs may have been opened meanwhile
        epoch = await self._open(case)
        if epoch is None and not made.summaries:
            raise Conflict("; ".join((_NOTHING, *made.problems)))
        ms = round(1000 * (tools.clock.monotonic() - began))
        return _conclude(case, made, epoch, ms)

    async def _find_newest(self, session: str, view: str, branch: str = "") -> ExchangeRow:
        """The newest call of a conversation that was answered, no side call."""
        log = self._tools.archive
        rows = read_back(log, session)
        if branch:
            rows = read_branch_back(log, session, pick_branch(await log.list_branches(session), branch))
        async for row in rows:
            if _may_be_compacted(row) and view in ("", row.model):
                return row
        of_view = f" with the model {view[:100]!r}" if view else ""
        what = "branch" if branch else "session"
        raise Conflict(f"this {what} has no call{of_view} that was read and answered; there is nothing to compact")

    async def _load(self, row: ExchangeRow) -> ManagedRequest:
        """The request of a call as if it stood before its answer, but of no call."""
        archive = self._tools.archive
        key = await archive.find_key(row.session)
        split, chain = await load_chain(archive, row, key.upstream)
        return ManagedRequest(
            exchange="",
            session=key,
            wire=row.wire,
            items_key=find_format(row).items_key,
            model=row.model,
            most_output=read_output_limit(split),
            split=split,
            chain=chain,
            step=Step("", row.relation or "append", row.is_side, row.tip, row.depth, row.base, (), ()),
            headers=row.headers,
            target=row.target.encode(),
            upstream=self._find_upstream(key.upstream),
        )

    def _find_upstream(self, name: str) -> Upstream:
        for route in self._tools.routes:
            if route.upstream.name == name:
                return route.upstream
        raise Conflict(f"the upstream of this session, {name!r}, is none of the settings' any more")

    async def _look_at(self, subject: ManagedRequest, row: ExchangeRow) -> RequestState:
        """How what goes on from this request will stand."""
        lookout = self._tools.lookout
        lookout.memory.forget_lost()
        context = await lookout.memory.contexts.load(subject.session.id)
        budget = lookout.find_budget(subject, read_ceiling(row.headers))
        return await lookout.look_at(subject, context, context.find(subject.model, subject, is_next=True), budget)

    def _stand_in(self, case: RequestState) -> Latest:
        """The request as it was sent; a report of it is no longer than befits a conversation of its size."""
        sent = self._tools.ladder.keep(case)
        body = case.subject.split.content if sent is None else sent.body
        return Latest(replace(case, budget=case.budget.limit(max(case.tokens, _LEAST_BUDGET))), body)

    async def _open(self, case: RequestState) -> Epoch | None:
        """An epoch that leaves what it must, with a ledger as befits a conversation of this size."""
        tools, goal = self._tools, case.budget.limit(case.tokens)
        try:
            return await tools.ladder.open_by_hand(case, goal, self._commit, tools.ids.next_exchange())
        except Invalid as error:
            raise Conflict(f"what would be sent is not as valid as what the client sent: {error}") from error

    async def _commit(self, epoch: Epoch) -> bool:
        return await self._tools.gate.confirm(self._tools.archive.append(epoch))


def _may_be_compacted(row: ExchangeRow) -> bool:
    is_answered = bool(row.rounds) and row.rounds[-1].status in _ACCEPTED
    return bool(row.tip) and not row.is_side and is_answered


def _check_managed(row: ExchangeRow) -> None:
    """Raises Conflict where nothing is ever sent under an epoch, so that none is of use."""
    if row.wire != _WIRE:
        raise Conflict("calls of this wire are recorded, not managed; only /v1/chat/completions can be compacted")
    if row.mode != "manage":
        raise Conflict(f"the newest call was in mode {row.mode}, in which nothing is sent in short; send it in manage")


def _check_unmanaged_by_others(case: RequestState) -> None:
    """Raises Conflict where the client manages its context itself; under an epoch of ours signs of that are echoes."""
    split = case.subject.split
    if managing := find_management(_WIRE, split, 0 if case.epoch is None else len(split.items)):
        raise Conflict(f"the conversation is managed already: {managing}")


def _conclude(case: RequestState, made: Made, epoch: Epoch | None, ms: int) -> Compaction:
    if epoch is None:
        made.say(_NO_SHORTER)
    elif not made.summaries:
        made.say(_NO_SUMMARY)
    return Compaction(
        session=case.subject.session.id,
        epoch=epoch,
        summaries=tuple(made.summaries),
        tokens=case.tell(case.tokens),
        ms=ms,
        calls=tuple(dict.fromkeys(made.calls)),
        cost=made.cost.tokens,
        reason="; ".join(made.problems),
    )
