"""Where each sealed table ends. Rule: noted in the transaction that adds to it, so that rows that go there are missed.

A seal commits to the rows before it; behind the last row there is none. Whoever alters a log on purpose can alter what
is noted here, too: this finds loss, not forgery.
"""

import sqlite3
from collections.abc import Mapping

from proxy.store.sqlite.known import SealHead

_NOTE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_SEQ_SIZE = 8


class Ends:
    """What one writer has noted; it knows no other."""

    def __init__(self) -> None:
        self._noted: dict[str, int] = {}

    def note(self, connection: sqlite3.Connection, heads: Mapping[str, SealHead]) -> None:
        """Note the last rows of tables that have grown, in the transaction under way."""
        for table, head in heads.items():
            if head.seq != self._noted.get(table, 0):
                connection.execute(_NOTE, (_name(table), head.seq.to_bytes(_SEQ_SIZE, "big") + head.seal))
                self._noted[table] = head.seq

    def forget(self) -> None:
        """What was noted may not have been committed."""
        self._noted.clear()


def read_end(connection: sqlite3.Connection, table: str) -> SealHead | None:
    """The last row of a table as it was noted; None where it never was."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_name(table),)).fetchone()
    return SealHead(int.from_bytes(row[0][:_SEQ_SIZE], "big"), row[0][_SEQ_SIZE:]) if row else None


def _name(table: str) -> str:
    return f"end:{table}"
