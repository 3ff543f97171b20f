"""What the writer knows of sessions' trees. Rule: a cache before the tables; after a rollback, forget it.

As in `known`: entries are put in while a batch is built, and `forget` follows every failed commit.
"""

import sqlite3
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from proxy.model.lineage import root_of_chain
from proxy.store.sqlite.recent import Recent

KEY_SIZE = 6

_SESSIONS, _NODES = 4096, 8192
_LONG_AGO = -1

_FIND_TREE = """
    SELECT s.id, s.upstream, ifnull(last.n, 0), ifnull(last.seal, x''),
        (SELECT ifnull(max(m.n), 0) FROM mark m WHERE m.session = s.id),
        (SELECT ifnull(max(a.n), 0) FROM adoption a WHERE a.session = s.id)
    FROM session s LEFT JOIN node last
        ON last.session = s.id AND last.n = (SELECT max(x.n) FROM node x WHERE x.session = s.id)
    WHERE s.key = ?"""
# INDEXED BY: the planner would rather go through the whole session
# the place of a node is its first row; a second row says that it is also an answer
_FIND_NODE = """
    SELECT min(n), max(is_answer) FROM node INDEXED BY node_hash
    WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND session = ?2 AND hash = ?1"""
_FIND_ANYWHERE = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1 LIMIT 1"""
_FIND_MARK = "SELECT 1 FROM mark INDEXED BY mark_key WHERE key = ? AND session = ? AND name = ?"
_FIND_ADOPTION = "SELECT 1 FROM adoption WHERE session = ? AND source = ? AND node = ?"


@dataclass(slots=True)
class Tree:
    """A session's row id, the root of its chains, and how much of each table it has.

    `born` is the batch that the session is new in: the tables have nothing of it yet. `is_plain`: every chain of it is
    known to begin at the root, so that a node has no child with a lower number than its own.
    """

    session: int
    root: bytes
    born: int
    nodes: int
    seal: bytes
    marks: int
    adoptions: int
    is_plain: bool = False


class NodePlace(NamedTuple):
    """A node's number in its session, and whether an answer is recorded there."""

    n: int
    is_answer: bool


def key_of(name: str) -> bytes:
    """What a mark is looked up by."""
    return sha256(name.encode()).digest()[:KEY_SIZE]


class Trees:
    """Look-ups of nodes and marks, bounded in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._trees: Recent[str, Tree] = Recent(_SESSIONS)
        self._places: Recent[tuple[int, bytes], NodePlace] = Recent(_NODES)
        self._recents: tuple[Recent[Any, Any], ...] = (self._trees, self._places)
        self._batch = 0
        # of the batch under way, whose rows no query finds yet
        self._marks: set[tuple[int, str]] = set()
        self._adoptions: set[tuple[int, int, int]] = set()

    def forget(self) -> None:
        """Trust nothing any more."""
        self._settle()
        for recent in self._recents:
            recent.clear()

    def age(self) -> None:
        """Let go of what has not been used for long; only between two batches."""
        self._settle()
        for recent in self._recents:
            recent.age()

    def plant(self, key: str, session: int, upstream: str) -> None:
        """Remember a session that is new."""
        self._trees.put(key, Tree(session, root_of_chain(upstream), self._batch, 0, b"", 0, 0, True))

    def find(self, key: str) -> Tree | None:
        """The tree of the session with this key; its numbers are counted in place."""
        found = self._trees.get(key)
        if found is None:
            row = self._connection.execute(_FIND_TREE, (key,)).fetchone()
            if row:
                found = Tree(row[0], root_of_chain(row[1]), _LONG_AGO, *row[2:])
                self._trees.put(key, found)
        return found

    def find_place(self, tree: Tree, node: bytes) -> NodePlace | None:
        """Where a node stands in the session."""
        found = self._places.get((tree.session, node))
        if found is None and tree.born != self._batch:
            n, is_answer = self._connection.execute(_FIND_NODE, (node, tree.session)).fetchone()
            if n is not None:
                found = self.put_place(tree, node, NodePlace(n, bool(is_answer)))
        return found

    def put_place(self, tree: Tree, node: bytes, place: NodePlace) -> NodePlace:
        """Remember a node."""
        self._places.put((tree.session, node), place)
        return place

    def has_node(self, node: bytes) -> bool:
        """True where some session has the node, as far as it is committed."""
        return self._connection.execute(_FIND_ANYWHERE, (node,)).fetchone() is not None

    def take_mark(self, tree: Tree, key: bytes, name: str) -> bool:
        """True where the session has no mark of this name yet; from now on it has, which its tree is to count."""
        if (tree.session, name) in self._marks:
            return False
        if tree.marks and tree.born != self._batch and self._has_mark(tree, key, name):
            return False
        self._marks.add((tree.session, name))
        return True

    def _has_mark(self, tree: Tree, key: bytes, name: str) -> bool:
        return self._connection.execute(_FIND_MARK, (key, tree.session, name)).fetchone() is not None

    def take_adoption(self, session: int, source: int, node: int) -> bool:
        """True where the session has not adopted this yet; from now on it has."""
        entry = (session, source, node)
        if entry in self._adoptions or self._connection.execute(_FIND_ADOPTION, entry).fetchone():
            return False
        self._adoptions.add(entry)
        return True

    def _settle(self) -> None:
        self._batch += 1
        self._marks.clear()
        self._adoptions.clear()
