"""What managing saved: of a call, of a session, of a model or a day, and against sessions that are only observed.

An estimate compares what calls cost, by the usage that came back, with what the client's own requests would have cost;
our own calls count against it. It is negative where a session cost more.

Both arms of the comparison are measured alike. A session counts if it began after the first one that was only observed,
and if one of its requests, as the client made it, reached the soft mark: below it nothing is managed, so that managing
has no influence on which sessions count. A session's cost is that of all its calls, responses and our own calls
included, for each token of the client's own requests.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, TypeVar

import msgspec

from proxy.context.budget import BudgetPolicy, compute_soft_mark
from proxy.context.pricing import MIN_SESSIONS, Cost, compare, price_estimate, price_split, price_usage
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.runtime import SystemClock
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.figures import TIERS, RoundFigures, Tally
from proxy.read.shadow import ShadowReport, load_shadow

Unit = Literal["money", "tokens"]
Name = TypeVar("Name")

_MAX_CARDS = 1024  # finding one takes longer than all else that is done with a call
_MOST_LOSSES = 20
_PAGE = 256  # calls; the event loop is blocked for 2 ms by each page
_FIRST_DAY = date(1970, 1, 1)
_NO_HOLDOUT = "no session was only observed so far; compaction.holdout_fraction says how many of them are"
_TOO_FEW = f"too few sessions to tell: it takes {MIN_SESSIONS} of each that came up to the soft mark"
_NO_COST = "what these sessions cost is not known"
_COUNTS = ("calls", "errors", "ends", "plans", "held", "counted", "client", "sent", "told", "read", "output")


@dataclass(frozen=True, slots=True)
class SavingsInputs:
    """What reports need beside the log: the prices of calls, the policy that sets the marks, and the time."""

    prices: PriceList
    policy: BudgetPolicy
    now_ms: Callable[[], int] = SystemClock().now_ms


class Saving(msgspec.Struct, frozen=True):
    """What managing a session saved, our own calls taken off; negative for a loss, whose `reason` is given.

    `share` is that of what sending everything would have cost.
    """

    tokens: float
    money: float | None
    share: float | None
    is_loss: bool
    reason: str


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


@dataclass(frozen=True, slots=True)
class Arm:
    """The sessions of one arm, and their mean cost for each token of the client's requests; None without sessions.

    `blind` sessions are those of which no response reported cached tokens: all their input counts as uncached.
    """

    sessions: int
    cost: float | None
    blind: int


class SavingsReport(msgspec.Struct, frozen=True):
    """What managing saves: the estimate, by models and days, and the sessions that lost most; then the comparison.

    `saving` is the share by which managed sessions cost less than those only observed, `low` and `high` bound its 95 %
    confidence interval; null where `reason` says why. Costs are in money where all prices are known. Not counted are
    `short` sessions, which did not reach the soft mark, and `mixed` ones, which were in both arms. `since_ms` is when
    the first session that is only observed began. Estimates are by the usage that came back. `shadow` is what
    checks of shortened calls found, absent without any; what they cost is taken off as that of our other calls is.
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
    shadow: ShadowReport | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class SavedTotal:
    """What a session, or a part of the log, came to: what calls cost, what managing saved, counts.

    `saved` is None where nothing is known of it. The counts are as in `Tally`.
    """

    cost: Cost = field(default_factory=Cost)
    auxiliary: Cost = field(default_factory=Cost)
    auxiliary_input: int = 0
    auxiliary_output: int = 0
    saved: Cost | None = None
    is_charged: bool = False
    rounds: int = 0
    calls: int = 0
    errors: int = 0
    ends: int = 0
    plans: int = 0
    held: int = 0
    counted: int = 0
    client: int = 0
    sent: int = 0
    told: int = 0
    read: int = 0
    output: int = 0
    ended_ms: int = 0

    @property
    def spent(self) -> Cost:
        """All that was spent."""
        return self.cost + self.auxiliary

    @property
    def net(self) -> Cost:
        """What is left of the saving after our own calls; negative for a loss."""
        return (self.saved or Cost()) - self.auxiliary

    @property
    def is_known(self) -> bool:
        """Whether a saving is known, or what our own calls cost: that counts against what others saved."""
        return self.saved is not None or self.auxiliary.tokens > 0

    @property
    def share(self) -> float | None:
        """The saving as a share of what sending everything would have cost; None if that is unknown, or nothing.

        It is that of money where this is known.
        """
        if not self.is_known:
            return None
        net, whole = self.net, self.spent + self.net
        if whole.money is not None and net.money is not None and whole.money > 0:
            return net.money / whole.money
        return net.tokens / whole.tokens if whole.tokens > 0 else None

    def add(self, tally: Tally, prices: PriceList) -> None:
        """Add what a tally comes to, at the prices of its model."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.ended_ms = max(self.ended_ms, tally.ended_ms)
        if not tally.is_known:
            return
        self.is_charged, self.rounds = True, self.rounds + tally.rounds
        card = prices.find_card(tally.upstream, tally.model)
        cache = prices.find_cache(tally.upstream, card)
        cost = price_split(tally.usage, tally.largest, card, cache)
        if tally.is_auxiliary:
            self.auxiliary += cost
            used = tally.usage
            self.auxiliary_input += (used.input or 0) + (used.cached or 0) + (used.written or 0)
            self.auxiliary_output += used.output or 0
            return
        self.cost += cost
        saved = price_estimate(tally.saving, card)
        if tally.own is not None and tally.paid is not None:
            own = price_split(tally.own, tally.largest_own, card, cache)
            saved = own - price_split(tally.paid, tally.largest, card, cache)
        self.saved = add_known(self.saved, saved)


def add_known(one: Cost | None, other: Cost | None) -> Cost | None:
    """Return the sum of what is known, None if nothing is."""
    return other if one is None else one if other is None else one + other


def remember_cards(inputs: SavingsInputs) -> SavingsInputs:
    """Return the same inputs that find each card only once."""
    return replace(inputs, prices=replace(inputs.prices, find_card=lru_cache(_MAX_CARDS)(inputs.prices.find_card)))


def group_calls(rounds: Iterable[RoundFigures]) -> Iterator[list[RoundFigures]]:
    """Yield the rounds of each call, in their order."""
    return (list(call) for _, call in groupby(rounds, key=lambda row: row.n))


async def read_calls(log: LogReader, session: str) -> AsyncIterator[list[RoundFigures]]:
    """Yield the rounds of each call of a session, a page of them read at a time. Raises NotFound."""
    after = 0
    while rounds := await log.load_rounds(session, after, _PAGE):
        after = rounds[-1].n
        for call in group_calls(rounds):
            yield call


def price_round(row: RoundFigures, prices: PriceList) -> tuple[Cost | None, Cost | None]:
    """Return what a round cost, and what managing it saved; None for what is not known."""
    if row.input is None or row.kind == "recorded":
        return None, None
    card = prices.find_card(row.upstream, row.model)
    cache = prices.find_cache(row.upstream, card)
    cost = price_usage(Usage(row.input, row.output, row.read, row.written), card, cache)
    if row.mode != "manage" or row.kind != "managed":
        return cost, None
    if row.own_input is None:
        return cost, price_estimate(row.saving, card)
    output = row.output if row.is_last else 0  # the client's own request has no rounds in which a model recalls
    own = price_usage(Usage(row.own_input, output, row.own_read, row.own_written), card, cache)
    return cost, own - price_usage(Usage(row.input, row.output, row.paid_read, row.written), card, cache)


def price_call(rounds: Iterable[RoundFigures], prices: PriceList) -> tuple[Cost | None, Cost | None]:
    """Return what a call cost, and what managing it saved; None for what is not known of any of its rounds."""
    cost: Cost | None = None
    saved: Cost | None = None
    for row in rounds:
        one, other = price_round(row, prices)
        cost, saved = add_known(cost, one), add_known(saved, other)
    return cost, saved


async def load_totals(log: LogReader, sessions: Sequence[str], inputs: SavingsInputs) -> dict[str, SavedTotal]:
    """Load what sessions came to, by their ids."""
    prices = remember_cards(inputs).prices
    return _sum_up(await _load_tallies(log, sessions, prices), prices, lambda tally: tally.session)


async def load_saving(log: LogReader, session: str, inputs: SavingsInputs) -> Saving | None:
    """Return what managing a session saved, None if nothing is known of it. Raises StoreUnavailable."""
    totals = await load_totals(log, (session,), inputs)
    return await describe_saving(log, session, totals.get(session) or SavedTotal())


async def describe_saving(log: LogReader, session: str, total: SavedTotal) -> Saving | None:
    """Return what managing a session saved, None if nothing is known of it. Raises StoreUnavailable."""
    if total.saved is None:
        return None
    net = total.net
    is_loss = net.tokens < 0
    reason = await _explain_loss(log, session, total.saved, total.plans) if is_loss else ""
    return Saving(net.tokens, net.money, total.share, is_loss, reason)


async def _explain_loss(log: LogReader, session: str, saved: Cost, plans: int) -> str:
    """Return why a session that opened so many epochs cost more than was saved."""
    if saved.tokens >= 0:
        return "our own calls for it cost more than was saved"
    if not plans:
        return "what was sent had to be written to the cache anew, and the calls since have not paid for it"
    later = await log.count_later(session)
    count = {0: "no call", 1: "1 call"}.get(later, f"{later} calls")
    return f"{count} came after its last epoch, too few to pay for writing the cache anew"


async def load_savings(log: LogReader, inputs: SavingsInputs) -> SavingsReport:
    """Load what managing saved, over all sessions. Raises StoreUnavailable."""
    known = remember_cards(inputs)
    prices = known.prices
    tallies = await _load_tallies(log, None, prices)
    totals = _sum_up(tallies, prices, lambda tally: tally.session)
    models = _sum_up(tallies, prices, lambda tally: (tally.upstream, tally.model))
    days = _sum_up(tallies, prices, lambda tally: (_FIRST_DAY + timedelta(days=tally.day)).isoformat())
    return SavingsReport(
        estimate=_describe_total(totals.values()),
        models=[
            _describe_part(total, model=name[1], upstream=name[0])
            for name, total in sorted(models.items(), key=lambda part: -part[1].spent.tokens)
            if total.rounds
        ],
        days=[_describe_part(total, date=name) for name, total in sorted(days.items()) if total.rounds],
        losses=await _list_losses(log, totals),
        **await _compare_arms(log, totals, known),
        shadow=await load_shadow(log, prices, {tally.model for tally in tallies if tally.plans}) or msgspec.UNSET,
    )


async def _load_tallies(log: LogReader, sessions: Sequence[str] | None, prices: PriceList) -> Sequence[Tally]:
    """Load what is charged alike in sessions, None: in all of them, apart for each tier of the models' prices."""
    tallies = await log.load_tallies(sessions)
    tiers = {
        tier.above
        for upstream, model in {(tally.upstream, tally.model) for tally in tallies}
        for tier in prices.find_card(upstream, model).prices.tiers
    }
    largest = max((max(each.largest, each.largest_own) for each in tallies), default=0)
    if {tier for tier in tiers if tier < largest} <= set(TIERS):
        return tallies
    return await log.load_tallies(sessions, sorted(tiers))


