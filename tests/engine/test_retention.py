"""What is erased without being asked: too old, or too much, and never what is in use."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from proxy.engine.erasing.retention import Retention
from proxy.engine.erasing.service import SessionErasing
from proxy.engine.policy import StoreSettings
from proxy.model.erasing import Cause, ErasableSession

HOUR, DAY, NOW = 3_600_000, 86_400_000, 1_760_000_000_000


class Clock:
    """It stands still."""

    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class FakeEraser:
    """Sessions of 100 bytes each, with the time of their newest call."""

    def __init__(self, **last: int) -> None:
        self.left = last
        self.erased: list[tuple[str, Cause]] = []
        self.overwritten = self.removed = 0

    async def list_idle(self, before_ms: int, limit: int) -> Sequence[ErasableSession]:
        old = sorted((last, name) for name, last in self.left.items() if last < before_ms)
        return [ErasableSession(name, last) for last, name in old[:limit]]

    async def erase_slowly(self, sessions: Sequence[str], cause: Cause) -> int:
        self.erased += [(name, cause) for name in sessions]
        for name in sessions:
            del self.left[name]
        return 100 * len(sessions)

    async def measure_used(self) -> int:
        return 100 * len(self.left)

    async def remove_rest(self) -> Mapping[str, str]:
        self.removed += 1
        return {}

    async def overwrite(self) -> bool:
        self.overwritten += 1
        return True


def make_retention(eraser: FakeEraser, days: int = 0, max_bytes: int = 0, busy: str = "") -> Retention:
    async def settle(session: str) -> str:
        return "a call is under way" if session == busy else ""

    async def sleep(seconds: float) -> None: ...

    erasing = SessionErasing(log=cast(Any, None), eraser=cast(Any, eraser), settle=settle)
    return Retention(
        policy=StoreSettings(retention_days=days, max_bytes=max_bytes, when_full="erase"),
        erasing=erasing,
        clock=Clock(),
        sleep=sleep,
    )


async def test_what_is_older_is_erased_in_the_order_of_its_age() -> None:
    eraser = FakeEraser(**{f"s{n:03}": NOW - 9 * DAY + n for n in range(120)}, young=NOW - 6 * DAY)
    await make_retention(eraser, days=7).enforce()
    assert eraser.erased == [(f"s{n:03}", "age") for n in range(120)]
    assert list(eraser.left) == ["young"] and eraser.overwritten


async def test_the_longest_idle_sessions_make_room_and_what_was_called_within_the_hour_stays() -> None:
    eraser = FakeEraser(**{f"s{n}": NOW - 10 * HOUR + n for n in range(9)}, live=NOW - HOUR // 2)
    await make_retention(eraser, max_bytes=1000).enforce()
    assert eraser.erased == [("s0", "size"), ("s1", "size")]
    await make_retention(eraser, max_bytes=100).enforce()
    assert list(eraser.left) == ["live"]


async def test_a_session_in_use_stays() -> None:
    eraser = FakeEraser(busy=NOW - 9 * DAY, old=NOW - 8 * DAY)
    await make_retention(eraser, days=7, busy="busy").enforce()
    assert list(eraser.left) == ["busy"]


@pytest.mark.parametrize("most", [0, 10_000])
async def test_nothing_is_erased_that_nobody_asked_to(most: int) -> None:
    eraser = FakeEraser(old=5)
    await make_retention(eraser, max_bytes=most).enforce()
    assert eraser.erased == []


async def test_without_a_policy_only_what_was_begun_is_finished() -> None:
    eraser = FakeEraser(old=5)
    await make_retention(eraser).run()
    assert (eraser.erased, eraser.overwritten > 0, eraser.removed) == ([], True, 1)


async def test_what_was_begun_is_finished_before_the_first_pause() -> None:
    eraser, done = FakeEraser(), list[tuple[int, int]]()

    async def sleep(seconds: float) -> None:
        done.append((eraser.removed, eraser.overwritten))

    await replace(make_retention(eraser), sleep=sleep).run()
    assert done == [(1, 1)]
