"""Work on the log's file other than recording: backups, checkpoints of the write-ahead log, and leases."""

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
    """Copy the current log to `target` (mode 0600). Raises Conflict if that exists, StoreUnavailable on other errors.

    VACUUM INTO reads one snapshot, does not block the writer, and leaves out the pages of erased content.
    """
    connection = connect_reader(path)
    try:
        _reserve(target)
        try:
            connection.execute("PRAGMA query_only = OFF")  # the file itself is still opened read-only
            connection.execute("VACUUM INTO ?", (str(target),))
            _sync(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except (*FILE_ERRORS, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StoreUnavailable(f"the log could not be copied to {target}: {reason}; name another file") from error
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
# Fewer pages are not copied in a short pause, since they are not worth two fsyncs.
_WORTHWHILE = 256
# 8 MB, whose copy takes some 10 ms. A larger one would take longer, but no less per page.
_TOO_LARGE = 2048
_PAUSE_S = 0.02
_REST_S = 2.0


class Checkpoint:
    """Copies the write-ahead log into log.db in idle moments; under load only if it would grow too large.

    SQLite itself would do this within a commit, and so delay everything that waits for that commit.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._pages = 0
        self._is_empty = True

    @property
    def due_s(self) -> float | None:
        """Return after how many idle seconds `run` should be called, or None if there is nothing to do."""
        if self._pages >= _WORTHWHILE:
            return _PAUSE_S
        return None if self._is_empty else _REST_S

    @property
    def is_overdue(self) -> bool:
        """Return True if the write-ahead log is so large that the next commit must wait."""
        return self._pages >= _TOO_LARGE

    def count(self, rows: int, content: int) -> None:
        """Estimate and add the pages of a commit: about one per row, and those that the content fills."""
        self._pages += rows + content // _PAGE
        self._is_empty = False

    def run(self) -> None:
        """Copy all pages that no reader holds back. If little remains, empty the file as well."""
        if self._pages >= _WORTHWHILE:
            self._pages = 0
            self._copy("PASSIVE")
        else:
            self.finish()

    def finish(self) -> None:
        """Copy everything and empty the file, unless a reader prevents it."""
        self._pages, self._is_empty = 0, True
        (wait_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._copy("TRUNCATE")
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _copy(self, mode: str) -> None:
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()


_log = logging.getLogger("palimpsest.store")

_EXPIRE = "DELETE FROM lease WHERE until_ms <= ?"
_ACQUIRE = """
    INSERT INTO lease(key, owner, until_ms) VALUES (:key, :owner, :until)
    ON CONFLICT(key) DO UPDATE SET until_ms = excluded.until_ms WHERE owner = excluded.owner"""
_RENEW = "UPDATE lease SET until_ms = :until WHERE key = :key AND owner = :owner"
_END = "DELETE FROM lease"
_RELEASE = "DELETE FROM lease WHERE key = :key AND owner = :owner"

# How long a lease waits for the writer thread, which may be in a commit or blocked by a failing disk.
_MOST_SECONDS = 2.0

WriterTask = Callable[[sqlite3.Connection], None]


class SqliteLeases:
    """The `Leases` port in the log's file. A caller that gets no response in time does not have the lease.

    `run` queues a task for the writer thread, and returns False if it will never run. Leases end with the process:
    only one process writes the file. The next start ends those of a killed process.
    """

    def __init__(self, run: Callable[[WriterTask], bool], clock: Clock, most_seconds: float = _MOST_SECONDS) -> None:
        self._run = run
        self._clock = clock
        self._most_seconds = most_seconds

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Take the lease for `seconds` from now. Return True unless another owner holds it and it has not expired."""
        return await self._change(_ACQUIRE, key, owner, seconds)

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Extend the lease to `seconds` from now. Return False if it has another owner or has expired."""
        return await self._change(_RENEW, key, owner, seconds)

    async def release(self, key: str, owner: str) -> None:
        """Release the lease, if the owner holds it."""
        await self._change(_RELEASE, key, owner)

    async def _change(self, statement: str, key: str, owner: str, seconds: float = 0.0) -> bool:
        """Run a statement in the writer thread. Return whether it changed a lease."""
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
    """End all leases. The caller holds the file's lock, so that their owner has ended."""
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
        _log.warning("no summary is made now: its lease could not be stored: %s", advise(error))
        return False
    return count == 1
