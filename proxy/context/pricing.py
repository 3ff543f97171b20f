"""Prices of requests, the savings of managing them, and a confidence interval of those savings.

The unit is one token of uncached input at the lowest tier's price: only the ratios of prices count, so that a model
whose prices no source states is managed like the others. Money is reported only where a source states the prices.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, isfinite, sqrt

import msgspec

from proxy.context.budget import Budget
from proxy.context.cache_misses import CacheUse
from proxy.context.provider_cache import UNKNOWN, CacheModel, Calibration
from proxy.model import Value
from proxy.model.card import UNPRICED, Card, Prices, Rates, Tier
from proxy.model.epoch import Plan
from proxy.model.exchange import Usage

MINUS = "\N{MINUS SIGN}"
_CENT = 0.01
_SMALLEST = 0.00005  # of an amount with four digits

# No price is this many times another; a list that states one must not make sums infinite.
_MAX_RATIO = 1e6


class Tariff(Value):
    """Prices in multiples of one token of uncached input, and the cache that they belong to.

    `read_share`: the share of what the cache should hold that is really read. `survival`: the share that is read of
    what stands before an epoch's first edit when that epoch opens.
    """

    prices: Prices
    cache: CacheModel
    read_share: float
    survival: float

    def price(self, read: int, new: int) -> float:
        """Return the price of a request of which `read` tokens come from the cache and `new` do not."""
        rates = self.prices.find_rates(read + new)
        return read * rates.cached + new * rates.written

    def price_repeated(self, tokens: int) -> float:
        """Return the price of a request all of which was sent before, with the learned share of cache reads."""
        read = self.estimate_cached(tokens)
        return self.price(read, tokens - read)

    def price_rewritten(self, tokens: int, stable: int = 0) -> float:
        """Return the price of the first request of an epoch: only its first `stable` tokens were sent before."""
        kept = min(tokens, self.estimate_kept(stable))
        return self.price(kept, tokens - kept)

    def price_cache_bust(self, tokens: int, stable: int = 0) -> float:
        """Return the extra price of an epoch's first request over later ones of its size."""
        return max(0.0, self.price_rewritten(tokens, stable) - self.price_repeated(tokens))

    def estimate_cached(self, matching: int, ends: Sequence[int] | None = None) -> int:
        """Return the tokens that are probably read of a request whose first `matching` ones were sent before.

        `ends` as in `CacheModel.find_read`.
        """
        return int(self.read_share * self.cache.find_read(matching, ends))

    def estimate_kept(self, stable: int) -> int:
        """Return the tokens that are probably read of the `stable` ones that an epoch does not change."""
        return int(self.survival * self.cache.find_read(stable))


def make_tariff(prices: Prices, cache: CacheModel, calibration: Calibration | None = None) -> Tariff:
    """Return the tariff of a model, with what was learned of its cache."""
    learned = calibration or Calibration()
    survival = float(cache.is_head_kept) if learned.survival is None else learned.survival
    return Tariff(_compute_relative_prices(prices, cache, learned), cache, learned.read, survival)


def _compute_relative_prices(prices: Prices, cache: CacheModel, learned: Calibration) -> Prices:
    if cache.kind == "local":
        return Prices(Rates(1.0, UNPRICED.rates.output, learned.cached_ratio, 1.0))
    if prices == UNPRICED:
        stated = UNPRICED.rates
        read, write = (stated.cached if cache.read is None else cache.read), cache.write or stated.written
        prices = Prices(Rates(stated.input, stated.output, read, write))
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


class Cost(Value):
    """A cost in tokens of uncached input and in money; money is None where part of it has prices no source states."""

    tokens: float = 0.0
    money: float | None = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        is_known = self.money is not None and other.money is not None
        return Cost(self.tokens + other.tokens, (self.money or 0.0) + (other.money or 0.0) if is_known else None)

    def __sub__(self, other: "Cost") -> "Cost":
        is_known = self.money is not None and other.money is not None
        return Cost(self.tokens - other.tokens, (self.money or 0.0) - (other.money or 0.0) if is_known else None)

    def exceeds(self, fraction: float, whole: "Cost") -> bool:
        """Return whether this is more than a fraction of the whole; in money where both are known in money."""
        if self.money is not None and whole.money is not None and whole.money > 0:
            return self.money > fraction * whole.money
        return self.tokens > fraction * whole.tokens


def format_money(amount: float | None) -> str:
    """Format an amount in US dollars: `$1.23`, with four digits below a cent; a loss has a minus sign."""
    if amount is None:
        return "no price"
    size = abs(amount)
    if 0 < size < _SMALLEST:
        return f"{MINUS if amount < 0 else ''}<$0.0001"
    digits = 4 if 0 < size < _CENT else 2
    return f"{MINUS if amount < 0 else ''}${size:,.{digits}f}"


