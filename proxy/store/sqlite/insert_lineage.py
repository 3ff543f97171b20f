"""Turns records of lineage into rows of a session's tree. Nodes and fingerprints that the log already has are skipped.

They may come again, since the engine's memory is bounded. A record is refused if its exchange, its session or a parent
node is not in the log. The parent of a chain is a node of its own session, the root of its upstream's chains or, if
the client continues a response by its id alone, a node of any session.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.model.lineage import Adoption, CallFingerprint, Lineage, NodeRow, Reply, compute_chain_root, name_fingerprint
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import RELATIONS, compute_fingerprint_key, seal_node
from proxy.store.sqlite.id_cache import DanglingReference, GenerationCache, RowBuffer, RowIdCache

_RELATION_NUMBERS = {relation: number for number, relation in enumerate(RELATIONS)}
_LONG_AGO = -1

# Parents come before children.
INSERTS = {
    "node": """INSERT INTO node(session, n, hash, parent, outer, is_answer, exchange, seal)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
    "step": """INSERT INTO step(session, n, tip, outer, depth, base, relation, is_side, layers)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "mark": "INSERT INTO mark(session, n, node, key, name, form) VALUES (?, ?, ?, ?, ?, ?)",
    "adoption": "INSERT INTO adoption(session, n, source, node, at_ms) VALUES (?, ?, ?, ?, ?)",
}

_FIND_TREE = """
    SELECT s.id, s.upstream, ifnull(last.n, 0), ifnull(last.seal, x''),
        (SELECT ifnull(max(m.n), 0) FROM mark m WHERE m.session = s.id),
        (SELECT ifnull(max(a.n), 0) FROM adoption a WHERE a.session = s.id)
    FROM session s LEFT JOIN node last
        ON last.session = s.id AND last.n = (SELECT max(x.n) FROM node x WHERE x.session = s.id)
    WHERE s.key = ?"""
# INDEXED BY, because the query planner would scan the whole session. The place of a node is its first row; a second row
# says that it is also an answer.
_FIND_NODE = """
    SELECT min(n), max(is_answer) FROM node INDEXED BY node_hash
    WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND session = ?2 AND hash = ?1"""
_FIND_ANYWHERE = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1 LIMIT 1"""
_FIND_FINGERPRINT = "SELECT 1 FROM mark INDEXED BY mark_key WHERE key = ? AND session = ? AND name = ?"
_FIND_ADOPTION = "SELECT 1 FROM adoption WHERE session = ? AND source = ? AND node = ?"


@dataclass(slots=True)
class SessionTree:
    """A session's row id, the root of its chains, and its number of rows in each table, which is counted in place.

    `born` is the transaction in which the session is new, so that the tables have no row of it. `is_plain` if all its
    chains are known to begin at the root, so that no node has a child with a lower number than its own.
    """

    session: int
    root: bytes
    born: int
    nodes: int
    seal: bytes
    fingerprints: int
    adoptions: int
    is_plain: bool = False


class NodePlace(NamedTuple):
    """A node's number in its session, and whether an answer is recorded there."""

    n: int
    is_answer: bool


