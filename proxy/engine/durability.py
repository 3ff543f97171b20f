"""Waiting for durability: which records are durable when, and how long a call waits for them (BEHAVIOUR B32b).

`Archive.append` returns a future that turns True when its records are durable. The first byte of a response is held
until the request's record is, its last byte until the response's record is; each wait takes `store.commit_wait_ms`
(250) at most. Once one was late, nothing waits until that record has come: the server is degraded, `/-/ready` says so,
and records wait in memory, up to `store.spool_bytes`. With `store.on_failure: refuse` nothing is released that is not
durable. What is derived from recorded bytes (readings, lineage) is not waited for, and is made again where it is lost.

With `store.durability: normal` (default) records are durable once they are copied into the journal, a mapped file
beside log.db (`store/sqlite/journal`): about 20 us for 2 KB. They are committed to log.db within 50 ms of a record that
somebody waits for, else within 500 ms.
* A process that is killed loses nothing that was durable: the next start, or the next command that reads the log,
  writes what is only in the journal into the log (`store/sqlite/recovery`).
* A power cut loses what was committed since the last checkpoint, most often the last 2 seconds: SQLite writes its
  write-ahead log without waiting for the disk (synchronous NORMAL). log.db itself is never corrupt.
* Records wait for their commit instead where the journal cannot take them: one append of more than 256 KB, 4 MB that
  are not committed yet, a disk without room for the file. So do all behind them until that commit, so that a durable
  record never refers to one that may be lost; and all while more than 1,024 records wait to be committed.

With `full` there is no journal: records are durable once the transaction that has them is committed and synced to the
disk (synchronous FULL), 0.2 ms on an idle disk, some 4 ms on a busy one. What is queued during one commit makes the
next. A power cut loses nothing that was durable.
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

        Raises StoreUnavailable where it may not: the waiter is strict, and the log has not taken it.
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

    async def confirm(self, commit: "asyncio.Future[bool]", seconds: float = 0.0) -> bool:
        """Return whether the commit is durable, after a wait as `wait` does it.

        What is needed is waited for longer: `seconds`, also while the log is behind, unless it is known to fail.
        """
        if seconds and not commit.done() and not self._archive.health.problem:
            await asyncio.wait((commit,), timeout=seconds)
        await self.wait(commit)
        return commit.done() and commit.result()

    @property
    def problem(self) -> str:
        """The reason why the durability promise is suspended; empty while it holds."""
        if problem := self._archive.health.problem:
            return problem
        if self._is_late:
            return f"the log is more than {self._seconds * 1000:g} ms behind; answers are not held back for it"
        return ""

    def _note_late(self, commit: "asyncio.Future[bool]") -> None:
        self._is_late = True
        commit.add_done_callback(self._catch_up)

    def _catch_up(self, commit: "asyncio.Future[bool]") -> None:
        """Wait for commits again: a late one has come, and the next one shows whether the log is in time."""
        self._is_late = False
