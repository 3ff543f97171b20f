"""The bus: everybody hears in order, and nobody's failure is anybody else's."""

import asyncio
import logging

import pytest

from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.events import CallUnreadableEvent, Event, ExchangeRecorded, SessionClosedEvent
from tests.support.scripted import LIMIT

EVENT = CallUnreadableEvent(exchange="x1", error="why")


def fail(event: Event) -> None:
    raise RuntimeError("mine")


async def fail_later(event: Event) -> None:
    raise RuntimeError("mine, later")


async def test_subscribers_of_a_type_hear_in_order_of_subscription() -> None:
    bus = EngineBus(TaskRunner())
    heard: list[str] = []
    bus.subscribe(CallUnreadableEvent, lambda event: heard.append("first"))
    bus.subscribe(CallUnreadableEvent, lambda event: heard.append("second"))
    bus.subscribe(ExchangeRecorded, lambda event: heard.append("other"))
    bus.publish(EVENT)
    assert heard == ["first", "second"]


async def test_what_a_subscriber_publishes_is_heard_after_what_it_heard_by_everybody() -> None:
    bus, heard = EngineBus(TaskRunner()), list[Event]()
    other = CallUnreadableEvent(exchange="x2", error="why")
    bus.subscribe(SessionClosedEvent, lambda event: bus.publish(other))
    bus.subscribe(SessionClosedEvent, heard.append)
    bus.subscribe(CallUnreadableEvent, heard.append)
    for _ in range(2):
        bus.publish(SessionClosedEvent(session="s"))
    assert heard == [SessionClosedEvent(session="s"), other] * 2


def interrupt(event: Event) -> None:
    raise KeyboardInterrupt


async def test_a_bus_goes_on_after_an_interrupt() -> None:
    bus, heard = EngineBus(TaskRunner()), list[Event]()
    bus.subscribe(SessionClosedEvent, interrupt)
    bus.subscribe(CallUnreadableEvent, heard.append)
    with pytest.raises(KeyboardInterrupt):
        bus.publish(SessionClosedEvent(session="s"))
    bus.publish(EVENT)
    assert heard == [EVENT]


async def test_an_event_without_subscribers_goes_nowhere() -> None:
    bus, heard = EngineBus(TaskRunner()), list[Event]()
    bus.publish(EVENT)
    bus.subscribe(CallUnreadableEvent, heard.append)
    assert heard == []


async def test_a_subscriber_that_fails_is_logged_and_the_next_one_hears(caplog: pytest.LogCaptureFixture) -> None:
    bus = EngineBus(TaskRunner())
    heard: list[Event] = []
    bus.subscribe(CallUnreadableEvent, fail)
    bus.subscribe(CallUnreadableEvent, heard.append)
    with caplog.at_level(logging.ERROR):
        bus.publish(EVENT)
    assert heard == [EVENT]
    assert "handling the event CallUnreadableEvent failed" in caplog.text


async def test_an_asynchronous_subscriber_gets_a_task_that_the_runner_holds() -> None:
    tasks = TaskRunner()
    bus = EngineBus(tasks)
    release, heard = asyncio.Event(), list[Event]()

    async def listen(event: Event) -> None:
        await release.wait()
        heard.append(event)

    bus.subscribe(CallUnreadableEvent, listen)
    bus.publish(EVENT)
    assert (len(tasks), heard) == (1, [])
    release.set()
    assert await tasks.finish(LIMIT)
    assert heard == [EVENT]


async def test_an_asynchronous_failure_is_logged_and_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskRunner()
    bus = EngineBus(tasks)
    bus.subscribe(CallUnreadableEvent, fail_later)
    with caplog.at_level(logging.ERROR):
        bus.publish(EVENT)
        assert await tasks.finish(LIMIT)
    assert "mine, later" in caplog.text


async def test_a_forgotten_subscriber_hears_nothing_more_wherever_it_subscribed() -> None:
    bus = EngineBus(TaskRunner())
    heard: list[Event] = []
    listener = heard.append
    bus.subscribe(CallUnreadableEvent, listener)
    bus.subscribe(ExchangeRecorded, listener)
    bus.unsubscribe(listener)
    bus.publish(EVENT)
    assert heard == []


async def test_forgetting_one_subscriber_leaves_the_others() -> None:
    bus = EngineBus(TaskRunner())
    left: list[Event] = []
    kept: list[list[Event]] = [[], []]
    leaver = left.append
    bus.subscribe(CallUnreadableEvent, leaver)
    bus.subscribe(CallUnreadableEvent, lambda event: kept[0].append(event))
    bus.subscribe(CallUnreadableEvent, lambda event: kept[1].append(event))
    bus.unsubscribe(leaver)
    bus.publish(EVENT)
    assert (left, kept) == ([], [[EVENT], [EVENT]])


async def test_a_subscriber_may_leave_while_it_is_told() -> None:
    bus = EngineBus(TaskRunner())
    heard: list[str] = []

    def once(event: Event) -> None:
        heard.append("once")
        bus.unsubscribe(once)

    bus.subscribe(CallUnreadableEvent, once)
    bus.subscribe(CallUnreadableEvent, lambda event: heard.append("always"))
    bus.publish(EVENT)
    bus.publish(EVENT)
    assert heard == ["once", "always", "always"]
