"""Events are values: equal by content, and nobody who receives one can change it for the next."""

import pytest

from proxy.model.epoch import Plan
from proxy.model.events import CallUnreadableEvent, ExchangeRecorded, Planned


def test_events_with_the_same_content_are_equal() -> None:
    assert CallUnreadableEvent(exchange="x1", error="not JSON") == CallUnreadableEvent(exchange="x1", error="not JSON")
    assert CallUnreadableEvent(exchange="x1", error="not JSON") != CallUnreadableEvent(exchange="x2", error="not JSON")


@pytest.mark.parametrize(
    "event",
    [
        CallUnreadableEvent(exchange="x1", error="not JSON"),
        ExchangeRecorded("x1", "s", "managed", "chat_completions", "main", 200, "complete", 1, 2, 0.1, 0.2),
    ],
)
def test_a_subscriber_cannot_change_an_event(event: CallUnreadableEvent | ExchangeRecorded) -> None:
    with pytest.raises(AttributeError):
        event.exchange = "x9"  # type: ignore[misc]


def test_a_plan_is_of_its_request() -> None:
    assert Planned("s1", Plan("x1", 0, "m", "plan")).exchange == "x1"
