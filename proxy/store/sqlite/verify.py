"""Everything that can be re-derived, re-derived. Rule: rows are streamed, so that memory does not grow with the log.

By induction no body need be put together: contents match their digests, links commit to contents and parents, recipes
name links and blobs that exist, seals commit to recipes. A payload may be missing where an erasure names it.
The whole is read in one snapshot: a server may go on writing, and its write-ahead log grows until the end.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from proxy.model.log import LogFault, Verification
from proxy.model.manifest import BlobPiece, ChainPiece, Piece, digest_of, link_after, root_of
from proxy.store.sqlite.codec import seal_after, unpack
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.ends import read_end
from proxy.store.sqlite.envelope import join_recipe
from proxy.store.sqlite.known import NO_SEAL
from proxy.store.sqlite.problem import FILE_ERRORS
from proxy.store.sqlite.schema import TALLIED, migrate, read_tally, tally_rows
from proxy.store.sqlite.verify_context import check_context
from proxy.store.sqlite.verify_summaries import check_summaries
from proxy.store.sqlite.verify_trees import check_trees

_MOST_FAULTS = 1000

# seq, seal, then what the seal commits to: names of what the row refers to, and its values
_SEALED = {
    "exchange": """
        SELECT x.seq, x.seal, s.key, h.digest, v.digest, x.id, x.n, x.kind, x.wire, x.mode, x.model, x.method, x.target,
            x.changes, x.tip, x.size, x.whole, x.opened_ms
        FROM exchange x LEFT JOIN session s ON s.id = x.session LEFT JOIN blob h ON h.id = x.headers
        LEFT JOIN blob v ON v.id = x.envelope ORDER BY x.seq""",
    "round": """
        SELECT x.seq, x.seal, v.digest, x.exchange, x.k, x.upstream, x.tip, x.size, x.whole, x.plan
        FROM round x LEFT JOIN blob v ON v.id = x.envelope ORDER BY x.seq""",
    "outcome": """
        SELECT x.seq, x.seal, h.digest, x.exchange, x.k, x.changes, x.received, x.digest, x.size, x.whole, x.status,
            x.completeness, x.head_ms, x.first_byte_ms, x.total_ms, x.error
        FROM outcome x LEFT JOIN blob h ON h.id = x.headers ORDER BY x.seq""",
    "trailer": "SELECT seq, seal, exchange, k, i, received, digest, size FROM trailer ORDER BY seq",
    "reading": """
        SELECT seq, seal, exchange, k, answer, digest, error, error_digest, input, output, cached, written, reasoning,
            finish
        FROM reading ORDER BY seq""",
    "epoch": """
        SELECT x.seq, x.seal, s.key, x.id, x.view, x.parent, x.through, x.depth, x.why, x.exchange, x.opened_ms,
            x.tokens_before, x.tokens_after, x.edits, x.edits_digest, x.rendered, x.originals, x.digest
        FROM epoch x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "decision": """
        SELECT x.seq, x.seal, s.key, x.exchange, x.k, x.view, x.rung, x.epoch, x.pressure, x.reason, x.tokens_client,
            x.tokens_upstream, x.usable, x.owed, x.saving
        FROM decision x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "pin": """
        SELECT x.seq, x.seal, s.key, x.node, x.is_on, x.at_ms
        FROM pin x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "summary": """
        SELECT x.seq, x.seal, s.key, t.digest, n.digest, x.id, x.wire, x.start, x.stop, x.last, x.kind, x.level,
            x.is_provisional, x.tokens, x.covered, x.made_ms, x.exchange, x.model, x.calls, x.messages, x.digest
        FROM summary x LEFT JOIN session s ON s.id = x.session LEFT JOIN blob t ON t.id = x.text
        LEFT JOIN blob n ON n.id = x.notes ORDER BY x.seq""",
}


# what names content: where, payload, digest, expected size (NULL: unknown), then the stored content
_CONTENTS = (
    """SELECT 'blob ' || x.id, x.id, x.digest, x.size, p.codec, p.bytes
        FROM blob x LEFT JOIN payload p ON p.id = x.id ORDER BY x.id""",
    """SELECT 'outcome ' || x.seq || ' (received)', x.received, x.digest, iif(x.whole = x'', x.size, NULL),
            p.codec, p.bytes
        FROM outcome x LEFT JOIN payload p ON p.id = x.received ORDER BY x.seq""",
    """SELECT 'trailer ' || x.seq, x.received, x.digest, x.size, p.codec, p.bytes
        FROM trailer x LEFT JOIN payload p ON p.id = x.received ORDER BY x.seq""",
    """SELECT 'reading ' || x.seq || ' (answer)', x.answer, x.digest, NULL, p.codec, p.bytes
        FROM reading x LEFT JOIN payload p ON p.id = x.answer ORDER BY x.seq""",
    """SELECT 'reading ' || x.seq || ' (error)', x.error, x.error_digest, NULL, p.codec, p.bytes
        FROM reading x LEFT JOIN payload p ON p.id = x.error WHERE x.error IS NOT NULL ORDER BY x.seq""",
    """SELECT 'epoch ' || x.seq || ' (edits)', x.edits, x.edits_digest, NULL, p.codec, p.bytes
        FROM epoch x LEFT JOIN payload p ON p.id = x.edits ORDER BY x.seq""",
)

