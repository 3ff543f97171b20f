"""Model cards: a model's context window and prices. An unknown value is None, never 0; each value names its source."""

from typing import Literal, NamedTuple

import msgspec

Source = Literal["settings", "learned", "upstream", "bundled", ""]

CacheKind = Literal["prefix", "breakpoints", "openai-breakpoints", "units", "local"]
"""`prefix`: the longest prefix that was sent before. `breakpoints`: Anthropic's, up to an entry a few blocks before a
marker. `openai-breakpoints`: exactly up to a breakpoint, nothing without one. `units`: whole stored units. `local`: the
longest prefix, and it saves time, not money."""


OverflowKind = Literal["stopped", "truncated", "beyond"]
"""How an upstream that accepted too long a request shows it: it stopped since the window was full, it read only part of
the request, or it counted more than the known window."""


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


# Multiples of the price of one input token. Output costs five at most providers that publish prices.
UNPRICED = Prices(Rates(input=1.0, output=5.0, cached=0.1, written=1.0))


class CacheFacts(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of the prompt cache of some models; `source` names where that is stated.

    It holds at the `hosts` and their subdomains, at any host if there are none. If it `is_default`, it holds only where
    the settings declare its kind. `read`, `write` and `long_write` are multiples of the price of one token of uncached
    input, None where no source states them.
    """

    kind: CacheKind
    source: str
    hosts: tuple[str, ...] = ()
    block: int = 1  # a read is of whole blocks of so many tokens
    minimum: int = 0  # tokens of the shortest prefix that is cached
    lookback: int = 0  # `breakpoints`: blocks up to each marker; `openai-breakpoints`: newest breakpoints; 0: all
    most_marks: int = 0  # most breakpoints that one request may write; 0: unlimited
    lifetime: float | None = None  # seconds after which an entry is surely gone where the request asks for none
    named: tuple[tuple[str, float], ...] = ()  # seconds of lifetimes that a request asks for by a name
    is_refreshed: bool = True  # whether a read renews the lifetime
    read: float | None = None
    write: float | None = None
    long_write: float | None = None  # of a lifetime above `lifetime`
    is_default: bool = False


class CacheTerms(msgspec.Struct, frozen=True, gc=False):
    """What a request itself states about caching. Marked are blocks with a cache marker; its value is a lifetime."""

    head: tuple[str, ...] = ()  # markers of tools, instructions and leading messages, and of the request as a whole
    messages: tuple[str, ...] = ()  # markers of the other messages
    lifetime: str = ""  # the lifetime that a member of the request asks for, as sent
    has_leading: bool = False  # whether instructions precede the messages that may end at a breakpoint
    is_explicit: bool = False  # whether only marked blocks are to be cached

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (*self.head, *self.messages)


UNASKED = CacheTerms()
"""The terms of a request that states nothing about caching."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A model as one source describes it."""

    window: int | None = None  # context size in tokens
    output: int | None = None  # the most tokens of a response
    prices: Prices | None = None
    retention: float | None = None  # seconds for which the prompt cache keeps an entry after its last use
    caches: tuple[CacheFacts, ...] = ()  # the first that holds at a host counts


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A window learned when the upstream refused `sent` tokens. `learned` is the time, in monotonic seconds.

    It `is_stated` if the upstream named it, else it was inferred.
    """

    window: int
    sent: int
    learned: float
    is_stated: bool = False


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
    caches: tuple[CacheFacts, ...] = ()  # the first that holds at a host counts