def price_usage(usage: Usage, card: Card, cache: CacheModel = UNKNOWN) -> Cost:
    """Return the cost of a call at a model's prices; where none is stated, at those of its `cache`."""
    size, cached, written = usage.input or 0, usage.cached or 0, usage.written or 0
    split = Usage(max(0, size - cached - written), usage.output, cached, written)
    return price_split(split, size, card, cache)


def price_split(split: Usage, size: int, card: Card, cache: CacheModel = UNKNOWN) -> Cost:
    """Return the cost of tokens at the rates of calls with `size` input tokens: of one call, or of several together.

    The `input` of `split` is what was neither read from the cache nor written to it.
    """
    relative = _find_relative_prices(card.prices, cache).find_rates(size)
    money = _price_tokens(split, card.prices.find_rates(size)) if card.prices_source else None
    return Cost(_price_tokens(split, relative), money)


@lru_cache(maxsize=256)
def _find_relative_prices(prices: Prices, cache: CacheModel) -> Prices:
    """Return prices in multiples of a token of uncached input."""
    return make_tariff(prices, cache).prices


def _price_tokens(usage: Usage, rates: Rates) -> float:
    return (
        (usage.input or 0) * rates.input
        + (usage.cached or 0) * rates.cached
        + (usage.written or 0) * rates.written
        + (usage.output or 0) * rates.output
    )


def price_missed(use: CacheUse, usage: Usage, card: Card, cache: CacheModel = UNKNOWN) -> Cost:
    """Return how much more a call cost because of what it missed."""
    read, written = usage.cached or 0, usage.written or 0
    ideal = Usage(usage.input, 0, read + use.missed, max(0, written - use.missed))
    return price_usage(Usage(usage.input, 0, read, written), card, cache) - price_usage(ideal, card, cache)


class OwnUsage(Value):
    """What the client's own request would have used, and what was used; what was read is estimated if untold.

    `size` are the tokens of the client's own request, of which `own` counts as many as the window takes.
    """

    own: Usage
    paid: Usage
    size: int


def estimate_own(planned: Plan, usage: Usage, *, is_last: bool = True) -> OwnUsage | None:
    """Return what the client's own request would have used, by the usage that came back; None if it is unknown.

    What was sent as it came is the client's own. Else the client's own request would have missed as many tokens of the
    cache as were missed of what was sent, and would have had the answer of the last round alone: it has no rounds in
    which a model recalls. Where a size is doubtful the smaller one counts. All figures of money are made of this.
    """
    sent, client = planned.tokens_upstream, planned.tokens_client
    size = estimate_size(planned, usage.input or 0)
    if not (usage.input and sent and client is not None and size is not None):
        return None
    if planned.sent_read is None or planned.client_read is None:
        return None
    scale = 1.0 if planned.own_expected is not None else usage.input / sent
    expected = min(planned.sent_read * scale, usage.input)
    read = int(expected + 0.5) if usage.cached is None else usage.cached
    paid = Usage(usage.input, usage.output, read, usage.written)
    if planned.rung == "original":
        return OwnUsage(paid, paid, usage.input)
    own_read = planned.client_read * scale
    if planned.own_expected is None:
        own_read -= client * scale - size
    fresh = usage.input - read
    if 2 * expected >= usage.input:
        own_read += read - expected
    elif 2 * read >= usage.input:  # a cache that was taken to be cold was not
        own_read = max(own_read, size - fresh)
    over = max(0, size - planned.window) if planned.window else 0
    own_read = min(size - over, max(0, int(own_read - over + 0.5)))
    is_written = (usage.written or 0) / fresh if fresh > 0 else 0.0
    written = int((size - over - own_read) * min(1.0, is_written) + 0.5)
    return OwnUsage(Usage(size - over, usage.output if is_last else 0, own_read, written), paid, size)


def estimate_size(planned: Plan, counted: int) -> int | None:
    """Return the tokens of the client's own request, where `counted` is the provider's count of what was sent.

    What is new in both requests counts as the provider counted it. Without a count of an earlier request the
    provider's tokens for ours are either as many in what was sent as in all, or as many as so far: the less counts.
    """
    sent, client = planned.tokens_upstream, planned.tokens_client
    if planned.rung == "original":
        return counted
    if not sent or client is None:
        return None
    if planned.own_expected is None:
        return max(0, min(int(client * counted / sent + 0.5), counted + client - sent))
    return max(0, planned.own_expected + (0 if planned.sent_expected is None else counted - planned.sent_expected))


