"""When the write-ahead log is copied into log.db. Rule: in idle moments; under load only where it would grow too large.

SQLite would do it inside a commit, and so hold up whoever waits for that commit.
"""

import sqlite3

_PAGE = 4096
# Below this a short pause is not used: a few pages are not worth two fsyncs.
_WORTHWHILE = 256
# 8 MB: a copy of as much takes some 10 ms; a larger one would not be faster by the page, only longer.
_TOO_LARGE = 2048
_PAUSE_S = 0.02
_REST_S = 2.0


class Checkpoint:
    """Counts what was written, copies it in a pause, and empties the file at rest."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._pages = 0
        self._is_empty = True

    @property
    def due_s(self) -> float | None:
        """After how many idle seconds `run` should be called; None: there is nothing to do."""
        if self._pages >= _WORTHWHILE:
            return _PAUSE_S
        return None if self._is_empty else _REST_S

    @property
    def is_overdue(self) -> bool:
        """True where the write-ahead log is so large that the next commit must wait."""
        return self._pages >= _TOO_LARGE

    def count(self, rows: int, content: int) -> None:
        """Note a commit; a row touches about one page, and content fills its own."""
        self._pages += rows + content // _PAGE
        self._is_empty = False

    def run(self) -> None:
        """In a pause, or overdue: copy what no reader keeps back. At rest: empty the file as well."""
        if self._pages >= _WORTHWHILE:
            self._pages = 0
            self._copy("PASSIVE")
        else:
            self.finish()

    def finish(self) -> None:
        """Copy everything and empty the file, unless a reader is in the way."""
        self._pages, self._is_empty = 0, True
        (wait_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._copy("TRUNCATE")
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _copy(self, mode: str) -> None:
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
