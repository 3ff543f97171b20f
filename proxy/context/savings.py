"""What managing saved, and what going back would cost, in tokens of uncached input (FEATURES P10, BEHAVIOUR B19).

Rule: a saving may be negative; where a count is missing that it hangs on there is none, not 0.
"""

from dataclasses import dataclass

from proxy.context.budget import Budget
from proxy.context.tariff import Tariff
from proxy.model.exchange import Usage


@dataclass(frozen=True, slots=True)
class Trip:
    """A request as the client made it and as it was sent, in tokens as they were counted here.

    `client_read`: what the client's own request would have read from the cache, None where nobody can tell.
    `sent_read`: what was probably read of the one that was sent; it counts where the upstream does not say.
    """

    client: int
    sent: int
    client_read: int | None
    sent_read: int | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a revert: `once`, with the next request, and `each`, with every later one; `tokens` sent from then.

    `is_lasting`: whether it holds for a while; at the high mark an epoch opens again.
    """

    once: float
    each: float
    tokens: int
    is_lasting: bool


def estimate_client_read(tariff: Tariff, matching: int, idle: float | None) -> int:
    """What the client's own request reads from the cache, `matching` tokens of which it had sent before."""
    return 0 if tariff.cache.is_cold(idle) else tariff.expect_read(matching)


def price_saving(trip: Trip, usage: Usage | None, tariff: Tariff) -> float | None:
    """What the client's own request would have cost less what was billed; an epoch's bust is in what was billed.

    Counts of ours are put into the upstream's tokens by the one request that both counted. Not for a request that went
    out as it came: that saved 0, whatever its cache did.
    """
    if usage is None or usage.input is None or usage.input <= 0 or trip.sent <= 0 or trip.client_read is None:
        return None
    scale = usage.input / trip.sent
    cached = _find_cached(usage, trip, scale)
    if cached is None:
        return None
    client, read = round(trip.client * scale), round(min(max(0, trip.client_read), trip.client) * scale)
    own = tariff.price(read, client - read)
    return own - _price_billed(usage.input, min(max(0, cached), usage.input), usage.written, tariff)


def estimate_saving(trip: Trip, tariff: Tariff) -> float | None:
    """The same before anything was billed: what the caches probably hold of both requests is taken as read."""
    if trip.client_read is None or trip.sent_read is None:
        return None
    read, sent_read = min(trip.client_read, trip.client), min(trip.sent_read, trip.sent)
    return tariff.price(read, trip.client - read) - tariff.price(sent_read, trip.sent - sent_read)


def quote_revert(tokens: int, reverted: int, budget: Budget, tariff: Tariff) -> Quote:
    """The price of sending `reverted` tokens, as they stood before an epoch, in place of `tokens`.

    Nobody knows whether a provider still holds what was sent before the epoch: it counts as gone.
    """
    now = tariff.price_size(tokens)
    return Quote(
        once=tariff.price_rewritten(reverted) - now,
        each=tariff.price_size(reverted) - now,
        tokens=reverted,
        is_lasting=reverted < budget.high,
    )


def _find_cached(usage: Usage, trip: Trip, scale: float) -> int | None:
    """What was read from the cache, in the upstream's tokens."""
    if usage.cached is not None or trip.sent_read is None:
        return usage.cached
    return round(trip.sent_read * scale)


def _price_billed(total: int, cached: int, written: int | None, tariff: Tariff) -> float:
    """What the upstream counted, at its prices; all that was not read was written where it does not say."""
    new = total - cached
    wrote = new if written is None else min(max(0, written), new)
    rates = tariff.prices.find_rates(total)
    return cached * rates.cached + wrote * rates.written + (new - wrote) * rates.input
