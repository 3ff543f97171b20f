"""Memory is given back in a pause, when there is enough of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy.heap import HeapTrimmer, find_slack, find_trim, read_resident_bytes

MIB = 1024 * 1024


class Timers:
    """An event loop that only keeps timers; the test fires them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_later(self, delay: float, callback: Callable[[Any], object], loop: Any, /) -> "Timers":
        self.waiting.append(lambda: callback(loop))
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
        self.is_idle = True
        self.trimmed = 0
        self.loop = Timers()
        self.trimmer = HeapTrimmer(lambda: self.is_idle, self.trim, lambda: self.size)

    def trim(self) -> None:
        self.trimmed += 1
        self.size -= 10 * MIB


def test_growth_is_given_back_once() -> None:
    world = World()
    world.trimmer.start(world.loop)
    for _ in range(3):
        world.loop.run_next()
    assert world.trimmed == 1
    world.size += 15 * MIB
    world.loop.run_next()
    assert world.trimmed == 1
    world.size += 1 * MIB
    world.loop.run_next()
    assert world.trimmed == 2


def test_growth_counts_from_the_least_there_was_since() -> None:
    world = World()
    world.trimmer.start(world.loop)
    world.loop.run_next()
    world.size -= 20 * MIB
    world.loop.run_next()
    world.size += 15 * MIB
    world.loop.run_next()
    assert world.trimmed == 1
    world.size += 1 * MIB
    world.loop.run_next()
    assert world.trimmed == 2


def test_a_busy_process_is_left_alone() -> None:
    world = World()
    world.is_idle = False
    world.trimmer.start(world.loop)
    world.loop.run_next()
    assert world.trimmed == 0
    world.is_idle = True
    world.loop.run_next()
    assert world.trimmed == 1


def test_it_stops_when_told_and_never_starts_without_a_way_to_trim() -> None:
    world = World()
    world.trimmer.start(world.loop)
    world.trimmer.stop()
    assert world.loop.waiting == []
    without = HeapTrimmer(lambda: True, None, lambda: 0)
    without.start(world.loop)
    without.stop()
    assert world.loop.waiting == []


def test_what_was_in_use_at_the_last_trim_is_given_back_when_it_is_freed() -> None:
    """It stays resident, so that the process has not grown when it is freed."""
    trim, read_slack, loop, trims = find_trim(), find_slack(), Timers(), []
    if trim is None or read_slack is read_resident_bytes:
        pytest.skip("a C library that does not tell what is in use")
    trimmer = HeapTrimmer(lambda: True, lambda: trims.append(trim()), read_slack)
    kept = [bytes(1000) for _ in range(40_000)]
    trimmer.start(loop)
    loop.run_next()
    loop.run_next()
    assert len(trims) == 1
    pins, before = kept[::100], read_resident_bytes()
    kept.clear()
    loop.run_next()
    assert len(trims) == 2
    assert before - read_resident_bytes() > 20 * MIB
    assert len(pins) == 400


async def test_the_real_heap_can_be_measured_and_trimmed() -> None:
    size = read_resident_bytes()
    assert 5 * MIB < size < 5_000 * MIB
    trim = find_trim()
    if trim is not None:
        trim()
    trimmer = HeapTrimmer(lambda: True, trim, find_slack())
    trimmer.start(asyncio.get_running_loop())
    trimmer.stop()
