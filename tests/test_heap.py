"""Memory is given back in a pause, when there is enough of it."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any, cast

import pytest

from proxy.heap import HeapTrimmer, find_heap, read_resident_bytes, tune_collector

MIB = 1024 * 1024


class Timers:
    """An event loop that only keeps timers; the test fires them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> "Timers":
        self.waiting.append(lambda: callback(*args))
        return self

    def cancel(self) -> None:
        self.waiting.clear()

    def run_next(self) -> None:
        """Fire the timer that is set."""
        (fire,) = self.waiting
        self.waiting.clear()
        fire()


class World:
    """A process whose size and business the test sets."""

    def __init__(self) -> None:
        self.size = 50 * MIB
        self.calls: list[str] = []
        self.trimmed = 0
        self.timers = Timers()
        self.trimmer = HeapTrimmer(self.calls, self)

    def start(self) -> None:
        self.trimmer.start(cast(asyncio.AbstractEventLoop, self.timers))

    def trim(self) -> None:
        self.trimmed += 1
        self.size -= 10 * MIB

    def read_slack(self) -> int:
        return self.size


def test_growth_is_given_back_once() -> None:
    world = World()
    world.start()
    for _ in range(3):
        world.timers.run_next()
    assert world.trimmed == 1
    world.size += 15 * MIB
    world.timers.run_next()
    assert world.trimmed == 1
    world.size += 1 * MIB
    world.timers.run_next()
    assert world.trimmed == 2


def test_growth_counts_from_the_least_there_was_since() -> None:
    world = World()
    world.start()
    world.timers.run_next()
    world.size -= 20 * MIB
    world.timers.run_next()
    world.size += 15 * MIB
    world.timers.run_next()
    assert world.trimmed == 1
    world.size += 1 * MIB
    world.timers.run_next()
    assert world.trimmed == 2


def test_a_busy_process_is_left_alone() -> None:
    world = World()
    world.calls.append("x1")
    world.start()
    world.timers.run_next()
    assert world.trimmed == 0
    world.calls.clear()
    world.timers.run_next()
    assert world.trimmed == 1


def test_it_stops_when_told_and_never_starts_without_a_way_to_trim() -> None:
    world = World()
    world.start()
    world.trimmer.stop()
    assert world.timers.waiting == []
    without = HeapTrimmer((), None)
    without.start(cast(asyncio.AbstractEventLoop, world.timers))
    without.stop()
    assert world.timers.waiting == []


class CountedHeap:
    """The real heap, whose trims are counted."""

    def __init__(self) -> None:
        heap = find_heap()
        if heap is None:
            pytest.skip("a C library that does not tell what is in use")
        self._heap = heap
        self.trims = 0
        self.read_slack = heap.read_slack

    def trim(self) -> None:
        self.trims += 1
        self._heap.trim()


def test_what_was_in_use_at_the_last_trim_is_given_back_when_it_is_freed() -> None:
    """It stays resident, so that the process has not grown when it is freed."""
    heap, timers = CountedHeap(), Timers()
    trimmer = HeapTrimmer((), heap)
    kept = [bytes(1000) for _ in range(40_000)]
    trimmer.start(cast(asyncio.AbstractEventLoop, timers))
    timers.run_next()
    timers.run_next()
    assert heap.trims == 1
    pins, before = kept[::100], read_resident_bytes()
    kept.clear()
    timers.run_next()
    assert heap.trims == 2
    assert before - read_resident_bytes() > 20 * MIB
    assert len(pins) == 400


async def test_the_real_heap_can_be_measured_and_trimmed() -> None:
    size = read_resident_bytes()
    assert 5 * MIB < size < 5_000 * MIB
    heap = find_heap()
    if heap is not None:
        heap.trim()
    trimmer = HeapTrimmer((), heap)
    trimmer.start(asyncio.get_running_loop())
    trimmer.stop()


def test_the_collector_looks_seldom_and_not_at_what_the_start_has_made() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        tune_collector()
        assert gc.get_threshold()[0] == 20_000
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
