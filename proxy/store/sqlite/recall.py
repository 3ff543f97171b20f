"""Reading the trees of sessions. Rule: on the path of a request, so that a look-up is a few steps in an index.

A node's parents are stored before it, so that of a request's chain some beginning is stored and the rest is not: the
end of that beginning is found by halving. Statements run in a thread of their own, many at a time: to go back to the
event loop after each would take longer than most of them.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from proxy.engine.ports import MOST_MARKS, MOST_RECALLED
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Mark, NodeRow, StoredSession, name_mark
from proxy.model.log import BranchRow
from proxy.store.branches import Stand, find_branches, name_parent
from proxy.store.sqlite.growth import RELATIONS
from proxy.store.sqlite.trees import key_of
from proxy.store.storable import fit_text

_HAS_NODE = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1 LIMIT 1"""
_HAS_ANSWER = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer = 1 AND hash = ?1 LIMIT 1"""
_WITH_ANSWER = f"""
    SELECT DISTINCT session FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer = 1 AND hash = ?1
    ORDER BY session DESC LIMIT {MOST_RECALLED}"""
_WITH_MARK = f"SELECT session FROM mark WHERE key = ? AND name = ? ORDER BY session DESC LIMIT {MOST_RECALLED}"
_WITH_KEY = "SELECT id FROM session WHERE key = ?"

_KEY = """
    SELECT s.key, t.fingerprint, s.upstream, s.family, s.parent
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.id = ?"""
_NODES = "SELECT hash, parent, outer, is_answer FROM node WHERE session = ? ORDER BY n"
_TIPS = "SELECT tip, outer FROM step WHERE session = ? ORDER BY n"
_MARKS = "SELECT name, node, form FROM mark WHERE session = ? ORDER BY n"
_STANDS = """
    SELECT e.n, e.id, t.tip, t.outer, t.depth, t.relation, t.is_side
    FROM step t JOIN exchange e ON e.session = t.session AND e.n = t.n WHERE t.session = ? ORDER BY t.n"""

T = TypeVar("T")


class TreeReader:
    """The trees of a log, whether or not a server is writing it."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._turn = (
            threading.Lock()
        )  # held in the thread: whoever asked may have gone, and the answer still be under way

    async def recall(self, nodes: Sequence[bytes], marks: Sequence[str], session: str) -> Sequence[StoredSession]:
        """As `Ancestry.recall`."""
        return await self._ask(lambda connection: recall_sessions(connection, nodes, marks, session))

    async def has_sessions(self) -> bool:
        """False while the log has none."""
        return await self._ask(_has_sessions)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """As `LogReader.list_branches`. Raises NotFound."""
        return await self._ask(lambda connection: _list_branches(connection, session))

    async def close(self) -> None:
        """Let go of the file for good."""
        await asyncio.to_thread(self._let_go)

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._answer, question)

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with self._turn:
            if self._is_closed:
                raise StoreUnavailable("the log is closed")
            if self._connection is None:
                self._connection = self._connect(self._path)
            return self._read(self._connection, question)

    def _let_go(self) -> None:
        with self._turn:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read(self, connection: sqlite3.Connection, question: Callable[[sqlite3.Connection], T]) -> T:
        """One question, in one snapshot."""
        try:
            connection.execute("BEGIN")
            try:
                return question(connection)
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}; run `palimpsest verify`") from error


def recall_sessions(
    connection: sqlite3.Connection, nodes: Sequence[bytes], marks: Sequence[str], session: str
) -> list[StoredSession]:
    """As `Ancestry.recall`, in the calling thread."""
    named = [found for (found,) in connection.execute(_WITH_KEY, (fit_text(session),))]
    found = set(_find_by_nodes(connection, nodes))
    for name in map(name_mark, marks[-MOST_MARKS:]):
        found.update(each for (each,) in connection.execute(_WITH_MARK, (key_of(name), name)))
    newest = sorted(found.difference(named), reverse=True)[: MOST_RECALLED - len(named)]
    return [_load_session(connection, each) for each in sorted((*named, *newest))]


def _has_sessions(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM session LIMIT 1").fetchone() is not None


def _find_by_nodes(connection: sqlite3.Connection, nodes: Sequence[bytes]) -> Iterable[int]:
    """Sessions in which the deepest of the nodes that is an answer anywhere is one."""
    stored, missing = 0, len(nodes) + 1  # the first `stored` nodes are in the log, the first `missing` are not
    while missing - stored > 1:
        middle = (stored + missing) // 2
        if connection.execute(_HAS_NODE, (nodes[middle - 1],)).fetchone():
            stored = middle
        else:
            missing = middle
    for node in reversed(nodes[:stored]):
        if connection.execute(_HAS_ANSWER, (node,)).fetchone():
            return [session for (session,) in connection.execute(_WITH_ANSWER, (node,))]
    return ()


def _load_session(connection: sqlite3.Connection, session: int) -> StoredSession:
    key = (session,)
    nodes = _load_nodes(connection, session)
    tips = dict.fromkeys(nodes[n - 1].node if n else outer for n, outer in connection.execute(_TIPS, key))
    marks = [Mark(name, nodes[n - 1].node, form) for name, n, form in connection.execute(_MARKS, key)]
    stored = SessionKey(*connection.execute(_KEY, key).fetchone())
    return StoredSession(stored, tuple(tips), tuple(nodes), tuple(marks))


def _load_nodes(connection: sqlite3.Connection, session: int) -> list[NodeRow]:
    nodes: list[NodeRow] = []
    for node, parent, outer, is_answer in connection.execute(_NODES, (session,)):
        nodes.append(NodeRow(node, nodes[parent - 1].node if parent else outer, bool(is_answer)))
    return nodes


def _list_branches(connection: sqlite3.Connection, session: str) -> list[BranchRow]:
    found = connection.execute(_WITH_KEY, (fit_text(session),)).fetchone()
    if found is None:
        raise NotFound(f"there is no session {session}")
    nodes = _load_nodes(connection, found[0])
    parents: dict[bytes, bytes] = {}
    for row in nodes:
        parents.setdefault(row.node, name_parent(parents, row))
    stands = [
        Stand(n, exchange, nodes[tip - 1].node if tip else outer, depth, RELATIONS[relation], bool(is_side))
        for n, exchange, tip, outer, depth, relation, is_side in connection.execute(_STANDS, found)
    ]
    return find_branches(parents, stands)
