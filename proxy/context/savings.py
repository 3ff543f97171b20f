"""What managing saved, and what going back would cost, in tokens of uncached input (FEATURES P10, BEHAVIOUR B19).

Rule: a saving may be negative; where a count is missing that it hangs on there is none, not 0.
"""

from dataclasses import dataclass

import msgspec

from proxy.context.budget import Budget
from proxy.context.tariff import Tariff


class Trip(msgspec.Struct, frozen=True, gc=False):
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
    return 0 if tariff.cache.is_cold(idle) else tariff.expect_read(matching)


def estimate_saving(trip: Trip, tariff: Tariff) -> float | None:
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
    now = tariff.price_size(tokens)
    return RevertPrice(
        once=tariff.price_rewritten(reverted) - now,
        each=tariff.price_size(reverted) - now,
        tokens=reverted,
        is_lasting=reverted < budget.high,
    )
