"""Queries on the trees of sessions: which sessions a request may continue, and the branches of one session.

Requests wait for recall, so its number of steps is bounded. A node's parents are stored before it, and a tenant that
has a node has its parents. So of a request's chain a prefix is stored, and binary search finds its end. The sessions of
a tenant that contain something are found by intersecting two lists in descending order: the sessions that contain it,
and those of the tenant. Each list tells how far to skip in the other, so that it matters little how many sessions of
others contain the same. Each look-up has its own share of the steps and ends when they are used up.

A tip is a node at which a request ended. A branch is a tip with no other tip below it. Its path is the nodes from the
start of the chain to that tip. Its exchanges are those whose requests ended on the path, including retries.
Where a path forks, the branch continues on the side to which a request went first. Every other side begins a younger
branch, which owns only the nodes after the fork, so that a history edited over and over is not copied.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice, takewhile
from operator import length_hint
from typing import NamedTuple, TypeVar

from proxy.engine.ports import MOST_BEARING, MOST_FINGERPRINTS, MOST_RECALLED, MOST_RECALLED_ROWS
from proxy.model.exchange import SessionKey
from proxy.model.lineage import LONGEST_TAIL, CallFingerprint, NodeRow, Relation, StoredSession, name_fingerprint
from proxy.model.log import BranchRow, Call
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import RELATIONS, compute_fingerprint_key
from proxy.store.sqlite.context_queries import find_session

# The session that the request is assumed to belong to, and the newest that contains its deepest answer.
_OF_ANY_SIZE = 2

_T = TypeVar("_T")

_HAS_NODE = """
    SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1 LIMIT 1"""
_WITH_ANSWER = f"""
    SELECT DISTINCT session FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer = 1 AND hash = ?1
    ORDER BY session DESC LIMIT {MOST_RECALLED}"""
_HAS_LINK = "SELECT 1 FROM raw WHERE link = ?"
_HAS_CONTENT = "SELECT 1 FROM raw r JOIN payload p ON p.id = r.blob WHERE r.link = ?"
_HAS_ERASURES = "SELECT EXISTS (SELECT 1 FROM erasure)"
_WITH_KEY = "SELECT id, tenant FROM session WHERE key = ?"
_TENANT = "SELECT id FROM tenant WHERE fingerprint = ?"

# The newest session not newer than the last parameter: one that contains something, and one of a tenant.
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
# 13 us each: for the end of the tenant's own, its answers, its fingerprints, and (7 us) for the answers of others.
_STEPS_TO_END, _STEPS_TO_ANSWER, _STEPS_TO_MARKS, _STEPS_TO_OTHERS = 128, 256, 384, 256
_PARTS = 4  # one look-up of a node may take this fraction (a fourth) of the remaining steps

_KEY = """
    SELECT s.key, t.fingerprint, s.upstream, s.family, s.parent
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.id = ?"""
_NUMBER = "SELECT n FROM exchange WHERE id = ?"
_NODES = "SELECT hash, parent, outer, is_answer FROM node WHERE session = ? ORDER BY n"
_TIPS = "SELECT tip, outer, relation = ?2, is_side FROM step WHERE session = ?1 ORDER BY n"
_FINGERPRINTS = "SELECT name, node, form FROM mark WHERE session = ? ORDER BY n"
# the same count as `Tree.weight` in memory
_WEIGHT = "SELECT " + " + ".join(
    f"(SELECT ifnull(max(n), 0) FROM {table} WHERE session = ?1)" for table in ("node", "mark", "step")
)


def recall_sessions(
    connection: sqlite3.Connection, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey
) -> list[StoredSession]:
    """Return what `Ancestry.recall` does."""
    own = _TenantSessions(connection, session.tenant)
    stored = nodes[: _count_known(nodes, lambda node: connection.execute(_HAS_NODE, (node,)).fetchone() is not None)]
    answered = own.find_answered(stored)
    bearing, others = [], []
    if not answered:
        bearing = own.find_bearing(list(map(name_fingerprint, fingerprints[-MOST_FINGERPRINTS:])))
        others = _find_answered(
            stored[-_STEPS_TO_OTHERS:],
            lambda node: [row for (row,) in connection.execute(_WITH_ANSWER, (node,))],  # of any tenant
        )
    found = (*own.list_named(session.id), *answered, *bearing, *others)
    chosen = choose_recalled(found, lambda row: int(connection.execute(_WEIGHT, (row,)).fetchone()[0]))
    return [_load_session(connection, row) for row in sorted(chosen)]


def has_sessions(connection: sqlite3.Connection) -> bool:
    """Return whether the log has any session."""
    return connection.execute("SELECT 1 FROM session LIMIT 1").fetchone() is not None


class _TenantSessions:
    """Look-ups of the sessions of one tenant. They return row ids of sessions, the newest first."""

    def __init__(self, connection: sqlite3.Connection, tenant: bytes) -> None:
        self._connection = connection
        self._tenant = self._fetch(_TENANT, tenant)

    def list_named(self, session: str) -> list[int]:
        """Return the session with this id if it is the tenant's, else an empty list."""
        rows = self._connection.execute(_WITH_KEY, (fit_text(session),))
        return [row for row, tenant in rows if tenant == self._tenant]

    def find_answered(self, nodes: Sequence[bytes]) -> list[int]:
        """Find the deepest node that is a recorded answer in any session. Return the sessions where it is one."""
        to_end, steps = iter(range(_STEPS_TO_END)), iter(range(_STEPS_TO_ANSWER))
        known = nodes[: _count_known(nodes, lambda node: self._has_node(node, to_end))]
        return _find_answered(known, lambda node: self._intersect(_share(steps, _PARTS), _NEXT_WITH_ANSWER, node))

    def find_bearing(self, names: Sequence[str]) -> list[int]:
        """Return the sessions that have a fingerprint with one of these names."""
        steps = iter(range(_STEPS_TO_MARKS))
        found: set[int] = set()
        for i, name in enumerate(names):
            part = _share(steps, len(names) - i)
            found.update(self._intersect(part, _NEXT_WITH_MARK, compute_fingerprint_key(name), name, most=MOST_BEARING))
        return sorted(found, reverse=True)

    def _has_node(self, node: bytes, steps: Iterator[int]) -> bool:
        """Return whether a session has the node; False if the steps are used up."""
        lookups = (_NEXT_WITH_ANSWER, _NEXT_WITH_NODE)
        return any(self._intersect(_share(steps, _PARTS), lookup, node, most=1) for lookup in lookups)

    def _intersect(
        self, steps: Iterator[int], containing: str, *what: bytes | str, most: int = MOST_RECALLED
    ) -> list[int]:
        """Return the tenant's sessions that the query `containing` finds, as far as the steps suffice."""
        found: list[int] = []
        limit = _NEWEST
        for _ in steps:
            container = self._fetch(containing, *what, limit)
            own = container and self._fetch(_NEXT_OWN, self._tenant, container)
            if own and own == container:
                found.append(own)
            if not own or len(found) == most:
                break
            limit = own - (own == container)
        return found

    def _fetch(self, query: str, *parameters: bytes | str | int) -> int:
        """Return a row id, or 0 if there is none."""
        row = self._connection.execute(query, parameters).fetchone()
        return int(row[0]) if row else 0