_UNNAMED = """
    SELECT id FROM payload EXCEPT SELECT id FROM blob EXCEPT SELECT received FROM outcome
    EXCEPT SELECT received FROM trailer EXCEPT SELECT answer FROM reading EXCEPT SELECT error FROM reading
    EXCEPT SELECT edits FROM epoch"""

_LINKS = """
    SELECT r.link, r.parent, r.gap, b.digest, before.link FROM raw r
    LEFT JOIN blob b ON b.id = r.blob LEFT JOIN raw before ON before.link = r.parent"""

_RECIPES = (
    """SELECT 'exchange ' || x.seq, s.tenant, p.codec, p.bytes, x.tip FROM exchange x
        LEFT JOIN session s ON s.id = x.session LEFT JOIN payload p ON p.id = x.envelope ORDER BY x.seq""",
    """SELECT 'round ' || r.seq, s.tenant, p.codec, p.bytes, r.tip FROM round r
        LEFT JOIN exchange x ON x.seq = r.exchange LEFT JOIN session s ON s.id = x.session
        LEFT JOIN payload p ON p.id = r.envelope WHERE r.envelope IS NOT NULL ORDER BY r.seq""",
)

_GAPS = """
    SELECT s.key FROM session s LEFT JOIN exchange e ON e.session = s.id
    GROUP BY s.id HAVING count(e.seq) = 0 OR count(e.seq) <> max(e.n) OR min(e.n) <> 1"""

_SCHEMA = "SELECT type || ' ' || name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"

_COUNTED = {"exchange": "exchanges", "round": "rounds", "blob": "blobs", "raw": "slices"}


def verify_log(path: Path) -> Verification:
    """Check a log whole. Raises StoreUnavailable where it cannot be opened."""
    connection = connect_reader(path)
    try:
        connection.execute("BEGIN")
        return _Inspection(connection).run()
    finally:
        connection.close()


