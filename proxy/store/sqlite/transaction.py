"""One transaction of the writer: records turned into rows, inserted and committed together.

Content is stored before what refers to it. A record that refers to a missing chain or blob is refused with
`DanglingReference`. The engine, which assumed that the log had it, drops its assumptions when the `generation` of the
archive changes, and its next request brings all content again.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from msgspec.structs import astuple

from proxy.model.epoch import Epoch, Pin, Plan, Recalled, SourceNote, Summary
from proxy.model.exchange import Headers, Opening, Outcome, Reading, ReceivedCall, Round, SessionKey, Trailer, Usage
from proxy.model.lineage import Adoption, Lineage, Reply
from proxy.model.log import Record
from proxy.model.manifest import Manifest, Slice, compute_digest
from proxy.model.memory import MemoryOrder, Remembered
from proxy.store.constraints import fit_text, fit_usage
from proxy.store.sqlite import insert_context, insert_lineage
from proxy.store.sqlite.codec import TINY, encode_changes, encode_headers
from proxy.store.sqlite.figures.bills import derive_late, fill
from proxy.store.sqlite.id_cache import (
    DanglingReference,
    Exchange,
    HeaderBase,
    OpenSession,
    Reference,
    RowBuffer,
    RowIdCache,
    Tenant,
)
from proxy.store.sqlite.journal import advance_journal_position

_NOTHING = (None, None)

_name_of = itemgetter(0)

# Parents come before children. The columns of a sealed table are seq, seal, references, then the values as sealed.
INSERTS = {
    "tenant": "INSERT INTO tenant(id, fingerprint) VALUES (?, ?)",
    "blob": "INSERT INTO blob(id, tenant, digest, size) VALUES (?, ?, ?, ?)",
    "payload": "INSERT INTO payload(id, codec, bytes) VALUES (?, ?, ?)",
    "raw": "INSERT INTO raw(link, parent, gap, blob) VALUES (?, ?, ?, ?)",
    "session": """INSERT INTO session(id, key, tenant, upstream, family, created_ms, parent)
        VALUES (?, ?, ?, ?, ?, ?, ?)""",
    "exchange": """INSERT INTO exchange(
        seq, seal, session, headers, envelope, id, n, kind, wire, mode, model, method, target, changes, tip, size,
        whole, opened_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "round": """INSERT INTO round(seq, seal, envelope, exchange, k, upstream, tip, size, whole, plan)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "outcome": """INSERT INTO outcome(
        seq, seal, headers, exchange, k, changes, received, digest, size, whole, status, completeness, head_ms,
        first_byte_ms, total_ms, error, overhead_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "trailer": """INSERT INTO trailer(seq, seal, exchange, k, i, received, digest, size)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
    "reading": """INSERT INTO reading(
        seq, seal, exchange, k, answer, digest, error, error_digest, input, output, cached, written, reasoning, finish)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "held": """INSERT INTO held(seq, seal, envelope, exchange, history, key, digest, tip, size, whole)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
}


class TransactionWriter:
    """Writes records to the log, one transaction after another, over the only connection for writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids = RowIdCache(connection)
        self._rows = RowBuffer(self._ids, INSERTS | insert_lineage.INSERTS | insert_context.INSERTS)
        self._lineage = insert_lineage.LineageInserter(connection, self._ids, self._rows)
        self._context = insert_context.ContextInserter(connection, self._ids, self._rows)
        self._adders: Mapping[type[Record], Callable[[Any], None]] = {
            Opening: self._add_opening,
            Round: self._add_round,
            Outcome: self._add_outcome,
            Reading: self._add_reading,
            Trailer: self._add_trailer,
            ReceivedCall: self._add_held,
            Lineage: self._lineage.add_lineage,
            Reply: self._lineage.add_reply,
            Adoption: self._lineage.add_adoption,
            SourceNote: self._context.add_source,
            Epoch: self._context.add_epoch,
            Plan: self._context.add_plan,
            Pin: self._context.add_pin,
            Summary: self._context.add_summary,
            Recalled: self._context.add_recalled,
            Remembered: self._context.add_remembered,
            MemoryOrder: self._context.add_memory_order,
        }

    def commit(self, appends: Iterable[Iterable[Record]], journal_end: int = 0) -> int:
        """Store the records of some appends, all or none, and return the number of rows.

        With this transaction all journal entries up to `journal_end` are in the log (0: no journal). Raises
        DanglingReference, ValueError and others if a record cannot be stored, sqlite3.Error if the file fails.
        """
        connection = self._connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._ids.load()
            adders = self._adders
            for records in appends:
                for record in records:
                    adders[type(record)](record)
            count = self._rows.write(connection)
            if self._ids.late:
                derive_late(connection, self._ids.late)
                self._ids.late.clear()
            self._ids.note_growth()
            if journal_end:
                advance_journal_position(connection, journal_end)
            connection.execute("COMMIT")
        except BaseException:
            self.forget()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._ids.age()
        self._lineage.age()
        self._context.age()
        return count

    @property
    def unfilled(self) -> int:
        """Return of how many of the newest exchanges reports have no rows yet."""
        head = self._ids.heads.get("exchange")
        return head.seq - self._ids.filled if head is not None else 0

    def fill(self) -> None:
        """Store the rows of the next exchanges for reports. Raises sqlite3.Error."""
        self._ids.filled = fill(self._connection, self._ids.heads["exchange"].seq)

    def forget(self) -> None:
        """Clear all caches, so that everything is looked up in the log again."""
        self._rows.clear()
        self._ids.forget()
        self._lineage.forget()
        self._context.forget()

    def _add_opening(self, opening: Opening) -> None:
        session = self._open_session(opening.session, opening.opened_ms)
        tenant, body = session.tenant, opening.body
        headers, changes = self._add_headers(tenant, opening.headers)
        envelope, tip = self._add_body(tenant, body)
        session.n += 1
        exchange = fit_text(opening.exchange)
        seq = self._rows.add_sealed(
            "exchange",
            ((session.id, fit_text(opening.session.id)), headers, envelope),
            (
                exchange,
                session.n,
                opening.kind,
                opening.wire,
                opening.mode,
                fit_text(opening.model),
                fit_text(opening.method),
                fit_text(opening.target),
                changes,
                tip,
                body.size,
                body.whole_digest,
                opening.opened_ms,
            ),
        )
        self._ids.exchanges.put(exchange, Exchange(seq, tenant, fit_text(opening.session.id), session.n))

    def _add_round(self, record: Round) -> None:
        found = self._ids.expect_exchange(record.exchange)
        exchange, tenant = found.seq, found.tenant
        body, k, upstream = record.body, record.k, fit_text(record.upstream)
        if body is None:
            self._rows.add_sealed("round", (_NOTHING,), (exchange, k, upstream, None, None, None, None))
        else:
            envelope, tip = self._add_body(tenant, body)
            self._rows.add_sealed(
                "round", (envelope,), (exchange, k, upstream, tip, body.size, body.whole_digest, None)
            )

    def _add_outcome(self, outcome: Outcome) -> None:
        found = self._ids.expect_exchange(outcome.exchange)
        exchange, tenant = found.seq, found.tenant
        headers, changes = self._add_headers(tenant, outcome.headers)
        timings, received = (
            outcome.timings,
            (self._rows.add_payload(outcome.received), compute_digest(outcome.received)),
        )
        self._rows.add_sealed(
            "outcome",
            (headers,),
            (
                exchange,
                outcome.k,
                changes,
                *received,
                outcome.size,
                outcome.whole_digest,
                outcome.status,
                outcome.completeness,
                float(timings.head_ms),
                float(timings.first_byte_ms),
                float(timings.total_ms),
                fit_text(outcome.error),
                timings.overhead_ms,
            ),
        )
        self._ids.received.put((exchange, outcome.k), received)

    def _add_trailer(self, trailer: Trailer) -> None:
        exchange = self._ids.expect_exchange(trailer.exchange).seq
        received = trailer.received
        values = (
            exchange,
            trailer.k,
            trailer.i,
            self._rows.add_payload(received),
            compute_digest(received),
            len(received),
        )
        self._rows.add_sealed("trailer", (), values)

    def _add_reading(self, reading: Reading) -> None:
        exchange = self._ids.expect_exchange(reading.exchange).seq
        usage = fit_usage(reading.usage) or Usage()
        digest = compute_digest(reading.answer)
        received, its_digest = self._ids.received.get((exchange, reading.k)) or _NOTHING
        error = fit_text(reading.error).encode()
        self._rows.add_sealed(
            "reading",
            (),
            (
                exchange,
                reading.k,
                received if digest == its_digest else self._rows.add_payload(reading.answer, TINY),
                digest,
                self._rows.add_payload(error) if error else None,
                compute_digest(error) if error else None,
                *astuple(usage),
                fit_text(reading.finish),
            ),
        )

    def _add_held(self, held: ReceivedCall) -> None:
        found, body = self._ids.expect_exchange(held.exchange), held.body
        envelope, tip = self._add_body(found.tenant, body)
        values = (found.seq, held.history, fit_text(held.key), held.digest, tip, body.size, body.whole_digest)
        self._rows.add_sealed("held", (envelope,), values)

    def _open_session(self, key: SessionKey, now_ms: int) -> OpenSession:
        ids, name = self._ids, fit_text(key.id)
        session = ids.find_session(name)
        if session:
            return session
        tenant = ids.find_tenant(key.tenant)
        if tenant is None:
            tenant = ids.put_tenant(key.tenant, ids.next_id("tenant"))
            self._rows.add("tenant", (tenant.id, key.tenant))
        session = OpenSession(ids.next_id("session"), tenant, 0)
        ids.sessions.put(name, session)
        upstream = fit_text(key.upstream)
        row = (session.id, name, tenant.id, upstream, fit_text(key.family), now_ms, fit_text(key.parent))
        self._rows.add("session", row)
        self._lineage.add_session(name, session.id, upstream)
        return session

    def _add_headers(self, tenant: Tenant, headers: Headers) -> tuple[Reference, bytes]:
        key = (tenant.id, tuple(map(_name_of, headers)))
        base = self._ids.headers.get(key)
        if base is None:
            content = encode_headers(headers)
            base = HeaderBase(self._rows.add_blob(tenant, compute_digest(content), content), headers)
            self._ids.headers.put(key, base)
        return base.blob, encode_changes(headers, base.headers)

    def _add_body(self, tenant: Tenant, body: Manifest) -> tuple[Reference, bytes]:
        for blob in body.blobs:
            self._rows.add_blob(tenant, blob.digest, blob.content)
        if body.slices:
            self._extend_chain(tenant, body.slices)
        envelope, tip, links = self._ids.envelopes.split(body.recipe)
        for digest in envelope.blobs:
            if self._ids.find_blob(tenant, digest) is None:
                raise DanglingReference("a blob of its body is not in the log")
        for link in links:
            if link != tenant.root and not self._ids.has_link(link):
                raise DanglingReference("the chain of its body is not in the log")
        return self._rows.add_blob(tenant, envelope.digest, envelope.content), tip

    def _extend_chain(self, tenant: Tenant, slices: tuple[Slice, ...]) -> None:
        # If a link is stored, so are all its ancestors. So only the tail of a repeated history is looked up. Usually
        # the first link that may be new is, and thus all are.
        ids = self._ids
        first = len(slices) if ids.has_link(slices[0].link) else 0
        while first and not ids.has_link(slices[first - 1].link):
            first -= 1
        for piece in slices[:first] if ids.has_erasures else ():
            if piece.content is not None:
                self._rows.add_blob(tenant, piece.digest, piece.content)
        for piece in slices[first:]:
            if piece.parent != tenant.root and not ids.has_link(piece.parent):
                raise DanglingReference("a slice of its body has a parent that is not in the log")
            if piece.content is None:
                blob = ids.expect_message(tenant, piece.digest)
            else:
                blob, _ = self._rows.add_blob(tenant, piece.digest, piece.content)
            self._rows.add("raw", (piece.link, piece.parent, piece.gap, blob))
            ids.links.put(piece.link, True)
