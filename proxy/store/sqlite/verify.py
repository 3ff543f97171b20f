"""Verification of a log: derives everything again that can be derived from stored data, and compares it.

No body is rebuilt, by induction: contents match their digests, links commit to contents and parents, recipes name links
and blobs that exist, seals commit to recipes. A payload may be missing if an erasure names it. A node's form is not
stored, so its hash cannot be computed again, but its seal shows an alteration. The seal of an epoch or summary commits
to its digest, and the digest to all that it names. A summary names only older ones, so there is no cycle, and by
induction every summary leads to its messages.

A response that came whole has a place in its session, was read, and what it says is there, too. Only calls of versions
that measure their overhead are judged by this; what a start reads again is judged once a much later response was read.

Rows are streamed, so that memory does not grow with the log: the nodes of one session at a time are in memory, and one
epoch or summary at a time. All is read in one snapshot: a server may write meanwhile, and its write-ahead log grows
until the end.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from proxy.engine.call.response_reader import read_received
from proxy.model.epoch import Original
from proxy.model.lineage import compute_chain_root
from proxy.model.log import LogFault, Verification
from proxy.model.manifest import BlobPiece, ChainPiece, Piece, compute_digest, compute_link, compute_root_link
from proxy.store.constraints import MessageSpan, find_summary_fault
from proxy.store.sqlite.codec import (
    RELATIONS,
    compute_fingerprint_key,
    decode_headers,
    digest_epoch,
    digest_erasure,
    digest_summary,
    drop_unset,
    join_recipe,
    seal_after,
    seal_node,
    unpack,
)
from proxy.store.sqlite.connection import FILE_ERRORS, connect_reader
from proxy.store.sqlite.figures.bills import check_figures
from proxy.store.sqlite.id_cache import NO_SEAL
from proxy.store.sqlite.schema import ADDED, TALLIED, list_objects, make_schema, read_seal_head, read_tally, tally_rows
from proxy.wire import FORMATS

_MOST_FAULTS = 1000
# A response was passed over by the reader if one was read to a call that began so much later.
_PASSED_MS, _MOST_READ = 60_000, 64 * 1024 * 1024

# seq, seal, then what the seal commits to: the names of the row's references, and its values
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
            x.completeness, x.head_ms, x.first_byte_ms, x.total_ms, x.error, x.overhead_ms
        FROM outcome x LEFT JOIN blob h ON h.id = x.headers ORDER BY x.seq""",
    "trailer": "SELECT seq, seal, exchange, k, i, received, digest, size FROM trailer ORDER BY seq",
    "reading": """
        SELECT seq, seal, exchange, k, answer, digest, error, error_digest, input, output, cached, written, reasoning,
            finish
        FROM reading ORDER BY seq""",
    "epoch": """
        SELECT x.seq, x.seal, s.key, x.id, x.view, x.parent, x.through, x.depth, x.why, x.exchange, x.opened_ms,
            x.tokens_before, x.tokens_after, x.edits, x.edits_digest, x.rendered, x.originals, x.digest, x.tool
        FROM epoch x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "decision": """
        SELECT x.seq, x.seal, s.key, x.exchange, x.k, x.view, x.rung, x.epoch, x.pressure, x.reason, x.tokens_client,
            x.tokens_upstream, x.usable, x.owed, x.saving, x.client_read, x.sent_read, x.own_expected, x.sent_expected,
            x.window, x.soft
        FROM decision x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "pin": """
        SELECT x.seq, x.seal, s.key, x.node, x.is_on, x.at_ms
        FROM pin x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "summary": """
        SELECT x.seq, x.seal, s.key, t.digest, n.digest, x.id, x.wire, x.start, x.stop, x.last, x.kind, x.level,
            x.is_provisional, x.tokens, x.covered, x.made_ms, x.exchange, x.model, x.calls, x.messages, x.digest
        FROM summary x LEFT JOIN session s ON s.id = x.session LEFT JOIN blob t ON t.id = x.text
        LEFT JOIN blob n ON n.id = x.notes ORDER BY x.seq""",
    "recalled": """
        SELECT x.seq, x.seal, s.key, x.exchange, x.view, x.epoch, x.node, x.count, x.tokens, x.rounds, x.rounds_digest
        FROM recalled x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "held": """
        SELECT x.seq, x.seal, v.digest, x.exchange, x.history, x.key, x.digest, x.tip, x.size, x.whole
        FROM held x LEFT JOIN blob v ON v.id = x.envelope ORDER BY x.seq""",
    "source": """
        SELECT x.seq, x.seal, s.key, x.exchange, x.node, x.kind
        FROM source x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "erased": """
        SELECT x.seq, x.seal, s.key, x.cause, x.at_ms, x.through, x.until, x.payloads, x.bytes, x.digest
        FROM erased x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
    "memory": """
        SELECT x.seq, x.seal, s.key, x.kind, x.item, x.at_ms, x.start, x.stop, x.last, x.content, x.digest
        FROM memory x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq""",
}


