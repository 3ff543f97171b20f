"""The tree of a session as `store/branches` takes it. Rule: loads it; finding out is not done here."""

import sqlite3

from proxy.model.errors import NotFound
from proxy.store.branches import Stand, name_parent
from proxy.store.sqlite.growth import RELATIONS
from proxy.store.sqlite.recall import load_nodes
from proxy.store.storable import fit_text

_SESSION = "SELECT id FROM session WHERE key = ?"
_STANDS = """
    SELECT e.n, e.id, t.tip, t.outer, t.depth, t.relation, t.is_side
    FROM step t JOIN exchange e ON e.session = t.session AND e.n = t.n WHERE t.session = ? ORDER BY t.n"""


def load_stands(connection: sqlite3.Connection, session: str) -> tuple[dict[bytes, bytes], list[Stand]]:
    """What `find_branches` asks for. Raises NotFound for an unknown session."""
    found = connection.execute(_SESSION, (fit_text(session),)).fetchone()
    if found is None:
        raise NotFound(f"there is no session {session}")
    nodes = load_nodes(connection, found[0])
    parents: dict[bytes, bytes] = {}
    for row in nodes:
        parents.setdefault(row.node, name_parent(parents, row))
    stands = [
        Stand(n, exchange, nodes[tip - 1].node if tip else outer, depth, RELATIONS[relation], bool(is_side))
        for n, exchange, tip, outer, depth, relation, is_side in connection.execute(_STANDS, found)
    ]
    return parents, stands
