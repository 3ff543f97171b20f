"""The next epoch before it opens: what it would cut, what that costs and saves. No model is asked, nothing is stored.

It is that of the call which follows the newest one, or the one that a person gets who compacts the session now.
"""

from collections.abc import Sequence
from functools import partial
from math import isinf
from typing import Literal

import msgspec
from msgspec.structs import replace

from proxy.context.conversation import PlanInputs
from proxy.context.epoch_decision import decide, forecast_calls, price_opening
from proxy.engine.compaction.manual import ManualCompaction, check_unmanaged, compute_goal
from proxy.engine.context.epoch_planner import RenderedPlan
from proxy.engine.context.epoch_scope import make_own_body
from proxy.engine.context.fallback import BLIND_SHARE, FallbackChain
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.rewriter import Invalid
from proxy.engine.models import PriceList
from proxy.engine.reports.context import EditDocument, ReferenceDocument, describe_epoch, list_edits
from proxy.engine.reports.conversation import split_whole
from proxy.engine.reports.diff import ChangeDocument, compare_messages, describe_changes
from proxy.engine.reports.timeline import EpochAmount
from proxy.model.epoch import Epoch, EpochReason, Strategy, read_view
from proxy.model.errors import Conflict
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody

PreviewKind = Literal["automatic", "manual"]

_NEXT = b'"Go on."'  # stands for the message that is to come
_NAME = "preview"  # stands for the id that the epoch would have
_MOST_CALLS = 100
_NOTHING = (
    "nothing would get shorter now: what may go is too little, for the newest groups of calls and the user's newest"
    " turns stay; look again when the session has gone on"
)


class EpochPreview(msgspec.Struct, frozen=True):
    """An epoch that is not open, the `n`-th if it were next. Amounts are in tokens of uncached input and in money.

    `tokens_before` and `tokens_after` are those of a request like the newest one. `cost` is that of opening it,
    `saving` what each later call costs less. `calls_away` is after how many more calls it is expected to open, null
    where that is not in sight. `diff` has the client's messages that would go, and what would be sent in their place.
    The session `is_observed` if its newest call was not managed: then this is what managing would do.
    """

    session: str
    n: int
    state: Literal["preview"]
    view: str
    strategy: Strategy
    why: EpochReason
    explanation: str
    call: int
    parent: str
    depth: int
    tokens_before: int
    tokens_after: int
    cost: EpochAmount
    saving: EpochAmount
    calls_away: int | None
    is_observed: bool
    references: list[ReferenceDocument]
    through: str
    edits: list[EditDocument]
    rendered: list[msgspec.Raw]
    diff: list[ChangeDocument]


class PlannedEpoch(msgspec.Struct, frozen=True, gc=False):
    """An epoch that would open, with the state of its request, and its tokens, in our count, and bytes under it."""

    state: RequestState
    epoch: Epoch
    tokens: int
    body: bytes


class NextRequest(msgspec.Struct, frozen=True, gc=False):
    """What would be sent for a request, the id of its epoch, empty without one, and its tokens as the model counts."""

    body: bytes
    epoch: str
    tokens: int


async def preview_epoch(
    compaction: ManualCompaction,
    prices: PriceList,
    session: str,
    *,
    kind: PreviewKind = "automatic",
    view: str = "",
    branch: str = "",
) -> EpochPreview:
    """Return the epoch that would open next in a session's newest conversation, or that with the model `view`.

    `branch` is as in `ManualCompaction.compact`. Raises NotFound, StoreUnavailable, and Conflict where no epoch of ours
    would make it shorter.
    """
    row = await compaction.find_newest(session, view, branch)
    state = await compaction.load_state(row)
    check_unmanaged(state)
    try:
        planned = await plan_epoch(compaction.chain, state, kind)
    except Invalid as error:
        raise Conflict(f"what would be sent is not as valid as what the client sent: {error}") from error
    if planned is None:
        raise Conflict(_NOTHING)
    return await _describe(compaction, prices, row, planned)


async def plan_epoch(
    chain: FallbackChain, state: RequestState, kind: PreviewKind, *, is_now: bool = False
) -> PlannedEpoch | None:
    """Return the epoch that would open, or None if nothing would get shorter. Raises Invalid.

    If it `is_now`, it is that of this very request, else that of the one which follows.
    """
    why: EpochReason = "manual" if kind == "manual" else _find_reason(state)
    if why == "overflow":
        state = replace(state, budget=state.budget.limit(int(state.tokens * BLIND_SHARE)))
    state = await chain.memory.show(state)
    inputs = state.list_inputs(why)
    if why == "manual":
        inputs = replace(inputs, goal=compute_goal(state))
        draft = await chain.planner.draft(state.request, state.history, inputs)
    elif is_now:
        draft = await chain.foresee(state, why)
    else:
        draft = await _foresee(chain, state, inputs)
    if not draft.plan.through or (why == "manual" and not draft.exceeds(state.epoch)):
        return None
    _, tokens = await chain.measure(state, draft)
    if tokens >= state.tokens:
        return None
    epoch, body = chain.render(state, draft, why, _NAME, tokens)
    return PlannedEpoch(state, epoch, tokens, body)


