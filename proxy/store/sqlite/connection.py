"""Opening log.db: the writer's lock, checks of the file, connections for writing and reading, texts for their errors.

Only one process writes a file. It takes a lock before it opens log.db. The lock is a separate file,
since closing any descriptor of log.db would release the locks that SQLite holds on it in this process. A file that is
not a sound log is refused, never overwritten.
"""

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import unpack
from proxy.store.sqlite.figures.bills import derive_own
from proxy.store.sqlite.schema import VERSION, bring_up_to_date, read_version

# The errors of a damaged file. If names in its schema are no longer text, Python raises, not SQLite.
FILE_ERRORS = (sqlite3.Error, UnicodeDecodeError)

_OF_A_RECORD = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.NotSupportedError)

_ROOM = 64 * 1024 * 1024

# All files must move: SQLite would write a remaining write-ahead log, whatever its origin, into a restored file.
RESTORE = (
    "stop the server, move log.db, log.db-wal, log.db-shm and log.db.journal aside, put a backup in place as log.db and"
    " run `palimpsest verify`"
)
_DAMAGED = f"it is damaged; to restore a backup {RESTORE}"

_ADVICE = {
    "SQLITE_BUSY": "another process holds a lock on it; end that process",
    "SQLITE_LOCKED": "another process holds a lock on it; end that process",
    "SQLITE_FULL": "the disk is full; free some space",
    "SQLITE_IOERR": "the disk reports an error; check it",
    "SQLITE_READONLY": "it cannot be written; check owner and mode of the file and its directory",
    "SQLITE_CANTOPEN": "it cannot be opened; check owner and mode of the file and its directory",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _DAMAGED,
}


class LogReplaced(sqlite3.OperationalError):
    """The log was deleted or replaced while it was open: a commit would succeed, but its records would be lost."""


