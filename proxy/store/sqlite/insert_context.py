"""Turns records of managed context into rows: epochs, decisions, pins, summaries, what was recalled, and memory.

The messages that an epoch or a summary refers to must be in the log, or the record is refused. A later epoch may name a
reference again, also in a session that continues another: it must mean the same, and its row is reused. A condensed
summary may have, and replace, parents of a session that its own continues. Their ids need no access check: they cannot
be guessed, so that only a reader can name them.
"""

import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from msgspec.structs import astuple, replace

from proxy.model.epoch import Epoch, Original, Pin, Plan, Recalled, SourceNote, Summary
from proxy.model.manifest import compute_digest
from proxy.model.memory import MemoryOrder, Remembered
from proxy.store.constraints import (
    MessageSpan,
    SummaryIdentity,
    find_summary_fault,
    fit_text,
    fit_texts,
    span_of,
)
from proxy.store.sqlite.codec import (
    REPORT,
    TINY,
    digest_epoch,
    digest_summary,
    encode_hidden,
    encode_ids,
    encode_remembered,
)
from proxy.store.sqlite.id_cache import DanglingReference, GenerationCache, OpenSession, RowBuffer, RowIdCache

# Parents come before children. The columns of a sealed table are seq, seal, references, then the values as sealed.
INSERTS = {
    "original": "INSERT INTO original(id, name, session, wire, place, start, messages) VALUES (?, ?, ?, ?, ?, ?, ?)",
    "epoch": """INSERT INTO epoch(
        seq, seal, session, id, view, parent, through, depth, why, exchange, opened_ms, tokens_before, tokens_after,
        edits, edits_digest, rendered, originals, digest, tool)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "decision": """INSERT INTO decision(
        seq, seal, session, exchange, k, view, rung, epoch, pressure, reason, tokens_client, tokens_upstream, usable,
        owed, saving, client_read, sent_read, own_expected, sent_expected, window, soft)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "pin": "INSERT INTO pin(seq, seal, session, node, is_on, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
    "summary": """INSERT INTO summary(
        seq, seal, session, text, notes, id, wire, start, stop, last, kind, level, is_provisional, tokens, covered,
        made_ms, exchange, model, calls, messages, digest)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "recalled": """INSERT INTO recalled(
        seq, seal, session, exchange, view, epoch, node, count, tokens, rounds, rounds_digest)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "source": "INSERT INTO source(seq, seal, session, exchange, node, kind) VALUES (?, ?, ?, ?, ?, ?)",
    "memory": """INSERT INTO memory(seq, seal, session, kind, item, at_ms, start, stop, last, content, digest)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "summary_edge": "INSERT INTO summary_edge(summary, relation, i, other) VALUES (?, ?, ?, ?)",
}

_FIND_EPOCH = "SELECT seq FROM epoch WHERE id = ?"
_FIND_ORIGINAL = """
    SELECT o.id, s.key, o.wire, o.place, o.start, o.messages FROM original o JOIN session s ON s.id = o.session
    WHERE o.name = ?"""
_DIGESTS = "SELECT b.digest FROM json_each(?) m JOIN blob b ON b.id = m.value ORDER BY m.key"
_FIND_SUMMARY = """
    SELECT x.seq, x.wire, x.start, x.stop, x.last, x.kind, x.level, b.digest FROM summary x JOIN blob b ON b.id = x.text
    WHERE x.id = ?"""


@dataclass(frozen=True, slots=True)
class StoredReference:
    """The row id of an original, the key of the session that first named it, and the original itself."""

    id: int
    session: str
    original: Original


class SummaryRow(NamedTuple):
    """The row id and the identity of a summary."""

    seq: int
    identity: SummaryIdentity


class ContextInserter:
    """Turns records of managed context into rows, and caches their ids."""

    def __init__(self, connection: sqlite3.Connection, ids: RowIdCache, rows: RowBuffer) -> None:
        self._connection = connection
        self._ids = ids
        self._rows = rows
        self._epochs: GenerationCache[str, int] = GenerationCache(4096)
        self._references: GenerationCache[str, StoredReference] = GenerationCache(8192)
        self._summaries: GenerationCache[str, SummaryRow] = GenerationCache(4096)

    def forget(self) -> None:
        """Drop everything, because the transaction was not committed."""
        self._epochs.clear()
        self._references.clear()
        self._summaries.clear()

    def age(self) -> None:
        """Drop entries that have not been used for long, after the transaction was committed."""
        self._epochs.age()
        self._references.age()
        self._summaries.age()

    def add_epoch(self, epoch: Epoch) -> None:
        """Add an epoch. Raises DanglingReference, and ValueError if a reference already names something else."""
        epoch = fit_texts(epoch)
        session, reference = self._ids.expect_session(epoch.session)
        parent = self._find_epoch(epoch.parent)
        exchange = self._ids.expect_exchange(epoch.exchange).seq if epoch.exchange else None
        rendered = [compute_digest(message) for message in epoch.rendered]
        blobs = [self._rows.add_blob(session.tenant, *pair)[0] for pair in zip(rendered, epoch.rendered, strict=True)]
        named = [self._name_original(session, epoch.session, original) for original in epoch.originals]
        seq = self._rows.add_sealed(
            "epoch",
            (reference,),
            (
                epoch.id,
                epoch.view,
                parent,
                epoch.through,
                epoch.depth,
                epoch.why,
                exchange,
                epoch.opened_ms,
                epoch.tokens_before,
                epoch.tokens_after,
                self._rows.add_payload(epoch.edits, TINY),
                compute_digest(epoch.edits),
                encode_ids(blobs),
                encode_ids(each.id for each in named),
                digest_epoch(rendered, [(each.session, each.original) for each in named]),
                epoch.tool or None,
            ),
        )
        self._epochs.put(epoch.id, seq)

    def add_plan(self, plan: Plan) -> None:
        """Add the decision for a round. Raises DanglingReference."""
        plan = fit_texts(plan)
        exchange = self._ids.expect_exchange(plan.exchange)
        _, session = self._ids.expect_session(exchange.session)
        # float: a seal is checked against the values as SQLite returns them
        saving = None if plan.saving is None else float(plan.saving)
        _, k, view, rung, epoch, *values, window, soft = astuple(replace(plan, owed=float(plan.owed), saving=saving))
        row = exchange.seq, k, view, rung, self._find_epoch(epoch), *values, window or None, soft or None
        self._rows.add_sealed("decision", (session,), row)

    def add_pin(self, pin: Pin) -> None:
        """Add a pin. Raises DanglingReference."""
        _, session = self._ids.expect_session(pin.session)
        # int: a seal is checked against the values as SQLite returns them
        self._rows.add_sealed("pin", (session,), (pin.node, int(pin.is_on), pin.at_ms))

    def add_source(self, note: SourceNote) -> None:
        """Add what a request told of its newest message. Raises DanglingReference."""
        _, session = self._ids.expect_session(note.session)
        exchange = self._ids.expect_exchange(note.exchange).seq
        self._rows.add_sealed("source", (session,), (exchange, note.node, fit_text(note.kind)))

    def add_recalled(self, recalled: Recalled) -> None:
        """Add the rounds of an answer in which a model recalled. Raises DanglingReference."""
        recalled = fit_texts(recalled)
        _, session = self._ids.expect_session(recalled.session)
        exchange, epoch = self._ids.expect_exchange(recalled.exchange).seq, self._find_epoch(recalled.epoch)
        if epoch is None:
            raise DanglingReference("it names no epoch")
        rounds = encode_hidden(recalled.rounds)
        self._rows.add_sealed(
            "recalled",
            (session,),
            (
                exchange,
                recalled.view,
                epoch,
                recalled.node,
                recalled.count,
                recalled.tokens,
                self._rows.add_payload(rounds, TINY),
                compute_digest(rounds),
            ),
        )

    def add_remembered(self, remembered: Remembered) -> None:
        """Add a report with its facts to memory. Raises DanglingReference."""
        remembered = fit_texts(remembered)
        _, session = self._ids.expect_session(remembered.session)
        content = encode_remembered(remembered)
        span = remembered.start, remembered.stop, remembered.last
        packed = self._rows.add_payload(content, TINY), compute_digest(content)
        self._rows.add_sealed("memory", (session,), (REPORT, "", remembered.made_ms, *span, *packed))

    def add_memory_order(self, order: MemoryOrder) -> None:
        """Add an order about memory. Raises DanglingReference."""
        _, session = self._ids.expect_session(order.session)
        values = order.kind, fit_text(order.item), order.at_ms, 0, 0, b"", None, None
        self._rows.add_sealed("memory", (session,), values)

    def add_summary(self, summary: Summary) -> None:
        """Add a summary, unless the same one is stored already.

        Raises DanglingReference, and ValueError if it does not cover its span or its id belongs to another summary.
        """
        summary = fit_texts(summary)
        text, span = summary.text.encode(), span_of(summary)
        identity = SummaryIdentity(span, summary.last, summary.kind, summary.level, compute_digest(text))
        known = self._find_summary(summary.id)
        if known is None:
            parents = [self._expect_summary(name) for name in summary.parents]
            superseded = [self._expect_summary(name) for name in summary.supersedes]
            spans = [[each.identity.span for each in group] for group in (parents, superseded)]
            if fault := find_summary_fault(summary.kind, span, len(summary.digests), *spans):
                raise ValueError(fault)
            seq = self._append_summary(summary, text)
            for relation, others in (("parent", parents), ("supersedes", superseded)):
                for i, other in enumerate(others):
                    self._rows.add("summary_edge", (seq, relation, i, other.seq))
            self._summaries.put(summary.id, SummaryRow(seq, identity))
        elif known.identity != identity:
            raise ValueError("its id stands for another summary already")

    def _append_summary(self, summary: Summary, text: bytes) -> int:
        session, reference = self._ids.expect_session(summary.session)
        exchange = self._ids.expect_exchange(summary.exchange).seq if summary.exchange else None
        blobs = [self._ids.expect_message(session.tenant, digest) for digest in summary.digests]
        added = (summary.block, summary.facts) if summary.facts else (summary.block,) if summary.block else ()
        contents = (text, orjson.dumps((summary.reason, summary.files, *added)))
        return self._rows.add_sealed(
            "summary",
            (
                reference,
                *[self._rows.add_blob(session.tenant, compute_digest(content), content) for content in contents],
            ),
            (
                summary.id,
                summary.wire,
                summary.start,
                summary.stop,
                summary.last,
                summary.kind,
                summary.level,
                int(summary.is_provisional),
                summary.tokens,
                summary.covered,
                summary.made_ms,
                exchange,
                summary.model,
                orjson.dumps(summary.calls).decode(),
                encode_ids(blobs),
                digest_summary(summary.digests, summary.parents, summary.supersedes),
            ),
        )

    def _name_original(self, session: OpenSession, key: str, original: Original) -> StoredReference:
        known = self._find_reference(original.id)
        if known is not None:
            if known.original != original:
                raise ValueError("a reference of it stands for something else already")
            return known
        blobs = encode_ids(self._ids.expect_message(session.tenant, digest) for digest in original.digests)
        added = StoredReference(self._ids.next_id("original"), key, original)
        self._references.put(original.id, added)
        row = (added.id, original.id, session.id, original.wire, original.place, original.offset, blobs)
        self._rows.add("original", row)
        return added

    def _find_epoch(self, epoch: str) -> int | None:
        """Return the row id of an epoch, or None for an empty id. Raises DanglingReference."""
        if not epoch:
            return None
        found = self._epochs.get(epoch)
        if found is None:
            row = self._connection.execute(_FIND_EPOCH, (epoch,)).fetchone()
            if row is None:
                raise DanglingReference("its epoch is not in the log")
            found = int(row[0])
            self._epochs.put(epoch, found)
        return found

    def _find_reference(self, name: str) -> StoredReference | None:
        found = self._references.get(name)
        if found is None:
            row = self._connection.execute(_FIND_ORIGINAL, (name,)).fetchone()
            if row:
                original, session, wire, place, start, messages = row
                digests = tuple(digest for (digest,) in self._connection.execute(_DIGESTS, (messages,)))
                found = StoredReference(original, session, Original(name, digests, wire, place, start))
                self._references.put(name, found)
        return found

    def _find_summary(self, name: str) -> SummaryRow | None:
        found = self._summaries.get(name)
        if found is None:
            row = self._connection.execute(_FIND_SUMMARY, (name,)).fetchone()
            if row:
                seq, wire, start, stop, *rest = row
                found = SummaryRow(seq, SummaryIdentity(MessageSpan(wire, start, stop), *rest))
                self._summaries.put(name, found)
        return found

    def _expect_summary(self, name: str) -> SummaryRow:
        found = self._find_summary(name)
        if found is None:
            raise DanglingReference("a summary that it refers to is not in the log")
        return found
