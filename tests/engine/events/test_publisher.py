"""The publisher: when events are told, and what waiting for them means."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from proxy.engine.events.publisher import GATHER_SECONDS, EventPublisher
from proxy.engine.events.stream import EventStream
from proxy.engine.models import PriceList
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.events import RungFailedEvent, SessionClosedEvent, StreamedEvent, name_type
from tests.support.scripted import LIMIT


class Log:
    """Numbers calls once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def number(self, exchanges: Sequence[str]) -> Mapping[str, int]:
        self.is_asked.set()
        await self.may.wait()
        return {"x1": 3}


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def tasks() -> TaskRunner:
    return TaskRunner()


@pytest.fixture
def bus(tasks: TaskRunner) -> EngineBus:
    return EngineBus(tasks)


@pytest.fixture
async def stream(bus: EngineBus, log: Log) -> EventStream:
    later = asyncio.get_running_loop().call_later
    prices = PriceList(lambda upstream, model: None, {})  # type: ignore[arg-type, return-value]
    return EventPublisher("run", bus, prices, number=log.number, call_later=later, now_ms=lambda: 7).stream


def fail() -> RungFailedEvent:
    return RungFailedEvent(exchange="x1", session="s1", rung="plan", error="why")


async def test_who_listens_in_this_process_need_not_wait(bus: EngineBus, stream: EventStream, log: Log) -> None:
    heard: list[StreamedEvent] = []
    stream.listen(heard.append)
    loop = asyncio.get_running_loop()
    began = loop.time()
    bus.publish(fail())
    log.may.set()
    async with asyncio.timeout(LIMIT):
        await stream.settle()
    assert [(name_type(type(each)), each.session) for each in heard] == [("RUNG_FAILED", "s1")]
    assert loop.time() - began < GATHER_SECONDS


async def test_settling_waits_for_the_log_and_for_what_comes_meanwhile(
    bus: EngineBus, stream: EventStream, log: Log
) -> None:
    heard: list[StreamedEvent] = []
    stream.listen(heard.append)
    bus.publish(fail())
    waiting = asyncio.create_task(stream.settle())
    async with asyncio.timeout(LIMIT):
        await log.is_asked.wait()
    bus.publish(SessionClosedEvent(session="s1"))
    assert (heard, waiting.done()) == ([], False)
    log.may.set()
    async with asyncio.timeout(LIMIT):
        await waiting
        await stream.settle()  # nothing waits
    assert [name_type(type(each)) for each in heard] == ["RUNG_FAILED", "SESSION_CLOSED"]


async def test_a_listener_that_fails_stops_neither_events_nor_settling(
    bus: EngineBus, stream: EventStream, log: Log
) -> None:
    heard: list[StreamedEvent] = []

    def hear(event: StreamedEvent) -> None:
        heard.append(event)
        raise RuntimeError("against its contract")

    log.may.set()
    stream.listen(hear)
    async with asyncio.timeout(LIMIT):
        bus.publish(fail())
        await stream.settle()
        bus.publish(SessionClosedEvent(session="s1"))
        await stream.settle()
    assert len(heard) == 2
