"""Manual compaction: a session's newest conversation is summarised, and sent shortened from then on.

It needs no client call and no credential: if no model can be asked, the summary is made without one.
Summary and epoch are in the log before they are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.engine.compaction.job import JobResult, ManualOptions, SentRequest
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.context.client_orders import take_clearing
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_scope import make_own_body
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.rewriter import Invalid
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.lineage.chain import make_chain, read_messages
from proxy.engine.options import read_ceiling, read_strategy
from proxy.engine.ports import Archive
from proxy.engine.recorded.conversation import find_format, load_chain
from proxy.engine.recorded.lookup import pick_branch, read_back, read_branch_back
from proxy.engine.request import ManagedRequest
from proxy.engine.request_resolver import read_output_limit
from proxy.model.epoch import Epoch, Strategy, Summary
from proxy.model.errors import Conflict
from proxy.model.exchange import SUCCESS
from proxy.model.lineage import Lineage
from proxy.model.log import ExchangeRow
from proxy.wire import FORMATS
from proxy.wire.body import append_item

_PATIENCE_SECONDS = 120.0
# Summaries get no shorter for a conversation that has fewer tokens than this.
_LEAST_BUDGET = 20_000
_WAITED = "another summary of this conversation was being made, and was waited for"
_NO_SHORTER = "no epoch was opened: the request would get no shorter; the next epoch shows the summary"
_NO_SUMMARY = "no summary was made: too little is not summarised yet"
_NOTHING = (
    "there is nothing to compact: what may go is too little, for the newest three groups of calls and the user's newest"
    " turns stay; go on with the session, or see what was made of it under /-/api/sessions/SESSION/summaries"
)


class NothingToCompact(Conflict):
    """What may go of a conversation is too little. `tokens` are those that its newest request has."""

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(text)
        self.tokens = tokens


class Compaction(NamedTuple):
    """The result of a manual compaction: the epoch that was opened, if any, and the summaries that were made.

    `tokens` are those of the newest request without the epoch, as its model counts. `calls` are the exchanges in which
    models were asked, `cost` is in tokens of uncached input, `reason` says why the result is no better than it is.
    """

    session: str
    epoch: Epoch | None
    summaries: tuple[Summary, ...]
    tokens: int
    ms: int
    calls: tuple[str, ...]
    cost: float
    reason: str


@dataclass(kw_only=True, eq=False)
class ManualCompaction:
    """Compacts sessions of the log."""

    archive: Archive
    gate: DurabilityWaiter
    worker: SummaryWorker
    controller: ContextController
    find_strategy: Callable[[str], Strategy]  # of a model's requests that ask for none

    def __post_init__(self) -> None:
        self.states, self.chain, self.clock = (
            self.controller.states,
            self.controller.chain,
            self.controller.states.clock,
        )

    async def compact(self, session: str, options: ManualOptions, view: str = "", branch: str = "") -> Compaction:
        """Compact the newest conversation of a session, or the newest with the model `view`.

        `branch` selects a branch by its tip, in hexadecimal digits, or a prefix of these.

        Raises NotFound, StoreUnavailable, and Conflict if there is nothing to compact.
        """
        began = self.clock.monotonic()
        row = await self.find_newest(session, view, branch)
        _check_managed(row)
        request = await self._load(row)
        if has_waited := await self.worker.wait_out(request, _PATIENCE_SECONDS):
            row = await self.find_newest(session, view, branch)
            request = await self._load(row)
        state = await self._compute_state(request)
        check_unmanaged(state)
        result = await self._summarize(state, options)
        if has_waited:
            result.add_problem(_WAITED)
        state = await self._compute_state(request)  # epochs may have been opened meanwhile
        epoch = await self._open_epoch(state)
        if epoch is None and not result.summaries:
            raise NothingToCompact("; ".join((_NOTHING, *result.problems)), state.to_model_tokens(state.tokens))
        if epoch is None:
            result.add_problem(_NO_SHORTER)
        elif not result.summaries:
            result.add_problem(_NO_SUMMARY)
        return Compaction(
            session=state.request.session.id,
            epoch=epoch,
            summaries=tuple(result.summaries),
            tokens=state.to_model_tokens(state.tokens),
            ms=round(1000 * (self.clock.monotonic() - began)),
            calls=tuple(dict.fromkeys(result.calls)),
            cost=result.cost.tokens,
            reason="; ".join(result.problems),
        )

    async def _summarize(self, state: RequestState, options: ManualOptions) -> JobResult:
        if state.request.strategy == "turns":  # its epochs show no summary
            return JobResult()
        return await self.worker.compact(self._make_request(state), options)

    async def find_newest(self, session: str, view: str = "", branch: str = "") -> ExchangeRow:
        """Return the newest answered call of a conversation that is no side call. Raises Conflict."""
        rows = read_back(self.archive, session)
        if branch:
            rows = read_branch_back(
                self.archive, session, pick_branch(await self.archive.list_branches(session), branch)
            )
        async for row in rows:
            is_answered = bool(row.rounds) and row.rounds[-1].status in SUCCESS
            if row.tip and not row.is_side and is_answered and view in ("", row.model):
                return row
        of_view = f" with the model {view[:100]!r}" if view else ""
        what = "branch" if branch else "session"
        raise Conflict(f"this {what} has no call{of_view} that was read and answered; there is nothing to compact")

    async def load_request(self, row: ExchangeRow) -> SentRequest:
        """Return the request of a call as it would be sent now."""
        return self._make_request(await self.load_state(row))

    async def load_state(self, row: ExchangeRow, answer: Sequence[bytes] = ()) -> RequestState:
        """Return the state of what will extend the request of a call, and the raw messages of an answer to it.

        To look at it changes nothing of later calls.
        """
        return await self._compute_state(await self._load(row, answer), is_kept=False)

    async def _load(self, row: ExchangeRow, answer: Sequence[bytes] = ()) -> ManagedRequest:
        """Return the request of a call with its place in the session, but without an exchange of its own."""
        key = await self.archive.find_key(row.session)
        split, chain = await load_chain(self.archive, row, key.upstream)
        form, route = find_format(row), self.worker.summarizer.find_route(key.upstream)
        depth = row.depth + len(answer)
        if answer:
            for raw in answer:
                split = append_item(split, raw)
            chain = make_chain(read_messages(form, split, None, 0, chain.root), None, chain.root)
        if route is None:
            raise Conflict(f"the upstream of this session, {key.upstream!r}, is no longer in the settings")
        request = ManagedRequest(
            "POST",
            row.target.encode(),
            row.headers,
            split.content,
            exchange="",
            session=key,
            upstream=route.upstream,
            mode="manage",
            kind="managed",
            wire=row.wire,
            opened_ms=row.opened_ms,
            model=row.model,
            ceiling=read_ceiling(row.headers),
            strategy=read_strategy(row.headers) or self.find_strategy(row.model),
            lineage=Lineage("", row.relation or "append", row.is_side, chain.tip, depth, row.base, (), ()),
            items_key=form.items_key,
            split=split,
            chain=chain,
            most_output=read_output_limit(split),
        )
        return take_clearing(request, self.states.models.providers)

    async def _compute_state(self, request: ManagedRequest, *, is_kept: bool = True) -> RequestState:
        """Return the state of what will extend this request."""
        states = self.states
        states.caches.forget_lost()
        context = await states.caches.contexts.load(request.session.id)
        budget = states.find_budget(request)
        epoch = context.find(request.view, request, is_next=True)
        return await states.read(request, context, epoch, budget, keep=is_kept)

    def _make_request(self, state: RequestState) -> SentRequest:
        """Return the request as it would be sent, with a budget that limits a summary in proportion to its size."""
        sent = self.chain.keep(state)
        own = make_own_body(state.request, state.context.reasoning.find_changed(state.request, None))
        body = own if sent is None else sent.body
        return SentRequest(replace(state, budget=state.budget.limit(max(state.tokens, _LEAST_BUDGET))), body)

    async def _open_epoch(self, state: RequestState) -> Epoch | None:
        """Open an epoch that keeps only what must stay, with a ledger in proportion to the conversation's size."""
        try:
            return await self.chain.open_by_hand(
                state, compute_goal(state), self.commit, self.worker.summarizer.caller.ids.next_exchange()
            )
        except Invalid as error:
            raise Conflict(f"what would be sent is not as valid as what the client sent: {error}") from error

    async def commit(self, epoch: Epoch) -> bool:
        """Write an epoch to the log. Return False if that was not done in time."""
        return await self.gate.confirm(self.archive.append(epoch))


def compute_goal(state: RequestState) -> Budget:
    """Return the budget of the ledger in an epoch that a person asks for, in proportion to the conversation's size."""
    return state.budget.limit(state.tokens)


def _check_managed(row: ExchangeRow) -> None:
    """Raise Conflict if calls like this one are never sent under an epoch, so that none is of use."""
    if row.mode != "manage":
        raise Conflict(f"the newest call was in mode {row.mode}, in which nothing is sent in short; send it in manage")


def check_unmanaged(state: RequestState) -> None:
    """Raise Conflict if the client manages its context itself. Under an epoch of ours, signs of that are echoes."""
    split = state.request.split
    if managing := FORMATS[state.request.wire].find_management(split, 0 if state.epoch is None else len(split.items)):
        raise Conflict(f"the conversation is managed already: {managing}")
