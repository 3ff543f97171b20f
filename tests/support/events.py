"""Subscribers to all events."""

from collections.abc import Callable
from typing import get_args

from proxy.engine.runtime import EngineBus
from proxy.model.events import Event


def hear_all(bus: EngineBus, subscriber: Callable[[Event], None]) -> None:
    """Call `subscriber` with every event of the bus."""
    for kind in get_args(Event):
        bus.subscribe(kind, subscriber)
