"""The event bus. Rule: publishing never fails and never waits; a subscriber's exception is the subscriber's."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from proxy.engine.tasks import TaskRunner
from proxy.model.events import Event

E = TypeVar("E", bound=Event)
Subscriber = Callable[[E], Awaitable[None] | None]

_log = logging.getLogger("palimpsest.bus")


class EventBus:
    """Hands each event to the subscribers of its type and to those of all, in order of subscription."""

    def __init__(self, tasks: TaskRunner) -> None:
        self._tasks = tasks
        self._by_type: dict[type[object] | None, list[Subscriber[Any]]] = {}
        self._gathered: dict[type[object], tuple[Subscriber[Any], ...]] = {}

    def subscribe(self, kind: type[E], subscriber: Subscriber[E]) -> None:
        """Call `subscriber` with every event of exactly this type."""
        self._by_type.setdefault(kind, []).append(subscriber)
        self._gathered.clear()

    def subscribe_all(self, subscriber: Subscriber[Event]) -> None:
        """Call `subscriber` with every event."""
        self._by_type.setdefault(None, []).append(subscriber)
        self._gathered.clear()

    def unsubscribe(self, subscriber: Subscriber[Any]) -> None:
        """Forget a subscriber, wherever it subscribed."""
        for subscribers in self._by_type.values():
            if subscriber in subscribers:
                subscribers.remove(subscriber)
        self._gathered.clear()

    def publish(self, event: Event) -> None:
        """Tell everybody; an asynchronous subscriber gets a task of its own."""
        for subscriber in self._gathered.get(type(event)) or self._gather(type(event)):
            try:
                waiting = subscriber(event)
            except Exception:  # noqa: BLE001 - a boundary: a subscriber must not reach the publisher
                _log.exception("a subscriber failed")
                continue
            if waiting is not None:
                self._tasks.spawn(_wait_for(waiting))

    def _gather(self, kind: type[object]) -> tuple[Subscriber[Any], ...]:
        """Whoever is told of events of a type, kept until somebody comes or goes."""
        everybody = (*self._by_type.get(kind, ()), *self._by_type.get(None, ()))
        return self._gathered.setdefault(kind, everybody)


async def _wait_for(waiting: Awaitable[None]) -> None:
    await waiting
