"""The trees of sessions checked. Rule: rows are streamed; of nodes, one session at a time is in memory.

A node's form is not stored, so that its hash cannot be made again: the seals are what shows that it was altered.
"""

import sqlite3
from collections.abc import Iterator
from itertools import groupby

from proxy.model.lineage import root_of_chain
from proxy.model.log import LogFault
from proxy.store.sqlite.growth import RELATIONS, seal_node
from proxy.store.sqlite.trees import key_of

_NODES = """
    SELECT x.session, s.upstream, x.n, x.hash, x.parent, x.outer, x.is_answer, x.exchange, x.seal, e.seq FROM node x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.session = x.session AND e.n = x.exchange
    ORDER BY x.session, x.n"""
_STEPS = """
    SELECT x.session, s.upstream, x.n, e.seq, x.tip, d.n, x.outer, x.depth, x.base, x.relation FROM step x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.session = x.session AND e.n = x.n
    LEFT JOIN node d ON d.session = x.session AND d.n = x.tip"""
_MARKS = """
    SELECT x.session, x.n, x.key, x.name, d.n, lag(x.n, 1, 0) OVER (PARTITION BY x.session ORDER BY x.n) FROM mark x
    LEFT JOIN node d ON d.session = x.session AND d.n = x.node"""
_ADOPTIONS = """
    SELECT x.session, x.n, s.id, d.n FROM adoption x
    LEFT JOIN session s ON s.id = x.session LEFT JOIN node d ON d.session = x.source AND d.n = x.node"""
_HAS_NODE = "SELECT 1 FROM node WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND hash = ?1"


def check_trees(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """What is wrong with the trees."""
    for session, rows in groupby(connection.execute(_NODES), key=lambda row: row[0]):
        yield from _check_nodes(connection, session, rows)
    yield from _check_steps(connection)
    yield from _check_marks(connection)
    for session, n, own, node in connection.execute(_ADOPTIONS):
        if own is None or node is None:
            yield LogFault(f"adoption {session}/{n}", "refers to a session or node that is not in the log")


def _check_nodes(connection: sqlite3.Connection, session: int, rows: Iterator[sqlite3.Row]) -> Iterator[LogFault]:
    hashes: list[bytes] = []
    before = b""
    for _, upstream, n, node, parent, outer, is_answer, exchange, seal, seq in rows:
        where = f"node {session}/{n}"
        if n != len(hashes) + 1:
            yield LogFault(where, f"is preceded by {len(hashes)}: what stood between is missing")
            return
        hashes.append(node)
        if seq is None:
            yield LogFault(where, "its exchange is not in the log")
        if not 0 <= parent < n or (parent == 0 and not _may_hang_on(connection, upstream, outer)):
            yield LogFault(where, "the node before it is not in the log")
        elif seal_node(before, n, node, hashes[parent - 1] if parent else outer, is_answer, exchange) != seal:
            yield LogFault(where, "its seal does not match: the row, or the one before it, was altered")
        before = seal


def _check_steps(connection: sqlite3.Connection) -> Iterator[LogFault]:
    for session, upstream, n, seq, tip, node, outer, depth, base, relation in connection.execute(_STEPS):
        where = f"step {session}/{n}"
        if seq is None:
            yield LogFault(where, "its exchange is not in the log")
        if node is None and (tip or not _may_hang_on(connection, upstream, outer)):
            yield LogFault(where, "its tip is not in the log")
        if not 0 <= base <= depth or not 0 <= relation < len(RELATIONS):
            yield LogFault(where, f"cannot have depth {depth}, base {base} and relation {relation}")


def _check_marks(connection: sqlite3.Connection) -> Iterator[LogFault]:
    for session, n, key, name, node, before in connection.execute(_MARKS):
        where = f"mark {session}/{n}"
        if n != before + 1:
            yield LogFault(where, f"is preceded by {before}: what stood between is missing")
        if node is None:
            yield LogFault(where, "its node is not in the session")
        if key != key_of(name):
            yield LogFault(where, "its key does not follow from its name")


def _may_hang_on(connection: sqlite3.Connection, upstream: str | None, node: bytes | None) -> bool:
    """Whether a chain may begin behind it: the root of the upstream's chains, or a node of any session."""
    if upstream is None or node is None:
        return False
    return node == root_of_chain(upstream) or connection.execute(_HAS_NODE, (node,)).fetchone() is not None
