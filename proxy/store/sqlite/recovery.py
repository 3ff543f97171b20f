"""Recovery: writes a killed server's journal into the log, each entry once. Unreadable entries are kept.

With every transaction the log stores which journal is its own and how much of it has been written, so that recovery may
itself be killed at any moment. Entries that cannot be written stay in the journal, and the next server continues the
same file. So there is always one journal, in chronological order.
"""

import logging
import queue
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from proxy.model.errors import StoreUnavailable
from proxy.model.log import weigh_records
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import (
    WriterLock,
    advise,
    connect_writer,
    is_older,
    refuse_emptied,
    refuse_foreign_wal,
)
from proxy.store.sqlite.journal import JournalContent, JournalPosition, journal_path, read_journal_position
from proxy.store.sqlite.write_queue import QueuedWrite
from proxy.store.sqlite.writer import Writer, WriterInbox

_log = logging.getLogger("palimpsest.store")


@dataclass(frozen=True, slots=True)
class UnwrittenEntries:
    """The entries that could not be written into the log, in order, and the problem.

    `position` is that of their journal, which can be continued after them, or None if it is damaged there.
    """

    entries: list[QueuedWrite]
    position: JournalPosition | None
    problem: str


def recover_journal(connection: sqlite3.Connection, policy: StorePolicy) -> UnwrittenEntries | None:
    """Write the journal's remaining entries, then delete it. Raises StoreUnavailable, OSError.

    The caller holds the lock. If the log cannot be written, keep the journal and return the remaining entries. Rename
    the journal of another log.
    """
    path = journal_path(policy.path)
    if not path.exists():
        return None
    content = JournalContent(path.read_bytes())
    try:
        position = read_journal_position(connection)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{policy.path} cannot be read ({advise(error)})") from error
    if content.nonce and content.nonce == position.nonce:
        entries, end = _list_entries(content, position.place)
        is_readable = not content.has_more(end)
        stored, problem = _write(connection, policy, entries)
        if problem:
            place = entries[stored - 1].place if stored else position.place
            return UnwrittenEntries(
                entries[stored:], JournalPosition(position.nonce, place) if is_readable else None, problem
            )
    else:
        is_readable = content.is_blank
    if is_readable:
        path.unlink()
    else:
        aside = _name_aside(path)
        _log.warning("the journal %s belongs to another log, or is damaged; it was renamed to %s", path, aside.name)
        path.replace(aside)
    return None


def _name_aside(path: Path) -> Path:
    """Return an unused name for a journal. Never overwrite another one: it may be the only copy of some calls."""
    aside = path.with_name(path.name + ".aside")
    numbers = count(2)
    while aside.exists():
        aside = path.with_name(f"{path.name}.aside.{next(numbers)}")
    return aside


def list_aside(log: Path) -> list[str]:
    """Return the journals of a log that were renamed: nobody knows which calls they have."""
    path = journal_path(log)
    return sorted(str(each) for each in path.parent.glob(f"{path.name}.aside*"))


def recover_log(policy: StorePolicy) -> None:
    """Bring a log up to date, before it is read without a server: its tables, and what a kill left in its journal.

    Does nothing while a server runs, and only warns if it fails. Raises StoreUnavailable if even reading would do harm
    (see `refuse_foreign_wal`, `refuse_emptied`).
    """
    path = journal_path(policy.path)
    with suppress(OSError):  # the reader will report what is wrong
        refuse_emptied(policy.path)
        refuse_foreign_wal(policy.path)
    try:
        if not policy.path.exists() or not (path.exists() or is_older(policy.path)):
            return
        lock = WriterLock(policy.path.resolve())
    except StoreUnavailable:
        return  # a running server holds the lock, and writes its journal itself
    except OSError as error:
        _warn(path, error)
        return
    try:
        connection = connect_writer(policy)
        try:
            rest = recover_journal(connection, policy)
        finally:
            connection.close()
        if rest is not None:
            _warn(path, rest.problem)
    except (StoreUnavailable, OSError) as error:
        _warn(path, error)
    finally:
        lock.release()


def _list_entries(content: JournalContent, place: int) -> tuple[list[QueuedWrite], int]:
    """Return the entries after `place`, and where they end."""
    entries: list[QueuedWrite] = []
    for records, end in content.read(place):
        place = end
        if records is None:
            _log.error(
                "an entry of the journal is damaged; its records are lost. `palimpsest verify` shows what is missing"
            )
        else:
            entries.append(QueuedWrite(records, weigh_records(records), None, end, True))
    return entries, place


def _write(connection: sqlite3.Connection, policy: StorePolicy, entries: list[QueuedWrite]) -> tuple[int, str]:
    """Write entries in order. Return how many were written or refused, and why the rest were not."""
    stored: list[bool] = []
    inbox: WriterInbox = queue.SimpleQueue()
    writer = Writer(connection, policy, lambda done, is_stored: stored.extend([is_stored] * len(done)), inbox)
    problem = writer.write_now(entries)
    if stored:
        _log.warning(
            "%d groups of records of a killed server were written to the log, %d could not be",
            sum(stored),
            stored.count(False),
        )
    return len(stored), problem


def _warn(path: Path, error: Exception | str) -> None:
    if path.exists():  # else the tables could not be brought up to date, which the reader reports
        what = "the last records of a killed server are still in %s, and read again by the next start: %s"
        _log.warning(what, path, error)
