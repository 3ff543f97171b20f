"""What a request's input costs, in tokens of uncached input at the lowest tier's price.

Rule: only the relations of prices count, so that a model whose prices nobody states is managed like the others, and a
model that is free like one whose prices nobody states.
"""

from collections.abc import Sequence
from math import isfinite

import msgspec

from proxy.context.cache import CacheModel
from proxy.context.calibration import Calibration
from proxy.model.card import UNPRICED, Prices, Rates, Tier

# No price is so many times another; what says so must not add up to infinity.
_MOST = 1e6


class Tariff(msgspec.Struct, frozen=True, gc=False):
    """Prices in multiples of one token of uncached input, and the cache they are about.

    `read_share`: how much of what the cache should hold is really read. `survival`: the same of what stands before an
    epoch's first edit when that epoch opens.
    """

    prices: Prices
    cache: CacheModel
    read_share: float
    survival: float

    def price(self, read: int, new: int) -> float:
        """A request of which `read` tokens come from the cache and `new` do not."""
        rates = self.prices.find_rates(read + new)
        return read * rates.cached + new * rates.written

    def price_size(self, tokens: int) -> float:
        """A request all of which was sent before, as far as the cache is known to work."""
        read = self.expect_read(tokens)
        return self.price(read, tokens - read)

    def price_rewritten(self, tokens: int, stable: int = 0) -> float:
        """A request of which only the first `stable` tokens were sent before: the first one of an epoch."""
        kept = min(tokens, self.expect_kept(stable))
        return self.price(kept, tokens - kept)

    def price_bust(self, tokens: int, stable: int = 0) -> float:
        """What an epoch's first request costs more than the next ones of that size (B10: the skis)."""
        return max(0.0, self.price_rewritten(tokens, stable) - self.price_size(tokens))

    def expect_read(self, matching: int, ends: Sequence[int] | None = None) -> int:
        """The tokens that are probably read of a request whose first `matching` ones were sent before."""
        return int(self.read_share * self.cache.find_read(matching, ends))

    def expect_kept(self, stable: int) -> int:
        """The tokens that are probably read of the `stable` ones that an epoch does not change."""
        return int(self.survival * self.cache.find_read(stable))


def make_tariff(prices: Prices, cache: CacheModel, calibration: Calibration | None = None) -> Tariff:
    """The tariff of a model, with what was learned of its cache."""
    learned = calibration or Calibration()
    survival = float(cache.is_head_kept) if learned.survival is None else learned.survival
    return Tariff(_find_prices(prices, cache, learned), cache, learned.read, survival)


def _find_prices(prices: Prices, cache: CacheModel, learned: Calibration) -> Prices:
    if cache.kind == "local":
        return Prices(Rates(1.0, UNPRICED.rates.output, learned.cached_ratio, 1.0))
    unit = prices.rates.input
    if not (isfinite(unit) and unit > 0):
        return _find_prices(UNPRICED, cache, learned)
    tiers = tuple(Tier(tier.above, _scale(tier.rates, unit, cache)) for tier in prices.tiers)
    return Prices(_scale(prices.rates, unit, cache), tiers)


def _scale(rates: Rates, unit: float, cache: CacheModel) -> Rates:
    plain, *given = (value / unit for value in msgspec.structs.astuple(rates))
    plain = _finite(plain, 1.0)
    output, cached, written = (_finite(value, plain) for value in given)
    if not cache.is_used:
        cached = written = plain
    return Rates(plain, output, cached, max(written, plain * cache.least_write))


def _finite(value: float, otherwise: float) -> float:
    return min(max(0.0, value), _MOST) if isfinite(value) else otherwise