async def foresee_request(compaction: ManualCompaction, row: ExchangeRow, answer: Sequence[bytes]) -> NextRequest:
    """Return what would be sent now for a call that goes on from another one and its answer, a raw message or more.

    It is as far as nothing that the call adds has to be counted. An epoch that would open with it is shown as if it
    were open. Raises NotFound, StoreUnavailable and Conflict.
    """
    state, chain = await compaction.load_state(row, answer), compaction.chain
    if row.mode == "manage" and (opened := await _foresee_opening(compaction, row, answer, state)) is not None:
        return opened
    sent = chain.keep(state)
    if sent is not None:
        return NextRequest(sent.body, state.epoch.id if state.epoch else "", state.to_model_tokens(sent.tokens))
    own = make_own_body(state.request, state.context.reasoning.find_changed(state.request, None))
    return NextRequest(own, "", state.to_model_tokens(state.client_tokens))


async def _foresee_opening(
    compaction: ManualCompaction, row: ExchangeRow, answer: Sequence[bytes], state: RequestState
) -> NextRequest | None:
    """Return what would be sent if an epoch opens now, None if none does, or if its plan does not pay.

    It opens with the next message, so that the plan is made for a request which has one, unless calls wait for results.
    """
    form = FORMATS[row.wire]
    if decide(state.account, state.facts).why is None or compaction.worker.is_busy(state.request):
        return None
    is_waiting = any(form.reader.read_item(raw).calls for raw in answer)
    if not is_waiting:
        state = await compaction.load_state(row, (*answer, form.write_message("user", _NEXT)))
    try:
        planned = await plan_epoch(compaction.chain, state, "automatic", is_now=True)
    except Invalid:  # then the call falls back to what it has
        return None
    if planned is None or not decide(state.account, replace(state.facts, planned=planned.tokens)).why:
        return None
    body = planned.body if is_waiting else _drop_last(split_whole(planned.body, form.items_key))
    return NextRequest(body, "", state.to_model_tokens(planned.tokens))


def _drop_last(split: SplitBody) -> bytes:
    """Return a body without its last message. It has others."""
    return split.content[: split.items[-2].end] + split.content[split.items[-1].end :]


async def _foresee(chain: FallbackChain, state: RequestState, inputs: PlanInputs) -> RenderedPlan:
    """Return the plan of the call that follows a request: the one that was made ahead, else one like that."""
    drafted = state.find_drafted()
    if drafted is not None and drafted.is_like(inputs):
        return drafted.drafting.result()
    growth = max(1, int(state.growth)) if state.request.strategy == "epochs" else 0
    return await chain.planner.draft(state.request, state.history, replace(inputs, growth=growth))


def _find_reason(state: RequestState) -> EpochReason:
    """Return for which reason the next epoch would open."""
    if state.is_overflowed:
        return "overflow"
    if state.budget.compute_pressure(state.tokens) == "hard":
        return "hard"
    return state.facts.due_as if state.is_due is not None else "soft"


async def _describe(
    compaction: ManualCompaction, prices: PriceList, row: ExchangeRow, planned: PlannedEpoch
) -> EpochPreview:
    state, epoch, request = planned.state, planned.epoch, planned.state.request
    facts = replace(state.facts, planned=planned.tokens)
    tariff, ratio = state.tariff, state.ratio.value
    cost = ratio * price_opening(state.account, facts)
    saving = ratio * (tariff.price_repeated(state.tokens) - tariff.price_repeated(planned.tokens))
    away = (
        None
        if state.is_due is not None or epoch.why == "manual"
        else forecast_calls(state.account, facts, state.growth, _MOST_CALLS)
    )
    calls = None if away is None or isinf(away) else int(away)
    known = await compaction.archive.list_epochs(row.session)
    tally = partial(compaction.states.models.counter.count_messages, row.model)
    changes = await compare_messages(row.wire, request.list_raws()[: epoch.depth], epoch.rendered, tally)

    def price(tokens: float) -> EpochAmount:
        money = prices.price(request.upstream.name, row.model, Usage(input=round(abs(tokens)))).money
        return EpochAmount(tokens, None if money is None else money if tokens >= 0 else -money)

    return EpochPreview(
        session=row.session,
        n=len(known) + 1,
        state="preview",
        view=epoch.view,
        strategy=read_view(epoch.view)[1],
        why=epoch.why,
        explanation=_explain(row, epoch, calls),
        call=row.n,
        parent=epoch.parent,
        depth=epoch.depth,
        tokens_before=epoch.tokens_before,
        tokens_after=epoch.tokens_after,
        cost=price(cost),
        saving=price(saving),
        calls_away=calls,
        is_observed=row.mode != "manage",
        references=describe_epoch(epoch, 0).references,
        through=epoch.through.hex(),
        edits=list_edits(epoch),
        rendered=[msgspec.Raw(message) for message in epoch.rendered],
        diff=describe_changes(changes),
    )


def _explain(row: ExchangeRow, epoch: Epoch, calls: int | None) -> str:
    """Return in sentences when the epoch would open, and what it would do."""
    size = f"{epoch.tokens_before:,} tokens would become {epoch.tokens_after:,}."
    if row.mode != "manage":
        return (
            f"The session is only recorded, in mode {row.mode}: no epoch opens, this is what managing would do. {size}"
        )
    match epoch.why:
        case "manual":
            when = "It opens when the session is compacted; where a model can be asked, its summary is added."
        case "turn":
            when = "It opens with the next prompt of the user's, which lets the turn before it go, too."
        case "memory":
            when = "It opens when a response shows that the context has reached the soft mark."
        case "hard" | "overflow":
            when = "It opens with the next call, whatever that costs: the context has no room left."
        case _ if calls is None:
            when = "No epoch is in sight yet: the context is too far below its marks."
        case _ if calls == 0:
            when = "It is expected to open with the next call."
        case _:
            when = f"It is expected to open after about {calls} more call{'s' * (calls > 1)}, at the pace so far."
    return f"{when} {size}"