class LineageInserter:
    """Turns records of lineage into rows, and caches sessions' trees."""

    def __init__(self, connection: sqlite3.Connection, ids: RowIdCache, rows: RowBuffer) -> None:
        self._connection = connection
        self._ids = ids
        self._rows = rows
        self._trees: GenerationCache[str, SessionTree] = GenerationCache(4096)
        self._places: GenerationCache[tuple[int, bytes], NodePlace] = GenerationCache(8192)
        self._transaction = 0
        # Of the current transaction, whose rows no query finds yet.
        self._nodes: set[bytes] = set()
        self._fingerprints: set[tuple[int, str]] = set()
        self._adoptions: set[tuple[int, int, int]] = set()

    def forget(self) -> None:
        """Drop everything, because the transaction was not committed."""
        self._end_transaction()
        self._trees.clear()
        self._places.clear()

    def age(self) -> None:
        """Drop entries that have not been used for long, after the transaction was committed."""
        self._end_transaction()
        self._trees.age()
        self._places.age()

    def add_session(self, key: str, session: int, upstream: str) -> None:
        """Note a session that is new in this transaction."""
        self._trees.put(key, SessionTree(session, compute_chain_root(upstream), self._transaction, 0, b"", 0, 0, True))

    def add_lineage(self, lineage: Lineage) -> None:
        """Add the place of a request in its session. Raises DanglingReference."""
        exchange = self._ids.expect_exchange(lineage.exchange)
        tree = self._expect_tree(exchange.session)
        self._add_nodes(tree, exchange.n, lineage.nodes)
        self._add_fingerprints(tree, lineage.fingerprints)
        place = self._find_place(tree, lineage.tip)
        if place is None:
            self._expect_outer(tree, lineage.tip)
        tip, outer = (place.n, None) if place else (0, lineage.tip)
        relation = _RELATION_NUMBERS[lineage.relation]
        position = (tip, outer, lineage.depth, lineage.base, relation, int(lineage.is_side))
        self._rows.add("step", (tree.session, exchange.n, *position, lineage.layers or None))

    def add_reply(self, reply: Reply) -> None:
        """Add the place of a response in its session. Raises DanglingReference."""
        exchange = self._ids.expect_exchange(reply.exchange)
        tree = self._expect_tree(exchange.session)
        self._add_nodes(tree, exchange.n, reply.nodes)
        self._add_fingerprints(tree, reply.fingerprints)

    def add_adoption(self, adoption: Adoption) -> None:
        """Add where a session continues another. Raises DanglingReference."""
        tree, origin = self._expect_tree(adoption.session), self._expect_tree(adoption.origin)
        entry = (tree.session, origin.session, self._expect_place(origin, adoption.node).n)
        if entry in self._adoptions or self._connection.execute(_FIND_ADOPTION, entry).fetchone():
            return
        self._adoptions.add(entry)
        tree.adoptions += 1
        self._rows.add("adoption", (tree.session, tree.adoptions, *entry[1:], adoption.at_ms))

    def _add_nodes(self, tree: SessionTree, exchange: int, nodes: Sequence[NodeRow]) -> None:
        for row in nodes:
            parent = self._find_place(tree, row.parent)
            # The last node has no child, so its child is new: most calls need no look-up.
            is_new = parent is not None and parent.n == tree.nodes and tree.is_plain
            known = None if is_new else self._find_place(tree, row.node)
            if known is None or (row.is_answer and not known.is_answer):
                self._append_node(tree, exchange, row, parent)
                n = known.n if known else tree.nodes
                self._places.put((tree.session, row.node), NodePlace(n, row.is_answer))

    def _append_node(self, tree: SessionTree, exchange: int, row: NodeRow, parent: NodePlace | None) -> None:
        if parent is None:
            self._expect_outer(tree, row.parent)
            tree.is_plain = tree.is_plain and row.parent == tree.root
        tree.nodes += 1
        n, outer = (parent.n, None) if parent else (0, row.parent)
        tree.seal = seal_node(tree.seal, tree.nodes, row.node, row.parent, is_answer=row.is_answer, exchange=exchange)
        self._rows.add("node", (tree.session, tree.nodes, row.node, n, outer, row.is_answer, exchange, tree.seal))
        self._nodes.add(row.node)

    def _add_fingerprints(self, tree: SessionTree, fingerprints: Sequence[CallFingerprint]) -> None:
        for fingerprint in fingerprints:
            node, name = self._expect_place(tree, fingerprint.node).n, name_fingerprint(fingerprint.name)
            key = compute_fingerprint_key(name)
            if not self._has_fingerprint(tree, key, name):
                self._fingerprints.add((tree.session, name))
                tree.fingerprints += 1
                self._rows.add("mark", (tree.session, tree.fingerprints, node, key, name, fingerprint.form))

    def _has_fingerprint(self, tree: SessionTree, key: bytes, name: str) -> bool:
        if (tree.session, name) in self._fingerprints:
            return True
        if not tree.fingerprints or tree.born == self._transaction:
            return False
        return self._connection.execute(_FIND_FINGERPRINT, (key, tree.session, name)).fetchone() is not None

    def _expect_tree(self, session: str) -> SessionTree:
        key = fit_text(session)
        found = self._trees.get(key)
        if found is None:
            row = self._connection.execute(_FIND_TREE, (key,)).fetchone()
            if row is None:
                raise DanglingReference("its session is not in the log")
            found = SessionTree(row[0], compute_chain_root(row[1]), _LONG_AGO, *row[2:])
            self._trees.put(key, found)
        return found

    def _find_place(self, tree: SessionTree, node: bytes) -> NodePlace | None:
        """Return the place of a node in the session, or None."""
        found = self._places.get((tree.session, node))
        if found is None and tree.born != self._transaction:
            n, is_answer = self._connection.execute(_FIND_NODE, (node, tree.session)).fetchone()
            if n is not None:
                found = NodePlace(n, bool(is_answer))
                self._places.put((tree.session, node), found)
        return found

    def _expect_place(self, tree: SessionTree, node: bytes) -> NodePlace:
        place = self._find_place(tree, node)
        if place is None:
            raise DanglingReference("its node is not in the session")
        return place

    def _expect_outer(self, tree: SessionTree, node: bytes) -> None:
        """Raise DanglingReference if the parent of a chain is in no session."""
        if node == tree.root or node in self._nodes:
            return
        if self._connection.execute(_FIND_ANYWHERE, (node,)).fetchone() is None:
            raise DanglingReference("a node before it is not in the log")

    def _end_transaction(self) -> None:
        self._transaction += 1
        self._nodes.clear()
        self._fingerprints.clear()
        self._adoptions.clear()
