"""Waiting for the log (BEHAVIOUR B32b). Rule: a wait is bounded, and while the log is behind nobody waits twice."""

import asyncio

from proxy.engine.ports import Archive


class CommitGate:
    """Waits for commits, at most `commit_wait_ms` each; once one was late, not at all until the log has caught up."""

    def __init__(self, archive: Archive, commit_wait_ms: int) -> None:
        self._archive = archive
        self._seconds = commit_wait_ms / 1000
        self._is_late = False

    async def wait(self, commit: "asyncio.Future[bool]") -> None:
        """Return when the commit is durable, lost, or too late to wait for."""
        if commit.done() or self._is_behind():
            return
        try:
            async with asyncio.timeout(self._seconds):
                await commit
        except TimeoutError:
            self._is_late = True

    @property
    def problem(self) -> str:
        """Why the durability promise is suspended; empty while it holds."""
        if problem := self._archive.health.problem:
            return problem
        if self._is_behind():
            return f"the log is more than {self._seconds * 1000:g} ms behind; answers are not held back for it"
        return ""

    def _is_behind(self) -> bool:
        if self._is_late:
            health = self._archive.health
            self._is_late = bool(health.problem or health.pending)
        return self._is_late
