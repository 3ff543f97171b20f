"""A bounded number of items at a time, lazily taken, with results as they come, and nothing left running."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from proxy.engine.mapping.pool import Inputs, run_each
from proxy.engine.runtime import TaskRunner
from proxy.model.errors import StoreUnavailable


class Bench:
    """Work whose items end when they are told to, with what was running at most."""

    def __init__(self) -> None:
        self.tasks = TaskRunner()
        self.running = self.most = self.begun = 0
        self.is_busy = asyncio.Event()

    async def work(self, number: int, item: float) -> str:
        self.running += 1
        self.begun += 1
        self.most = max(self.most, self.running)
        if self.running == 4:
            self.is_busy.set()
        try:
            await asyncio.sleep(item)
        finally:
            self.running -= 1
        return f"{number}:{item:g}"

    async def run(self, inputs: Inputs[float], concurrency: int = 4) -> list[str]:
        return [result async for _, result in run_each(inputs, self.work, concurrency, self.tasks)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert not made.running
    assert not len(made.tasks)


async def test_results_come_in_the_order_of_completion(bench: Bench) -> None:
    assert await bench.run([0.03, 0.02, 0.01]) == ["2:0.01", "1:0.02", "0:0.03"]


async def test_no_more_run_at_once_than_allowed(bench: Bench) -> None:
    assert len(await bench.run([0.001] * 50, 3)) == 50
    assert bench.most == 3


async def test_an_async_input_is_taken_as_its_items_come(bench: Bench) -> None:
    async def come() -> AsyncIterator[float]:
        for _ in range(5):
            await asyncio.sleep(0.001)
            yield 0.0

    assert sorted(await bench.run(come())) == [f"{n}:0" for n in range(5)]


async def test_no_items_give_no_results(bench: Bench) -> None:
    assert await bench.run([]) == []


async def test_an_endless_input_is_taken_no_faster_than_its_results(bench: Bench) -> None:
    taken = 0

    def count() -> Iterator[float]:
        nonlocal taken
        while True:
            taken += 1
            yield 0.0

    results = run_each(count(), bench.work, 4, bench.tasks)
    async for number, _ in results:
        await asyncio.sleep(0.001)  # a slow consumer
        if number >= 20:
            break
    await results.aclose()
    assert taken <= 20 + 2 * 4 + 4


async def test_what_an_input_raises_comes_after_the_results_before_it(bench: Bench) -> None:
    def come() -> Iterator[float]:
        yield 0.01
        raise LookupError("no more")

    results = []
    with pytest.raises(LookupError, match="no more"):
        async for _, result in run_each(come(), bench.work, 4, bench.tasks):
            results.append(result)
    assert results == ["0:0.01"]


async def test_closing_ends_what_is_running(bench: Bench) -> None:
    closed = False

    async def come() -> AsyncIterator[float]:
        nonlocal closed
        try:
            yield 0.0
            while True:
                yield 100.0
        finally:
            closed = True

    results = run_each(come(), bench.work, 4, bench.tasks)
    assert await anext(results) == (0, "0:0")
    assert bench.running
    await results.aclose()
    assert closed


async def test_cancelling_the_consumer_ends_what_is_running(bench: Bench) -> None:
    consumer = asyncio.ensure_future(bench.run([100.0] * 100))
    await bench.is_busy.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert bench.begun == 4


async def test_a_consumer_learns_that_the_engine_was_closed(bench: Bench) -> None:
    consumer = asyncio.ensure_future(bench.run([100.0] * 100))
    await bench.is_busy.wait()
    await bench.tasks.finish(0)
    with pytest.raises(StoreUnavailable, match="closed before all items"):
        await consumer
