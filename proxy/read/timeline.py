"""A session call by call, as columns of equal length, with marks for what happened; and what its epochs cost and paid.

Sums, sessions and epochs are priced alike: by the usage that came back, at the prices that are known now.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from proxy.context.memory.traces import fit_text
from proxy.context.pricing import Cost, price_usage
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import describe
from proxy.model.epoch import Epoch, EpochReason, read_view
from proxy.model.exchange import CONVERSATION, Usage
from proxy.model.figures import RoundFigures
from proxy.read.cache import CacheCall
from proxy.read.context import ReferenceDocument, list_references
from proxy.read.savings import SavingsInputs, group_calls, price_call, price_round, remember_cards

CallFigures = tuple[Any, ...]
"""What a timeline has of a call, in the order of its columns, without the branch."""

MarkKind = Literal["epoch", "miss", "error", "loop", "compaction", "notice"]
EpochState = Literal["active", "past", "reverted", "refused"]

MOST_CALLS = 10_000

_UNKNOWN = Cost(0.0, None)
_TOLD_TOKENS = 1024  # a call that missed fewer tokens of the cache has no mark


class Mark(msgspec.Struct, frozen=True):
    """What happened at call `n`, in words, with what it cost, and the tokens that it is about; null where unknown."""

    n: int
    kind: MarkKind
    title: str
    text: str
    money: float | None = None
    tokens: float | None = None


class Timeline(msgspec.Struct, frozen=True):
    """The calls of a session as columns: entry i of each is about call `n[i]`. Null is what is not known.

    `client` and `sent` are the tokens of the client's own request and of the prompt that was sent last for it: in the
    last of the call's `rounds`, of which it has several if the model recalled or the upstream refused the first.
    `input` are the tokens of the prompts of all rounds, `read` and `written` those of the cache, `output` those of the
    answers. `money` is what the call cost, `saved_money` what managing it saved. `epoch` is the number of the epoch
    that it was sent under, 0 without one; `rung` is how it was sent, empty where there was nothing to decide. `status`
    is that of the response, 0 if there was none, null while it is open. Times are in milliseconds: `overhead_ms` from
    the client's whole request until it was sent, `first_ms` from then until the first byte of the response, `total_ms`
    until its end. `branch` is the place of the branch, in the session's list of branches, to which the call belongs,
    null if it is on none.
    """

    n: list[int]
    at_ms: list[int]
    client: list[int | None]
    sent: list[int | None]
    rounds: list[int]
    input: list[int | None]
    read: list[int | None]
    written: list[int | None]
    output: list[int | None]
    money: list[float | None]
    saved_money: list[float | None]
    epoch: list[int]
    status: list[int | None]
    rung: list[str]
    overhead_ms: list[float | None]
    first_ms: list[float | None]
    total_ms: list[float | None]
    is_side: list[bool]
    is_auxiliary: list[bool]
    branch: list[int | None]
    marks: list[Mark]


class PaidBack(msgspec.Struct, frozen=True):
    """What an epoch has paid back so far: over so many calls, what these cost less than the client's own."""

    tokens: float
    money: float | None
    calls: int


class EpochSummary(msgspec.Struct, frozen=True):
    """An epoch: why it was opened, what that cost, and what it has paid back so far. Both are null where unknown.

    `cost` is what its first call had to write to the cache, or send uncached, because the history was rewritten.
    """

    n: int
    id: str
    at_ms: int
    view: str
    strategy: str
    why: EpochReason
    explanation: str
    call: int | None
    exchange: str
    parent: str
    depth: int
    tokens_before: int
    tokens_after: int
    cost: Cost | None
    paid_back: PaidBack
    state: EpochState
    references: list[ReferenceDocument]


class Loop(msgspec.Struct):
    """A call of a tool that was made `count` times in a row: a loop since call `n`, as yet up to call `last`."""

    n: int
    last: int
    tool: str
    count: int
    has_same_output: bool


