"""How far the journal is in the log. Rule: the mark moves in the transaction that writes what it stands for.

The mark also names its journal by a nonce: a file that lies beside the wrong log, or is of another day, never fits.
"""

import sqlite3
from dataclasses import dataclass

_NONCE, _PLACE = "journal", "journal_place"
_SIZE = 8


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The journal that belongs to a log (0: none does), and the place in it up to which all entries are in the log."""

    nonce: int = 0
    place: int = 0


def read_mark(connection: sqlite3.Connection) -> JournalPosition:
    """The log's mark."""
    query = "SELECT key, value FROM meta WHERE key IN (?, ?)"
    found = {key: int.from_bytes(value, "little") for key, value in connection.execute(query, (_NONCE, _PLACE))}
    return JournalPosition(found.get(_NONCE, 0), found.get(_PLACE, 0))


def set_mark(connection: sqlite3.Connection, mark: JournalPosition) -> None:
    """Tie the log to a journal, in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for key, value in ((_NONCE, mark.nonce), (_PLACE, mark.place)):
            row = (key, value.to_bytes(_SIZE, "little"))
            connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", row
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def move_mark(connection: sqlite3.Connection, place: int) -> None:
    """Note, in the transaction under way, that all entries up to the place are in the log."""
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (place.to_bytes(_SIZE, "little"), _PLACE))
