"""The rows of one transaction. Rule: content is stored once, a sealed row follows on the one before it.

They are written in the order of their tables, so that parents are there before their children.
"""

import sqlite3
from collections.abc import Mapping, Sequence

from proxy.store.sqlite.codec import SMALL, pack, seal_after
from proxy.store.sqlite.known import Reference, RowIdCache, Tenant
from proxy.store.sqlite.schema import TALLIED, weigh_row

Value = int | float | str | bytes | None


class Rows:
    """What is to be inserted, by table; `inserts` has the statement for each."""

    def __init__(self, known: RowIdCache, inserts: Mapping[str, str]) -> None:
        self._known = known
        self._inserts = inserts
        self._rows: dict[str, list[tuple[Value, ...]]] = {table: [] for table in inserts}

    def add(self, table: str, row: tuple[Value, ...]) -> None:
        """A row of a table without seals."""
        self._rows[table].append(row)
        if table in TALLIED:
            self._known.tallies[table] += weigh_row(row)

    def append(self, table: str, references: Sequence[Reference | tuple[None, None]], values: tuple[Value, ...]) -> int:
        """A row of a sealed table; its number. The seal commits to what the references name."""
        head = self._known.heads[table]
        seq = head.seq + 1
        ids, names = zip(*references, strict=True) if references else ((), ())
        seal = seal_after(head.seal, (seq, *names, *values))
        self._rows[table].append((seq, seal, *ids, *values))
        head.seq, head.seal = seq, seal
        return seq

    def share(self, tenant: Tenant, digest: bytes, content: bytes) -> Reference:
        """Content under its digest, stored once."""
        blob = self._known.find_blob(tenant, digest)
        if blob is None:
            blob = self.keep(content)
            self._rows["blob"].append((blob, tenant.id, digest, len(content)))
            self._known.put_blob(tenant, digest, blob)
        return blob, digest

    def keep(self, content: bytes, smallest: int = SMALL) -> int:
        """Content that is not expected again, packed if it has `smallest` bytes."""
        payload = self._known.next_id("payload")
        self._rows["payload"].append((payload, *pack(content, smallest)))
        return payload

    def write(self, connection: sqlite3.Connection) -> int:
        """Insert everything; returns the number of rows."""
        count = 0
        for table, insert in self._inserts.items():
            rows = self._rows[table]
            if rows:
                connection.executemany(insert, rows)
                count += len(rows)
        return count
