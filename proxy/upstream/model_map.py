"""The map of models that comes with the package: their windows, longest answers and prices.

It is a data file beside this module, with the date and the source that `scripts/model_map.py` made it from.
"""

from pathlib import Path

import msgspec

from proxy.context.model_catalog import ModelNames, merge_offers
from proxy.model.card import Offer, Prices, Rates, Tier
from proxy.wire.model_listing import make_prices

PATH = Path(__file__).with_suffix(".json")

# Per token: input, output, input read from the cache, input written to it. Only the first is always stated.
StatedRates = tuple[float, float | None, float | None, float | None]


class ModelEntry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the map states of a model; `tiers` are the prices of requests with more input tokens than the key."""

    window: int | None = None
    output: int | None = None
    rates: StatedRates | None = None
    tiers: dict[int, StatedRates] = {}


class _MapFile(msgspec.Struct, frozen=True, gc=False):
    """The file: which version of what it was made from, and when."""

    source: str
    date: str
    models: dict[str, ModelEntry]


class ModelMap:
    """The map, by names of models."""

    def __init__(self, content: bytes) -> None:
        found = msgspec.json.decode(content, type=_MapFile)
        self.source, self.date, self.entries = found.source, found.date, found.models
        self._names = ModelNames(tuple(found.models))

    def find(self, model: str) -> Offer:
        """Return what the map says of a model, by its name with or without a provider's; empty where it has none."""
        return merge_offers([_make_offer(self.entries[name]) for name in self._names.find(model)])


def load_model_map() -> ModelMap:
    """Read the file. Takes some 10 ms."""
    return ModelMap(PATH.read_bytes())


def _make_offer(entry: ModelEntry) -> Offer:
    prices = make_prices(*entry.rates) if entry.rates is not None else None
    if prices is None:
        return Offer(entry.window, entry.output)
    tiers = [Tier(above, _make_tier_rates(stated, prices.rates)) for above, stated in entry.tiers.items()]
    return Offer(entry.window, entry.output, Prices(prices.rates, tuple(tiers)))


def _make_tier_rates(stated: StatedRates, base: Rates) -> Rates:
    """Return a tier's rates; what it does not state is in the proportion of the base."""
    given, output, cached, written = stated
    scale = given / base.input
    return Rates(given, output or base.output * scale, cached or base.cached * scale, written or base.written * scale)
