import pytest

from proxy.engine.ports import Leases
from proxy.store.leases import MemoryLeases, measure
from tests.store.lease_contract import LeaseContract
from tests.support.engine import FixedClock


class TestMemoryLeases(LeaseContract):
    @pytest.fixture
    def leases(self, clock: FixedClock) -> Leases:
        return MemoryLeases(clock)


def test_a_lease_is_measured_in_milliseconds() -> None:
    assert [measure(seconds) for seconds in (0, 0.0004, 1.5, 60)] == [0, 0, 1500, 60_000]
