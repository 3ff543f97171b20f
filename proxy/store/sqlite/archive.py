"""The log in one SQLite file, put together: lock, journal, write queue, writer thread, readers."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from proxy.engine.ports import ALL_SESSIONS, MOST_UNREAD, MOST_UNREAD_BYTES, Clock
from proxy.model.epoch import Epoch, StoredContext, StoredOriginal, Summary
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Reading, SessionKey
from proxy.model.lineage import StoredSession
from proxy.model.log import (
    ArchiveHealth,
    AuxiliaryUsage,
    Bill,
    BranchRow,
    ExchangeRow,
    Record,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
)
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import Connect, WriterLock, connect_writer, prepare_file
from proxy.store.sqlite.journal import Journal, JournalPosition, journal_path, store_journal_position
from proxy.store.sqlite.maintenance import SqliteLeases, end_leases
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import UnwrittenEntries, recover_journal
from proxy.store.sqlite.schema import read_salt
from proxy.store.sqlite.write_queue import QueuedWrite, WriteQueue
from proxy.store.sqlite.writer import Writer

_log = logging.getLogger(__name__)

# A commit takes milliseconds, under load some tens of them; a page that shows what was so far is better than none.
_MOST_LAG_SECONDS = 2.0
# A client waits: a conversation that is found twice does no harm.
_MOST_LAG_OF_A_CALL_SECONDS = 0.25


class SqliteArchive:
    """The `Archive` port over log.db; made by `open_sqlite`."""

    def __init__(
        self,
        policy: StorePolicy,
        loop: asyncio.AbstractEventLoop,
        lock: WriterLock,
        connection: sqlite3.Connection,
        journal: Journal | None,
    ) -> None:
        self._policy = policy
        self._lock = lock
        self._salt = read_salt(connection)
        self._journal = journal
        self._queue = WriteQueue(loop, self._put, policy, journal)
        self._writer = Writer(connection, policy, self._queue.settle_soon)
        self._reader = SqliteReader(policy.path)
        self._writer.start()
        self._told_exposed = 1
        self._lost_at_stop = 0
        self._read_before: set[str] = set()  # answers whose readings wait in the journal of the server before

    @property
    def salt(self) -> bytes:
        """32 random bytes, made with the log: what fingerprints of credentials are salted with."""
        return self._salt

    @property
    def health(self) -> ArchiveHealth:
        """How the log is doing now; cheap."""
        queue, problem = self._queue, self._writer.problem
        if problem:
            problem = f"{problem} Records wait in memory (store.spool_bytes)."
            if queue.exposed:
                problem += f" {queue.exposed} of them are nowhere else: a stop before the log takes them loses them."
        counts = (queue.pending, queue.pending_bytes, queue.dropped, queue.generation, queue.exposed)
        return ArchiveHealth(problem, *counts, self._lost_at_stop)

    def make_leases(self, clock: Clock) -> SqliteLeases:
        """The leases that are kept in the log's file (see `Leases`)."""
        return SqliteLeases(self._writer.put_task, clock)

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Queue records, in order, to be stored together; True once durable, False once lost for good.

        With a journal the future is True at once, as a rule; a record that the log then refuses is counted in `health`.
        """
        stored = self._queue.append(records, is_urgent)
        if self._writer.problem:
            self._tell_exposed()
        return stored

    def _tell_exposed(self) -> None:
        """Say how much a stop would lose, whenever that has doubled."""
        exposed = self._queue.exposed
        self._told_exposed = min(self._told_exposed, max(1, exposed))
        if exposed >= 2 * self._told_exposed:
            _log.error("%d records are in memory only, and lost if the server stops before the log takes them", exposed)
            self._told_exposed = exposed

    def write_recovered(self, rest: UnwrittenEntries) -> None:
        """Write, before anything is appended, what the journal of the server before still holds."""
        for entry in rest.entries:
            self._read_before.update(record.exchange for record in entry.records if isinstance(record, Reading))
        self._writer.problem = rest.problem  # told at once, and nobody waits for what is not written soon
        self._queue.queue_recovered(rest.entries)

    def flush(self) -> None:
        """Let records that are not urgent wait no longer."""
        self._queue.flush()

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Newest activity first."""
        await self._catch_up()
        return await self._reader.list_sessions(limit, selection)

    async def find_session(self, session: str) -> SessionRow:
        """The session with this id. Raises NotFound."""
        await self._catch_up()
        return await self._reader.find_session(session)

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """The ids of sessions that begin so, in order."""
        await self._catch_up()
        return await self._reader.list_ids(prefix, limit)

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """The exchanges of a session behind number `after`, oldest first. Raises NotFound for an unknown session."""
        await self._catch_up()
        return await self._reader.list_exchanges(session, after, limit)

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """As `list_exchanges`, but every `answer` is empty."""
        await self._catch_up()
        return await self._reader.list_calls(session, after, limit)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """The branches of a session in the order in which they began. Raises NotFound for an unknown session."""
        await self._catch_up()
        return await self._reader.list_branches(session)

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Sessions that may hold what a request continues; newest last (see `Ancestry`)."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        return await self._reader.recall(nodes, marks, session)

    async def count_links(self, links: Sequence[bytes]) -> int:
        """How many of the links of a chain, in its order, are in the log."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        return await self._reader.count_links(links)

    async def find_key(self, session: str) -> SessionKey:
        """Whose the session with this id is, and what names it. Raises NotFound."""
        await self._catch_up()
        return await self._reader.find_key(session)

    async def has_sessions(self) -> bool:
        """False while the log has none."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        return await self._reader.has_sessions()

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Answers among the newest outcomes that nobody has read; newest first (see `Backlog`)."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        rows = await self._reader.list_unread(limit, most_bytes)
        return [row for row in rows if row.exchange not in self._read_before]

    async def load_request(self, exchange: str) -> bytes:
        """The client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        await self._catch_up()
        return await self._reader.load_request(exchange)

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """The body sent upstream in round k, byte for byte. Raises NotFound."""
        await self._catch_up()
        return await self._reader.load_sent(exchange, k)

    async def load_received(self, exchange: str, k: int) -> bytes:
        """The body the upstream answered with in round k, as far as it was kept. Raises NotFound."""
        await self._catch_up()
        return await self._reader.load_received(exchange, k)

    async def load_context(self, session: str) -> StoredContext:
        """How a session is managed: its epochs, pins and accounts (see `LogReader`)."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        return await self._reader.load_context(session)

    async def load_original(self, reference: str) -> StoredOriginal:
        """What a reference stands for. Raises NotFound."""
        await self._catch_up(_MOST_LAG_OF_A_CALL_SECONDS)
        return await self._reader.load_original(reference)

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """All epochs of a session in the order in which they were opened, `rendered` empty. Raises NotFound."""
        await self._catch_up()
        return await self._reader.list_epochs(session)

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """The n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        await self._catch_up()
        return await self._reader.load_epoch(session, n)

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """All summaries of a session, oldest first. Raises NotFound."""
        await self._catch_up()
        return await self._reader.list_summaries(session)

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """What auxiliary calls opened since then came to (see `LogReader`)."""
        await self._catch_up()
        return await self._reader.sum_auxiliary(since_ms)

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        """What calls were sent as, and what was counted of them (see `LogReader`)."""
        await self._catch_up()
        return await self._reader.list_bills(after, limit)

    async def verify(self) -> Verification:
        """Re-derive every digest, link, recipe and seal from what is stored."""
        await self._catch_up()
        return await self._reader.verify()

    async def backup(self, target: Path) -> None:
        """Copy the log as it stands to a new file, while it is written. Raises Conflict where the file exists."""
        await self._catch_up()
        await self._reader.backup(target)

    async def close(self) -> None:
        """Write what is pending, for `policy.close_ms` at most, and let go. May be called twice."""
        self._queue.close()
        await self._reader.close()
        dropped = self._queue.dropped
        is_ended = await asyncio.to_thread(self._writer.stop, self._policy.close_ms / 1000)
        if lost := self._queue.dropped - dropped + self._queue.exposed:
            _log.error("%d records are lost with this stop: %s", lost, self._writer.problem)
            self._lost_at_stop = lost
        if self._journal is not None:
            self._close_journal(self._journal)
            self._journal = None
        if is_ended:  # else the thread may still write: the lock goes with the process
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
        _log.warning("%d records are in %s only; the next start brings them into the log", self._queue.pending, path)

    async def _catch_up(self, within_s: float = _MOST_LAG_SECONDS) -> None:
        """Whoever reads sees what was appended before; not where the store fails, or takes too long."""
        written = None if self._writer.problem else self._queue.drain()
        if written is not None:
            await asyncio.wait((written,), timeout=within_s)

    def _put(self, entries: list[QueuedWrite]) -> None:
        self._writer.put(entries)


def open_sqlite(
    policy: StorePolicy, loop: asyncio.AbstractEventLoop, connect: Connect = sqlite3.connect
) -> SqliteArchive:
    """Open the log for writing, making it where there is none. Raises StoreUnavailable saying what to do.

    Futures are resolved on `loop`. `connect` stands in for `sqlite3.connect` in tests of failing disks.
    """
    try:
        policy.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder, is_exact = policy.path.resolve().parent, os.access in os.supports_effective_ids
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=is_exact):
            raise PermissionError(f"nothing can be made in {folder}")
        lock = WriterLock(policy.path.resolve(), policy.lock_ms)  # one log may have several names
    except OSError as error:
        raise StoreUnavailable(
            f"{policy.path} cannot be written: {error}; check the data directory (--data)"
        ) from error
    try:
        prepare_file(policy.path)
        connection = connect_writer(policy, connect)
        try:
            rest = recover_journal(connection, policy)
            if rest is not None:
                _tell_rest(policy, rest)
            end_leases(connection)
            archive = SqliteArchive(policy, loop, lock, connection, _open_journal(policy, connection, rest))
            if rest is not None:
                archive.write_recovered(rest)
            return archive
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        lock.release()
        raise StoreUnavailable(
            f"{policy.path} cannot be written: {error}; check the data directory (--data)"
        ) from error
    except BaseException:
        lock.release()
        raise


def _tell_rest(policy: StorePolicy, rest: UnwrittenEntries) -> None:
    """Say what the log did not take. Raises StoreUnavailable where a log that takes no writes is not to be opened."""
    told = (
        f"{len(rest.entries)} appends that the server before left in {journal_path(policy.path)} are not in the log"
        f" yet: {rest.problem} They are kept"
    )
    if policy.must_write:
        raise StoreUnavailable(f"{told}; start again once that is mended.")
    _log.error("%s, and written once that is mended.", told)


def _open_journal(policy: StorePolicy, connection: sqlite3.Connection, rest: UnwrittenEntries | None) -> Journal | None:
    """The journal, which the log's mark names; None where durability asks for more, or it cannot be made.

    With a rest it is the one that holds this: the mark stays, so that the next start finds all of it, in order.
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
        _log.warning("there is no room for %s (%s): answers wait for the log's commits instead", path, error)
        return None
    return journal