def is_store_failing(error: Exception) -> bool:
    """Return True if the file failed and a retry may help, False if the record itself is at fault."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, _OF_A_RECORD)


def describe_problem(error: Exception, policy: StorePolicy, verb: str = "written") -> str:
    """Return what is wrong with the log and what to do, in whole sentences, for health and log lines."""
    if isinstance(error, LogReplaced):
        return (
            f"{policy.path} was deleted or replaced while the server runs; put it back, or restart the server, which"
            " goes on with what is there then. What was recorded last may be in no file."
        )
    name = str(getattr(error, "sqlite_errorname", ""))
    if name == "SQLITE_FULL" and _is_at_cap(policy):
        return (
            f"store is full: {policy.path} has reached store.max_bytes; restart with a larger one, or with the log and"
            " the files of its name moved aside, to begin a new one."
        )
    return f"{policy.path} cannot be {verb} ({advise(error)})."


def advise(error: Exception) -> str:
    """Return the text of an error in a file, and what to do about it."""
    if isinstance(error, UnicodeDecodeError):
        return f"a name in it is no text: {_DAMAGED}"
    name = str(getattr(error, "sqlite_errorname", ""))
    advice = next((advice for prefix, advice in _ADVICE.items() if name.startswith(prefix)), "")
    return f"{error}: {advice}" if advice else str(error)


def _is_at_cap(policy: StorePolicy) -> bool:
    """Return True if the cap is set and the disk itself has room."""
    return bool(policy.max_bytes) and shutil.disk_usage(policy.path.parent).free > _ROOM


_PAUSE_MS = 50


class WriterLock:
    """The right to write a log, held from construction to `release`; the kernel releases it when the process ends.

    Waits `wait_ms` for another process: a command that reads holds the lock while it recovers a journal.
    """

    def __init__(self, log: Path, wait_ms: int = 0, pause: Callable[[float], None] = time.sleep) -> None:
        path = log.with_name(log.name + ".lock")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_file(self._file, wait_ms // _PAUSE_MS, pause)
        except OSError as error:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreUnavailable(
                f"{log} is being written by another process (id {owner}); stop it, or choose another data directory"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let another process write. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def lock_for_reading(log: Path) -> int:
    """Lock a log against writers while the returned descriptor is open; return -1 if it has no lock file.

    Raises StoreUnavailable if another process writes it, or that cannot be determined.
    """
    try:
        file = os.open(log.with_name(log.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise StoreUnavailable(f"whether {log} is being written is not known: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise StoreUnavailable(f"{log} is being written by another process, and cannot be read beside it") from error
    return file


def _lock_file(file: int, pauses: int, pause: Callable[[float], None]) -> None:
    for _ in range(pauses):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pause(_PAUSE_MS / 1000)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileIdentity:
    """Checks whether log.db is still the file that was opened: writes to a deleted file are lost.

    It checks the path every `every_ms`, without a descriptor: closing one would release SQLite's locks.
    """

    def __init__(self, path: Path, every_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._every_s = every_ms / 1000
        self._now = now
        self._opened: tuple[int, int] | None = None
        self._opened = self._find()
        self._due = now() + self._every_s

    def check(self) -> None:
        """Raise LogReplaced if the file was deleted or replaced, at every call until it is back."""
        if self._now() < self._due:
            return
        if self._find() != self._opened:
            raise LogReplaced("another file or none is in its place")
        self._due = self._now() + self._every_s

    def _find(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # unknown: the next commit reports what is wrong with the disk
            return self._opened
        return found.st_dev, found.st_ino


Connect = Callable[..., sqlite3.Connection]

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_MAGIC = b"SQLite format 3\0"
_VERSIONS = slice(18, 20)  # the file format's write and read version: 2 if it has a write-ahead log
_NEVER_HAD_WAL = b"\1\1"
_CHECKED_BYTES = 64 * 1024 * 1024  # 0.1 s
# Beyond this SQLite checkpoints within a commit; the writer does it earlier, between commits (`Checkpoint`).
_WAL_PAGES = 65_536
# For each value that is not a str, int or float, the sqlite3 module looks for an adapter in three steps, each of which
# fails with an exception. Identity adapters for bytes and None save two fifths of the time of a row (6.2 to 3.6 us).
# They apply to the whole process, but change no value.
_TAKEN_AS_THEY_ARE: tuple[tuple[type, Callable[[Any], Any]], ...] = ((bytes, bytes.__bytes__), (type(None), {}.get))


def prepare_file(path: Path) -> None:
    """Create the file if it is missing, set its mode to 0600, and check that it is a database. Raises StoreUnavailable.

    Only for the writer, and only before SQLite opens the file in this process: closing a descriptor drops its locks.
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
    """Refuse an empty file that was a log before, instead of beginning a new one. Raises StoreUnavailable, OSError.

    A journal or a write-ahead log beside it shows this: they exist only once a log has content.
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
    """Refuse a restored backup beside the write-ahead log of another file. Raises StoreUnavailable, OSError.

    Only before SQLite opens the file in this process: closing a descriptor drops its locks. A file made by `copy_log`
    says in its header that it never had a write-ahead log; SQLite ignores that and would apply the one beside it.
    """
    wal = path.resolve().with_name(path.resolve().name + "-wal")
    if not wal.exists() or not wal.stat().st_size:
        return  # checked before the header, which the writer changes before it creates a write-ahead log
    with path.open("rb") as file:
        head = file.read(_VERSIONS.stop)
    if head.startswith(_MAGIC) and head[_VERSIONS] == _NEVER_HAD_WAL:
        raise StoreUnavailable(
            f"{path} is a backup, and {wal.name} beside it is another file's, which would be written over it; stop the"
            f" server, move {wal.name}, {path.name}-shm and {path.name}.journal aside, and run `palimpsest verify`"
        )


def connect_writer(policy: StorePolicy, connect: Connect = sqlite3.connect) -> sqlite3.Connection:
    """Return the connection for writing: checked, up to date, in WAL mode. Raises StoreUnavailable."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; palimpsest needs 3.37 or newer")
    for kind, keep in _TAKEN_AS_THEY_ARE:
        sqlite3.register_adapter(kind, keep)
    # The thread that starts the server opens it, so that errors show at once. Later only the writer thread uses it.
    try:
        connection = connect(policy.path, isolation_level=None, check_same_thread=False, timeout=policy.busy_ms / 1000)
        try:
            read_version(connection)  # a file that is not ours is refused before anything in it changes
            _check_small(connection, policy.path)
            _set_up(connection, policy)
            _add_functions(connection)
            bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
    except FILE_ERRORS as error:
        raise StoreUnavailable(describe_problem(error, policy, "used")) from error
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{policy.path}: {error}") from error
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write, with the SQL functions. Raises StoreUnavailable.

    It needs no lock and may be passed to another thread. To read a log that no process has open, SQLite creates two
    files beside it. If it cannot, the log is read as an immutable file, and locked against writers.
    """
    try:
        if not path.is_file():
            raise StoreUnavailable(f"there is no log at {path}; check the data directory (--data)")
        connection = _connect(path, "mode=ro")
        if _needs_files(connection):
            connection.close()
            connection = _connect_immutable(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path} cannot be opened: {advise(error)}") from error
    try:
        connection.execute("PRAGMA query_only = ON")
        _add_functions(connection)
        if read_version(connection) != VERSION:
            raise StoreUnavailable("the log has not been brought up to this version; start the server once")
    except (*FILE_ERRORS, StoreUnavailable) as error:
        connection.close()
        raise StoreUnavailable(f"{path} cannot be read: {advise(error)}") from error
    return connection


def is_older(path: Path) -> bool:
    """Return whether a log has the tables of an earlier version. A file that cannot be read as a log has not."""
    with suppress(StoreUnavailable, *FILE_ERRORS), closing(_connect(path, "mode=ro")) as connection:
        return read_version(connection) not in ("", VERSION)
    return False


class _ImmutableConnection(sqlite3.Connection):
    """A connection to a log that nobody may write while it is open."""

    lock = -1

    def close(self) -> None:
        super().close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _connect(path: Path, how: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=factory)


def _needs_files(connection: sqlite3.Connection) -> bool:
    """Return whether the log cannot be read because no file can be created beside it."""
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
    return False


def _connect_immutable(path: Path) -> sqlite3.Connection:
    """Return a connection to an immutable log. Raises StoreUnavailable if a writer or a write-ahead log exists."""
    wal = path.resolve().with_name(path.resolve().name + "-wal")
    lock = lock_for_reading(path.resolve())
    try:
        if wal.exists() and wal.stat().st_size:
            raise StoreUnavailable(
                f"{path} cannot be read where it is: {wal.name} beside it has what is not in it yet, and the directory"
                " cannot be written; copy both to one that can"
            )
        connection = _connect(path, "mode=ro&immutable=1", _ImmutableConnection)
    except BaseException:
        if lock >= 0:
            os.close(lock)
        raise
    assert isinstance(connection, _ImmutableConnection)
    connection.lock = lock
    return connection


def _add_functions(connection: sqlite3.Connection) -> None:
    """Add the functions of our queries: `unpack(codec, bytes)`, and `own_usage`, which figures are derived with."""
    connection.create_function("unpack", 2, _unpack_or_none, deterministic=True)
    connection.create_function("own_usage", -1, derive_own, deterministic=True)


def _unpack_or_none(codec: int | None, stored: bytes | None) -> bytes | None:
    """Unpack content. Return NULL if the payload was erased."""
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
        "secure_delete = ON",
        "cache_size = -8192",
        f"wal_autocheckpoint = {_WAL_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if policy.max_bytes:
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max(1, policy.max_bytes // page)}")


def _check_small(connection: sqlite3.Connection, path: Path) -> None:
    """Check a log of 64 MiB or less for damage. A larger one would delay the start; `palimpsest verify` checks it."""
    if path.stat().st_size > _CHECKED_BYTES:
        return
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise StoreUnavailable(
            f"the file is damaged ({result}); to restore a backup {RESTORE}; without a backup a new log begins"
        )