class _Inspection:
    """One pass over a log."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._faults: list[LogFault] = []
        self._counts = dict.fromkeys(_COUNTED.values(), 0)

    def run(self) -> Verification:
        checks = (
            self._check_file(),
            self._check_schema(),
            self._check_tallies(),
            self._check_contents(),
            self._check_links(),
            self._check_seals(),
            self._check_recipes(),
            self._check_sessions(),
            self._check_references(),
            check_trees(self._connection),
            check_context(self._connection),
            check_summaries(self._connection),
            *(self._count(table) for table in _COUNTED),
        )
        for check in checks:
            self._collect(check)
        return Verification(**self._counts, faults=tuple(self._faults))

    def _collect(self, check: Iterator[LogFault]) -> None:
        try:
            for fault in check:
                if len(self._faults) == _MOST_FAULTS:
                    self._faults.append(LogFault("log", "more faults than are listed here"))
                if len(self._faults) > _MOST_FAULTS:
                    return
                self._faults.append(fault)
        except FILE_ERRORS as error:
            self._faults.append(LogFault("file", f"cannot be read on: {error}"))

    def _count(self, table: str) -> Iterator[LogFault]:
        """How many rows a table has; where that cannot be told there are none, and a fault says so."""
        name = _COUNTED[table]
        try:
            (self._counts[name],) = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        except FILE_ERRORS as error:
            yield LogFault("file", f"its {name} cannot be counted: {error}")

    def _check_file(self) -> Iterator[LogFault]:
        for (result,) in self._connection.execute("PRAGMA integrity_check(100)"):
            if result != "ok":
                yield LogFault("file", result)

    def _check_schema(self) -> Iterator[LogFault]:
        """What holds the log append-only, and what finds things in it, is there as it was made."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
            migrate(made)
            expected = dict(made.execute(_SCHEMA))
        found = dict(self._connection.execute(_SCHEMA))
        for name in sorted(expected.keys() | found.keys()):
            if name not in found:
                yield LogFault(name, "is missing: what it kept from happening may have happened")
            elif name not in expected:
                yield LogFault(name, "is no part of a log")
            elif found[name] != expected[name]:
                yield LogFault(name, "is not as it was made")

    def _check_tallies(self) -> Iterator[LogFault]:
        for table in TALLIED:
            if tally_rows(self._connection, table) != read_tally(self._connection, table):
                yield LogFault(table, "its rows are not those that were written: one was altered, removed or put in")

    def _check_contents(self) -> Iterator[LogFault]:
        for query in _CONTENTS:
            for where, payload, digest, size, codec, stored in self._connection.execute(query):
                what = self._judge_missing(payload, digest) if codec is None else _judge(codec, stored, digest, size)
                if what:
                    yield LogFault(where, what)
        for (payload,) in self._connection.execute(_UNNAMED):
            yield LogFault(f"payload {payload}", "nothing refers to it")

    def _judge_missing(self, payload: int, digest: bytes) -> str:
        query = "SELECT 1 FROM erasure WHERE payload = ? AND digest = ?"
        is_erased = self._connection.execute(query, (payload, digest)).fetchone() is not None
        return "" if is_erased else "its content is missing, and no erasure names it"

    def _check_links(self) -> Iterator[LogFault]:
        roots = {root_of(fingerprint) for (fingerprint,) in self._connection.execute("SELECT fingerprint FROM tenant")}
        for link, parent, gap, digest, before in self._connection.execute(_LINKS):
            where = f"link {link.hex()}"
            if digest is None:
                yield LogFault(where, "its content is not in the log")
            elif link_after(parent, gap, digest) != link:
                yield LogFault(where, "does not follow from its parent, gap and content")
            if before is None and parent not in roots:
                yield LogFault(where, "its parent is neither in the log nor a tenant's root")

    def _check_seals(self) -> Iterator[LogFault]:
        for table, query in _SEALED.items():
            last, before = 0, NO_SEAL
            for seq, seal, *values in self._connection.execute(query):
                where = f"{table} {seq}"
                if seq != last + 1:
                    yield LogFault(where, f"is preceded by {last}: what stood between is missing")
                elif seal_after(before, (seq, *values)) != seal:
                    yield LogFault(where, "its seal does not match: the row, or the one before it, was altered")
                last, before = seq, seal
            end = read_end(self._connection, table)
            if end is not None and last < end.seq:
                yield LogFault(
                    f"{table} {last}", f"is the last, where there were {end.seq}: what stood behind is missing"
                )

    def _check_recipes(self) -> Iterator[LogFault]:
        for query in _RECIPES:
            for where, tenant, codec, stored, tip in self._connection.execute(query):
                if codec is None:
                    continue  # missing content is reported with the blob
                try:
                    pieces = join_recipe(unpack(codec, stored), tip)
                except ValueError as error:
                    yield LogFault(where, f"its recipe cannot be read: {error}")
                    continue
                if not all(self._has(tenant, piece) for piece in pieces):
                    yield LogFault(where, "its recipe names content that is not in the log")

    def _has(self, tenant: int, piece: Piece) -> bool:
        if isinstance(piece, BlobPiece):
            key: tuple[object, ...] = (tenant, piece.digest)
            query = "SELECT 1 FROM blob WHERE tenant = ? AND digest = ?"
        elif isinstance(piece, ChainPiece):
            fingerprint = self._connection.execute("SELECT fingerprint FROM tenant WHERE id = ?", (tenant,)).fetchone()
            if fingerprint and piece.link == root_of(fingerprint[0]):
                return True
            key, query = (piece.link,), "SELECT 1 FROM raw WHERE link = ?"
        else:
            return True
        return self._connection.execute(query, key).fetchone() is not None

    def _check_sessions(self) -> Iterator[LogFault]:
        for (key,) in self._connection.execute(_GAPS):
            yield LogFault(f"session {key}", "the numbers of its exchanges have gaps")

    def _check_references(self) -> Iterator[LogFault]:
        for table, rowid, parent, _ in self._connection.execute("PRAGMA foreign_key_check"):
            yield LogFault(f"{table} {rowid}", f"refers to a row of {parent} that is not in the log")


def _judge(codec: int, stored: bytes, digest: bytes, size: int | None) -> str:
    try:
        content = unpack(codec, stored)
    except ValueError as error:
        return f"its content cannot be unpacked: {error}"
    if digest_of(content) != digest:
        return "its content does not match its digest"
    if size is not None and len(content) != size:
        return f"its content has {len(content)} bytes in place of {size}"
    return ""
