import pytest

from proxy.engine.ports import Leases
from tests.store.lease_contract import LeaseContract
from tests.support.engine import FixedClock
from tests.support.leases import MemoryLeases


class TestMemoryLeases(LeaseContract):
    @pytest.fixture
    def leases(self, clock: FixedClock) -> Leases:
        return MemoryLeases(clock)
