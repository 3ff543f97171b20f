"""Waiting for the log (BEHAVIOUR B32b). Rule: a wait is bounded, and while the log is late nobody else waits for it."""

import asyncio

from proxy.engine.ports import Archive


class CommitGate:
    """Waits for commits, at most `commit_wait_ms` each; once one was late, not at all until that has come."""

    def __init__(self, archive: Archive, commit_wait_ms: int) -> None:
        self._archive = archive
        self._seconds = commit_wait_ms / 1000
        self._is_late = False

    async def wait(self, commit: "asyncio.Future[bool]") -> None:
        """Return when the commit is durable, lost, or too late to wait for."""
        if commit.done():
            return
        if not self._is_late:
            await asyncio.wait((commit,), timeout=self._seconds)
            if commit.done():
                return
        self._is_late = True
        commit.add_done_callback(self._catch_up)

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

    def _catch_up(self, commit: "asyncio.Future[bool]") -> None:
        """The log is moving again: the next commit is waited for, which tells whether it is in time."""
        self._is_late = False
