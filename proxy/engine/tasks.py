"""Tasks that outlive a request. Rule: every task is held here, named, and waited for before the process ends.

A bare `asyncio.create_task` may be collected while it runs, and its exception is lost; ruff bans it elsewhere.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("palimpsest.tasks")


class TaskRunner:
    """Owns tasks: starts or takes them, keeps them alive, reports what they raise, ends them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task and hold it until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._let_go)
        return task

    async def host(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work in the task at hand, and hold that one meanwhile as if it had been spawned: a task less per call."""
        task = asyncio.current_task()
        assert task is not None, "work is hosted by a task"
        self._tasks.add(task)
        try:
            await work
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        """Tell every task to end."""
        for task in tuple(self._tasks):
            task.cancel()

    async def finish(self, seconds: float) -> bool:
        """Wait for all tasks, then cancel what is left and wait for that; True if nothing had to be cancelled."""
        await asyncio.sleep(0)  # a task that never took a step could not put its things in order
        deadline = asyncio.get_running_loop().time() + seconds
        while self._tasks and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left_s)  # what they start meanwhile is waited for, too
        left = tuple(self._tasks)
        self.cancel()
        if left:
            await asyncio.wait(left, timeout=5.0)
        return not left

    def _let_go(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task failed", exc_info=error)
