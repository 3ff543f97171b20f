"""Records of lineage turned into rows of a session's tree. Rule: what the log has already is passed over quietly.

The engine's memory may forget, and then brings nodes and marks again. What hangs on a node that is not in the log is
refused, as is a record of an exchange or a session that is not there. A chain hangs on a node of its own session, on
the root of its upstream's chains, or, where the client continues an answer by its id alone, on a node of any session.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import get_args

from proxy.model.lineage import Adoption, CallFingerprint, NodeRow, Relation, Reply, Step, name_mark
from proxy.store.sqlite.known import Exchange, RowIdCache
from proxy.store.sqlite.problem import Dangling
from proxy.store.sqlite.rows import Rows
from proxy.store.sqlite.trees import NodePlace, Tree, key_of
from proxy.store.storable import fit_text

SEAL_SIZE = 4
RELATIONS: tuple[Relation, ...] = get_args(Relation)

_NUMBERS = {relation: number for number, relation in enumerate(RELATIONS)}

# parents before children
INSERTS = {
    "node": """INSERT INTO node(session, n, hash, parent, outer, is_answer, exchange, seal)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
    "step": "INSERT INTO step(session, n, tip, outer, depth, base, relation, is_side) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "mark": "INSERT INTO mark(session, n, node, key, name, form) VALUES (?, ?, ?, ?, ?, ?)",
    "adoption": "INSERT INTO adoption(session, n, source, node, at_ms) VALUES (?, ?, ?, ?, ?)",
}


class Growth:
    """What one transaction adds to the trees."""

    def __init__(self, known: RowIdCache, rows: Rows) -> None:
        self._known = known
        self._rows = rows
        self._trees = known.trees
        self._fresh: set[bytes] = set()

    def add_step(self, step: Step) -> None:
        """Where a request stands. Raises Dangling."""
        exchange, tree = self._find_exchange(step.exchange)
        self._add_nodes(tree, exchange.n, step.nodes)
        self._add_marks(tree, step.marks)
        place = self._trees.find_place(tree, step.tip)
        if place is None:
            self._expect_outer(tree, step.tip)
        tip, outer = (place.n, None) if place else (0, step.tip)
        row = (tree.session, exchange.n, tip, outer, step.depth, step.base, _NUMBERS[step.relation], int(step.is_side))
        self._rows.add("step", row)

    def add_reply(self, reply: Reply) -> None:
        """Where an answer stands. Raises Dangling."""
        exchange, tree = self._find_exchange(reply.exchange)
        self._add_nodes(tree, exchange.n, reply.nodes)
        self._add_marks(tree, reply.marks)

    def add_adoption(self, adoption: Adoption) -> None:
        """Where a session goes on. Raises Dangling."""
        tree, source = self._find_tree(adoption.session), self._find_tree(adoption.source)
        node = self._expect_place(source, adoption.node).n
        if self._trees.take_adoption(tree.session, source.session, node):
            tree.adoptions += 1
            self._rows.add("adoption", (tree.session, tree.adoptions, source.session, node, adoption.at_ms))

    def _add_nodes(self, tree: Tree, exchange: int, nodes: Sequence[NodeRow]) -> None:
        for row in nodes:
            parent = self._trees.find_place(tree, row.parent)
            # the last node has no child, so what comes behind it is new: most calls need no look-up
            is_new = parent is not None and parent.n == tree.nodes and tree.is_plain
            known = None if is_new else self._trees.find_place(tree, row.node)
            if known is None or (row.is_answer and not known.is_answer):
                self._append_node(tree, exchange, row, parent)
                n = known.n if known else tree.nodes
                self._trees.put_place(tree, row.node, NodePlace(n, row.is_answer))

    def _append_node(self, tree: Tree, exchange: int, row: NodeRow, parent: NodePlace | None) -> None:
        if parent is None:
            self._expect_outer(tree, row.parent)
            tree.is_plain = tree.is_plain and row.parent == tree.root
        tree.nodes += 1
        n, outer = (parent.n, None) if parent else (0, row.parent)
        tree.seal = seal_node(tree.seal, tree.nodes, row.node, row.parent, row.is_answer, exchange)
        self._rows.add("node", (tree.session, tree.nodes, row.node, n, outer, row.is_answer, exchange, tree.seal))
        self._fresh.add(row.node)

    def _add_marks(self, tree: Tree, marks: Sequence[CallFingerprint]) -> None:
        for mark in marks:
            node, name = self._expect_place(tree, mark.node).n, name_mark(mark.name)
            key = key_of(name)
            if self._trees.take_mark(tree, key, name):
                tree.marks += 1
                self._rows.add("mark", (tree.session, tree.marks, node, key, name, mark.form))

    def _find_exchange(self, name: str) -> tuple[Exchange, Tree]:
        exchange = self._known.find_exchange(fit_text(name))
        if exchange is None:
            raise Dangling("its exchange is not in the log")
        return exchange, self._find_tree(exchange.session)

    def _find_tree(self, session: str) -> Tree:
        tree = self._trees.find(fit_text(session))
        if tree is None:
            raise Dangling("its session is not in the log")
        return tree

    def _expect_place(self, tree: Tree, node: bytes) -> NodePlace:
        place = self._trees.find_place(tree, node)
        if place is None:
            raise Dangling("its node is not in the session")
        return place

    def _expect_outer(self, tree: Tree, node: bytes) -> None:
        if node != tree.root and node not in self._fresh and not self._trees.has_node(node):
            raise Dangling("a node before it is not in the log")


def seal_node(seal: bytes, n: int, node: bytes, parent: bytes, is_answer: bool, exchange: int) -> bytes:
    """The seal of a node behind the one of its session that was sealed before: 4 bytes of SHA-256."""
    return sha256(b"%b%d:%b%b%d:%d" % (seal, n, node, parent, is_answer, exchange)).digest()[:SEAL_SIZE]
