"""Waiting for the log (BEHAVIOUR B32b). Rule: a wait is bounded, and while the log is late nobody else waits for it.

Where calls are refused while they cannot be recorded, nothing is released that the log may not keep.
"""

import asyncio

from proxy.engine.ports import Archive
from proxy.model.errors import StoreUnavailable

# An answer is there and paid for: while nothing is known to be wrong with the log it waits for so many times as long.
_PATIENCE = 20


class DurabilityWaiter:
    """Waits for commits, at most `commit_wait_ms` each; once one was late, not at all until that has come.

    A strict one lets nothing pass that is not durable.
    """

    def __init__(self, archive: Archive, commit_wait_ms: int, *, is_strict: bool = False) -> None:
        self._archive = archive
        self._seconds = commit_wait_ms / 1000
        self._is_strict = is_strict
        self._is_late = False

    async def pass_on(self, commit: "asyncio.Future[bool]") -> None:
        """Return when what waits for the commit may be released.

        Raises StoreUnavailable where it may not: the gate is strict, and the log has not taken it.
        """
        if self._is_strict:
            await self._insist(commit)
        else:
            await self.wait(commit)

    async def _insist(self, commit: "asyncio.Future[bool]") -> None:
        for _ in range(_PATIENCE):
            if commit.done():
                break
            await asyncio.wait((commit,), timeout=self._seconds)
            if not commit.done():
                self._note_late(commit)
                if self._archive.health.problem:
                    break
        if not (commit.done() and commit.result()):
            problem = self.problem or "the log has lost the record"
            raise StoreUnavailable(f"the answer is not released: it is not recorded (store.on_failure): {problem}")

    async def wait(self, commit: "asyncio.Future[bool]") -> None:
        """Return when the commit is durable, lost, or too late to wait for."""
        if commit.done():
            return
        if not self._is_late:
            await asyncio.wait((commit,), timeout=self._seconds)
            if commit.done():
                return
        self._note_late(commit)

    async def confirm(self, commit: "asyncio.Future[bool]") -> bool:
        """Whether the commit is durable, waited for as long as `wait` does."""
        await self.wait(commit)
        return commit.done() and commit.result()

    @property
    def problem(self) -> str:
        """Why the durability promise is suspended; empty while it holds."""
        if problem := self._archive.health.problem:
            return problem
        if self._is_late:
            return f"the log is more than {self._seconds * 1000:g} ms behind; answers are not held back for it"
        return ""

    def _note_late(self, commit: "asyncio.Future[bool]") -> None:
        self._is_late = True
        commit.add_done_callback(self._catch_up)

    def _catch_up(self, commit: "asyncio.Future[bool]") -> None:
        """The log is moving again: the next commit is waited for, which tells whether it is in time."""
        self._is_late = False