def _sum_up(tallies: Iterable[Tally], prices: PriceList, name: Callable[[Tally], Name]) -> dict[Name, SavedTotal]:
    """Sum up what is called the same."""
    totals: dict[Name, SavedTotal] = {}
    for tally in tallies:
        totals.setdefault(name(tally), SavedTotal()).add(tally, prices)
    return totals


def _describe_total(totals: Iterable[SavedTotal]) -> SavingsTotal | None:
    """Return the estimate over all sessions, None where nothing is known of any."""
    known = [total for total in totals if total.is_known]
    if all(total.saved is None for total in known):
        return None
    saved = sum((each.net for each in known), start=Cost())
    whole = SavedTotal(sum((each.spent for each in known), start=Cost()), saved=saved)
    losses = [each.net for each in known if each.net.tokens < 0]
    lost = sum(losses, start=Cost())
    return SavingsTotal(len(known), saved.tokens, saved.money, whole.share, len(losses), lost.tokens, lost.money)


async def _list_losses(log: LogReader, totals: dict[str, SavedTotal]) -> list[LosingSession]:
    """Return the sessions that lost most."""
    losing = sorted((total.net.tokens, name) for name, total in totals.items() if total.saved and total.net.tokens < 0)
    found = [(name, await describe_saving(log, name, totals[name])) for _, name in losing[:_MOST_LOSSES]]
    return [LosingSession(name, each.tokens, each.money, each.reason) for name, each in found if each is not None]


