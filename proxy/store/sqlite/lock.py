"""One writing process per file (BEHAVIOUR B32e). Rule: the lock is taken before log.db is so much as opened.

It is a file of its own: closing any descriptor of log.db would drop the locks that SQLite holds on it in this process.
"""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from proxy.model.errors import StoreUnavailable

_PAUSE_MS = 50


class WriterLock:
    """The right to write a log, held from construction to `release`; the kernel releases it when the process ends.

    Another's hold is waited out for `wait_ms`: a command that reads has it while it brings in what a kill left.
    """

    def __init__(self, log: Path, wait_ms: int = 0, pause: Callable[[float], None] = time.sleep) -> None:
        path = log.with_name(log.name + ".lock")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(self._file, wait_ms // _PAUSE_MS, pause)
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


def hold_still(log: Path) -> int:
    """Keep all others from writing a log as long as this descriptor is open; -1 where nobody ever wrote it here.

    Raises StoreUnavailable where somebody does, or that cannot be told.
    """
    try:
        file = os.open(log.with_name(log.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise StoreUnavailable(f"whether {log} is being written cannot be told: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise StoreUnavailable(f"{log} is being written by another process, and cannot be read beside it") from error
    return file


def _take(file: int, pauses: int, pause: Callable[[float], None]) -> None:
    for _ in range(pauses):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pause(_PAUSE_MS / 1000)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
