"""Waiting for durability: which records are durable when, and how long a call waits for them.

`Archive.append` returns a future that turns True when its records are durable. The first byte of a response is held
until the request's record is, its last byte until the response's record is; each wait takes `store.commit_wait_ms`
(250) at most. After a late record nothing waits until that record is durable: the server is degraded, `/-/ready` says
so, and records wait in memory, up to `store.spool_bytes`. With `store.on_failure: refuse` nothing is released that is
not durable. Records derived from recorded bytes (readings, lineage) are not waited for, and are made again if lost.

With `store.durability: normal` (default) records are durable once they are copied into the journal, a mapped file
beside log.db (`store/sqlite/journal`): about 20 us for 2 KB. They are committed to log.db within 50 ms of a record that
somebody waits for, else within 500 ms.
* A process that is killed loses nothing that was durable: the next start, or the next command that reads the log,
  writes what is only in the journal into the log (`store/sqlite/recovery`).
* A power cut loses what was committed since the last checkpoint, most often the last 2 seconds: SQLite writes its
  write-ahead log without waiting for the disk (synchronous NORMAL). log.db itself is never corrupt.
* If the journal cannot take records, they wait for their commit instead: an append of more than 256 KB, 4 MB that are
  not committed yet, a full disk. All later records then wait for that commit too, so that a durable record never refers
  to one that may be lost. The same holds while more than 1,024 records wait to be committed.

With `full` there is no journal: records are durable once their transaction is committed and synced to the disk
(synchronous FULL), which takes 0.2 ms on an idle disk, some 4 ms on a busy one. Records that are queued during one
commit form the next. A power cut loses nothing that was durable.
"""

import asyncio

from proxy.engine.ports import Archive
from proxy.model.errors import StoreUnavailable

# How many waits a strict waiter makes while the log reports no problem: the response has arrived and is paid for.
_PATIENCE = 20


class DurabilityWaiter:
    """Waits for commits, at most `commit_wait_ms` each. After a late one it does not wait until that is done.

    A strict waiter releases nothing that is not durable.
    """

    def __init__(self, archive: Archive, commit_wait_ms: int, *, is_strict: bool = False) -> None:
        self._archive = archive
        self._seconds = commit_wait_ms / 1000
        self._is_strict = is_strict
        self._is_late = False

    async def pass_on(self, commit: "asyncio.Future[bool]") -> None:
        """Return when the bytes that wait for the commit may be released.

        Raises StoreUnavailable if the waiter is strict and the commit is not durable.
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
            raise StoreUnavailable(f"the response is held back, since it is not recorded (store.on_failure): {problem}")

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
        """Wait as `wait` does, and return whether the commit is durable.

        `seconds` adds a longer wait for a needed commit, also after a late one, unless the log is known to fail.
        """
        if seconds and not commit.done() and not self._archive.health.problem:
            await asyncio.wait((commit,), timeout=seconds)
        await self.wait(commit)
        return commit.done() and commit.result()

    @property
    def problem(self) -> str:
        """The reason why the durability promise is suspended, or an empty string while it holds."""
        if problem := self._archive.health.problem:
            return problem
        if self._is_late:
            return f"the log is more than {self._seconds * 1000:g} ms behind; answers are not held back for it"
        return ""

    def _note_late(self, commit: "asyncio.Future[bool]") -> None:
        self._is_late = True
        commit.add_done_callback(self._catch_up)

    def _catch_up(self, commit: "asyncio.Future[bool]") -> None:
        """Wait for commits again, since a late one is done. The next one shows whether the log keeps up."""
        self._is_late = False
