"""What is done behind the first step of other work comes once, and before anything else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from proxy.engine.runtime import call_after_first_step


async def test_what_is_done_comes_behind_the_first_step_and_before_anything_else() -> None:
    happened: list[str] = []
    release = asyncio.Event()

    async def work() -> int:
        happened.append("step")
        await release.wait()
        await asyncio.sleep(0)
        happened.append("rest")
        return 7

    asyncio.get_running_loop().call_soon(happened.append, "other")
    asyncio.get_running_loop().call_soon(release.set)
    assert await call_after_first_step(work(), lambda: happened.append("then")) == 7
    assert happened == ["step", "then", "other", "rest"]


async def test_work_that_never_waits_is_followed_by_it_too() -> None:
    happened: list[str] = []

    async def work() -> int:
        happened.append("step")
        return 7

    assert await call_after_first_step(work(), lambda: happened.append("then")) == 7
    assert happened == ["step", "then"]


async def test_it_is_not_done_behind_work_that_fails_at_once() -> None:
    happened: list[str] = []

    async def work() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await call_after_first_step(work(), lambda: happened.append("then"))
    assert happened == []


async def test_what_comes_of_a_future_is_returned() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert await call_after_first_step(future, lambda: future.set_result(8)) == 8


async def cancel(work: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
    """A task that has been told to end in the midst of the work."""

    async def host() -> int:
        return await call_after_first_step(work, lambda: None)

    task = asyncio.ensure_future(host())
    await asyncio.sleep(0)
    task.cancel()
    return task


async def test_who_is_told_to_end_tells_the_work_which_may_put_its_things_in_order() -> None:
    happened: list[str] = []

    async def work() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            happened.append("order")
        return 7

    task = await cancel(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert happened == ["order"]


async def test_work_may_make_light_of_being_told_to_end() -> None:
    async def work() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 9
        return 7

    task = await cancel(work())
    assert await task == 9
