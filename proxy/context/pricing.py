"""What requests cost, what managing them saved, and with what certainty that can be said (FEATURES P10, P19).

The unit is one token of uncached input at the lowest tier's price: only the relations of prices count, so that a model
whose prices nobody states is managed like the others. Money is told only where somebody stated the prices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, isfinite, sqrt

import msgspec

from proxy.context.budget import Budget
from proxy.context.provider_cache import UNKNOWN, CacheModel, Calibration
from proxy.model.card import UNPRICED, Card, Prices, Rates, Tier
from proxy.model.exchange import Usage

# No price is so many times another; what says so must not add up to infinity.
_MAX_RATIO = 1e6


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

    def price_repeated(self, tokens: int) -> float:
        """A request all of which was sent before, as far as the cache is known to work."""
        read = self.estimate_cached(tokens)
        return self.price(read, tokens - read)

    def price_rewritten(self, tokens: int, stable: int = 0) -> float:
        """A request of which only the first `stable` tokens were sent before: the first one of an epoch."""
        kept = min(tokens, self.estimate_kept(stable))
        return self.price(kept, tokens - kept)

    def price_cache_bust(self, tokens: int, stable: int = 0) -> float:
        """What an epoch's first request costs more than the next ones of that size (B10: the skis)."""
        return max(0.0, self.price_rewritten(tokens, stable) - self.price_repeated(tokens))

    def estimate_cached(self, matching: int, ends: Sequence[int] | None = None) -> int:
        """The tokens that are probably read of a request whose first `matching` ones were sent before."""
        return int(self.read_share * self.cache.find_read(matching, ends))

    def estimate_kept(self, stable: int) -> int:
        """The tokens that are probably read of the `stable` ones that an epoch does not change."""
        return int(self.survival * self.cache.find_read(stable))


def make_tariff(prices: Prices, cache: CacheModel, calibration: Calibration | None = None) -> Tariff:
    """The tariff of a model, with what was learned of its cache."""
    learned = calibration or Calibration()
    survival = float(cache.is_head_kept) if learned.survival is None else learned.survival
    return Tariff(_compute_relative_prices(prices, cache, learned), cache, learned.read, survival)


def _compute_relative_prices(prices: Prices, cache: CacheModel, learned: Calibration) -> Prices:
    if cache.kind == "local":
        return Prices(Rates(1.0, UNPRICED.rates.output, learned.cached_ratio, 1.0))
    unit = prices.rates.input
    if not (isfinite(unit) and unit > 0):
        return _compute_relative_prices(UNPRICED, cache, learned)
    tiers = tuple(Tier(tier.above, _scale_rates(tier.rates, unit, cache)) for tier in prices.tiers)
    return Prices(_scale_rates(prices.rates, unit, cache), tiers)


def _scale_rates(rates: Rates, unit: float, cache: CacheModel) -> Rates:
    plain, *given = (value / unit for value in msgspec.structs.astuple(rates))
    plain = _clamp_finite(plain, 1.0)
    output, cached, written = (_clamp_finite(value, plain) for value in given)
    if not cache.is_used:
        cached = written = plain
    return Rates(plain, output, cached, max(written, plain * cache.least_write))


def _clamp_finite(value: float, otherwise: float) -> float:
    return min(max(0.0, value), _MAX_RATIO) if isfinite(value) else otherwise


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
    relative = _relative_prices(card.prices).find_rates(size)
    money = _price_tokens(usage, card.prices.find_rates(size)) if card.prices_source else None
    return Cost(_price_tokens(usage, relative), money)


@lru_cache(maxsize=256)
def _relative_prices(prices: Prices) -> Prices:
    """Prices in multiples of a token of uncached input."""
    return make_tariff(prices, UNKNOWN).prices


def _price_tokens(usage: Usage, rates: Rates) -> float:
    cached, written = usage.cached or 0, usage.written or 0
    fresh = max(0, (usage.input or 0) - cached - written)
    return fresh * rates.input + cached * rates.cached + written * rates.written + (usage.output or 0) * rates.output


