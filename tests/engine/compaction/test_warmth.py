"""Warm calls that are not."""

from proxy.engine.compaction.warmth import Warmth
from proxy.model.exchange import Usage

COLD, WARM = Usage(1000, 10, cached=799), Usage(1000, 10, cached=800)


def hear(*usages: Usage | None) -> bool:
    warmth = Warmth()
    for usage in usages:
        warmth.note("main", "m", 1.0, usage)
    assert not warmth.is_cold("other", "m")
    return warmth.is_cold("main", "m")


def test_twice_cold_is_cold_from_then_on() -> None:
    assert not hear(COLD)
    assert hear(COLD, COLD)
    assert hear(COLD, COLD, WARM)


def test_a_warm_one_between_is_taken_for_more() -> None:
    assert not hear(COLD, WARM, COLD)


def test_what_was_not_reported_tells_nothing() -> None:
    assert not hear(Usage(1000, 10), Usage(cached=0), None, Usage(0, 0, cached=0))
    assert hear(COLD, Usage(1000, 10), COLD)


def test_most_calls_are_answered_within_the_percentile() -> None:
    warmth = Warmth()
    assert warmth.find_p95("main", "m") is None
    for seconds in range(1, 21):
        warmth.note("main", "m", float(seconds))
    assert warmth.find_p95("main", "m") == 19.0
    for _ in range(64):
        warmth.note("main", "m", 2.0)
    assert warmth.find_p95("main", "m") == 2.0


def test_only_so_many_models_are_remembered() -> None:
    warmth = Warmth()
    for number in range(1025):
        warmth.note("main", f"m{number}", 1.0)
    assert warmth.find_p95("main", "m0") is None
    assert warmth.find_p95("main", "m1") == 1.0
