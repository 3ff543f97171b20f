"""What is known of each upstream's models: windows, answers, prices.

Rule: looking up never waits and never fails; `open` reads the bundled map, once, in a thread. What is learned is kept
for whom it was learned, and forgotten when it is old.
"""

import asyncio
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from proxy.context.model_catalog import ModelNames, SourcedOffer, look_up_offer, make_card
from proxy.engine.ports import Clock
from proxy.model.card import Card, Limit, LimitKey, Offer
from proxy.upstream.model_map import ModelMap, load_model_map
from proxy.wire.model_listing import read_listing

_MOST_LIMITS = 1024
_NOTHING = Offer()


class ModelCatalog:
    """Cards of models.

    What the settings say of models: `stated` by their upstream's name, `priced` by a shell pattern of theirs.
    """

    def __init__(
        self,
        stated: Mapping[str, Offer],
        priced: Mapping[str, Offer],
        clock: Clock,
        load: Callable[[], ModelMap] = load_model_map,
    ) -> None:
        self._stated = stated
        self._priced = priced
        self._clock = clock
        self._load = load
        self._bundled: ModelMap | None = None
        self._opening = asyncio.Lock()
        self._listed: dict[str, tuple[ModelNames, Mapping[str, Offer]]] = {}
        self._limits: dict[LimitKey, Limit] = {}

    async def open(self) -> None:
        """Read the bundled map, where that has not been done; until then nothing is known from it."""
        async with self._opening:
            if self._bundled is None:
                self._bundled = await asyncio.to_thread(self._load)

    def note_listing(self, upstream: str, content: bytes) -> None:
        """Take in an upstream's answer that lists its models; one that says nothing changes nothing."""
        offers = read_listing(content)
        if offers:
            self._listed[upstream] = ModelNames(tuple(offers)), offers

    def note_limit(self, key: LimitKey, window: int, sent: int) -> None:
        """Take in the window that an upstream named when it refused `sent` tokens."""
        self._limits.pop(key, None)
        self._limits[key] = Limit(window, sent, self._clock.monotonic())
        if len(self._limits) > _MOST_LIMITS:
            del self._limits[next(iter(self._limits))]

    def find(self, key: LimitKey) -> Card:
        """What is known of a model now."""
        names, offers = self._listed.get(key.upstream, (ModelNames(()), {}))
        said: tuple[SourcedOffer, ...] = (
            ("settings", self._stated.get(key.upstream, _NOTHING)),
            ("settings", self._find_priced(key.model)),
            ("upstream", look_up_offer(names, offers, key.model)),
            ("bundled", self._bundled.find(key.model) if self._bundled is not None else _NOTHING),
        )
        return make_card(said, self._limits.get(key), self._clock.monotonic())

    def _find_priced(self, model: str) -> Offer:
        return next((offer for pattern, offer in self._priced.items() if fnmatchcase(model, pattern)), _NOTHING)
