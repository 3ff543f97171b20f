"""What all leases do; a store subclasses `LeaseContract` and gives it `leases` and their `clock`."""

import pytest

from proxy.engine.ports import Leases
from tests.support.engine import FixedClock

NAMES = ("branch 1", "", "é\ud800", "x" * 10_000)


class LeaseContract:
    """Behaviour of the `Leases` port."""

    @pytest.fixture
    def clock(self) -> FixedClock:
        return FixedClock()

    @pytest.mark.parametrize("key", NAMES)
    async def test_one_holds_it_at_a_time(self, leases: Leases, key: str) -> None:
        assert await leases.acquire(key, "me", 10)
        assert not await leases.acquire(key, "you", 10)
        assert await leases.acquire(key + "2", "you", 10)
        await leases.release(key, "me")
        assert await leases.acquire(key, "you", 10)
        assert not await leases.acquire(key, "me", 10)

    async def test_whoever_holds_it_may_acquire_it_again(self, leases: Leases, clock: FixedClock) -> None:
        assert await leases.acquire("a", "me", 10)
        clock.advance(9)
        assert await leases.acquire("a", "me", 10)
        clock.advance(9.999)
        assert not await leases.acquire("a", "you", 10)

    async def test_when_its_time_is_over_another_takes_it(self, leases: Leases, clock: FixedClock) -> None:
        assert await leases.acquire("a", "me", 1.5)
        clock.advance(1.499)
        assert not await leases.acquire("a", "you", 10)
        clock.advance(0.001)
        assert await leases.acquire("a", "you", 10)
        assert not await leases.renew("a", "me", 10)
        await leases.release("a", "me")  # it is not his any more
        assert not await leases.acquire("a", "third", 10)

    async def test_it_is_kept_by_renewing_it(self, leases: Leases, clock: FixedClock) -> None:
        assert not await leases.renew("a", "me", 10)
        assert await leases.acquire("a", "me", 10)
        assert not await leases.renew("a", "you", 10)
        clock.advance(9)
        assert await leases.renew("a", "me", 10)
        clock.advance(9)
        assert not await leases.acquire("a", "you", 10)
        clock.advance(1)
        assert not await leases.renew("a", "me", 10)
        assert await leases.acquire("a", "you", 10)

    async def test_only_its_holder_gives_it_up(self, leases: Leases) -> None:
        await leases.release("a", "me")
        assert await leases.acquire("a", "me", 10)
        await leases.release("a", "you")
        assert not await leases.acquire("a", "you", 10)
        await leases.release("a", "me")
        await leases.release("a", "me")
        assert await leases.acquire("a", "you", 10)
