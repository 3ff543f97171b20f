"""What is known of a model, put together from what several sources say.

Rule: the nearest source wins, value by value: settings, then the upstream itself, then the bundled map; a limit that
the upstream let us learn only ever lowers a window, and only as far as BEHAVIOUR B18 believes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from proxy.context.model_names import list_names, strip_provider
from proxy.model.card import UNPRICED, Card, Limit, Offer, Source

_LEAST_BELIEVED = 0.25
_REMEMBERED_SECONDS = 24 * 3600.0

T = TypeVar("T")
Said = tuple[Source, Offer]


def make_card(said: Sequence[Said], limit: Limit | None, now: float) -> Card:
    """One card from what was said, the nearest source first."""
    window, window_source = _first((source, offer.window) for source, offer in said)
    output, output_source = _first((source, offer.output) for source, offer in said)
    prices, prices_source = _first((source, offer.prices) for source, offer in said)
    retention, _ = _first((source, offer.retention) for source, offer in said)
    if limit is not None and is_believed(limit, window, now):
        window, window_source = limit.window, "learned"
    return Card(window, output, prices or UNPRICED, window_source, output_source, prices_source, retention)


def is_believed(limit: Limit, stated: int | None, now: float) -> bool:
    """Whether a learned window counts: young, below what was sent, and 25 to 100 % of a window somebody stated."""
    if not 0 < limit.window < limit.sent or now - limit.learned >= _REMEMBERED_SECONDS:
        return False
    return stated is None or _LEAST_BELIEVED * stated <= limit.window <= stated


class Names:
    """The names of a map's entries, to find those that speak of a model."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._whole = {name.lower(): name for name in reversed(entries)}
        self._bare: dict[str, list[str]] = {}
        for name in entries:
            self._bare.setdefault(strip_provider(name.lower()), []).append(name)

    def find(self, model: str) -> Sequence[str]:
        """The entry of that name, else all that differ in the provider only; for the most exact name that has any."""
        for name in list_names(model):
            if name in self._whole:
                return (self._whole[name],)
            if name in self._bare:
                return self._bare[name]
        return ()


def find_offer(names: Names, offers: Mapping[str, Offer], model: str) -> Offer:
    """What a listing says of a model."""
    return agree([offers[name] for name in names.find(model)])


def agree(offers: Sequence[Offer]) -> Offer:
    """What several providers of one model have in common: the smallest of each size, prices only if all agree."""
    prices = {offer.prices for offer in offers}
    return Offer(
        window=min((offer.window for offer in offers if offer.window), default=None),
        output=min((offer.output for offer in offers if offer.output), default=None),
        prices=prices.pop() if len(prices) == 1 else None,
    )


def _first(values: Iterable[tuple[Source, T | None]]) -> tuple[T | None, Source]:
    for source, value in values:
        if value is not None:
            return value, source
    return None, ""
