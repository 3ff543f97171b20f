"""Reading the trees of sessions. Rule: on the path of a request, so that a look-up is a few steps in an index.

A node's parents are stored before it, and a tenant that has a node has those before it, so that of a request's chain
some beginning is there and the rest is not: its end is found by halving. Statements run in a thread of their own, many
at a time: to go back to the event loop after each would take longer than most of them.

Sessions of one tenant that hold something are found where two lists in order meet: those that hold it and those of the
tenant. Each shows how far to skip in the other, so that it matters little how many sessions of others hold the same.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from proxy.engine.ports import MOST_MARKS, MOST_RECALLED
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Mark, NodeRow, StoredSession, name_mark
from proxy.model.log import BranchRow, UnreadRow
from proxy.store.branches import Stand, find_branches, name_parent
from proxy.store.sqlite.growth import RELATIONS
from proxy.store.sqlite.trees import key_of
from proxy.store.sqlite.unread import list_unread
from proxy.store.storable import fit_text

_HAS_NODE = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1 LIMIT 1"""
_WITH_ANSWER = f"""
    SELECT DISTINCT session FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer = 1 AND hash = ?1
    ORDER BY session DESC LIMIT {MOST_RECALLED}"""
_WITH_KEY = "SELECT id, tenant FROM session WHERE key = ?"
_TENANT = "SELECT id FROM tenant WHERE fingerprint = ?"

# the newest session not newer than the last parameter: that holds something, and of a tenant
_NEXT_WITH_ANSWER = """
    SELECT session FROM node INDEXED BY node_hash
    WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer = 1 AND hash = ?1 AND session <= ?2
    ORDER BY session DESC LIMIT 1"""
_NEXT_WITH_NODE = _NEXT_WITH_ANSWER.replace("is_answer = 1", "is_answer = 0")
_NEXT_WITH_MARK = """
    SELECT session FROM mark INDEXED BY mark_key WHERE key = ?1 AND name = ?2 AND session <= ?3
    ORDER BY session DESC LIMIT 1"""
_NEXT_OWN = "SELECT id FROM session INDEXED BY session_tenant WHERE tenant = ? AND id <= ? ORDER BY id DESC LIMIT 1"
_NEWEST = 2**63 - 1
# Two tenants' sessions that take turns a thousand times are no conversation anybody waits for.
_MOST_STEPS = 1000

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

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """As `Ancestry.recall`."""
        return await self._ask(lambda connection: recall_sessions(connection, nodes, marks, session))

    async def has_sessions(self) -> bool:
        """False while the log has none."""
        return await self._ask(_has_sessions)

    async def list_unread(self, limit: int, most_bytes: int) -> Sequence[UnreadRow]:
        """As `Backlog.list_unread`."""
        return await self._ask(lambda connection: list_unread(connection, limit, most_bytes))

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
    connection: sqlite3.Connection, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
) -> list[StoredSession]:
    """As `Ancestry.recall`, in the calling thread."""
    own = _Own(connection, session.tenant)
    stored = nodes[: _count_known(nodes, lambda node: _has_node(connection, node))]
    answered = _find_answered(stored[: _count_known(stored, own.has_node)], own.list_answered)
    bearing = sorted({each for name in map(name_mark, marks[-MOST_MARKS:]) for each in own.list_bearing(name)})
    others = [] if answered else _find_answered(stored, lambda node: _list_answered(connection, node))
    found = dict.fromkeys((*own.list_named(session.id), *answered, *reversed(bearing), *others))
    return [_load_session(connection, each) for each in sorted(list(found)[:MOST_RECALLED])]


def _has_sessions(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM session LIMIT 1").fetchone() is not None


class _Own:
    """The sessions of one tenant, by their row ids; the newest first."""

    def __init__(self, connection: sqlite3.Connection, tenant: bytes) -> None:
        self._connection = connection
        self._tenant = self._fetch(_TENANT, tenant)

    def list_named(self, session: str) -> list[int]:
        """The one with this id."""
        rows = self._connection.execute(_WITH_KEY, (fit_text(session),))
        return [row for row, tenant in rows if tenant == self._tenant]

    def has_node(self, node: bytes) -> bool:
        """Whether one of them has it."""
        return bool(self._meet(_NEXT_WITH_ANSWER, node, most=1) or self._meet(_NEXT_WITH_NODE, node, most=1))

    def list_answered(self, node: bytes) -> list[int]:
        """Those in which the node is a recorded answer."""
        return self._meet(_NEXT_WITH_ANSWER, node)

    def list_bearing(self, name: str) -> list[int]:
        """Those that have a mark of this name."""
        return self._meet(_NEXT_WITH_MARK, key_of(name), name)

    def _meet(self, holding: str, *what: bytes | str, most: int = MOST_RECALLED) -> list[int]:
        """Where those that hold something meet the tenant's own."""
        found: list[int] = []
        limit = _NEWEST
        for _ in range(_MOST_STEPS):
            holder = self._fetch(holding, *what, limit)
            own = holder and self._fetch(_NEXT_OWN, self._tenant, holder)
            if own and own == holder:
                found.append(own)
            if not own or len(found) == most:
                break
            limit = own - (own == holder)
        return found

    def _fetch(self, query: str, *parameters: bytes | str | int) -> int:
        """A row id; 0 where there is none."""
        row = self._connection.execute(query, parameters).fetchone()
        return int(row[0]) if row else 0


def _has_node(connection: sqlite3.Connection, node: bytes) -> bool:
    return connection.execute(_HAS_NODE, (node,)).fetchone() is not None


def _list_answered(connection: sqlite3.Connection, node: bytes) -> list[int]:
    """Whoever's sessions in which the node is a recorded answer, the newest first."""
    return [session for (session,) in connection.execute(_WITH_ANSWER, (node,))]


def _count_known(nodes: Sequence[bytes], is_known: Callable[[bytes], bool]) -> int:
    """How many of the nodes are known: a beginning of them, very often all."""
    if nodes and is_known(nodes[-1]):
        return len(nodes)
    known, unknown = 0, len(nodes)
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if is_known(nodes[middle - 1]):
            known = middle
        else:
            unknown = middle
    return known


def _find_answered(nodes: Sequence[bytes], list_answered: Callable[[bytes], list[int]]) -> list[int]:
    """Sessions in which the deepest of the nodes that is an answer in any of them is one."""
    return next(filter(None, map(list_answered, reversed(nodes))), [])


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
        for n, exchange, tip, outer, depth, relation, is_side in connection.execute(_STANDS, found[:1])
    ]
    return find_branches(parents, stands)