_REASONS: Mapping[EpochReason, str] = {
    "soft": "It paid: what reading the long context again had cost reached the price of writing it anew.",
    "hard": "The context reached the high mark, at which it is shortened whatever that costs.",
    "cold": "The provider's cache was cold, so that the rewrite cost nothing extra.",
    "client": "The client changed the beginning of its history itself, so that the rewrite cost nothing extra.",
    "turn": "A turn began; the strategy `turns` shortens with each prompt.",
    "memory": "Memory of earlier turns was made, and stands for them from here on.",
    "overflow": "The upstream said that the request was too long.",
    "manual": "A person asked for it.",
    "unsigned": "The upstream refused signed reasoning; the same went out without it.",
    "uncompacted": "The upstream refused its own compaction, or is to have none; the same went out without it.",
    "alternating": "The upstream wants roles to alternate; the same went out with messages joined.",
    "untooled": "The upstream refused our tool; the same went out without it.",
    "revert": "A person reverted the epoch before it.",
    "refused": "The upstream refused the rewritten request; what was sent before is sent again.",
}


def price_rewrite(row: RoundFigures, prices: PriceList) -> Cost | None:
    """Return what the first call of an epoch cost more because the history that it sends was new to the cache.

    Not counted are the tokens that are new in the client's own request, which had to be sent in any case.
    """
    if row.input is None or row.own_input is None or row.paid_read is None or row.own_read is None:
        return None
    card = prices.find_card(row.upstream, row.model)
    cache = prices.find_cache(row.upstream, card)
    written = row.written or 0
    anew = min(row.input, max(0, (row.input - row.paid_read) - (row.own_input - row.own_read)))
    ideal = Usage(row.input, 0, row.paid_read + anew, max(0, written - anew))
    return price_usage(Usage(row.input, 0, row.paid_read, written), card, cache) - price_usage(ideal, card, cache)


def read_call(call: Sequence[RoundFigures], prices: PriceList) -> CallFigures:
    """Return what a timeline has of a call, in the order of its columns."""
    first, last = call[0], call[-1]
    cost, saved = (each or _UNKNOWN for each in price_call(call, prices))
    return (
        last.n,
        last.at_ms,
        _find_last(row.client for row in call),
        _find_last(row.sent if row.input is None else row.input for row in call),
        sum(row.k >= 0 for row in call),
        *(_sum(getattr(row, name) for row in call) for name in ("input", "read", "written", "output")),
        cost.money,
        saved.money,
        last.epoch,
        last.status,
        last.rung,
        first.overhead_ms,
        first.first_byte_ms,
        last.total_ms,
        last.is_side,
        last.kind == "auxiliary",
    )


def make_timeline(
    calls: Sequence[CallFigures], marks: Sequence[Mark], branches: Mapping[int, int], after: int, limit: int
) -> Timeline:
    """Return the calls after number `after`, `limit` at most, with the marks of these.

    `branches` are places of branches by the number of a call.
    """
    first = bisect_right(calls, after, key=lambda call: call[0])
    shown = calls[first : first + limit]
    numbers = [call[0] for call in shown]
    names = Timeline.__struct_fields__[:-2]  # all columns but the branch, which is not known of single calls
    columns: dict[str, list[Any]] = {name: [call[place] for call in shown] for place, name in enumerate(names)}
    told = [mark for mark in marks if numbers and numbers[0] <= mark.n <= numbers[-1]]
    return Timeline(**columns, branch=[branches.get(n) for n in numbers], marks=told)


