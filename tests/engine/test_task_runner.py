"""Tasks: held while they run, reported when they fail, ended in bounded time."""

import asyncio
import gc
import logging

import pytest

from proxy.engine.runtime import TaskRunner
from tests.support.scripted import LIMIT


async def test_a_task_is_held_until_it_is_done() -> None:
    tasks = TaskRunner()
    release = asyncio.Event()
    done: list[bool] = []

    async def work() -> None:
        await release.wait()
        done.append(True)

    tasks.spawn(work())
    gc.collect()
    assert len(tasks) == 1
    release.set()
    assert await tasks.finish(LIMIT)
    assert (len(tasks), done) == (0, [True])


async def test_what_a_task_raises_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskRunner()
    release = asyncio.Event()
    done: list[bool] = []

    async def fail() -> None:
        release.set()
        raise RuntimeError("broken work")

    async def work() -> None:
        await release.wait()
        done.append(True)

    with caplog.at_level(logging.ERROR):
        tasks.spawn(fail())
        tasks.spawn(work())
        assert await tasks.finish(LIMIT)
    assert done == [True]
    assert "broken work" in caplog.text


async def test_a_cancelled_task_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskRunner()
    task = tasks.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    task.cancel()
    assert await tasks.finish(LIMIT)
    assert task.cancelled()
    assert caplog.text == ""


async def test_finishing_without_tasks_returns_at_once() -> None:
    assert await TaskRunner().finish(0)


async def test_tasks_that_do_not_end_are_cancelled_and_that_is_said() -> None:
    tasks = TaskRunner()
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    task = tasks.spawn(work())
    assert not await tasks.finish(0.01)
    assert task.cancelled()
    assert cleaned.is_set()
    assert len(tasks) == 0


async def test_finishing_also_waits_for_tasks_that_a_task_starts_at_its_end() -> None:
    tasks = TaskRunner()
    done: list[str] = []

    async def follow() -> None:
        await asyncio.sleep(0)
        done.append("followed")

    async def lead() -> None:
        tasks.spawn(follow())

    tasks.spawn(lead())
    assert await tasks.finish(LIMIT)
    assert done == ["followed"]
