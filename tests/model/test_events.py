"""Events are values: equal by content, and nobody who receives one can change it for the next."""

from proxy.model.epoch import Plan
from proxy.model.events import Planned


def test_a_plan_is_of_its_request() -> None:
    assert Planned("s1", Plan("x1", 0, "m", "plan")).exchange == "x1"