# The references to content: where, payload, digest, expected size (NULL: unknown), then the stored content.
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
    """SELECT 'recalled ' || x.seq || ' (rounds)', x.rounds, x.rounds_digest, NULL, p.codec, p.bytes
        FROM recalled x LEFT JOIN payload p ON p.id = x.rounds ORDER BY x.seq""",
    """SELECT 'memory ' || x.seq || ' (content)', x.content, x.digest, NULL, p.codec, p.bytes
        FROM memory x LEFT JOIN payload p ON p.id = x.content WHERE x.content IS NOT NULL ORDER BY x.seq""",
)

_UNNAMED_PAYLOADS = """
    SELECT id FROM payload EXCEPT SELECT id FROM blob EXCEPT SELECT received FROM outcome
    EXCEPT SELECT received FROM trailer EXCEPT SELECT answer FROM reading EXCEPT SELECT error FROM reading
    EXCEPT SELECT edits FROM epoch EXCEPT SELECT rounds FROM recalled
    EXCEPT SELECT content FROM memory"""

_LINKS = """
    SELECT r.link, r.parent, r.gap, b.digest, before.link FROM raw r
    LEFT JOIN blob b ON b.id = r.blob LEFT JOIN raw before ON before.link = r.parent"""

_RECIPES = (
    """SELECT 'exchange ' || x.seq, s.tenant, p.codec, p.bytes, x.tip FROM exchange x
        LEFT JOIN session s ON s.id = x.session LEFT JOIN payload p ON p.id = x.envelope ORDER BY x.seq""",
    """SELECT 'round ' || r.seq, s.tenant, p.codec, p.bytes, r.tip FROM round r
        LEFT JOIN exchange x ON x.seq = r.exchange LEFT JOIN session s ON s.id = x.session
        LEFT JOIN payload p ON p.id = r.envelope WHERE r.envelope IS NOT NULL ORDER BY r.seq""",
    """SELECT 'held ' || h.seq, s.tenant, p.codec, p.bytes, h.tip FROM held h
        LEFT JOIN exchange x ON x.seq = h.exchange LEFT JOIN session s ON s.id = x.session
        LEFT JOIN payload p ON p.id = h.envelope ORDER BY h.seq""",
)

_GAPS = """
    SELECT s.key FROM session s LEFT JOIN exchange e ON e.session = s.id
    GROUP BY s.id HAVING count(e.seq) = 0 OR count(e.seq) <> max(e.n) OR min(e.n) <> 1"""

_COUNTED = {"exchange": "exchanges", "round": "rounds", "blob": "blobs", "raw": "slices"}


