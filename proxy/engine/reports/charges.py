"""What sessions cost, and what managing them saved, from sums over the log: a price for each sum, not for each call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.context.pricing import Cost, price_estimate, price_split
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.reports.savings import SavingsInputs, remember_cards
from proxy.model.figures import Charge

_USUAL_TIERS = (128_000, 200_000, 256_000, 272_000)


@dataclass(slots=True)
class SessionCost:
    """What a session, or a part of one, cost: the client's calls, our own, and what managing saved.

    `saved` is None where nothing is known; `managed` is the cost of the session if anything is.
    """

    cost: Cost = field(default_factory=Cost)
    auxiliary: Cost = field(default_factory=Cost)
    saved: Cost | None = None

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

    def add(self, charge: Charge, prices: PriceList) -> None:
        """Add what a charge comes to."""
        card = prices.find_card(charge.upstream, charge.model)
        cache = prices.find_cache(charge.upstream, card)
        cost = price_split(charge.usage, charge.largest, card, cache)
        if charge.is_auxiliary:
            self.auxiliary += cost
            return
        self.cost += cost
        saved = price_estimate(charge.saving, card)
        if charge.own is not None and charge.paid is not None:
            own = price_split(charge.own, charge.largest_own, card, cache)
            saved = own - price_split(charge.paid, charge.largest, card, cache)
        if saved is not None:
            self.saved = saved if self.saved is None else self.saved + saved


def compute_share(net: Cost, spent: Cost) -> float | None:
    """Return a saving as a share of what sending everything would have cost: of money where that is known."""
    whole = spent + net
    if whole.money is not None and net.money is not None and whole.money > 0:
        return net.money / whole.money
    return net.tokens / whole.tokens if whole.tokens > 0 else None


async def load_charges(log: LogReader, sessions: Sequence[str] | None, prices: PriceList) -> Sequence[Charge]:
    """Load what is charged alike in sessions, None: in all of them, apart for each tier of the models' prices."""
    charges = await log.sum_charges(sessions, _USUAL_TIERS)
    tiers = {
        tier.above
        for upstream, model in {(charge.upstream, charge.model) for charge in charges}
        for tier in prices.find_card(upstream, model).prices.tiers
    }
    largest = max((max(each.largest, each.largest_own) for each in charges), default=0)
    if {tier for tier in tiers if tier < largest} <= set(_USUAL_TIERS):
        return charges
    return await log.sum_charges(sessions, sorted(tiers))


async def load_costs(log: LogReader, sessions: Sequence[str], inputs: SavingsInputs) -> dict[str, SessionCost]:
    """Load what sessions cost, by their ids."""
    prices = remember_cards(inputs).prices
    return sum_costs(await load_charges(log, sessions, prices), prices)


def sum_costs(charges: Iterable[Charge], prices: PriceList) -> dict[str, SessionCost]:
    """Sum up charges by session."""
    costs: dict[str, SessionCost] = {}
    for charge in charges:
        costs.setdefault(charge.session, SessionCost()).add(charge, prices)
    return costs
