"""What sessions cost, and what managing them saved, from sums over the log: a price for each sum, not for each call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.context.pricing import Cost, price_estimate, price_split
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.reports.savings import SavingsInputs, remember_cards
from proxy.model.figures import TIERS, Tally

_COUNTS = ("errors", "ends", "plans", "held", "counted", "client", "sent", "told", "read", "output")


@dataclass(slots=True)
class SessionTotal:
    """What a session, or a part of one, came to: the cost of the client's calls, of ours, what managing saved, counts.

    `saved` is None where nothing is known of it. The counts are as in `Tally`.
    """

    cost: Cost = field(default_factory=Cost)
    auxiliary: Cost = field(default_factory=Cost)
    saved: Cost | None = None
    is_charged: bool = False
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
    def share(self) -> float | None:
        """The saving as a share of what sending everything would have cost; None if that is unknown, or nothing."""
        if self.saved is None:
            return None
        return compute_share(self.net, self.spent)

    def add(self, tally: Tally, prices: PriceList) -> None:
        """Add what a tally comes to, at the prices of its model."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.ended_ms = max(self.ended_ms, tally.ended_ms)
        if not tally.is_known:
            return
        self.is_charged = True
        card = prices.find_card(tally.upstream, tally.model)
        cache = prices.find_cache(tally.upstream, card)
        cost = price_split(tally.usage, tally.largest, card, cache)
        if tally.is_auxiliary:
            self.auxiliary += cost
            return
        self.cost += cost
        saved = price_estimate(tally.saving, card)
        if tally.own is not None and tally.paid is not None:
            own = price_split(tally.own, tally.largest_own, card, cache)
            saved = own - price_split(tally.paid, tally.largest, card, cache)
        if saved is not None:
            self.saved = saved if self.saved is None else self.saved + saved


def compute_share(net: Cost, spent: Cost) -> float | None:
    """Return a saving as a share of what sending everything would have cost: of money where that is known."""
    whole = spent + net
    if whole.money is not None and net.money is not None and whole.money > 0:
        return net.money / whole.money
    return net.tokens / whole.tokens if whole.tokens > 0 else None


async def load_tallies(log: LogReader, sessions: Sequence[str] | None, prices: PriceList) -> Sequence[Tally]:
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


async def load_totals(log: LogReader, sessions: Sequence[str], inputs: SavingsInputs) -> dict[str, SessionTotal]:
    """Load what sessions came to, by their ids."""
    prices = remember_cards(inputs).prices
    return sum_totals(await load_tallies(log, sessions, prices), prices)


def sum_totals(tallies: Iterable[Tally], prices: PriceList) -> dict[str, SessionTotal]:
    """Sum up tallies by session."""
    totals: dict[str, SessionTotal] = {}
    for tally in tallies:
        totals.setdefault(tally.session, SessionTotal()).add(tally, prices)
    return totals
