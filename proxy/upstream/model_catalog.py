"""The catalog of models: context windows, output limits, prices and prompt caches, each with its source.

A look-up neither waits nor fails. Settings and upstreams take precedence over the map that the package ships:
`model_map.json`, which `scripts/model_map.py` made, and which names its sources and its date.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from proxy.context.model_catalog import (
    ModelNames,
    SourcedOffer,
    list_names,
    look_up_offer,
    make_card,
    merge_offers,
)
from proxy.engine.ports import Clock
from proxy.model.card import CacheFacts, Card, Limit, LimitKey, Offer, Prices, Rates, Tier
from proxy.model.lru import LruCache
from proxy.upstream.model_listing import make_prices, read_listing

MAP_PATH = Path(__file__).with_name("model_map.json")
_MOST_LIMITS = 1024
_NOTHING = Offer()
NOTHING_SIZED: Mapping[str, Offer] = {}

# Prices per token: input, output, input read from the cache, input written to it. Only the first is always given.
StatedRates = tuple[float, float | None, float | None, float | None]


class ModelEntry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A model's entry in the map. `tiers` are the prices of requests with more input tokens than the key."""

    window: int | None = None
    output: int | None = None
    rates: StatedRates | None = None
    tiers: dict[int, StatedRates] = {}


class CacheRule(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The facts of a cache, and the models that they hold for: a pattern of the beginning of their names.

    Names are in lower case, without a provider, with `-` in place of `.`. An empty pattern is for all models.
    """

    models: str
    facts: CacheFacts


def find_caches(rules: Iterable[CacheRule], model: str) -> tuple[CacheFacts, ...]:
    """Return the facts that hold for a model, in the order of the rules."""
    names = [name.replace(".", "-") for name in list_names(model)]
    return tuple([rule.facts for rule in rules if any(re.match(rule.models, name) for name in names)])


class _MapFile(msgspec.Struct, frozen=True, gc=False):
    """The content of the map's file: its source with version, its date, the rules of caches, and the models."""

    source: str
    date: str
    caches: tuple[CacheRule, ...]
    models: dict[str, ModelEntry]


class ModelMap:
    """The map of models that the package ships."""

    def __init__(self, content: bytes) -> None:
        found = msgspec.json.decode(content, type=_MapFile)
        self.source, self.date, self.entries, self.caches = found.source, found.date, found.models, found.caches
        self._names = ModelNames(tuple(found.models))

    def find(self, model: str) -> Offer:
        """Return the map's offer of a model, with or without a provider in its name; empty if it is unknown."""
        offer = merge_offers([_make_offer(self.entries[name]) for name in self._names.find(model)])
        return msgspec.structs.replace(offer, caches=find_caches(self.caches, model))


def load_model_map() -> ModelMap:
    """Read the file. Takes some 10 ms."""
    return ModelMap(MAP_PATH.read_bytes())


class ModelCatalog:
    """Returns cards of models, which merge all sources.

    Of the settings, `stated` are offers by upstream, `sized` and `priced` by shell pattern of models; the first match
    counts.
    """

    def __init__(
        self,
        stated: Mapping[str, Offer],
        priced: Mapping[str, Offer],
        clock: Clock,
        load: Callable[[], ModelMap] = load_model_map,
        *,
        sized: Mapping[str, Offer] = NOTHING_SIZED,
    ) -> None:
        self._stated = stated
        self._priced = priced
        self._sized = sized
        self._clock = clock
        self._load = load
        self._bundled: ModelMap | None = None
        self._opening = asyncio.Lock()
        self._listed: dict[str, tuple[ModelNames, Mapping[str, Offer]]] = {}
        self._limits: LruCache[LimitKey, Limit] = LruCache(_MOST_LIMITS)

    async def open(self) -> None:
        """Load the map once, in a thread. Until then look-ups do without it."""
        async with self._opening:
            await asyncio.to_thread(self.load)

    def load(self) -> None:
        """Load the map, unless it is. Blocks for some 10 ms."""
        if self._bundled is None:
            self._bundled = self._load()

    def note_listing(self, upstream: str, content: bytes) -> None:
        """Remember an upstream's list of models. A list without models is ignored."""
        offers = read_listing(content)
        if offers:
            self._listed[upstream] = ModelNames(tuple(offers)), offers

    def note_limit(self, key: LimitKey, window: int, sent: int, *, is_stated: bool = False) -> None:
        """Remember the window that was learned when an upstream refused `sent` tokens, or that it stated then."""
        self._limits.put(key, Limit(window, sent, self._clock.monotonic(), is_stated))

    def find(self, key: LimitKey) -> Card:
        """Return the card of a model with what is known now."""
        names, offers = self._listed.get(key.upstream, (ModelNames(()), {}))
        said: tuple[SourcedOffer, ...] = (
            ("settings", _find_first(self._sized, key.model)),
            ("settings", self._stated.get(key.upstream, _NOTHING)),
            ("settings", _find_first(self._priced, key.model)),
            ("upstream", look_up_offer(names, offers, key.model)),
            ("bundled", self._bundled.find(key.model) if self._bundled is not None else _NOTHING),
        )
        return make_card(said, self._limits.peek(key), self._clock.monotonic())


def _find_first(offers: Mapping[str, Offer], model: str) -> Offer:
    return next((offer for pattern, offer in offers.items() if fnmatchcase(model, pattern)), _NOTHING)


def _make_offer(entry: ModelEntry) -> Offer:
    prices = make_prices(*entry.rates) if entry.rates is not None else None
    if prices is None:
        return Offer(entry.window, entry.output)
    tiers = [Tier(above, _make_tier_rates(stated, prices.rates)) for above, stated in entry.tiers.items()]
    return Offer(entry.window, entry.output, Prices(prices.rates, tuple(tiers)))


def _make_tier_rates(stated: StatedRates, base: Rates) -> Rates:
    """Return a tier's rates. Missing ones are the base rates, scaled as the input price is."""
    given, output, cached, written = stated
    scale = given / base.input
    return Rates(given, output or base.output * scale, cached or base.cached * scale, written or base.written * scale)
