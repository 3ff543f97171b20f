"""A report is begun at the soft mark while the cache is warm; else when the high mark is near."""

import dataclasses

import pytest
from msgspec.structs import replace

from proxy.context.pricing import make_tariff
from proxy.context.provider_cache import CacheModel
from proxy.engine.compaction.urgency import Urgency
from proxy.engine.policy import Provider
from proxy.model.card import UNPRICED
from proxy.model.exchange import Usage
from tests.support.compacting import FREE, Workshop
from tests.support.managing import MODEL, make_history

HISTORY = make_history(24, 1200)
INTERVAL = 100.0
SOFT, HIGH = 14, 20


def find_urgency(shop: Workshop) -> Urgency:
    return shop.worker._shop.urgency


def cool(shop: Workshop, seconds: float, model: str = MODEL) -> None:
    """Calls of our own took so long, and were not read from the cache."""
    for _ in range(2):
        find_urgency(shop).warmth.note("main", model, seconds, Usage(1000, 10, cached=0))


async def find_first(shop: Workshop, stop: int = HIGH) -> int | None:
    """The step behind which a report was begun, a call every hundred seconds."""
    for steps in range(SOFT - 2, stop):
        shop.clock.advance(INTERVAL)
        await shop.ask(HISTORY[: 2 + 2 * steps])
        if shop.model.asked:
            return steps
    return None


async def test_while_the_cache_is_warm_it_is_begun_at_the_soft_mark() -> None:
    shop = Workshop()
    find_urgency(shop).warmth.note("main", MODEL, 1.0)
    assert await find_first(shop) == SOFT


async def test_where_it_is_cold_it_is_begun_the_later_the_quicker_models_are() -> None:
    begun = []
    for seconds in (1.0, 100.0, 200.0, 2000.0):
        shop = Workshop()
        cool(shop, seconds)
        begun.append(await find_first(shop))
    assert begun == [None, 19, 17, SOFT]


async def test_before_the_first_report_it_may_take_as_long_as_it_is_allowed_to() -> None:
    begun = []
    for seconds in (1.0, 100.0):
        shop = Workshop(policy=dataclasses.replace(FREE, model="small", time_limit_seconds=seconds))
        cool(shop, 5000.0)
        begun.append(await find_first(shop))
    assert begun == [None, 19]


async def test_how_fast_it_grows_is_not_known_before_the_second_call() -> None:
    shop = Workshop()
    cool(shop, 1.0)
    latest = await shop.look_at(HISTORY[: 2 + 2 * SOFT])
    assert find_urgency(shop).is_due(latest)
    assert not find_urgency(shop).is_due(replace(latest, interval=INTERVAL))


@pytest.mark.parametrize("kind", ["prefix", "local"])
async def test_a_cache_that_is_not_used_is_cold_and_a_local_server_is_asked_when_it_is_idle(kind: str) -> None:
    shop = Workshop(provider=Provider(cache="local") if kind == "local" else None)
    latest = replace(await shop.look_at(HISTORY[: 2 + 2 * SOFT]), interval=INTERVAL)
    find_urgency(shop).warmth.note("main", MODEL, 1.0)
    assert find_urgency(shop).is_due(latest)
    unused = make_tariff(UNPRICED, CacheModel("local" if kind == "local" else "prefix", is_used=False))
    latest = replace(latest, case=replace(latest.case, tariff=unused))
    assert find_urgency(shop).is_due(latest) == (kind == "local")
