"""What is known of models: where each value comes from."""

import asyncio

import msgspec

from proxy.model.card import UNPRICED, Card, LimitKey, Offer, Prices, Rates
from proxy.upstream.model_catalog import ModelCatalog, ModelEntry, ModelMap
from tests.support.engine import FixedClock

KEY = LimitKey("main", "m")


def load() -> ModelMap:
    models = {"m": ModelEntry(1000, 100)}
    return ModelMap(msgspec.json.encode({"source": "a test", "date": "2026-11-24", "caches": [], "models": models}))


def list_models(window: int) -> bytes:
    return msgspec.json.encode({"data": [{"id": "m", "max_model_len": window}]})


def test_before_it_is_opened_nothing_is_known_from_the_map() -> None:
    assert ModelCatalog({}, {}, FixedClock(), load).find(KEY) == Card()


async def test_the_map_is_read_once_however_many_open_it() -> None:
    reads: list[int] = []

    def read() -> ModelMap:
        reads.append(1)
        return load()

    catalog = ModelCatalog({}, {}, FixedClock(), read)
    await asyncio.gather(*(catalog.open() for _ in range(3)))
    assert reads == [1]
    assert catalog.find(KEY) == Card(1000, 100, UNPRICED, "bundled", "bundled", "")


async def test_the_upstreams_word_comes_before_the_map_and_the_settings_before_both() -> None:
    catalog = ModelCatalog({"main": Offer(window=10)}, {}, FixedClock(), load)
    await catalog.open()
    for name in ("main", "other"):
        catalog.note_listing(name, list_models(500))
    found = [catalog.find(LimitKey(name, "m")) for name in ("main", "other", "third")]
    assert [(card.window, card.window_source) for card in found] == [
        (10, "settings"),
        (500, "upstream"),
        (1000, "bundled"),
    ]


def test_a_listing_that_says_nothing_changes_nothing() -> None:
    catalog = ModelCatalog({}, {}, FixedClock(), load)
    catalog.note_listing("main", list_models(500))
    catalog.note_listing("main", b'{"data":[]}')
    assert catalog.find(KEY).window == 500


def test_a_limit_holds_for_whom_it_was_learned_and_for_a_day() -> None:
    clock = FixedClock()
    catalog = ModelCatalog({"main": Offer(window=1000)}, {}, clock, load)
    catalog.note_limit(KEY, 600, 900)
    others = (KEY._replace(tenant=b"t"), KEY._replace(beta="b"), KEY._replace(model="n"))
    assert [catalog.find(key).window for key in (KEY, *others)] == [600, 1000, 1000, 1000]
    clock.advance(24 * 3600)
    assert catalog.find(KEY).window == 1000


def test_the_oldest_limits_are_forgotten() -> None:
    catalog = ModelCatalog({}, {}, FixedClock(), load)
    catalog.note_limit(KEY, 600, 900)
    catalog.note_limit(LimitKey("main", "0"), 600, 900)
    catalog.note_limit(KEY, 500, 900)
    for number in range(1, 1024):
        catalog.note_limit(LimitKey("main", str(number)), 600, 900)
    assert [catalog.find(LimitKey("main", name)).window for name in ("0", "m", "1", "1023")] == [None, 500, 600, 600]


async def test_the_map_is_the_one_of_the_package() -> None:
    catalog = ModelCatalog({}, {}, FixedClock())
    await catalog.open()
    assert catalog.find(LimitKey("main", "gpt-4o")).window == 128_000


async def test_a_price_of_the_settings_is_of_the_first_pattern_that_matches() -> None:
    priced = {
        "gpt-5*": Offer(prices=Prices(Rates(1, 2, 3, 4)), retention=60),
        "gpt-*": Offer(prices=Prices(Rates(5, 6, 7, 8))),
    }
    catalog = ModelCatalog({"main": Offer(window=10)}, priced, FixedClock(), load)
    found = [catalog.find(LimitKey("main", name)) for name in ("gpt-5.1", "gpt-4o", "m")]
    assert [(card.prices.rates.input, card.prices_source, card.retention) for card in found] == [
        *((1, "settings", 60), (5, "settings", None), (1.0, "", None)),
    ]
    assert {card.window for card in found} == {10}
