"""Records turned into rows. Rule: content before what refers to it, and nothing refers to what is not stored.

A record of a chain or blob that the log lacks is refused with `Dangling`: the engine, which believed the log had it,
forgets what it believed when it sees the archive's `generation` change, and sends everything with its next request.
"""

import sqlite3
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from proxy.model.exchange import Headers, Opening, Outcome, Reading, Round, SessionKey, Trailer, Usage
from proxy.model.lineage import Adoption, Reply, Step
from proxy.model.manifest import Manifest, Slice, digest_of
from proxy.model.record import Record
from proxy.model.summary import Summary
from proxy.store.sqlite.codec import TINY, encode_changes, encode_headers
from proxy.store.sqlite.epochs import INSERTS as EPOCH_INSERTS
from proxy.store.sqlite.epochs import Epochs
from proxy.store.sqlite.expected import expect_message
from proxy.store.sqlite.growth import INSERTS as GROWTH_INSERTS
from proxy.store.sqlite.growth import Growth
from proxy.store.sqlite.known import Exchange, HeaderBase, Reference, RowIdCache, Session, Tenant
from proxy.store.sqlite.problem import Dangling
from proxy.store.sqlite.rows import Rows
from proxy.store.sqlite.summaries import INSERTS as SUMMARY_INSERTS
from proxy.store.sqlite.summaries import Summaries
from proxy.store.storable import fit_text, fit_usage

_NOTHING = (None, None)

_name_of = itemgetter(0)

# parents before children; in a sealed table seq, seal, references, then values as they are sealed
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
        first_byte_ms, total_ms, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "trailer": """INSERT INTO trailer(seq, seal, exchange, k, i, received, digest, size)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
    "reading": """INSERT INTO reading(
        seq, seal, exchange, k, answer, digest, error, error_digest, input, output, cached, written, reasoning, finish)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
}
_ALL_INSERTS = INSERTS | GROWTH_INSERTS | EPOCH_INSERTS | SUMMARY_INSERTS


