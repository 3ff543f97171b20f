"""Work on items that come one after another, on a bounded number at a time; results in the order in which they come.

Nothing is taken from the input before there is room for it, and only so many results wait to be taken: a million items
take no more memory than a hundred, and a consumer that takes no more results stops the work.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from proxy.engine.runtime import TaskRunner, attempt
from proxy.model.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")

Inputs = Iterable[T] | AsyncIterable[T]
Work = Callable[[int, T], Awaitable[R]]
"""Makes the result for the n-th item, from 0. What it raises ends the whole run."""


class _Inputs(Generic[T]):
    """Numbers the items of an input. Several may ask for the next one; each item is given once."""

    def __init__(self, inputs: Inputs[T]) -> None:
        self._lock = asyncio.Lock()
        self._count = 0
        self._is_ended = False
        self._later = aiter(inputs) if isinstance(inputs, AsyncIterable) else None
        self._now = iter(inputs) if not isinstance(inputs, AsyncIterable) else None

    async def take(self) -> tuple[int, T] | None:
        """Return the next item with its number, None after the last one."""
        if self._now is not None:
            return self._take_now()
        async with self._lock:
            return await self._take_later()

    def _take_now(self) -> tuple[int, T] | None:
        assert self._now is not None, "checked above"
        try:
            item = next(self._now)
        except StopIteration:
            return None
        self._count += 1
        return self._count - 1, item

    async def _take_later(self) -> tuple[int, T] | None:
        if self._is_ended or self._later is None:
            return None
        try:
            item = await anext(self._later)
        except StopAsyncIteration:
            self._is_ended = True
            return None
        self._count += 1
        return self._count - 1, item

    async def close(self) -> None:
        """Close a generator that is not at its end."""
        close = getattr(self._later, "aclose", None) or getattr(self._now, "close", None)
        if close is not None:
            waiting = close()
            if waiting is not None:
                await waiting


async def run_each(
    inputs: Inputs[T], work: Work[T, R], concurrency: int, tasks: TaskRunner
) -> AsyncGenerator[tuple[int, R]]:
    """Yield the number and the result of each item, as they are completed.

    What the input or `work` raises is raised once the items begun by then have their results. However it ends, also by
    `aclose` or cancellation, nothing is running afterwards.
    """
    taken_from, room = _Inputs(inputs), asyncio.Semaphore(2 * concurrency)
    ready: asyncio.Queue[tuple[int, R] | None] = asyncio.Queue()
    problems: list[Exception] = []

    async def labour() -> None:
        while not problems:
            await room.acquire()
            if (taken := await taken_from.take()) is None:
                return
            ready.put_nowait((taken[0], await work(*taken)))

    async def labour_to_the_end() -> None:
        try:
            await attempt(labour(), problems.append)
        finally:
            ready.put_nowait(None)

    labourers = [tasks.spawn(labour_to_the_end()) for _ in range(concurrency)]
    left = len(labourers)
    try:
        while left:
            result = await ready.get()
            if result is None:
                left -= 1
                room.release()  # one that waits for room looks whether there is anything left to do
            else:
                yield result
                room.release()
        await asyncio.wait(labourers)
        if problems:
            raise problems[0]
        if any(task.cancelled() for task in labourers):
            raise StoreUnavailable("the engine was closed before all items had a result")
    finally:
        await _end(labourers)
        await taken_from.close()


async def _end(labourers: list["asyncio.Task[None]"]) -> None:
    """Cancel tasks, and wait until they have ended."""
    running = [task for task in labourers if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
