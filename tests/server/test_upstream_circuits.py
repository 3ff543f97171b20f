"""One circuit for each upstream: what opens and closes it, and that it is nobody else's."""

import pytest

from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import Completeness
from proxy.server.health import OPEN_AFTER, UpstreamCircuits


def ended(upstream: str, status: int, *, is_unreached: bool = False) -> ExchangeRecorded:
    """The end of a call."""
    how: Completeness = "complete" if status else "failed"
    return ExchangeRecorded(
        "e", "s", "managed", "chat_completions", upstream, status, how, 10, 20, 0.1, 0.2, is_unreached=is_unreached
    )


@pytest.fixture
def bus() -> EngineBus:
    return EngineBus(TaskRunner())


@pytest.mark.parametrize(("status", "told"), [(0, "no response"), (503, "status 503")])
def test_failures_in_a_row_open_the_circuit_of_their_upstream_alone(bus: EngineBus, status: int, told: str) -> None:
    circuits = UpstreamCircuits(("a", "b"), bus)
    for count in range(1, OPEN_AFTER + 1):
        bus.publish(ended("a", status, is_unreached=not status))
        state = "open" if count == OPEN_AFTER else "closed"
        assert circuits.describe()["a"] == {"circuit": state, "failures": count, "last": told}
    assert circuits.describe()["b"] == {"circuit": "closed"}


@pytest.mark.parametrize("status", [200, 400, 401, 429])
def test_any_response_closes_it(bus: EngineBus, status: int) -> None:
    circuits = UpstreamCircuits(("a",), bus)
    for _ in range(OPEN_AFTER):
        bus.publish(ended("a", 500))
    bus.publish(ended("a", status))
    assert circuits.describe() == {"a": {"circuit": "closed"}}


def test_a_call_that_never_went_there_tells_nothing(bus: EngineBus) -> None:
    circuits = UpstreamCircuits(("a",), bus)
    bus.publish(ended("a", 500))
    bus.publish(ended("a", 0))
    assert circuits.describe()["a"]["failures"] == 1