def price_saved(rounds: Sequence[tuple[Plan | None, Usage]], card: Card, cache: CacheModel = UNKNOWN) -> Cost | None:
    """Return how much more the client's own request would have cost than a call of these rounds. Negative: less.

    Only rounds with a usage count. Where sizes are unknown, the estimate of the saving is returned as it is; None where
    nothing is known.
    """
    counted = [(planned, usage) for planned, usage in rounds if usage.input is not None and planned is not None]
    saved: Cost | None = None
    for planned, usage in counted:
        found = estimate_own(planned, usage, is_last=usage is counted[-1][1])
        if found is not None:
            one: Cost | None = price_usage(found.own, card, cache) - price_usage(found.paid, card, cache)
        else:
            one = price_estimate(planned.saving, card) if planned.rung != "original" else None
        saved = one if saved is None else saved if one is None else saved + one
    return saved


def price_estimate(saving: float | None, card: Card) -> Cost | None:
    """Return an estimated saving, in tokens of uncached input, as a cost; None for none."""
    if saving is None:
        return None
    return Cost(saving, saving * card.prices.rates.input if card.prices_source else None)


class RequestSizes(Value):
    """Sizes of a request as the client made it and as it was sent, in tokens as counted here.

    `client_read`: the tokens that the client's own request would have read from the cache. `sent_read`: those that were
    probably read of the request that was sent. None where unknown.
    """

    client: int
    sent: int
    client_read: int | None
    sent_read: int | None


class RevertPrice(Value):
    """The extra price of a revert: `once` with the next request, `each` with every later one.

    `tokens` are those of a request after the revert. `is_lasting`: the request stays below the high mark, at which an
    epoch opens again.
    """

    once: float
    each: float
    tokens: int
    is_lasting: bool


def estimate_client_read(tariff: Tariff, matching: int, idle: float | None) -> int:
    """Return the tokens that the client's own request reads from the cache; it had sent `matching` of them before.

    `idle` are the seconds since the last request, None where unknown.
    """
    return 0 if tariff.cache.is_cold(idle) else tariff.estimate_cached(matching)


def estimate_saving(trip: RequestSizes, tariff: Tariff) -> float | None:
    """Return how much more the client's own request would have cost, in tokens of uncached input, before billing.

    The cache bust of an epoch is included. What the caches probably hold of both requests counts as read. None where
    either is unknown.
    """
    if trip.client_read is None or trip.sent_read is None:
        return None
    read, sent_read = min(trip.client_read, trip.client), min(trip.sent_read, trip.sent)
    return tariff.price(read, trip.client - read) - tariff.price(sent_read, trip.sent - sent_read)


def quote_revert(tokens: int, reverted: int, budget: Budget, tariff: Tariff) -> RevertPrice:
    """Return the extra price of sending `reverted` tokens, as they stood before an epoch, in place of `tokens`.

    Whether a provider still caches what was sent before the epoch is unknown: it counts as evicted.
    """
    now = tariff.price_repeated(tokens)
    return RevertPrice(
        once=tariff.price_rewritten(reverted) - now,
        each=tariff.price_repeated(reverted) - now,
        tokens=reverted,
        is_lasting=reverted < budget.high,
    )


MIN_SESSIONS = 20
"""The least sessions of each arm: with costs that differ between sessions by a factor of three, nominal 95 % intervals
then cover in 93 % of cases."""

_Z = 1.959964  # the normal distribution's quantile of 97.5 %


class Comparison(Value):
    """The share of costs that is saved, negative where the treated cost more, and its 95 % interval `low` to `high`."""

    saving: float
    low: float
    high: float


class _ArmCosts(Value):
    """The mean cost of a session, the variance `spread` of that mean's logarithm, and its degrees of freedom."""

    mean: float
    spread: float
    degrees: int


def compare(treated: Sequence[float], untreated: Sequence[float]) -> Comparison | None:
    """Return the share by which treated sessions cost less than untreated ones; None with too few of either.

    The logarithm of a ratio of means has about the variance s1²/(n1·m1²) + s2²/(n2·m2²): the log response ratio of
    Hedges, Gurevitch and Curtis, "The meta-analysis of response ratios in experimental ecology", Ecology 80 (1999). The
    degrees of freedom are Welch's. Where the sessions of an arm cost nothing there is no ratio: None.
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
    """Return Student's quantile of 97.5 %, by Abramowitz and Stegun 26.7.5."""
    spread = one.spread + other.spread
    inverse = sum((arm.spread / spread) ** 2 / arm.degrees for arm in (one, other)) if spread else 0.0
    return _Z + (_Z**3 + _Z) / 4 * inverse + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96 * inverse**2