def _describe_part(total: SavedTotal, **named: str) -> PartSaving:
    net, spent = total.net, total.spent
    return PartSaving(
        tokens=net.tokens if total.is_known else None,
        money=net.money if total.is_known else None,
        share=total.share,
        spent_tokens=spent.tokens,
        spent_money=spent.money,
        rounds=total.rounds,
        calls=total.calls,
        **named,
    )


@dataclass(slots=True)
class _Session:
    """A session that is compared: what it cost, and the tokens of the client's own requests."""

    began_ms: int
    is_holdout: bool
    cost: Cost = field(default_factory=Cost)
    tokens: int = 0
    is_long: bool = False
    is_cut: bool = False
    is_blind: bool = True

    def compute_price(self, unit: Unit) -> float:
        """Return its cost for each token of the client's requests."""
        return ((self.cost.money or 0.0) if unit == "money" else self.cost.tokens) / self.tokens

    def add(self, rounds: Sequence[RoundFigures], inputs: SavingsInputs) -> None:
        """Add a call. What was not counted is left out on both sides."""
        self.is_cut = self.is_cut or any(row.rung not in ("", "original") for row in rounds)
        first, counted = rounds[0], [row for row in rounds if row.input is not None]
        is_ours = first.kind == "auxiliary"
        tokens = 0 if is_ours else next((row.client for row in rounds if row.client), 0)
        if not counted or not (tokens or is_ours):
            return
        for row in counted:
            self.cost += price_round(row, inputs.prices)[0] or Cost()
            self.is_blind = self.is_blind and row.read is None
        self.tokens += tokens
        if first.usable and tokens >= compute_soft_mark(first.usable, inputs.policy):
            self.is_long = True


