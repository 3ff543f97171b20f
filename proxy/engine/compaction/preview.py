"""The next epoch before it opens: what it would cut, what that costs and saves. No model is asked, nothing is stored.

It is that of the call which follows the newest one, or the one that a person gets who compacts the session now.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from proxy.context.conversation import PlanInputs
from proxy.context.epoch_decision import decide
from proxy.engine.compaction.manual import ManualCompaction, compute_goal
from proxy.engine.context.epoch_planner import RenderedPlan
from proxy.engine.context.epoch_scope import make_own_body
from proxy.engine.context.fallback import BLIND_SHARE, FallbackChain
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.rewriter import Invalid
from proxy.engine.recorded.conversation import split_whole
from proxy.model.epoch import Epoch, EpochReason
from proxy.model.log import ExchangeRow
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody

PreviewKind = Literal["automatic", "manual"]

_NEXT = b'"Go on."'  # stands for the message that is to come
_NAME = "preview"  # stands for the id that the epoch would have


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
