"""The next epoch before it opens, as a document: what it would cut, what that costs and saves. Nothing is stored."""

from functools import partial
from math import isinf
from typing import Literal

import msgspec
from msgspec.structs import replace

from proxy.context.epoch_decision import forecast_calls, price_opening
from proxy.context.pricing import Cost
from proxy.engine.compaction.manual import ManualCompaction, check_unmanaged
from proxy.engine.compaction.preview import PlannedEpoch, PreviewKind, plan_epoch
from proxy.engine.context.rewriter import Invalid
from proxy.engine.models import PriceList
from proxy.model.epoch import Epoch, EpochReason, Strategy, read_view
from proxy.model.errors import Conflict
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow
from proxy.read.context import EditDocument, ReferenceDocument, describe_epoch
from proxy.read.diff import ChangeDocument, compare_messages

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
    cost: Cost
    saving: Cost
    calls_away: int | None
    is_observed: bool
    references: list[ReferenceDocument]
    through: str
    edits: list[EditDocument]
    rendered: list[msgspec.Raw]
    diff: list[ChangeDocument]


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

    def price(tokens: float) -> Cost:
        money = prices.price(request.upstream.name, row.model, Usage(input=round(abs(tokens)))).money
        return Cost(tokens, None if money is None else money if tokens >= 0 else -money)

    return describe_epoch(
        EpochPreview,
        epoch,
        session=row.session,
        n=len(known) + 1,
        state="preview",
        strategy=read_view(epoch.view)[1],
        explanation=_explain(row, epoch, calls),
        call=row.n,
        cost=price(cost),
        saving=price(saving),
        calls_away=calls,
        is_observed=row.mode != "manage",
        diff=changes,
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