class Batch:
    """Rows of one transaction."""

    def __init__(self, known: RowIdCache) -> None:
        self._known = known
        self._rows = Rows(known, _ALL_INSERTS)
        self._growth = Growth(known, self._rows)
        self._epochs = Epochs(known, self._rows)
        self._summaries = Summaries(known, self._rows)
        # Methods of its own are not here: held by itself, a batch would stay until the garbage collector comes round.
        self._adders: Mapping[type[Record], Callable[[Any], None]] = {
            Step: self._growth.add_step,
            Reply: self._growth.add_reply,
            Adoption: self._growth.add_adoption,
            Summary: self._summaries.add,
        }

    def add(self, record: Record) -> None:
        """Turn a record into rows. Raises Dangling, ValueError and the like for one that cannot be stored."""
        kind = type(record)
        own = _ADDERS.get(kind)
        if own is not None:
            own(self, record)
        else:
            self._adders.get(kind, self._epochs.add)(record)

    def write(self, connection: sqlite3.Connection) -> int:
        """Insert everything; returns the number of rows."""
        return self._rows.write(connection)

    def _add_opening(self, opening: Opening) -> None:
        session = self._open_session(opening.session, opening.opened_ms)
        tenant, body = session.tenant, opening.body
        headers, changes = self._keep_headers(tenant, opening.headers)
        envelope, tip = self._keep_body(tenant, body)
        session.n += 1
        exchange = fit_text(opening.exchange)
        seq = self._rows.append(
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
        self._known.put_exchange(exchange, Exchange(seq, tenant, fit_text(opening.session.id), session.n))

    def _add_round(self, record: Round) -> None:
        exchange, tenant = self._expect_exchange(record.exchange)
        body, k, upstream = record.body, record.k, fit_text(record.upstream)
        if body is None:
            self._rows.append("round", (_NOTHING,), (exchange, k, upstream, None, None, None, None))
        else:
            envelope, tip = self._keep_body(tenant, body)
            self._rows.append("round", (envelope,), (exchange, k, upstream, tip, body.size, body.whole_digest, None))

    def _add_outcome(self, outcome: Outcome) -> None:
        exchange, tenant = self._expect_exchange(outcome.exchange)
        headers, changes = self._keep_headers(tenant, outcome.headers)
        timings, received = outcome.timings, (self._rows.keep(outcome.received), digest_of(outcome.received))
        self._rows.append(
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
            ),
        )
        self._known.received.put((exchange, outcome.k), received)

    def _add_trailer(self, trailer: Trailer) -> None:
        exchange, _ = self._expect_exchange(trailer.exchange)
        received = trailer.received
        values = (exchange, trailer.k, trailer.i, self._rows.keep(received), digest_of(received), len(received))
        self._rows.append("trailer", (), values)

    def _add_reading(self, reading: Reading) -> None:
        exchange, _ = self._expect_exchange(reading.exchange)
        usage = fit_usage(reading.usage) or Usage()
        digest = digest_of(reading.answer)
        received, its_digest = self._known.received.get((exchange, reading.k)) or _NOTHING
        error = fit_text(reading.error).encode()
        self._rows.append(
            "reading",
            (),
            (
                exchange,
                reading.k,
                received if digest == its_digest else self._rows.keep(reading.answer, TINY),
                digest,
                self._rows.keep(error) if error else None,
                digest_of(error) if error else None,
                usage.input,
                usage.output,
                usage.cached,
                usage.written,
                usage.reasoning,
                fit_text(reading.finish),
            ),
        )

    def _open_session(self, key: SessionKey, now_ms: int) -> Session:
        known, name = self._known, fit_text(key.id)
        session = known.find_session(name)
        if session:
            return session
        tenant = known.find_tenant(key.tenant)
        if tenant is None:
            tenant = known.put_tenant(key.tenant, known.next_id("tenant"))
            self._rows.add("tenant", (tenant.id, key.tenant))
        session = known.put_session(name, Session(known.next_id("session"), tenant, 0))
        upstream = fit_text(key.upstream)
        row = (session.id, name, tenant.id, upstream, fit_text(key.family), now_ms, fit_text(key.parent))
        self._rows.add("session", row)
        known.trees.plant(name, session.id, upstream)
        return session

    def _expect_exchange(self, exchange: str) -> tuple[int, Tenant]:
        found = self._known.find_exchange(fit_text(exchange))
        if found is None:
            raise Dangling("its exchange is not in the log")
        return found.seq, found.tenant

    def _keep_headers(self, tenant: Tenant, headers: Headers) -> tuple[Reference, bytes]:
        key = (tenant.id, tuple(map(_name_of, headers)))
        base = self._known.headers.get(key)
        if base is None:
            content = encode_headers(headers)
            base = HeaderBase(self._rows.share(tenant, digest_of(content), content), headers)
            self._known.headers.put(key, base)
        return base.blob, encode_changes(headers, base.headers)

    def _keep_body(self, tenant: Tenant, body: Manifest) -> tuple[Reference, bytes]:
        for blob in body.blobs:
            self._rows.share(tenant, blob.digest, blob.content)
        if body.slices:
            self._extend_chain(tenant, body.slices)
        envelope, tip, links = self._known.envelopes.split(body.recipe)
        for digest in envelope.blobs:
            if self._known.find_blob(tenant, digest) is None:
                raise Dangling("a blob of its body is not in the log")
        for link in links:
            if link != tenant.root and not self._known.has_link(link):
                raise Dangling("the chain of its body is not in the log")
        return self._rows.share(tenant, envelope.digest, envelope.content), tip

    def _extend_chain(self, tenant: Tenant, slices: tuple[Slice, ...]) -> None:
        # A link that is stored has all its ancestors stored: of a history sent again, only the tail is looked at, and
        # most often the first that may be new is, so that all are.
        known = self._known
        first = len(slices) if known.has_link(slices[0].link) else 0
        while first and not known.has_link(slices[first - 1].link):
            first -= 1
        for piece in slices[first:]:
            if piece.parent != tenant.root and not known.has_link(piece.parent):
                raise Dangling("a slice of its body has a parent that is not in the log")
            if piece.content is None:
                blob = expect_message(known, tenant, piece.digest)
            else:
                blob, _ = self._rows.share(tenant, piece.digest, piece.content)
            self._rows.add("raw", (piece.link, piece.parent, piece.gap, blob))
            known.put_link(piece.link)


_ADDERS: Mapping[type[Record], Callable[[Batch, Any], None]] = {
    Opening: Batch._add_opening,
    Round: Batch._add_round,
    Outcome: Batch._add_outcome,
    Reading: Batch._add_reading,
    Trailer: Batch._add_trailer,
}
