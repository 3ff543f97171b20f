"""Model cards: a model's context window and prices. An unknown value is None, never 0; each value names its source."""

from typing import Literal, NamedTuple

import msgspec

Source = Literal["settings", "learned", "upstream", "bundled", ""]


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Prices per token."""

    input: float  # uncached input
    output: float
    cached: float  # input read from the cache
    written: float  # input written to the cache


class Tier(msgspec.Struct, frozen=True, gc=False):
    """The rates of requests with more than `above` input tokens."""

    above: int
    rates: Rates


class Prices(msgspec.Struct, frozen=True, gc=False):
    """The prices of a model's tokens. `tiers` are sorted by size, smallest first."""

    rates: Rates
    tiers: tuple[Tier, ...] = ()

    def find_rates(self, tokens: int) -> Rates:
        """Return the rates of a request with `tokens` input tokens."""
        rates = self.rates
        for tier in self.tiers:
            if tokens > tier.above:
                rates = tier.rates
        return rates


# Multiples of the price of one input token (BEHAVIOUR B10). Output costs five at most providers that publish prices.
UNPRICED = Prices(Rates(input=1.0, output=5.0, cached=0.1, written=1.0))


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A model as one source describes it."""

    window: int | None = None  # context size in tokens
    output: int | None = None  # the most tokens of a response
    prices: Prices | None = None
    retention: float | None = None  # seconds for which the prompt cache keeps an entry after its last use


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A window learned when the upstream refused `sent` tokens. `learned` is the time, in monotonic seconds."""

    window: int
    sent: int
    learned: float


class LimitKey(NamedTuple):
    """The callers to whom a learned window applies. Beta headers and contracts change a model's window."""

    upstream: str
    model: str
    beta: str = ""
    tenant: bytes = b""


class Card(msgspec.Struct, frozen=True, gc=False):
    """All that is known of a model, and the source of each value: empty if unknown. Unknown prices are UNPRICED."""

    window: int | None = None
    output: int | None = None
    prices: Prices = UNPRICED
    window_source: Source = ""
    output_source: Source = ""
    prices_source: Source = ""
    retention: float | None = None
