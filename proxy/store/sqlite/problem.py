"""Failures of the file, told from failures of a record. Rule: a problem's text says what to do."""

import shutil
import sqlite3

from proxy.store.policy import StorePolicy

# What a damaged file raises: names in its schema that are no text any more are met by Python, not by SQLite.
FILE_ERRORS = (sqlite3.Error, UnicodeDecodeError)

_OF_A_RECORD = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.NotSupportedError)

_ROOM = 64 * 1024 * 1024

# Whole, for SQLite writes a write-ahead log that is left beside a restored file over it, of whatever file it is.
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


class Misplaced(sqlite3.OperationalError):
    """The log was deleted or replaced under its writer: a commit would succeed, and be nowhere."""


class Dangling(Exception):
    """A record refers to something the log does not hold."""


def is_store_failing(error: Exception) -> bool:
    """True where the file failed and trying again may help; False where the record itself is at fault."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, _OF_A_RECORD)


def describe_problem(error: Exception, policy: StorePolicy, verb: str = "written") -> str:
    """What is wrong with the log and what to do, in whole sentences, for health and log lines."""
    if isinstance(error, Misplaced):
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
    """An error met in a file and what to do about it."""
    if isinstance(error, UnicodeDecodeError):
        return f"a name in it is no text: {_DAMAGED}"
    name = str(getattr(error, "sqlite_errorname", ""))
    advice = next((advice for prefix, advice in _ADVICE.items() if name.startswith(prefix)), "")
    return f"{error}: {advice}" if advice else str(error)


def _is_at_cap(policy: StorePolicy) -> bool:
    """True where the cap is set and the disk itself has room."""
    return bool(policy.max_bytes) and shutil.disk_usage(policy.path.parent).free > _ROOM
