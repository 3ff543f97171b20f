"""What managing saved, over all sessions, by model and by day, beside the comparison with sessions only observed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date, timedelta

import msgspec

from proxy.context.pricing import Cost
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.model.figures import Tally
from proxy.read.savings import (
    Arm,
    Savings,
    SavingsInputs,
    SessionTotal,
    TotalEstimate,
    Unit,
    compute_share,
    load_comparison,
    load_tallies,
    remember_cards,
    sum_totals,
)
from proxy.read.session_summary import describe_saving

_MOST_LOSSES = 20
_FIRST_DAY = date(1970, 1, 1)


class PartSaving(msgspec.Struct, frozen=True):
    """What managing saved in a part of the log: with one model of one upstream, or on one day, in UTC.

    Our own calls are taken off. `spent` is what all its `rounds` with a usage cost, ours included; `calls` are those of
    clients. `money` is null without a price, all of it where nothing is known; `share` is that of what sending
    everything would have cost.
    """

    tokens: float | None
    money: float | None
    share: float | None
    spent_tokens: float
    spent_money: float | None
    rounds: int
    calls: int
    model: str = ""
    upstream: str = ""
    date: str = ""


class LosingSession(msgspec.Struct, frozen=True):
    """A session that cost more than the client's own requests would have, and why. Figures are negative."""

    session: str
    tokens: float
    money: float | None
    reason: str


class SavingsTotal(msgspec.Struct, frozen=True):
    """The estimate over all sessions of which anything is known. `lost` is the sum over the `losing` ones: negative."""

    sessions: int
    tokens: float
    money: float | None
    share: float | None
    losing: int
    lost_tokens: float
    lost_money: float | None


class SavingsReport(msgspec.Struct, frozen=True):
    """What managing saves: the estimate, by models and days, and the sessions that lost most; then the comparison.

    `saving` is the share by which managed sessions cost less than those only observed, `low` and `high` bound its 95 %
    confidence interval; null where `reason` says why. Estimates are by the usage that came back.
    """

    estimate: SavingsTotal | None
    models: list[PartSaving]
    days: list[PartSaving]
    losses: list[LosingSession]
    saving: float | None
    low: float | None
    high: float | None
    unit: Unit
    managed: Arm
    held_out: Arm
    reason: str
    short: int
    mixed: int
    since_ms: int | None


async def load_savings(log: LogReader, inputs: SavingsInputs) -> Savings:
    """Load the estimate for all sessions, and the comparison. Raises StoreUnavailable."""
    known = remember_cards(inputs)
    return (await _load(log, known, await load_tallies(log, None, known.prices)))[0]


async def load_report(log: LogReader, inputs: SavingsInputs) -> SavingsReport:
    """Load what managing saved. Raises StoreUnavailable."""
    known = remember_cards(inputs)
    prices, tallies = known.prices, await load_tallies(log, None, known.prices)
    found, totals = await _load(log, known, tallies)
    losing = sorted((total.net.tokens, name) for name, total in totals.items() if total.saved and total.net.tokens < 0)
    losses = []
    for _, name in losing[:_MOST_LOSSES]:
        saving = await describe_saving(log, name, totals[name])
        if saving is not None:
            losses.append(LosingSession(name, saving.tokens, saving.money, saving.reason))
    models = _sum_parts(tallies, prices, lambda tally: (tally.upstream, tally.model))
    days = _sum_parts(tallies, prices, lambda tally: (_name_day(tally.day),))
    models.sort(key=lambda part: -part[1][0].spent.tokens)
    return SavingsReport(
        estimate=None if found.estimate is None else describe_total(found.estimate),
        models=[_describe_part(*part, model=name[1], upstream=name[0]) for name, part in models],
        days=[_describe_part(*part, day=name[0]) for name, part in sorted(days, key=lambda part: part[0])],
        losses=losses,
        saving=None if found.comparison is None else found.comparison.saving,
        low=None if found.comparison is None else found.comparison.low,
        high=None if found.comparison is None else found.comparison.high,
        unit=found.unit,
        managed=found.managed,
        held_out=found.held_out,
        reason=found.reason,
        short=found.short,
        mixed=found.mixed,
        since_ms=found.since_ms,
    )


async def _load(
    log: LogReader, inputs: SavingsInputs, tallies: Sequence[Tally]
) -> tuple[Savings, dict[str, SessionTotal]]:
    totals = sum_totals(tallies, inputs.prices)
    is_held = any(total.held for total in totals.values())
    found = await load_comparison(log, inputs, is_held=is_held)
    return replace(found, estimate=_sum_estimates(totals.values())), totals


def _sum_estimates(totals: Iterable[SessionTotal]) -> TotalEstimate | None:
    found = list(totals)
    if all(total.saved is None for total in found):
        return None
    # our own calls cost something also where nothing is known of what they saved
    known = [total for total in found if total.saved is not None or total.auxiliary.tokens]
    saved = sum((each.net for each in known), start=Cost())
    losses = [each.net for each in known if each.net.tokens < 0]
    share = compute_share(saved, sum((each.spent for each in known), start=Cost()))
    return TotalEstimate(len(known), saved, share, len(losses), sum(losses, start=Cost()))


def describe_total(found: TotalEstimate) -> SavingsTotal:
    """Return the estimate for all sessions as it is shown."""
    saved, lost = found.saved, found.losses
    return SavingsTotal(found.sessions, saved.tokens, saved.money, found.share, found.losing, lost.tokens, lost.money)


def _sum_parts(
    tallies: Iterable[Tally], prices: PriceList, name: Callable[[Tally], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], tuple[SessionTotal, int]]]:
    """Sum up what is called the same, with the number of its rounds that have a usage; without what has none."""
    parts: dict[tuple[str, ...], tuple[SessionTotal, int]] = {}
    for tally in tallies:
        total, rounds = parts.get(name(tally), (SessionTotal(), 0))
        total.add(tally, prices)
        parts[name(tally)] = total, rounds + (tally.rounds if tally.is_known else 0)
    return [part for part in parts.items() if part[1][1]]


def _describe_part(total: SessionTotal, rounds: int, model: str = "", upstream: str = "", day: str = "") -> PartSaving:
    net, spent = total.net, total.spent
    is_known = total.saved is not None or total.auxiliary.tokens > 0
    return PartSaving(
        tokens=net.tokens if is_known else None,
        money=net.money if is_known else None,
        share=compute_share(net, spent) if is_known else None,
        spent_tokens=spent.tokens,
        spent_money=spent.money,
        rounds=rounds,
        calls=total.calls,
        model=model,
        upstream=upstream,
        date=day,
    )


def _name_day(day: int) -> str:
    return (_FIRST_DAY + timedelta(days=day)).isoformat()
