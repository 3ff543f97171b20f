"""What a call cost, as its usage tells.

Rule: in tokens of uncached input always, for the relations of prices are known well enough of any model; in money only
where somebody stated the prices. What the provider did not count costs nothing here.
"""

from functools import lru_cache

import msgspec

from proxy.context.cache import UNKNOWN
from proxy.context.tariff import make_tariff
from proxy.model.card import Card, Prices, Rates
from proxy.model.exchange import Usage


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Tokens of uncached input, and money; None where some of it was paid at prices that nobody stated."""

    tokens: float = 0.0
    money: float | None = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        is_known = self.money is not None and other.money is not None
        return Cost(self.tokens + other.tokens, (self.money or 0.0) + (other.money or 0.0) if is_known else None)

    def __sub__(self, other: "Cost") -> "Cost":
        is_known = self.money is not None and other.money is not None
        return Cost(self.tokens - other.tokens, (self.money or 0.0) - (other.money or 0.0) if is_known else None)

    def exceeds(self, fraction: float, whole: "Cost") -> bool:
        """Whether this is more than a fraction of the whole: in money, where that is known of both."""
        if self.money is not None and whole.money is not None and whole.money > 0:
            return self.money > fraction * whole.money
        return self.tokens > fraction * whole.tokens


def price_usage(usage: Usage, card: Card) -> Cost:
    """What a call cost at a model's prices."""
    size = usage.input or 0
    relative = _relate(card.prices).find_rates(size)
    money = _sum(usage, card.prices.find_rates(size)) if card.prices_source else None
    return Cost(_sum(usage, relative), money)


@lru_cache(maxsize=256)
def _relate(prices: Prices) -> Prices:
    """Prices in multiples of a token of uncached input."""
    return make_tariff(prices, UNKNOWN).prices


def _sum(usage: Usage, rates: Rates) -> float:
    cached, written = usage.cached or 0, usage.written or 0
    fresh = max(0, (usage.input or 0) - cached - written)
    return fresh * rates.input + cached * rates.cached + written * rates.written + (usage.output or 0) * rates.output