class RequestSizes(msgspec.Struct, frozen=True, gc=False):
    """A request as the client made it and as it was sent, in tokens as they were counted here.

    `client_read`: what the client's own request would have read from the cache, `sent_read` what was probably read of
    the one that was sent; None where nobody can tell.
    """

    client: int
    sent: int
    client_read: int | None
    sent_read: int | None


@dataclass(frozen=True, slots=True)
class RevertPrice:
    """The price of a revert: `once`, with the next request, and `each`, with every later one; `tokens` sent from then.

    `is_lasting`: whether it holds for a while; at the high mark an epoch opens again.
    """

    once: float
    each: float
    tokens: int
    is_lasting: bool


def estimate_client_read(tariff: Tariff, matching: int, idle: float | None) -> int:
    """What the client's own request reads from the cache, `matching` tokens of which it had sent before."""
    return 0 if tariff.cache.is_cold(idle) else tariff.estimate_cached(matching)


def estimate_saving(trip: RequestSizes, tariff: Tariff) -> float | None:
    """What the client's own request would have cost more, before anything is billed; an epoch's bust is in it.

    What the caches probably hold of both requests is taken as read.
    """
    if trip.client_read is None or trip.sent_read is None:
        return None
    read, sent_read = min(trip.client_read, trip.client), min(trip.sent_read, trip.sent)
    return tariff.price(read, trip.client - read) - tariff.price(sent_read, trip.sent - sent_read)


def quote_revert(tokens: int, reverted: int, budget: Budget, tariff: Tariff) -> RevertPrice:
    """The price of sending `reverted` tokens, as they stood before an epoch, in place of `tokens`.

    Nobody knows whether a provider still holds what was sent before the epoch: it counts as gone.
    """
    now = tariff.price_repeated(tokens)
    return RevertPrice(
        once=tariff.price_rewritten(reverted) - now,
        each=tariff.price_repeated(reverted) - now,
        tokens=reverted,
        is_lasting=reverted < budget.high,
    )


MIN_SESSIONS = 20
"""Of each arm. With costs that differ between sessions by a factor of three, 95 in 100 intervals hold then 93 times."""

_Z = 1.959964  # the normal distribution's quantile of 97.5 %


@dataclass(frozen=True, slots=True)
class Comparison:
    """The share that is saved, negative where the one costs more; with a chance of 95 % between `low` and `high`."""

    saving: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _ArmCosts:
    """`mean` is what a session costs, `spread` the variance of the mean's logarithm, with its degrees of freedom."""

    mean: float
    spread: float
    degrees: int


def compare(treated: Sequence[float], untreated: Sequence[float]) -> Comparison | None:
    """What the treated cost less than the untreated, each given by sessions; None where there are too few to tell.

    The logarithm of a ratio of means has about the variance s1²/(n1·m1²) + s2²/(n2·m2²): the log response ratio of
    Hedges, Gurevitch and Curtis, "The meta-analysis of response ratios in experimental ecology", Ecology 80 (1999). The
    degrees of freedom are Welch's. Sessions of which nothing costs anything have no ratio.
    """
    if min(len(treated), len(untreated)) < MIN_SESSIONS:
        return None
    one, other = _summarize_costs(treated), _summarize_costs(untreated)
    if one.mean <= 0 or other.mean <= 0:
        return None
    half = _compute_quantile(one, other) * sqrt(one.spread + other.spread)
    ratio = one.mean / other.mean
    return Comparison(1 - ratio, 1 - ratio * exp(half), 1 - ratio * exp(-half))


def _summarize_costs(costs: Sequence[float]) -> _ArmCosts:
    count = len(costs)
    mean = sum(costs) / count
    variance = sum((cost - mean) ** 2 for cost in costs) / (count - 1)
    return _ArmCosts(mean, variance / (count * mean**2) if mean > 0 else 0.0, count - 1)


def _compute_quantile(one: _ArmCosts, other: _ArmCosts) -> float:
    """Student's quantile of 97.5 %, by Abramowitz and Stegun 26.7.5."""
    spread = one.spread + other.spread
    inverse = sum((arm.spread / spread) ** 2 / arm.degrees for arm in (one, other)) if spread else 0.0
    return _Z + (_Z**3 + _Z) / 4 * inverse + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96 * inverse**2