async def _read_session(log: LogReader, name: str, total: SavedTotal, inputs: SavingsInputs) -> _Session | None:
    """Return a session as it is compared, None if none of its calls might be managed, or it was erased."""
    session: _Session | None = None
    try:
        async for rounds in read_calls(log, name):
            if rounds[0].is_managed:
                session = session or _Session(rounds[0].at_ms, bool(total.held))
                session.add(rounds, inputs)
    except NotFound:
        return None
    return session


async def _compare_arms(log: LogReader, totals: dict[str, SavedTotal], inputs: SavingsInputs) -> dict[str, Any]:
    """Return what a report says of sessions that were managed and others that were only observed."""
    is_holdout = any(total.held for total in totals.values())
    read = [await _read_session(log, name, total, inputs) for name, total in totals.items() if is_holdout]
    sessions = [session for session in read if session is not None]
    since = min((session.began_ms for session in sessions if session.is_holdout), default=None)
    recent = [each for each in sessions if since is not None and each.began_ms >= since]
    unmixed = [each for each in recent if not (each.is_holdout and each.is_cut)]
    long = [each for each in unmixed if each.is_long]
    unit: Unit = "money" if long and all(each.cost.money for each in long) else "tokens"
    managed, held = ([each for each in long if each.is_holdout == is_holdout] for is_holdout in (False, True))
    found = compare(*([each.compute_price(unit) for each in arm] for arm in (managed, held)))
    is_enough = min(len(managed), len(held)) >= MIN_SESSIONS
    reason = _NO_HOLDOUT if since is None else _NO_COST if is_enough else _TOO_FEW
    return {
        "saving": None if found is None else found.saving,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "unit": unit,
        "managed": _make_arm(managed, unit),
        "held_out": _make_arm(held, unit),
        "reason": "" if found is not None else reason,
        "short": len(unmixed) - len(long),
        "mixed": len(recent) - len(unmixed),
        "since_ms": since,
    }


def _make_arm(sessions: Sequence[_Session], unit: Unit) -> Arm:
    mean = sum(each.compute_price(unit) for each in sessions) / len(sessions) if sessions else None
    return Arm(len(sessions), mean, sum(each.is_blind for each in sessions))