def _find_last(counts: Iterable[int | None]) -> int | None:
    """Return the last one that is known. A round in which the model recalled has 0 tokens of the client's."""
    return next(filter(None, reversed(list(counts))), None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def summarize_epochs(epochs: Sequence[Epoch], rounds: Sequence[RoundFigures], prices: PriceList) -> list[EpochSummary]:
    """Return the epochs of a session, oldest first, with what they cost and paid back over these rounds."""
    under: dict[int, list[RoundFigures]] = {}
    newest: dict[str, int] = {}
    for row in rounds:
        if row.epoch:
            under.setdefault(row.epoch, []).append(row)
        if row.kind in CONVERSATION and not row.is_side and row.view:
            newest[row.view] = row.epoch
    undone: dict[str, EpochState] = {
        each.parent: "refused" if each.why == "refused" else "reverted" for each in epochs if each.is_reversion
    }
    summaries = []
    for n, epoch in enumerate(epochs, 1):
        # one that no call had yet is active if it is the newest of all
        is_active = newest.get(epoch.view) == n or (n not in under and n == len(epochs))
        state = undone.get(epoch.id) or ("active" if is_active else "past")
        summaries.append(_summarize(n, epoch, under.get(n, []), state, prices))
    return summaries


def _summarize(
    n: int, epoch: Epoch, rows: Sequence[RoundFigures], state: EpochState, prices: PriceList
) -> EpochSummary:
    opening = next((row for row in rows if row.rung == "plan" and row.input is not None), None)
    cost = price_rewrite(opening, prices) if opening is not None else None
    saved = [each for _, each in (price_round(row, prices) for row in rows) if each is not None]
    paid = sum(saved, start=Cost()) + (cost or Cost()) if saved else Cost()
    return describe(
        EpochSummary,
        epoch,
        n=n,
        at_ms=epoch.opened_ms,
        strategy=read_view(epoch.view)[1],
        explanation=explain_epoch(epoch),
        call=rows[0].n if rows else None,
        cost=cost,
        paid_back=PaidBack(paid.tokens, paid.money, len({row.n for row in rows})),
        state=state,
        references=list_references(epoch),
    )


def explain_epoch(epoch: Epoch) -> str:
    """Return in a sentence why an epoch was opened, and one about what it did."""
    size = f"{epoch.tokens_before:,} tokens became {epoch.tokens_after:,}."
    return f"{explain_reason(epoch.why)} {size}" if epoch.depth else explain_reason(epoch.why)


def explain_reason(why: EpochReason) -> str:
    """Return in a sentence why an epoch was opened."""
    return _REASONS[why]


def list_marks(
    rounds: Sequence[RoundFigures],
    epochs: Sequence[EpochSummary],
    missed: Iterable[CacheCall],
    loops: Iterable[Loop] = (),
) -> list[Mark]:
    """Return what happened at calls, in their order: epochs, misses of the cache with their cause, loops, failures."""
    marks = [_mark_epoch(epoch) for epoch in epochs if epoch.call is not None]
    marks += [_mark_miss(call) for call in missed if call.cause and call.missed >= _TOLD_TOKENS]
    marks += [mark for call in group_calls(rounds) if (mark := _mark_failure(call[-1])) is not None]
    marks += [Mark(loop.n, "loop", "The model goes round in a loop", f"{tell_loop(loop)}.") for loop in loops]
    return sorted(marks, key=lambda mark: mark.n)


def tell_loop(loop: Loop) -> str:
    """Return in words which call was repeated, and how often."""
    output = " and the same output" if loop.has_same_output else ""
    until = f", up to call {loop.last}" if loop.last > loop.n else ""
    return f"{fit_text(loop.tool)} was called {loop.count} times in a row with the same arguments{output}{until}"


def _mark_epoch(epoch: EpochSummary) -> Mark:
    kind: MarkKind = "compaction" if epoch.why == "manual" else "epoch"
    title = f"Epoch {epoch.n} opened"
    if epoch.why in ("revert", "refused"):
        kind, title = "notice", "The epoch before was undone"
    elif epoch.why == "manual":
        title = f"Compacted: epoch {epoch.n} opened"
    money = None if epoch.cost is None else epoch.cost.money
    return Mark(epoch.call or 0, kind, title, epoch.explanation, money, epoch.tokens_before - epoch.tokens_after)


def _mark_miss(call: CacheCall) -> Mark:
    text = "an epoch opened, which rewrote the history" if call.epoch_why else call.explanation
    said = f"{text[:1].upper()}{text[1:]}. {call.missed:,} tokens were written again, or read at the full price."
    return Mark(call.n, "miss", "The cache was missed", said, call.money, call.missed)


def _mark_failure(row: RoundFigures) -> Mark | None:
    if row.status is None or row.kind == "auxiliary":
        return None
    if row.status >= 400:
        return Mark(row.n, "error", f"The upstream answered {row.status}", "Its response was relayed byte for byte.")
    if not row.status or row.completeness == "failed":
        return Mark(row.n, "error", "No response came", "The upstream could not be reached, or sent no response.")
    if row.completeness == "truncated":
        return Mark(row.n, "error", "The response broke off", "The client saw it break off, too; what came is stored.")
    return None


async def load_epochs(log: LogReader, session: str, inputs: SavingsInputs) -> list[EpochSummary]:
    """Load the epochs of a session, given by its id. Raises NotFound."""
    epochs = await log.list_epochs(session)
    rounds = await log.load_rounds(session, 0, (await log.find_session(session)).recorded) if epochs else ()
    return summarize_epochs(epochs, rounds, remember_cards(inputs).prices)
