"""Model cards: a model's context window and prices. What nobody said is None, never 0; each value names its source."""

from typing import Literal, NamedTuple

import msgspec

Source = Literal["settings", "learned", "upstream", "bundled", ""]


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Prices per token: input that no cache holds, output, input read from the cache, input written to it."""

    input: float
    output: float
    cached: float
    written: float


class Tier(msgspec.Struct, frozen=True, gc=False):
    """Rates of requests whose input is above so many tokens."""

    above: int
    rates: Rates


class Prices(msgspec.Struct, frozen=True, gc=False):
    """The prices of a model's tokens; `tiers` in the order of their sizes."""

    rates: Rates
    tiers: tuple[Tier, ...] = ()

    def find_rates(self, tokens: int) -> Rates:
        """Return the rates of a request with that many tokens of input."""
        rates = self.rates
        for tier in self.tiers:
            if tokens > tier.above:
                rates = tier.rates
        return rates


# Multiples of one input token (BEHAVIOUR B10). Output is five: so it is at most providers that state prices.
UNPRICED = Prices(Rates(input=1.0, output=5.0, cached=0.1, written=1.0))


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A model as one source describes it: tokens its context holds, tokens a response may have, prices.

    `retention` are the seconds for which a cache keeps what it has after its last use.
    """

    window: int | None = None
    output: int | None = None
    prices: Prices | None = None
    retention: float | None = None


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A window learned from a refusal of `sent` tokens; `learned` in monotonic seconds."""

    window: int
    sent: int
    learned: float


class LimitKey(NamedTuple):
    """The callers for whom a learned window holds: beta headers and contracts change it."""

    upstream: str
    model: str
    beta: str = ""
    tenant: bytes = b""


class Card(msgspec.Struct, frozen=True, gc=False):
    """All that is known of a model, and who said it; a source is empty where nobody did. Without prices: UNPRICED."""

    window: int | None = None
    output: int | None = None
    prices: Prices = UNPRICED
    window_source: Source = ""
    output_source: Source = ""
    prices_source: Source = ""
    retention: float | None = None
