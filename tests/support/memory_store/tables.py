"""The tables of the log in memory; records of one append get in all together, or none of them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from proxy.model.epoch import Epoch, Original, Pin, Plan, Recalled, SourceNote, Summary
from proxy.model.exchange import HeldCall, Opening, Outcome, Reading, Round, SessionKey, Trailer
from proxy.model.lineage import Adoption, Reply, Step, compute_chain_root, name_mark
from proxy.model.log import Record
from proxy.model.manifest import (
    BlobPiece,
    ChainPiece,
    Manifest,
    Slice,
    compute_digest,
    compute_root_link,
    decode_recipe,
)
from proxy.model.memory import MemoryOrder, Remembered
from proxy.store.constraints import (
    SummaryIdentity,
    find_summary_fault,
    fit_text,
    fit_texts,
    span_of,
)
from proxy.store.sqlite.lineage_queries import find_parent
from tests.support.memory_store.tree import Tree

_log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


class Refused(Exception):
    """A record is a duplicate, or refers to what is not there."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An opening and its place."""

    seq: int
    n: int
    opening: Opening


class Tables:
    """One dictionary for each table of the log."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[bytes, bytes], bytes] = {}
        self.slices: dict[bytes, Slice] = {}
        self.keys: dict[str, SessionKey] = {}
        self.sessions: dict[str, dict[int, str]] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.rounds: dict[str, dict[int, Round]] = {}
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.trailers: dict[tuple[str, int], dict[int, Trailer]] = {}
        self.readings: dict[tuple[str, int], Reading] = {}
        self.trees: dict[str, Tree] = {}
        self.epochs: dict[str, Epoch] = {}
        self.originals: dict[str, tuple[str, Original]] = {}
        self.plans: dict[tuple[str, int], Plan] = {}
        self.pins: dict[int, Pin] = {}
        self.summaries: dict[str, Summary] = {}
        self.recalled: dict[str, Recalled] = {}
        self.held: dict[str, HeldCall] = {}
        self.sources: dict[str, SourceNote] = {}
        self.memory: dict[int, Remembered | MemoryOrder] = {}
        self._inserted: list[tuple[dict[Any, Any], object]] = []

    def add(self, records: Sequence[Record]) -> bool:
        """Take records; False, and nothing has changed, where one cannot be taken."""
        self._inserted.clear()
        try:
            for record in records:
                self._add_record(record)
        except (Refused, ValueError) as error:
            for table, key in reversed(self._inserted):
                del table[key]
            _log.error("the log could not take a record: %s", error)
            return False
        return True

    def find_session(self, exchange: str) -> str:
        """The id of the session that an exchange belongs to."""
        return self.exchanges[exchange].opening.session.id

    def _insert(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            raise Refused("it is a duplicate")
        table[key] = value
        self._inserted.append((table, key))

    def _add_record(self, record: Record) -> None:
        match record:
            case Opening():
                self._add_opening(record)
            case Round():
                opening = self._expect_opening(record.exchange)
                self._insert(self.rounds[record.exchange], record.k, record)
                if record.body is not None:
                    self._add_body(opening.session.tenant, record.body)
            case Outcome():
                self._expect(self._expect(self.rounds, record.exchange), record.k)
                self._insert(self.outcomes, (record.exchange, record.k), record)
                self._insert(self.trailers, (record.exchange, record.k), {})
            case Trailer():
                self._expect(self.outcomes, (record.exchange, record.k))
                self._insert(self.trailers[record.exchange, record.k], record.i, record)
            case Reading():
                self._expect(self.outcomes, (record.exchange, record.k))
                self._insert(self.readings, (record.exchange, record.k), record)
            case HeldCall():
                opening = self._expect_opening(record.exchange)
                self._insert(self.held, record.exchange, replace(record, key=fit_text(record.key)))
                self._add_body(opening.session.tenant, record.body)
            case Step():
                self._add_step(record)
            case Reply():
                self._grow(self._expect_opening(record.exchange).session, record)
            case Adoption():
                self._add_adoption(record)
            case _:
                self._add_context(record)

    def _add_context(
        self, record: SourceNote | Epoch | Plan | Pin | Summary | Recalled | Remembered | MemoryOrder
    ) -> None:
        match record:
            case Epoch():
                self._add_epoch(fit_texts(record))
            case Plan():
                self._expect_opening(record.exchange)
                if record.epoch:
                    self._expect(self.epochs, record.epoch)
                self._insert(self.plans, (record.exchange, record.k), fit_texts(record))
            case SourceNote():
                self._expect_opening(record.exchange)
                self._expect(self.keys, record.session)
                self._insert(self.sources, record.exchange, replace(record, kind=fit_text(record.kind)))
            case Pin():
                self._expect(self.keys, record.session)
                self._insert(self.pins, len(self.pins), record)
            case Summary():
                self._add_summary(fit_texts(record))
            case Recalled():
                self._expect_opening(record.exchange)
                self._expect(self.keys, record.session)
                self._expect(self.epochs, record.epoch)
                self._insert(self.recalled, record.exchange, fit_texts(record))
            case Remembered():
                self._expect(self.keys, record.session)
                self._insert(self.memory, len(self.memory) + 1, fit_texts(record))
            case MemoryOrder():
                self._expect(self.keys, record.session)
                self._insert(self.memory, len(self.memory) + 1, replace(record, item=fit_text(record.item)))

    def _add_opening(self, opening: Opening) -> None:
        key = opening.session
        if key.id not in self.sessions:
            self._insert(self.sessions, key.id, {})
            self._insert(self.keys, key.id, key)
            self._insert(self.trees, key.id, Tree())
        session = self.sessions[key.id]
        n = len(session) + 1
        self._insert(self.exchanges, opening.exchange, Exchange(len(self.exchanges) + 1, n, opening))
        self._insert(self.rounds, opening.exchange, {})
        self._insert(session, n, opening.exchange)
        self._add_body(key.tenant, opening.body)

    def _add_step(self, step: Step) -> None:
        exchange = self._expect(self.exchanges, step.exchange)
        key = exchange.opening.session
        tree = self._grow(key, step)
        self._expect_node(key, step.tip)
        self._insert(tree.steps, exchange.n, step)

    def _add_adoption(self, adoption: Adoption) -> None:
        tree, source = self._expect(self.trees, adoption.session), self._expect(self.trees, adoption.source)
        self._expect(source.parents, adoption.node)
        key = (adoption.source, adoption.node)
        if key not in tree.adoptions:
            self._insert(tree.adoptions, key, adoption)

    def _add_epoch(self, epoch: Epoch) -> None:
        tenant = self._expect(self.keys, epoch.session).tenant
        if epoch.parent:
            self._expect(self.epochs, epoch.parent)
        if epoch.exchange:
            self._expect_opening(epoch.exchange)
        for message in epoch.rendered:
            self._add_blob(tenant, compute_digest(message), message)
        for original in epoch.originals:
            self._add_original(epoch.session, tenant, original)
        rendered = tuple(self.blobs[tenant, compute_digest(message)] for message in epoch.rendered)
        self._insert(self.epochs, epoch.id, replace(epoch, rendered=rendered))

    def _add_original(self, session: str, tenant: bytes, original: Original) -> None:
        if original.id in self.originals:
            if self.originals[original.id][1] != original:
                raise Refused("a reference of it stands for something else already")
            return
        for digest in original.digests:
            self._expect(self.blobs, (tenant, digest))
        self._insert(self.originals, original.id, (session, original))

    def _add_summary(self, summary: Summary) -> None:
        known = self.summaries.get(summary.id)
        if known is not None:
            if _identify(known) != _identify(summary):
                raise Refused("its id stands for another summary already")
            return
        parents, superseded = (
            [span_of(self._expect(self.summaries, name)) for name in names]
            for names in (summary.parents, summary.supersedes)
        )
        if flaw := find_summary_fault(summary.kind, span_of(summary), len(summary.digests), parents, superseded):
            raise Refused(flaw)
        tenant = self._expect(self.keys, summary.session).tenant
        if summary.exchange:
            self._expect_opening(summary.exchange)
        for digest in summary.digests:
            self._expect(self.blobs, (tenant, digest))
        self._insert(self.summaries, summary.id, summary)

    def _grow(self, key: SessionKey, record: Step | Reply) -> Tree:
        tree = self.trees[key.id]
        for row in record.nodes:
            if tree.lacks(row):
                self._expect_node(key, row.parent)
                self._insert(tree.nodes, (row.node, row.is_answer), row)
            if row.node not in tree.parents:
                self._insert(tree.parents, row.node, find_parent(tree.parents, row))
        for mark in record.marks:
            self._expect(tree.parents, mark.node)
            name = name_mark(mark.name)
            if name not in tree.marks:
                self._insert(tree.marks, name, replace(mark, name=name))
        return tree

    def _expect_node(self, key: SessionKey, node: bytes) -> None:
        """A node that something hangs on: of the session, the root, or of any session."""
        if node in self.trees[key.id].parents or node == compute_chain_root(key.upstream):
            return
        if not any(node in tree.parents for tree in self.trees.values()):
            raise Refused("it refers to what is not in the log")

    def _add_body(self, tenant: bytes, body: Manifest) -> None:
        for blob in body.blobs:
            self._add_blob(tenant, blob.digest, blob.content)
        for piece in body.slices:
            if piece.content is None:
                self._expect(self.blobs, (tenant, piece.digest))
            else:
                self._add_blob(tenant, piece.digest, piece.content)
            if piece.link not in self.slices:
                self._expect_link(tenant, piece.parent)
                self._insert(self.slices, piece.link, piece)
        for part in decode_recipe(body.recipe):
            if isinstance(part, ChainPiece):
                self._expect_link(tenant, part.link)
            elif isinstance(part, BlobPiece):
                self._expect(self.blobs, (tenant, part.digest))

    def _add_blob(self, tenant: bytes, digest: bytes, content: bytes) -> None:
        if (tenant, digest) not in self.blobs:
            self._insert(self.blobs, (tenant, digest), content)

    def _expect(self, table: dict[K, V], key: K) -> V:
        if key not in table:
            raise Refused("it refers to what is not in the log")
        return table[key]

    def _expect_opening(self, exchange: str) -> Opening:
        return self._expect(self.exchanges, exchange).opening

    def _expect_link(self, tenant: bytes, link: bytes) -> None:
        if link != compute_root_link(tenant):
            self._expect(self.slices, link)


def _identify(summary: Summary) -> SummaryIdentity:
    text = compute_digest(summary.text.encode())
    return SummaryIdentity(span_of(summary), summary.last, summary.kind, summary.level, text)
