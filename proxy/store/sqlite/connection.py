"""Opening log.db, for the writer and for readers. Rule: what is not a sound log is refused, never overwritten."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import unpack
from proxy.store.sqlite.lock import hold_still
from proxy.store.sqlite.problem import FILE_ERRORS, RESTORE, advise, describe_problem
from proxy.store.sqlite.schema import MIGRATIONS, migrate, read_applied

Connect = Callable[..., sqlite3.Connection]

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_MAGIC = b"SQLite format 3\0"
_VERSIONS = slice(18, 20)  # of the file's format, for who writes and who reads: 2 where it has a write-ahead log
_NEVER_HAD_WAL = b"\1\1"
_CHECKED_BYTES = 64 * 1024 * 1024  # 0.1 s
# Beyond this SQLite checkpoints within a commit; the writer does it earlier, between commits (`checkpoint`).
_WAL_PAGES = 65_536
# For every value that is not a str, an int or a float the sqlite3 module asks whether something turns it into one of
# these, by three look-ups that fail with an error each: bytes and None that say at once that they stay what they are
# take two fifths off a row (6.2 to 3.6 us). For the whole process, where it changes no value.
_TAKEN_AS_THEY_ARE: tuple[tuple[type, Callable[[Any], Any]], ...] = ((bytes, bytes.__bytes__), (type(None), {}.get))


def prepare_file(path: Path) -> None:
    """Make sure that the file is there, ours alone to read (0600), and not something else. Raises StoreUnavailable.

    Only for the writer, and before SQLite opens the file in this process: see `lock`.
    """
    refuse_emptied(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_mode & 0o177:
            os.fchmod(file, 0o600)
        start = os.pread(file, len(_MAGIC), 0)
    finally:
        os.close(file)
    refuse_foreign_wal(path)
    if start and start != _MAGIC:
        raise StoreUnavailable(
            f"{path} is not a SQLite database; move it away, or choose another data directory (--data)"
        )


def refuse_emptied(path: Path) -> None:
    """Keep a new log from taking the place of one that lost its content. Raises StoreUnavailable, OSError.

    A log has a journal or a write-ahead log only once there is something in it.
    """
    log = path.resolve()
    if not log.exists() or log.stat().st_size:
        return
    for other in (log.with_name(log.name + ".journal"), log.with_name(log.name + "-wal")):
        if other.exists() and other.stat().st_size:
            raise StoreUnavailable(
                f"{path} is damaged: it is empty, and {other.name} beside it is not, so that there was a log; {RESTORE}"
                f"; without a backup move {path.name} and the files of its name aside, and a new log begins"
            )


def refuse_foreign_wal(path: Path) -> None:
    """Keep a restored backup from a write-ahead log that another file left. Raises StoreUnavailable, OSError.

    Only before SQLite opens the file in this process: see `lock`. What `backup` writes says in its head that it never
    had a write-ahead log, until the writer opens it; SQLite would not ask, and write the one beside it over it.
    """
    wal = path.resolve().with_name(path.resolve().name + "-wal")
    if not wal.exists() or not wal.stat().st_size:
        return  # looked for first: the writer changes the head before it makes one
    with path.open("rb") as file:
        head = file.read(_VERSIONS.stop)
    if head.startswith(_MAGIC) and head[_VERSIONS] == _NEVER_HAD_WAL:
        raise StoreUnavailable(
            f"{path} is a backup, and {wal.name} beside it is another file's, which would be written over it; stop the"
            f" server, move {wal.name}, {path.name}-shm and {path.name}.journal aside, and run `palimpsest verify`"
        )


def connect_writer(policy: StorePolicy, connect: Connect = sqlite3.connect) -> sqlite3.Connection:
    """The connection that writes: checked, migrated, in WAL mode. Raises StoreUnavailable."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; palimpsest needs 3.37 or newer")
    for kind, keep in _TAKEN_AS_THEY_ARE:
        sqlite3.register_adapter(kind, keep)
    # Opened by the thread that starts the server, so that errors show at once; from then on used by the writer thread.
    try:
        connection = connect(policy.path, isolation_level=None, check_same_thread=False, timeout=policy.busy_ms / 1000)
        try:
            read_applied(connection)  # a file that is not ours is refused before anything in it changes
            _check_small(connection, policy.path)
            _set_up(connection, policy)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    except FILE_ERRORS as error:
        raise StoreUnavailable(describe_problem(error, policy, "used")) from error
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{policy.path}: {error}") from error
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, with the SQL function `unpack(codec, bytes)`. Raises StoreUnavailable.

    It needs no lock and may be handed to another thread. To read a log that nobody has open SQLite makes two files
    beside it; where it cannot, the log is read as one that nobody writes, which is made sure of.
    """
    try:
        if not path.is_file():
            raise StoreUnavailable(f"there is no log at {path}; check the data directory (--data)")
        connection = _connect(path, "mode=ro")
        if _needs_files(connection):
            connection.close()
            connection = _connect_still(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path} cannot be opened: {advise(error)}") from error
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.create_function("unpack", 2, _unpack_or_none, deterministic=True)
        if len(read_applied(connection)) < len(MIGRATIONS):
            raise StoreUnavailable("the log has not been brought up to this version; start the server once")
    except (*FILE_ERRORS, StoreUnavailable) as error:
        connection.close()
        raise StoreUnavailable(f"{path} cannot be read: {advise(error)}") from error
    return connection


class _StillConnection(sqlite3.Connection):
    """A connection to a log that nobody may write as long as it is open."""

    hold = -1

    def close(self) -> None:
        super().close()
        if self.hold >= 0:
            os.close(self.hold)
            self.hold = -1


def _connect(path: Path, how: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=factory)


def _needs_files(connection: sqlite3.Connection) -> bool:
    """Whether the log cannot be read because nothing can be written beside it."""
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
    return False


def _connect_still(path: Path) -> sqlite3.Connection:
    """A connection to a log as it lies there. Raises StoreUnavailable where it may change, or is not all there is."""
    wal = path.resolve().with_name(path.resolve().name + "-wal")
    hold = hold_still(path.resolve())
    try:
        if wal.exists() and wal.stat().st_size:
            raise StoreUnavailable(
                f"{path} cannot be read where it is: {wal.name} beside it has what is not in it yet, and the directory"
                " cannot be written; copy both to one that can"
            )
        connection = _connect(path, "mode=ro&immutable=1", _StillConnection)
    except BaseException:
        if hold >= 0:
            os.close(hold)
        raise
    assert isinstance(connection, _StillConnection)
    connection.hold = hold
    return connection


def _unpack_or_none(codec: int | None, stored: bytes | None) -> bytes | None:
    """NULL where the payload was erased."""
    return None if codec is None or stored is None else unpack(codec, stored)


def _set_up(connection: sqlite3.Connection, policy: StorePolicy) -> None:
    synchronous = "FULL" if policy.durability == "full" else "NORMAL"
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"its file system allows no write-ahead log (journal mode is {mode})")
    for pragma in (
        f"synchronous = {synchronous}",
        "recursive_triggers = ON",
        "foreign_keys = ON",
        "cache_size = -8192",
        f"wal_autocheckpoint = {_WAL_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if policy.max_bytes:
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max(1, policy.max_bytes // page)}")


def _check_small(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage in a log that is read in a moment; for a large one there is `verify`, the start must not wait."""
    if path.stat().st_size > _CHECKED_BYTES:
        return
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise StoreUnavailable(
            f"the file is damaged ({result}); to restore a backup {RESTORE}; without a backup a new log begins"
        )
