"""The log in one SQLite file, assembled of its lock, journal, write queue, writer thread and readers."""

import asyncio
import logging
import os
import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from proxy.engine.ports import MOST_UNREAD, MOST_UNREAD_BYTES, Clock
from proxy.model.errors import ProxyError, StoreUnavailable
from proxy.model.exchange import Reading
from proxy.model.log import ArchiveHealth, Record, UnreadRow
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import (
    FILE_ERRORS,
    Connect,
    WriterLock,
    connect_writer,
    describe_problem,
    is_store_failing,
    prepare_file,
)
from proxy.store.sqlite.journal import Journal, JournalPosition, journal_path, store_journal_position
from proxy.store.sqlite.maintenance import SqliteLeases, end_leases
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import UnwrittenEntries, recover_journal
from proxy.store.sqlite.schema import read_salt
from proxy.store.sqlite.write_queue import WriteQueue
from proxy.store.sqlite.writer import Writer, WriterInbox

T = TypeVar("T")

_log = logging.getLogger("palimpsest.store")

# How long a read waits for pending records: a commit takes milliseconds, or tens of them under load.
_MOST_LAG_SECONDS = 2.0
# The same while a client waits: not finding an earlier conversation does no harm.
_MOST_LAG_OF_A_CALL_SECONDS = 0.25


class SqliteArchive(SqliteReader):
    """The `Archive` port over log.db, made by `open_sqlite`. Reads wait a bounded time for records appended before.

    `salt` are 32 random bytes, made with the log, which salt the fingerprints of credentials.
    """

    def __init__(
        self,
        policy: StorePolicy,
        loop: asyncio.AbstractEventLoop,
        lock: WriterLock,
        connection: sqlite3.Connection,
        journal: Journal | None,
    ) -> None:
        super().__init__(policy.path)
        self._policy = policy
        self._lock = lock
        self.salt = read_salt(connection)
        self._journal = journal
        inbox: WriterInbox = queue.SimpleQueue()
        self._queue = WriteQueue(loop, inbox.put, policy, journal)
        self._writer = Writer(connection, policy, self._queue.settle_soon, inbox)
        self._writer.start()
        self._reported_exposed = 1
        self._lost_at_stop = 0
        self._read_before: set[str] = set()  # exchanges whose readings are still in the previous server's journal

    @property
    def health(self) -> ArchiveHealth:
        """Return the current state of the log. This is cheap."""
        queue, problem = self._queue, self._writer.problem
        if problem:
            problem = f"{problem} Records wait in memory (store.spool_bytes)."
            if queue.exposed:
                problem += f" {queue.exposed} of them are nowhere else: a stop before the log takes them loses them."
        counts = (queue.pending, queue.pending_bytes, queue.dropped, queue.generation, queue.exposed)
        return ArchiveHealth(problem, *counts, self._lost_at_stop)

    def make_leases(self, clock: Clock) -> SqliteLeases:
        """Return the leases, which are stored in the log's file (see `Leases`)."""
        return SqliteLeases(self._writer.put_task, clock)

    @property
    def path(self) -> Path:
        """The path of the log."""
        return self._policy.path

    async def run_task(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Run a task in the writer thread, behind the records that were appended before. It commits what it changes.

        Raises StoreUnavailable if the log cannot be written, and what the task raises.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run(connection: sqlite3.Connection) -> None:
            try:
                result = task(connection)
            except (*FILE_ERRORS, ProxyError, OSError, ValueError) as error:
                told = StoreUnavailable(describe_problem(error, self._policy)) if is_store_failing(error) else error
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                loop.call_soon_threadsafe(_settle, done, None, told)
            else:
                loop.call_soon_threadsafe(_settle, done, result, None)

        written = self._queue.drain()
        if written is not None:
            await asyncio.wait((written,), timeout=_MOST_LAG_SECONDS)
            if not written.done():
                raise StoreUnavailable("the log is behind with what was recorded; try again later")
        if self._writer.problem or not self._writer.put_task(run):
            raise StoreUnavailable(self._writer.problem or "the log is being closed")
        return await done

    def note_erased_in_thread(self, rows: int, content: int) -> None:
        """Drop what the writer remembers of the log. A task of `run_task` calls this when it has erased content."""
        self._writer.note_erased(rows, content)

    def note_erased(self) -> None:
        """Have everybody drop what they remember of the log, and the journal what it had of content that is erased."""
        self._queue.note_erased()

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Queue records to be stored together, in order. The future is True once durable, False once lost for good.

        With a journal it is usually True at once. A record that the log refuses later is counted in `health`.
        """
        stored = self._queue.append(records, is_urgent)
        if self._writer.problem:
            self._report_exposed()
        return stored

    def _report_exposed(self) -> None:
        """Log how many records a stop would lose, whenever the number has doubled."""
        exposed = self._queue.exposed
        self._reported_exposed = min(self._reported_exposed, max(1, exposed))
        if exposed >= 2 * self._reported_exposed:
            _log.error(
                "%d records are in memory only, and lost if the server stops before the log takes them; see /-/ready",
                exposed,
            )
            self._reported_exposed = exposed

    def queue_recovered(self, rest: UnwrittenEntries) -> None:
        """Queue the entries left in the previous server's journal. Call it before anything is appended."""
        for entry in rest.entries:
            self._read_before.update(record.exchange for record in entry.records if isinstance(record, Reading))
        self._writer.problem = rest.problem  # reported at once, so that no reader waits for these records
        self._queue.queue_recovered(rest.entries)

    def flush(self) -> None:
        """Write records that are not urgent without further delay."""
        self._queue.flush()

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> list[UnreadRow]:
        """Return the responses without a reading among the newest outcomes, newest first (see `Backlog`)."""
        rows = await super().list_unread(limit, most_bytes)
        return [row for row in rows if row.exchange not in self._read_before]

    async def close(self) -> None:
        """Write pending records for at most `policy.close_ms`, then release the log. May be called twice."""
        self._queue.close()
        await super().close()
        dropped = self._queue.dropped
        is_ended = await asyncio.to_thread(self._writer.stop, self._policy.close_ms / 1000)
        if lost := self._queue.dropped - dropped + self._queue.exposed:
            _log.error("%d records are lost with this stop: %s", lost, self._writer.problem)
            self._lost_at_stop = lost
        if self._journal is not None:
            self._close_journal(self._journal)
            self._journal = None
        if is_ended:  # else the thread may still write, and the lock ends with the process
            self._lock.release()

    def _close_journal(self, journal: Journal) -> None:
        if not self._queue.pending:
            journal.remove()
            return
        journal.close()
        path = journal_path(self._policy.path)
        if not path.exists():
            _log.error("%d records are lost: %s was deleted under the server", self._queue.pending, path)
            self._lost_at_stop = self._queue.pending
            return
        _log.warning("%d records are in %s only; the next start writes them to the log", self._queue.pending, path)

    async def _catch_up(self, *, is_call: bool) -> None:
        written = None if self._writer.problem else self._queue.drain()
        if written is not None:
            await asyncio.wait((written,), timeout=_MOST_LAG_OF_A_CALL_SECONDS if is_call else _MOST_LAG_SECONDS)


def _settle(done: "asyncio.Future[T]", result: T | None, error: Exception | None) -> None:
    """Resolve a future unless its waiter has gone."""
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(cast(T, result))


def open_sqlite(
    policy: StorePolicy, loop: asyncio.AbstractEventLoop, connect: Connect = sqlite3.connect
) -> SqliteArchive:
    """Open the log for writing, and create it if there is none. Raises StoreUnavailable, whose text says what to do.

    Futures are resolved on `loop`. Tests of failing disks replace `connect`.
    """
    try:
        policy.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder, is_exact = policy.path.resolve().parent, os.access in os.supports_effective_ids
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=is_exact):
            raise PermissionError(f"no file can be made in {folder}")
        lock = WriterLock(policy.path.resolve(), policy.lock_ms)  # one log may have several names
    except OSError as error:
        raise _describe_unwritable(policy, error) from error
    try:
        prepare_file(policy.path)
        connection = connect_writer(policy, connect)
        try:
            rest = recover_journal(connection, policy)
            if rest is not None:
                _report_unwritten(policy, rest)
            end_leases(connection)
            archive = SqliteArchive(policy, loop, lock, connection, _open_journal(policy, connection, rest))
            if rest is not None:
                archive.queue_recovered(rest)
            return archive
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        lock.release()
        raise _describe_unwritable(policy, error) from error
    except BaseException:
        lock.release()
        raise


def _describe_unwritable(policy: StorePolicy, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"{policy.path} cannot be written: {error}; check the data directory (--data)")


def _report_unwritten(policy: StorePolicy, rest: UnwrittenEntries) -> None:
    """Report the entries that could not be written. Raises StoreUnavailable if `must_write` is set."""
    told = (
        f"{len(rest.entries)} groups of records that the previous server left in {journal_path(policy.path)} are not in"
        f" the log yet: {rest.problem} They are kept"
    )
    if policy.must_write:
        raise StoreUnavailable(f"{told}; start again once that is repaired.")
    _log.error("%s, and written once that is repaired", told)


def _open_journal(policy: StorePolicy, connection: sqlite3.Connection, rest: UnwrittenEntries | None) -> Journal | None:
    """Return the journal that the log names, or None with full durability or if it cannot be created.

    If `rest` has a position, its journal is continued at this position, so that the next start finds all in order.
    """
    if policy.durability == "full":
        return None
    path = journal_path(policy.path)
    try:
        if rest is not None:
            return Journal(path, position=rest.position) if rest.position else None
        journal = Journal(path)
        try:
            store_journal_position(connection, JournalPosition(journal.nonce))
        except BaseException:
            journal.remove()
            raise
    except (OSError, sqlite3.Error) as error:
        _log.warning("there is no room for %s (%s): responses wait for the log's commits instead", path, error)
        return None
    return journal
