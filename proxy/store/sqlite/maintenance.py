"""What is done with the log's file beside recording: backups, checkpoints of the write-ahead log, and leases."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from proxy.engine.ports import Clock
from proxy.model.errors import Conflict, StoreUnavailable
from proxy.store.constraints import fit_text
from proxy.store.sqlite.connection import FILE_ERRORS, advise, connect_reader


def copy_log(path: Path, target: Path) -> None:
    """Write the log as it stands to `target` (mode 0600). Raises Conflict where that exists, StoreUnavailable else.

    VACUUM INTO reads one snapshot, does not hold up the writer, and leaves out the pages of erased content.
    """
    connection = connect_reader(path)
    try:
        _reserve(target)
        try:
            connection.execute("PRAGMA query_only = OFF")  # the file is open for reading only all the same
            connection.execute("VACUUM INTO ?", (str(target),))
            _sync(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except (*FILE_ERRORS, OSError) as error:
        raise StoreUnavailable(f"the log could not be copied to {target}: {error}") from error
    finally:
        connection.close()


def _reserve(target: Path) -> None:
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        raise Conflict(f"{target} exists; a backup never replaces a file, name another one") from error


def _sync(target: Path) -> None:
    # VACUUM INTO does not wait for the disk
    for path in (target, target.parent):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


_PAGE = 4096
# Below this a short pause is not used: a few pages are not worth two fsyncs.
_WORTHWHILE = 256
# 8 MB: a copy of as much takes some 10 ms; a larger one would not be faster by the page, only longer.
_TOO_LARGE = 2048
_PAUSE_S = 0.02
_REST_S = 2.0


class Checkpoint:
    """Copies the write-ahead log into log.db in idle moments; under load only where it would grow too large.

    SQLite would do it inside a commit, and so hold up whoever waits for that commit.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._pages = 0
        self._is_empty = True

    @property
    def due_s(self) -> float | None:
        """Return after how many idle seconds `run` should be called; None where there is nothing to do."""
        if self._pages >= _WORTHWHILE:
            return _PAUSE_S
        return None if self._is_empty else _REST_S

    @property
    def is_overdue(self) -> bool:
        """Return True where the write-ahead log is so large that the next commit must wait."""
        return self._pages >= _TOO_LARGE

    def count(self, rows: int, content: int) -> None:
        """Count the pages of a commit: a row touches about one, and content fills its own."""
        self._pages += rows + content // _PAGE
        self._is_empty = False

    def run(self) -> None:
        """Copy what no reader keeps back; where that is not worth while any more, empty the file as well."""
        if self._pages >= _WORTHWHILE:
            self._pages = 0
            self._copy("PASSIVE")
        else:
            self.finish()

    def finish(self) -> None:
        """Copy everything and empty the file, unless a reader is in the way."""
        self._pages, self._is_empty = 0, True
        (wait_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._copy("TRUNCATE")
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _copy(self, mode: str) -> None:
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()


_log = logging.getLogger(__name__)

_EXPIRE = "DELETE FROM lease WHERE until_ms <= ?"
_ACQUIRE = """
    INSERT INTO lease(key, owner, until_ms) VALUES (:key, :owner, :until)
    ON CONFLICT(key) DO UPDATE SET until_ms = excluded.until_ms WHERE owner = excluded.owner"""
_RENEW = "UPDATE lease SET until_ms = :until WHERE key = :key AND owner = :owner"
_END = "DELETE FROM lease"
_RELEASE = "DELETE FROM lease WHERE key = :key AND owner = :owner"

# What comes before it in the thread is a commit, or a disk that fails: nobody works on what nobody may.
_MOST_SECONDS = 2.0

WriterTask = Callable[[sqlite3.Connection], None]


class SqliteLeases:
    """The `Leases` port in the log's file; whoever gets no response in time has no lease.

    `run` has a task done in the writer's thread, between two commits, and is False where it never will be. Leases end
    with the process, for one alone writes the file (BEHAVIOUR B32e): those of a killed one are ended at the next start.
    """

    def __init__(self, run: Callable[[WriterTask], bool], clock: Clock, most_seconds: float = _MOST_SECONDS) -> None:
        self._run = run
        self._clock = clock
        self._most_seconds = most_seconds

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Take the lease for so long from now; True where nobody else has it, or its time is over."""
        return await self._change(_ACQUIRE, key, owner, seconds)

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Keep it for so long from now; False where its owner is another, or its time is over."""
        return await self._change(_RENEW, key, owner, seconds)

    async def release(self, key: str, owner: str) -> None:
        """Give it up; do nothing where the owner does not have it."""
        await self._change(_RELEASE, key, owner)

    async def _change(self, statement: str, key: str, owner: str, seconds: float = 0.0) -> bool:
        """Run a statement in the writer's thread; return whether it changed a lease."""
        now = self._clock.now_ms()
        named = {"key": fit_text(key), "owner": fit_text(owner), "until": now + round(seconds * 1000)}
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[bool] = loop.create_future()

        def task(connection: sqlite3.Connection) -> None:
            is_changed = _change_lease(connection, now, statement, named)
            try:
                loop.call_soon_threadsafe(changed.set_result, is_changed)
            except RuntimeError:  # the loop is closed: nobody waits any more
                _log.debug("the event loop ended before a lease was reported")

        if self._run(task):
            await asyncio.wait((changed,), timeout=self._most_seconds)
        return changed.done() and changed.result()


def end_leases(connection: sqlite3.Connection) -> None:
    """End all leases; for whoever has the file's lock, and so knows that their owner has ended."""
    try:
        connection.execute(_END)
    except sqlite3.Error as error:
        _log.warning("leases of the previous process could not be ended: %s", advise(error))


def _change_lease(connection: sqlite3.Connection, now: int, statement: str, named: dict[str, object]) -> bool:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_EXPIRE, (now,))
        count = connection.execute(statement, named).rowcount
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _log.warning("a lease could not be taken: %s", advise(error))
        return False
    return count == 1
