"""Subscribers to all events."""

from collections.abc import Callable

from proxy.engine.runtime import EngineBus
from proxy.model.events import Event


def hear_all(bus: EngineBus, subscriber: Callable[[Event], None]) -> None:
    """Call `subscriber` with every event of the bus."""
    waiting = [Event]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        bus.subscribe(kind, subscriber)
