"""The transactions that delete content: with a permit, a row of `erasure` for each payload, one of `erased` a session.

A person's erasure is one transaction, so that a crash leaves all or nothing. What is erased for its age goes in short
ones, between which calls are recorded; the session counts as erased with the last of them, and a crash before leaves
holes that are audited, and the rest to the next run.
"""

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.model.erasing import Cause
from proxy.model.errors import Conflict
from proxy.store.erasing.reach import Content, Heads, has_new_rows, load_candidates, read_heads, subtract_live
from proxy.store.sqlite.codec import digest_erasure, seal_after
from proxy.store.sqlite.schema import note_seal_head

UNFINISHED = "unwiped"
"""In `meta`: there may be bytes of erased content in the unused parts of the file."""

_NEXT = """
    SELECT c.payload, c.digest, c.size, c.session FROM temp.candidate c JOIN payload p ON p.id = c.payload
    ORDER BY c.payload LIMIT ?"""
_DELETE = "DELETE FROM payload WHERE id = ?"
_DONE = "DELETE FROM temp.candidate WHERE payload = ?"
_ADD_ERASURE = "INSERT INTO erasure(seq, at_ms, scope, payload, digest) VALUES (?, ?, ?, ?, ?)"
_LAST_ERASURE = "SELECT ifnull(max(seq), 0) FROM erasure"
_SESSION = """
    SELECT s.key, (SELECT max(seq) FROM exchange WHERE session = s.id),
        (SELECT ifnull(max(until), 0) FROM erased WHERE session = s.id)
    FROM session s WHERE s.id = ?"""
_ERASURES = "SELECT payload, digest FROM erasure WHERE scope = ? AND seq > ? ORDER BY seq"
_LAST_ERASED = "SELECT seq, seal FROM erased ORDER BY seq DESC LIMIT 1"
_ADD_ERASED = """
    INSERT INTO erased(seq, seal, session, cause, at_ms, through, until, payloads, bytes, digest, remains)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_NOTE = "INSERT INTO meta(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_CAME = "it was called while it was to be erased; nothing of it was erased, try again once it is idle"


@dataclass(slots=True)
class Deletion:
    """The deletion of the content of sessions, by row id, that was found when the log ended at `heads`.

    `mirror` is the directory that has files of their memory, which are to be removed afterwards, or empty.
    Its methods are tasks of the writer thread, and leave no transaction open. They raise Conflict if a session has got
    something new.
    """

    sessions: Sequence[int]
    heads: Heads
    cause: Cause
    at_ms: int
    mirror: bytes = b""
    contents: int = 0
    bytes: int = 0

    def load(self, connection: sqlite3.Connection, found: Sequence[Content]) -> None:
        """Fill the writer's temporary table with what is to be deleted."""
        load_candidates(connection, self.sessions, found)

    def delete_all(self, connection: sqlite3.Connection, found: Sequence[Content]) -> None:
        """Delete everything, and note the sessions as erased, in one transaction."""
        self.load(connection, found)
        with _Transaction(connection):
            self._delete(connection, len(found))
            self._note_erased(connection)

    def delete_some(self, connection: sqlite3.Connection, most: int, most_bytes: int) -> bool:
        """Delete some contents, and once all are deleted, note the sessions as erased. Return whether any is left."""
        with _Transaction(connection):
            is_left = self._delete(connection, most, most_bytes)
            if not is_left:
                self._note_erased(connection)
        return is_left

    def _delete(self, connection: sqlite3.Connection, most: int, most_bytes: int = 2**63 - 1) -> bool:
        self._look_again(connection)
        chosen: list[Content] = []
        rows = [Content(*row) for row in connection.execute(_NEXT, (most + 1,))]
        for content in rows[:most]:
            if chosen and content.size > most_bytes:
                break
            chosen.append(content)
            most_bytes -= content.size
        keys = dict(connection.execute("SELECT s.id, s.key FROM temp.gone g JOIN session s ON s.id = g.session"))
        (last,) = connection.execute(_LAST_ERASURE).fetchone()
        erasures = [
            (last + i, self.at_ms, keys[each.session], each.payload, each.digest)
            for i, each in enumerate(chosen, start=1)
        ]
        connection.executemany(_DELETE, [(each.payload,) for each in chosen])
        connection.executemany(_ADD_ERASURE, erasures)
        connection.executemany(_DONE, [(each.payload,) for each in chosen])
        connection.execute(_NOTE, (UNFINISHED, b"\1"))
        self.contents += len(chosen)
        self.bytes += sum(each.size for each in chosen)
        return len(rows) > len(chosen)

    def _look_again(self, connection: sqlite3.Connection) -> None:
        """Keep what rows that came meanwhile refer to."""
        heads = read_heads(connection)
        if heads == self.heads:
            return
        if has_new_rows(connection, self.sessions, self.heads):
            raise Conflict(_CAME)
        subtract_live(connection, self.heads)
        self.heads = heads

    def _note_erased(self, connection: sqlite3.Connection) -> None:
        for session in self.sessions:
            key, through, since = connection.execute(_SESSION, (session,)).fetchone()
            rows = connection.execute(_ERASURES, (key, since)).fetchall()
            (last,) = connection.execute(_LAST_ERASURE).fetchone()
            if not rows:  # what follows erasures has to see this one
                rows, last = [(0, b"")], last + 1
                connection.execute(_ADD_ERASURE, (last, self.at_ms, key, *rows[0]))
            seq, seal = connection.execute(_LAST_ERASED).fetchone() or (0, b"")
            contents = sum(1 for payload, _ in rows if payload)
            values = (self.cause, self.at_ms, through, last, contents, self.bytes, digest_erasure(rows))
            seal = seal_after(seal, (seq + 1, key, *values))
            connection.execute(_ADD_ERASED, (seq + 1, seal, session, *values, self.mirror))
            note_seal_head(connection, "erased", seq + 1, seal)


def note_wiped(connection: sqlite3.Connection) -> None:
    """Note that no byte of erased content is left in the file."""
    connection.execute("DELETE FROM meta WHERE key = ?", (UNFINISHED,))


def is_unwiped(connection: sqlite3.Connection) -> bool:
    """Return whether bytes of erased content may be left in the file."""
    return connection.execute("SELECT 1 FROM meta WHERE key = ?", (UNFINISHED,)).fetchone() is not None


class _Transaction:
    """A transaction that holds a permit to delete content, which no other transaction ever sees."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO permit(token) VALUES (?)", (secrets.token_hex(8),))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.execute("DELETE FROM permit")
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
