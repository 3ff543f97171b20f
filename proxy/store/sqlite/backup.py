"""A copy of the log while it is being written. Rule: whole and sound, or not there at all; never over another file."""

import os
from pathlib import Path

from proxy.model.errors import Conflict, StoreUnavailable
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.problem import FILE_ERRORS


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
