"""The real clock and real ids: what everything else relies on."""

import re
from itertools import pairwise

from proxy.engine.runtime import SystemClock, SystemIds


def test_ids_are_short_plain_and_never_the_same() -> None:
    ids = [SystemIds().next_exchange() for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[0-9a-v]{24}", each) for each in ids)


def test_ids_of_later_milliseconds_sort_behind_earlier_ones() -> None:
    clock, ids = SystemClock(), SystemIds()
    stamped: list[str] = []
    for _ in range(3):
        before = clock.now_ms()
        while clock.now_ms() == before:
            pass
        stamped.append(ids.next_exchange())
    assert all(one < other for one, other in pairwise(stamped))


def test_the_wall_clock_counts_milliseconds_of_this_century() -> None:
    assert 1_600_000_000_000 < SystemClock().now_ms() < 4_200_000_000_000


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
