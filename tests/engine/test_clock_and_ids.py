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