def _share(steps: Iterator[int], parts: int) -> Iterator[int]:
    """Return one of `parts` equal shares of the remaining steps. Steps of it that are not used remain."""
    return islice(steps, length_hint(steps) // parts)


def _count_known(nodes: Sequence[bytes], is_known: Callable[[bytes], bool]) -> int:
    """Count the nodes that are known. They are a prefix, very often all of them."""
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
    """Find the deepest node that is an answer in any session. Return the sessions where it is one."""
    return next(filter(None, map(list_answered, reversed(nodes))), [])


def _load_session(connection: sqlite3.Connection, session: int) -> StoredSession:
    key = (session,)
    nodes = load_nodes(connection, session)
    tips: dict[bytes, None] = {}
    volatile = b""
    for n, outer, is_volatile, is_side in connection.execute(_TIPS, (session, RELATIONS.index("volatile"))):
        tip = nodes[n - 1].node if n else outer
        tips[tip] = None
        if not is_side:
            volatile = tip if is_volatile else b""
    fingerprints = [
        CallFingerprint(name, nodes[n - 1].node, form) for name, n, form in connection.execute(_FINGERPRINTS, key)
    ]
    stored = SessionKey(*connection.execute(_KEY, key).fetchone())
    return StoredSession(stored, tuple(tips), tuple(nodes), tuple(fingerprints), volatile)


def load_nodes(connection: sqlite3.Connection, session: int) -> list[NodeRow]:
    """Return the nodes of a session by its row id, parents first."""
    nodes: list[NodeRow] = []
    for node, parent, outer, is_answer in connection.execute(_NODES, (session,)):
        nodes.append(NodeRow(node, nodes[parent - 1].node if parent else outer, bool(is_answer)))
    return nodes


def choose_recalled(found: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """Return the sessions to recall of those found, which are in order of preference (see `Ancestry`)."""
    each_once = list(dict.fromkeys(found))[:MOST_RECALLED]
    chosen, left = each_once[:_OF_ANY_SIZE], MOST_RECALLED_ROWS
    for session in each_once[_OF_ANY_SIZE:]:
        weight = weigh(session)
        if weight <= left:
            chosen.append(session)
            left -= weight
    return chosen


_POSITIONS = """
    SELECT e.n, e.id, t.tip, t.outer, t.depth, t.relation, t.is_side
    FROM step t JOIN exchange e ON e.session = t.session AND e.n = t.n WHERE t.session = ? ORDER BY t.n"""


class ExchangePosition(NamedTuple):
    """The node at which the n-th exchange of a session ended. `tip` may be a node of another session."""

    n: int
    exchange: str
    tip: bytes
    depth: int
    relation: Relation
    is_side: bool


class _Fork(NamedTuple):
    """The branch that a node is on, and how many of the branch's own exchanges ended there or before."""

    branch: BranchRow | None
    shared: int


def load_positions(connection: sqlite3.Connection, session: str) -> tuple[dict[bytes, bytes], list[ExchangePosition]]:
    """Return the parent of each node of a session, and its exchanges. Raises NotFound for an unknown session."""
    found = find_session(connection, session)
    nodes = load_nodes(connection, found)
    parents: dict[bytes, bytes] = {}
    for row in nodes:
        parents.setdefault(row.node, find_parent(parents, row))
    positions = [
        ExchangePosition(n, exchange, nodes[tip - 1].node if tip else outer, depth, RELATIONS[relation], bool(is_side))
        for n, exchange, tip, outer, depth, relation, is_side in connection.execute(_POSITIONS, (found,))
    ]
    return parents, positions


def number_calls(connection: sqlite3.Connection, exchanges: Sequence[str]) -> dict[str, int]:
    """Return the numbers of exchanges in their sessions by their ids, without those that the log does not have."""
    found = {each: connection.execute(_NUMBER, (fit_text(each),)).fetchone() for each in exchanges}
    return {each: row[0] for each, row in found.items() if row is not None}


def list_nodes(connection: sqlite3.Connection, session: str) -> list[NodeRow]:
    """Return what `LogReader.list_nodes` does."""
    return load_nodes(connection, find_session(connection, session))


def find_parent(parents: Mapping[bytes, bytes], row: NodeRow) -> bytes:
    """Return the parent of a node, empty at the start of a chain. A parent that the log has later does not count."""
    return row.parent if row.parent in parents else b""


def find_branches(parents: Mapping[bytes, bytes], positions: Sequence[ExchangePosition]) -> list[BranchRow]:
    """Return the branches in the order in which they began. `parents`: as `find_parent` has it, in order."""
    positions = _leave_tails(parents, positions)
    first = _find_first(parents, positions)
    successors = _find_successors(parents, first)
    ended: dict[bytes, list[ExchangePosition]] = {}
    for position in positions:
        ended.setdefault(position.tip, []).append(position)
    forks: dict[bytes, _Fork] = {b"": _Fork(None, 0)}
    found = []
    for start in sorted((node for node in first if successors.get(parents[node]) != node), key=first.__getitem__):
        path = [start]
        while path[-1] in successors:
            path.append(successors[path[-1]])
        own = [ended.get(node, []) for node in path]
        branch = _make_branch(path[-1], parents[start], own, forks[parents[start]])
        forks.update(zip(path, (_Fork(branch, count) for count in accumulate(map(len, own))), strict=True))
        found.append(branch)
    return found


def _leave_tails(parents: Mapping[bytes, bytes], positions: Sequence[ExchangePosition]) -> Sequence[ExchangePosition]:
    """Return the positions; an exchange whose last messages the next one rewrote ends where that leaves it.

    A tail to which an exchange came back later is not left.
    """
    newest = {position.tip: position.n for position in positions}
    left: dict[bytes, bytes] = {}
    before: ExchangePosition | None = None
    for position in positions:
        is_left = position.relation == "volatile" and before is not None and newest[before.tip] < position.n
        if is_left and before is not None and (fork := _find_fork(parents, before.tip, position.tip)):
            left[before.tip] = fork
        if not position.is_side:
            before = position
    return [each._replace(tip=left[each.tip]) if each.tip in left else each for each in positions]


def _find_fork(parents: Mapping[bytes, bytes], old: bytes, new: bytes) -> bytes:
    """Return the last node that two chains share, if it is at most `LONGEST_TAIL` before the tip of the old one."""
    near: set[bytes] = set()
    while old and len(near) <= LONGEST_TAIL:
        near.add(old)
        old = parents.get(old, b"")
    while new and new not in near:
        new = parents.get(new, b"")
    return new


def _find_first(parents: Mapping[bytes, bytes], positions: Sequence[ExchangePosition]) -> dict[bytes, int]:
    """Return, by node, the number of the first exchange that ended at it or below it, if there is one."""
    first: dict[bytes, int] = {}
    for position in positions:
        if position.tip in parents:
            first.setdefault(position.tip, position.n)
    for node in reversed(list(parents)):
        parent = parents[node]
        if node in first and parent:
            first[parent] = min(first[node], first.get(parent, first[node]))
    return first


def _find_successors(parents: Mapping[bytes, bytes], first: Mapping[bytes, int]) -> dict[bytes, bytes]:
    """Return, by node, the child with which its branch continues."""
    successors: dict[bytes, bytes] = {}
    for node, number in first.items():
        parent = parents[node]
        if parent not in successors or number < first[successors[parent]]:
            successors[parent] = node
    successors.pop(b"", None)
    return successors


def _make_branch(tip: bytes, left: bytes, own: Sequence[Sequence[ExchangePosition]], fork: _Fork) -> BranchRow:
    """Make a branch; `own` is what ended at each of its nodes, the tip's last."""
    positions = [position for ended in own for position in ended]
    return BranchRow(
        tip=tip,
        depth=own[-1][0].depth,
        own=tuple(Call(each.n, each.exchange, each.depth) for each in positions),
        relation=min(positions).relation,
        left=left,
        is_side=all(each.is_side for each in positions),
        trunk=fork.branch,
        shared=fork.shared,
    )


def count_links(connection: sqlite3.Connection, links: Sequence[bytes]) -> int:
    """Return how many links of a chain, from its beginning, are stored with their content.

    If a link is stored, so are all links before it; but the content of any may have been erased.
    """
    count = bisect_left(links, True, key=lambda link: connection.execute(_HAS_LINK, (link,)).fetchone() is None)
    (has_erasures,) = connection.execute(_HAS_ERASURES).fetchone()
    stored = takewhile(partial(_has_content, connection), links[:count]) if has_erasures else links[:count]
    return sum(1 for _ in stored)


def _has_content(connection: sqlite3.Connection, link: bytes) -> bool:
    return connection.execute(_HAS_CONTENT, (link,)).fetchone() is not None