def verify_log(path: Path) -> Verification:
    """Check a whole log. Raises StoreUnavailable if it cannot be opened."""
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
            _check_trees(self._connection),
            _check_context(self._connection),
            check_figures(self._connection),
            _check_summaries(self._connection),
            _check_erased(self._connection),
            _check_answers(self._connection),
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
        """Count the rows of a table. If that fails, yield a fault."""
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
        """Compare triggers, tables and indexes with those of a new log."""
        with closing(make_schema()) as made:
            expected = list_objects(made)
        found = list_objects(self._connection)
        for each in sorted(expected.keys() | found.keys()):
            if each not in found:
                yield LogFault(" ".join(each), "is missing: rows may have been changed or deleted since")
            elif each not in expected:
                yield LogFault(" ".join(each), "is no part of a log")
            elif found[each] != expected[each]:
                yield LogFault(" ".join(each), "differs from the schema of this version")

    def _check_tallies(self) -> Iterator[LogFault]:
        for table in TALLIED:
            if tally_rows(self._connection, table) != read_tally(self._connection, table):
                yield LogFault(table, "its rows are not those that were written: one was altered, removed or put in")

    def _check_contents(self) -> Iterator[LogFault]:
        for query in _CONTENTS:
            for where, payload, digest, size, codec, stored in self._connection.execute(query):
                what = (
                    self._find_missing_fault(payload, digest)
                    if codec is None
                    else _find_content_fault(codec, stored, digest, size)
                )
                if what:
                    yield LogFault(where, what)
        for (payload,) in self._connection.execute(_UNNAMED_PAYLOADS):
            yield LogFault(f"payload {payload}", "nothing refers to it")

    def _find_missing_fault(self, payload: int, digest: bytes) -> str:
        query = "SELECT 1 FROM erasure WHERE payload = ? AND digest = ?"
        is_erased = self._connection.execute(query, (payload, digest)).fetchone() is not None
        return "" if is_erased else "its content is missing, and no erasure names it"

    def _check_links(self) -> Iterator[LogFault]:
        roots = {
            compute_root_link(fingerprint)
            for (fingerprint,) in self._connection.execute("SELECT fingerprint FROM tenant")
        }
        for link, parent, gap, digest, before in self._connection.execute(_LINKS):
            where = f"link {link.hex()}"
            if digest is None:
                yield LogFault(where, "its content is not in the log")
            elif compute_link(parent, gap, digest) != link:
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
                elif seal_after(before, (seq, *drop_unset(values, ADDED.get(table, 0)))) != seal:
                    yield LogFault(where, "its seal does not match: the row, or the one before it, was altered")
                last, before = seq, seal
            end = read_seal_head(self._connection, table)
            if end is not None and last < end[0]:
                yield LogFault(
                    f"{table} {last}", f"is the last, where there were {end[0]}: what stood behind is missing"
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
            if fingerprint and piece.link == compute_root_link(fingerprint[0]):
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


def _find_content_fault(codec: int, stored: bytes, digest: bytes, size: int | None) -> str:
    try:
        content = unpack(codec, stored)
    except ValueError as error:
        return f"its content cannot be unpacked: {error}"
    if compute_digest(content) != digest:
        return "its content does not match its digest"
    if size is not None and len(content) != size:
        return f"its content has {len(content)} bytes in place of {size}"
    return ""


_NODES = """
    SELECT x.session, s.upstream, x.n, x.hash, x.parent, x.outer, x.is_answer, x.exchange, x.seal, e.seq FROM node x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.session = x.session AND e.n = x.exchange
    ORDER BY x.session, x.n"""
_STEPS = """
    SELECT x.session, s.upstream, x.n, e.seq, x.tip, d.n, x.outer, x.depth, x.base, x.relation FROM step x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.session = x.session AND e.n = x.n
    LEFT JOIN node d ON d.session = x.session AND d.n = x.tip"""
_MARKS = """
    SELECT x.session, x.n, x.key, x.name, d.n, lag(x.n, 1, 0) OVER (PARTITION BY x.session ORDER BY x.n) FROM mark x
    LEFT JOIN node d ON d.session = x.session AND d.n = x.node"""
_ADOPTIONS = """
    SELECT x.session, x.n, s.id, d.n FROM adoption x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN node d ON d.session = x.source AND d.n = x.node"""
_HAS_NODE = "SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1"


def _check_trees(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """List what is wrong with the trees of sessions."""
    for session, rows in groupby(connection.execute(_NODES), key=lambda row: row[0]):
        yield from _check_nodes(connection, session, rows)
    yield from _check_steps(connection)
    yield from _check_fingerprints(connection)
    for session, n, own, node in connection.execute(_ADOPTIONS):
        if own is None or node is None:
            yield LogFault(f"adoption {session}/{n}", "refers to a session or node that is not in the log")


def _check_nodes(connection: sqlite3.Connection, session: int, rows: Iterator[sqlite3.Row]) -> Iterator[LogFault]:
    hashes: list[bytes] = []
    before = b""
    for _, upstream, n, node, parent, outer, is_answer, exchange, seal, seq in rows:
        where = f"node {session}/{n}"
        if n != len(hashes) + 1:
            yield LogFault(where, f"is preceded by {len(hashes)}: what stood between is missing")
            return
        hashes.append(node)
        if seq is None:
            yield LogFault(where, "its exchange is not in the log")
        if not 0 <= parent < n or (parent == 0 and not _may_hang_on(connection, upstream, outer)):
            yield LogFault(where, "the node before it is not in the log")
        elif seal != seal_node(
            before, n, node, hashes[parent - 1] if parent else outer, is_answer=is_answer, exchange=exchange
        ):
            yield LogFault(where, "its seal does not match: the row, or the one before it, was altered")
        before = seal


def _check_steps(connection: sqlite3.Connection) -> Iterator[LogFault]:
    for session, upstream, n, seq, tip, node, outer, depth, base, relation in connection.execute(_STEPS):
        where = f"step {session}/{n}"
        if seq is None:
            yield LogFault(where, "its exchange is not in the log")
        if node is None and (tip or not _may_hang_on(connection, upstream, outer)):
            yield LogFault(where, "its tip is not in the log")
        if not 0 <= base <= depth or not 0 <= relation < len(RELATIONS):
            yield LogFault(where, f"cannot have depth {depth}, base {base} and relation {relation}")


def _check_fingerprints(connection: sqlite3.Connection) -> Iterator[LogFault]:
    for session, n, key, name, node, before in connection.execute(_MARKS):
        where = f"mark {session}/{n}"
        if n != before + 1:
            yield LogFault(where, f"is preceded by {before}: what stood between is missing")
        if node is None:
            yield LogFault(where, "its node is not in the session")
        if key != compute_fingerprint_key(name):
            yield LogFault(where, "its key does not follow from its name")


def _may_hang_on(connection: sqlite3.Connection, upstream: str | None, node: bytes | None) -> bool:
    """Return whether a chain may have this parent: the root of the upstream's chains, or a node of any session."""
    if upstream is None or node is None:
        return False
    return node == compute_chain_root(upstream) or connection.execute(_HAS_NODE, (node,)).fetchone() is not None


_EPOCHS = """
    SELECT x.seq, s.tenant, x.rendered, x.originals, x.digest FROM epoch x LEFT JOIN session s ON s.id = x.session
    ORDER BY x.seq"""
_OWN_DIGESTS = """
    SELECT b.digest FROM json_each(?) m LEFT JOIN blob b ON b.id = m.value AND b.tenant = ? ORDER BY m.key"""
_NAMED_ORIGINALS = """
    SELECT s.key, s.tenant, o.name, o.wire, o.place, o.start, o.messages FROM json_each(?) m
    LEFT JOIN original o ON o.id = m.value LEFT JOIN session s ON s.id = o.session ORDER BY m.key"""
_UNNAMED_ORIGINALS = "SELECT id FROM original EXCEPT SELECT m.value FROM epoch x, json_each(x.originals) m"


def _check_context(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """List what is wrong with epochs and references."""
    for seq, tenant, rendered, originals, digest in connection.execute(_EPOCHS):
        what = _find_epoch_fault(connection, tenant, (rendered, originals), digest)
        if what:
            yield LogFault(f"epoch {seq}", what)
    for (original,) in connection.execute(_UNNAMED_ORIGINALS):
        yield LogFault(f"original {original}", "no epoch names it")


def _find_epoch_fault(connection: sqlite3.Connection, tenant: int, lists: tuple[str, str], digest: bytes) -> str:
    try:
        rendered = _list_digests(connection, lists[0], tenant)
        named = [
            (key, Original(name, _list_digests(connection, messages, owner), wire, place, start))
            for key, owner, name, wire, place, start, messages in connection.execute(_NAMED_ORIGINALS, (lists[1],))
        ]
        made = digest_epoch(rendered, named)
    except sqlite3.OperationalError as error:  # a list that is no JSON
        return f"what it names cannot be read: {error}"
    if None in rendered or any(key is None or None in each.digests for key, each in named):
        return "it names content that is not in the log"
    return "" if made == digest else "its digest does not match: what it names was altered"


def _list_digests(connection: sqlite3.Connection, blobs: str, tenant: int) -> tuple[bytes, ...]:
    """Return the digest of each blob, None for one that the tenant does not have."""
    return tuple(digest for (digest,) in connection.execute(_OWN_DIGESTS, (blobs, tenant)))


_SUMMARIES = """
    SELECT x.seq, x.digest, s.tenant, x.messages, x.kind, x.wire, x.start, x.stop FROM summary x
    LEFT JOIN session s ON s.id = x.session ORDER BY x.seq"""
_NAMED_SUMMARIES = """
    SELECT o.seq, o.id, o.wire, o.start, o.stop FROM summary_edge e LEFT JOIN summary o ON o.seq = e.other
    WHERE e.summary = ? AND e.relation = ? ORDER BY e.i"""
_LOOSE = """
    SELECT DISTINCT e.summary FROM summary_edge e
    WHERE e.relation NOT IN ('parent', 'supersedes') OR e.summary NOT IN (SELECT seq FROM summary)"""


def _check_summaries(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """List what is wrong with summaries."""
    for seq, digest, *rest in connection.execute(_SUMMARIES):
        if what := _find_summary_row_fault(connection, seq, digest, rest):
            yield LogFault(f"summary {seq}", what)
    for (summary,) in connection.execute(_LOOSE):
        yield LogFault(f"summary {summary}", "there are edges of it that no summary has")


def _find_summary_row_fault(connection: sqlite3.Connection, seq: int, digest: bytes, row: list[Any]) -> str:
    tenant, listed, kind, *span = row
    parents, superseded = (
        connection.execute(_NAMED_SUMMARIES, (seq, name)).fetchall() for name in ("parent", "supersedes")
    )
    try:
        messages = [digest for (digest,) in connection.execute(_OWN_DIGESTS, (listed, tenant))]
    except sqlite3.OperationalError as error:  # a list that is no JSON
        return f"what it names cannot be read: {error}"
    others = [other for other, *_ in (*parents, *superseded)]
    if None in messages or None in others:
        return "it names content or a summary that is not in the log"
    if any(other >= seq for other in others):
        return "it names a summary that is not older"
    if digest_summary(messages, *[[name for _, name, *_ in named] for named in (parents, superseded)]) != digest:
        return "its digest does not match: what it names was altered"
    spans = [[MessageSpan(*each) for _, _, *each in named] for named in (parents, superseded)]
    return find_summary_fault(kind, MessageSpan(*span), len(messages), *spans)


_ERASED = """
    SELECT x.seq, s.key, x.until, x.payloads, x.digest,
        (SELECT ifnull(max(y.until), 0) FROM erased y WHERE y.session = x.session AND y.seq < x.seq)
    FROM erased x LEFT JOIN session s ON s.id = x.session ORDER BY x.seq"""
_ERASURES = "SELECT payload, digest FROM erasure WHERE scope = ? AND seq > ? AND seq <= ? ORDER BY seq"


def _check_erased(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """List what is wrong with the record of what was erased."""
    for seq, key, until, payloads, digest, since in connection.execute(_ERASED):
        rows = connection.execute(_ERASURES, (key, since, until)).fetchall()
        if digest_erasure(rows) != digest or len(rows) != payloads:
            yield LogFault(f"erased {seq}", "what it erased is not what the erasures of its session name")


# Of each call whose last round has a whole response: what there is of it beside that.
_ANSWERED = """
    SELECT e.session, e.seq, e.wire, e.opened_ms + o.total_ms, t.n IS NOT NULL, iif(t.tip, t.tip, t.outer), g.seq,
        EXISTS (SELECT 1 FROM decision d WHERE d.exchange = e.seq AND (d.epoch IS NOT NULL OR d.tokens_client > 0))
            OR EXISTS (SELECT 1 FROM round r WHERE r.exchange = e.seq AND r.k = 0 AND r.envelope IS NOT NULL),
        EXISTS (SELECT 1 FROM decision d WHERE d.exchange = e.seq AND d.k = o.k AND d.reason LIKE 'the model recalled%')
            AND NOT EXISTS (SELECT 1 FROM recalled r WHERE r.exchange = e.seq),
        iif(g.seq, iif(g.error, NULL, g.answer), o.received), o.headers, iif(g.seq, NULL, o.changes)
    FROM exchange e JOIN outcome a ON a.exchange = e.seq AND a.k = 0 AND a.overhead_ms IS NOT NULL
    JOIN outcome o ON o.exchange = e.seq AND o.k = (SELECT max(r.k) FROM round r WHERE r.exchange = e.seq)
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN reading g ON g.exchange = e.seq AND g.k = o.k
    WHERE e.wire <> '' AND o.completeness = 'complete' AND o.status BETWEEN 200 AND 299 AND o.whole = x'' AND o.size > 0
    ORDER BY e.session, e.n"""
_CONTINUED = "SELECT iif(parent, parent, outer) FROM node WHERE session = ? AND is_answer = 1"
_PAYLOAD = "SELECT codec, bytes FROM payload WHERE id = ?"
_NEWEST_READ = "SELECT max(e.opened_ms) FROM reading g JOIN exchange e ON e.seq = g.exchange"


def _check_answers(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """List the calls of which the record was lost in part, though their responses came whole."""
    (newest_ms,) = connection.execute(_NEWEST_READ).fetchone()
    for session, rows in groupby(connection.execute(_ANSWERED), key=lambda row: row[0]):
        continued = {parent for (parent,) in connection.execute(_CONTINUED, (session,))}
        for _, seq, wire, ended_ms, is_placed, tip, reading, was_placed, lacks_rounds, *content in rows:
            what = ""
            if reading is None:
                is_passed = newest_ms is not None and newest_ms > ended_ms + _PASSED_MS
                what = "its response was not read, though later ones were" if is_passed else ""
            elif not is_placed:
                what = "its place in its session is missing" if was_placed else ""
            elif tip not in continued:
                what = "its answer is missing in its session"
            elif lacks_rounds:
                what = "what the model recalled in its answer is missing"
            if what and (not is_placed or _says_something(connection, wire, content)):
                yield LogFault(f"exchange {seq}", f"{what}: a record was lost")


def _says_something(connection: sqlite3.Connection, wire: str, content: list[Any]) -> bool:
    """Return whether a response has an answer, by its reading, or its bytes and headers if it was not read."""
    payload, headers, changes = content
    body, head = (connection.execute(_PAYLOAD, (each,)).fetchone() for each in (payload, headers))
    form = FORMATS.get(wire)
    if form is None or body is None or head is None:  # erased, or an error
        return False
    try:
        told = () if changes is None else decode_headers(unpack(*head), changes)
        answer, _ = read_received(form, told, unpack(*body), _MOST_READ)
        return any(form.read_reply(answer.value))
    except ValueError:
        return False
