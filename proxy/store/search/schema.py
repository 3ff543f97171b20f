"""The tables of index.db, and its file: made, opened, and made anew where it is damaged, outdated or of another log.

- `session` has the position up to which a session's nodes are indexed, and its number of passages. Its id is that of
  the log, as are the numbers of nodes (turns) and of exchanges.
- `entry` names a text: the key of `retrieval.postings`, where the log has its content (`address`, see `entries`), the
  call that brought it, and the id by which it is referred to. No text is kept.
- `text`, `card`, `rule` and `user` are the postings, one contentless FTS5 table for each lane. Their terms are made by
  `retrieval`; the tokenizer only splits them at spaces. `place` has the places of passages, 512 in a row.
- `word` has the words of `text`, to find those with certain characters. `seen` and `alias` keep a message that comes
  again under another node, after a rewind or a compaction, from being indexed again.
- `meta` has the version, the log's salt, and how far the log was read.

Deleted content is overwritten (`secure_delete`). A checkpoint waits for the disk, a commit does not: after a power cut
the index may lack what was last written, and reads it again.
"""

import fcntl
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from proxy.model.errors import StoreUnavailable
from proxy.retrieval.postings import Lane

VERSION = 2
"""To be raised whenever tables, terms, passages or the texts of messages change: the index is then made anew."""
APPLICATION_ID = 0x50414C58  # "PALX"
LANES: tuple[Lane, ...] = get_args(Lane)
PLACES_IN_ROW = 512

_BUSY_MS = 2000
_MERGED_PAGES = 64
_CHECKED_BYTES = 16 * 1024 * 1024  # 0.1 s
_PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'
_CONTROLS = "".join(map(chr, (*range(1, 9), *range(14, 32), 127)))
# The tokenizer `ascii` takes every character above 127 as part of a token; all others but white space are named.
_TOKENS = (_PUNCTUATION + _CONTROLS).replace('"', '""')
_FTS = """
    CREATE VIRTUAL TABLE {table} USING fts5(terms, content='', detail=none, columnsize=0,
        tokenize="ascii tokenchars '{tokens}''' ")"""

_TABLES = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID",
    """CREATE TABLE session(
        id INTEGER PRIMARY KEY, nodes INTEGER NOT NULL, passages INTEGER NOT NULL, stated_ms INTEGER) STRICT""",
    """CREATE TABLE statistic(
        session INTEGER NOT NULL, lane INTEGER NOT NULL, passages INTEGER NOT NULL, terms INTEGER NOT NULL,
        PRIMARY KEY(session, lane)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE entry(
        id INTEGER PRIMARY KEY, address INTEGER NOT NULL, holder INTEGER NOT NULL, exchange INTEGER NOT NULL,
        tool INTEGER NOT NULL, name INTEGER NOT NULL) STRICT""",
    "CREATE INDEX entry_name ON entry(name)",
    "CREATE TABLE tool(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
    """CREATE TABLE place(
        session INTEGER NOT NULL, row INTEGER NOT NULL, places BLOB NOT NULL,
        PRIMARY KEY(session, row)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE seen(
        session INTEGER NOT NULL, digest INTEGER NOT NULL, turn INTEGER NOT NULL,
        PRIMARY KEY(session, digest)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE alias(
        session INTEGER NOT NULL, first INTEGER NOT NULL, turn INTEGER NOT NULL,
        PRIMARY KEY(session, first, turn)) STRICT, WITHOUT ROWID""",
    "CREATE TABLE word(text TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
)


class IndexUnusable(Exception):
    """The file is no index of this version and this log, or it is damaged."""


def find_index(log: Path) -> Path:
    """Return the path of the index of a log, which is beside it."""
    return log.with_name("index.db" if log.name == "log.db" else f"{log.stem}-index.db")


def open_writer(path: Path, salt: bytes) -> tuple[sqlite3.Connection, bool]:
    """Return the connection for writing, and whether the index is new. One that is unusable is made anew.

    Raises sqlite3.Error and OSError if no file can be made. Only the holder of the lock may call this.
    """
    if path.exists():
        try:
            return _connect_sound(path, salt), False
        except (sqlite3.DatabaseError, IndexUnusable):
            remove(path)
    return _create(path, salt), True


def remove(path: Path) -> None:
    """Delete an index with its files. Readers that have it open keep what they have."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def check(connection: sqlite3.Connection, salt: bytes, schema: str = "main") -> None:
    """Raise IndexUnusable unless this is an index of this version for the log with this salt."""
    (application,) = connection.execute(f"PRAGMA {schema}.application_id").fetchone()
    (version,) = connection.execute(f"PRAGMA {schema}.user_version").fetchone()
    if application != APPLICATION_ID or version != VERSION:
        raise IndexUnusable("the index is of another version")
    row = connection.execute(f"SELECT value FROM {schema}.meta WHERE key = 'salt'").fetchone()
    if row is None or row[0] != salt:
        raise IndexUnusable("the index is that of another log")


def read_meta(connection: sqlite3.Connection, schema: str = "main") -> Mapping[str, int]:
    """Return the numbers in `meta`."""
    rows = connection.execute(f"SELECT key, value FROM {schema}.meta WHERE key <> 'salt'")
    return {key: int(value) for key, value in rows}


def write_meta(connection: sqlite3.Connection, values: Mapping[str, int]) -> None:
    """Store numbers in `meta`, in the current transaction."""
    rows = [(key, str(value).encode()) for key, value in values.items()]
    connection.executemany("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", rows)


def merge(connection: sqlite3.Connection, lane: Lane, *, is_first: bool) -> bool:
    """Merge some postings of a lane, of all of them if `is_first`. Return whether more may be merged."""
    before = connection.total_changes
    pages = -_MERGED_PAGES if is_first else _MERGED_PAGES
    connection.execute(f"INSERT INTO lane_{lane}(lane_{lane}, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before > 1  # the documented sign that there was something to merge


def count_passages(connection: sqlite3.Connection) -> int:
    """Return the number of passages of all lanes."""
    (passages,) = connection.execute("SELECT ifnull(sum(passages), 0) FROM statistic").fetchone()
    return int(passages)


def shrink(connection: sqlite3.Connection) -> bool:
    """Return free pages to the disk, and empty the write-ahead log. Return False if a reader prevents that."""
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
    (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy


class IndexLock:
    """The right to write an index, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises StoreUnavailable if another process has it, and OSError."""
        self._file = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise StoreUnavailable(f"{path} is being written by another process") from error

    def release(self) -> None:
        """Let another process write."""
        os.close(self._file)


def _connect_sound(path: Path, salt: bytes) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        check(connection, salt)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if not names >= {"meta", "session", "statistic", "entry", "tool", "place", "seen", "alias", "word"}:
            raise IndexUnusable("a table is missing")
        if path.stat().st_size <= _CHECKED_BYTES:  # else damage shows when it is read
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise IndexUnusable(found)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path, salt: bytes) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = _connect(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            connection.execute(statement)
        for lane in LANES:
            connection.execute(_FTS.format(table=f"lane_{lane}", tokens=_TOKENS))
            connection.execute(f"INSERT INTO lane_{lane}(lane_{lane}, rank) VALUES ('usermerge', 2)")
        connection.execute("INSERT INTO meta(key, value) VALUES ('salt', ?)", (salt,))
        connection.execute("COMMIT")
        # last, so that a file whose making was cut short is made anew
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1000)
    for pragma in (
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "secure_delete = ON",
        "cache_size = -4096",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection
