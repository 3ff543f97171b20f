"""What the log knows of where a request belongs. Rule: on the path of a request, so never more than so many steps.

A node's parents are stored before it, and a tenant that has a node has those before it, so that of a request's chain
some beginning is there and the rest is not: its end is found by halving.

Sessions of one tenant that hold something are found where two lists in order meet: those that hold it and those of the
tenant. Each shows how far to skip in the other, so that it matters little how many sessions of others hold the same;
where the two take turns without end, the look-up is given up. Steps are shared out among look-ups, so that one that
goes on without end takes none that the others need.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import TypeVar

from proxy.engine.ports import MOST_BEARING, MOST_MARKS, MOST_RECALLED, MOST_RECALLED_ROWS
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession, name_mark
from proxy.store.sqlite.trees import key_of
from proxy.store.storable import fit_text

# The one that the request is taken to belong to, and the newest in which its deepest answer stands.
_OF_ANY_SIZE = 2

_T = TypeVar("_T")

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
# 13 us each: for the end of the tenant's own, for its answers, for its marks, and (7 us) for the answers of others.
_STEPS_TO_END, _STEPS_TO_ANSWER, _STEPS_TO_MARKS, _STEPS_TO_OTHERS = 128, 256, 384, 256
_PARTS = 4  # of the steps that are left: so much for one node

_KEY = """
    SELECT s.key, t.fingerprint, s.upstream, s.family, s.parent
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.id = ?"""
_NODES = "SELECT hash, parent, outer, is_answer FROM node WHERE session = ? ORDER BY n"
_TIPS = "SELECT tip, outer FROM step WHERE session = ? ORDER BY n"
_MARKS = "SELECT name, node, form FROM mark WHERE session = ? ORDER BY n"
# as `Tree.weight` counts in memory
_WEIGHT = "SELECT " + " + ".join(
    f"(SELECT ifnull(max(n), 0) FROM {table} WHERE session = ?1)" for table in ("node", "mark", "step")
)


def recall_sessions(
    connection: sqlite3.Connection, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
) -> list[StoredSession]:
    """As `Ancestry.recall`, in the calling thread."""
    own = _Own(connection, session.tenant)
    stored = nodes[: _count_known(nodes, lambda node: _has_node(connection, node))]
    answered = own.find_answered(stored)
    bearing = [] if answered else own.find_bearing(list(map(name_mark, marks[-MOST_MARKS:])))
    late = stored[-_STEPS_TO_OTHERS:]
    others = [] if answered else _find_answered(late, lambda node: _list_answered(connection, node))
    found = (*own.list_named(session.id), *answered, *bearing, *others)
    chosen = choose_recalled(found, lambda row: _weigh(connection, row))
    return [_load_session(connection, row) for row in sorted(chosen)]


def has_sessions(connection: sqlite3.Connection) -> bool:
    """As `Ancestry.has_sessions`, in the calling thread."""
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

    def find_answered(self, nodes: Sequence[bytes]) -> list[int]:
        """Those in which the deepest of the nodes that is a recorded answer in any of them is one."""
        to_end, steps = iter(range(_STEPS_TO_END)), iter(range(_STEPS_TO_ANSWER))
        held = nodes[: _count_known(nodes, lambda node: self._has_node(node, to_end))]
        return _find_answered(held, lambda node: self._meet(_share(steps, _PARTS), _NEXT_WITH_ANSWER, node))

    def find_bearing(self, names: Sequence[str]) -> list[int]:
        """Those that have a mark of one of these names."""
        steps = iter(range(_STEPS_TO_MARKS))
        found: set[int] = set()
        for i, name in enumerate(names):
            part = _share(steps, len(names) - i)
            found.update(self._meet(part, _NEXT_WITH_MARK, key_of(name), name, most=MOST_BEARING))
        return sorted(found, reverse=True)

    def _has_node(self, node: bytes, steps: Iterator[int]) -> bool:
        """Whether one of them has it, as far as the steps go."""
        lookups = (_NEXT_WITH_ANSWER, _NEXT_WITH_NODE)
        return any(self._meet(_share(steps, _PARTS), lookup, node, most=1) for lookup in lookups)

    def _meet(self, steps: Iterator[int], holding: str, *what: bytes | str, most: int = MOST_RECALLED) -> list[int]:
        """Where those that hold something meet the tenant's own, as far as the steps go."""
        found: list[int] = []
        limit = _NEWEST
        for _ in steps:
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


def _share(steps: Iterator[int], parts: int) -> Iterator[int]:
    """One of so many parts of the steps that are left; what is not taken of it stays with them."""
    return islice(steps, length_hint(steps) // parts)


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


def _weigh(connection: sqlite3.Connection, session: int) -> int:
    return int(connection.execute(_WEIGHT, (session,)).fetchone()[0])


def _load_session(connection: sqlite3.Connection, session: int) -> StoredSession:
    key = (session,)
    nodes = load_nodes(connection, session)
    tips = dict.fromkeys(nodes[n - 1].node if n else outer for n, outer in connection.execute(_TIPS, key))
    marks = [CallFingerprint(name, nodes[n - 1].node, form) for name, n, form in connection.execute(_MARKS, key)]
    stored = SessionKey(*connection.execute(_KEY, key).fetchone())
    return StoredSession(stored, tuple(tips), tuple(nodes), tuple(marks))


def load_nodes(connection: sqlite3.Connection, session: int) -> list[NodeRow]:
    """The nodes of a session by its row id, parents first."""
    nodes: list[NodeRow] = []
    for node, parent, outer, is_answer in connection.execute(_NODES, (session,)):
        nodes.append(NodeRow(node, nodes[parent - 1].node if parent else outer, bool(is_answer)))
    return nodes


def choose_recalled(found: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """Those that are recalled of the sessions found, which are in the order in which they count (see `Ancestry`)."""
    each_once = list(dict.fromkeys(found))[:MOST_RECALLED]
    chosen, left = each_once[:_OF_ANY_SIZE], MOST_RECALLED_ROWS
    for session in each_once[_OF_ANY_SIZE:]:
        weight = weigh(session)
        if weight <= left:
            chosen.append(session)
            left -= weight
    return chosen
