"""What of the content of sessions nothing else in the log refers to.

First all content that the sessions refer to is listed in a temporary table, then what other sessions refer to is taken
out of it: headers, recipes with their members and chains, epochs with their references, summaries with those that they
were made of. A session that continues another may refer to content of it, so this looks at the sessions of all tenants.
What has been erased refers to nothing. What else is content belongs to one row, and so to one session.

All of that takes some time in a large log. So it is done over a connection of its own, beside the writer. In the
transaction that erases, `subtract_live` looks again at the rows that came meanwhile.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import orjson

from proxy.model.manifest import BlobPiece, ChainPiece
from proxy.store.sqlite.codec import join_recipe, unpack
from proxy.store.sqlite.id_cache import SEALED


class Content(NamedTuple):
    """A payload that is to be erased, with the digest and size of what is stored, and the session it belongs to."""

    payload: int
    digest: bytes
    size: int
    session: int


_TABLES = (
    "DROP TABLE IF EXISTS temp.gone",
    "DROP TABLE IF EXISTS temp.dead",
    "DROP TABLE IF EXISTS temp.candidate",
    "CREATE TEMP TABLE gone(session INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE dead(exchange INTEGER PRIMARY KEY)",
    """CREATE TEMP TABLE candidate(
        payload INTEGER PRIMARY KEY, digest BLOB NOT NULL, size INTEGER NOT NULL, session INTEGER NOT NULL)""",
)
_DEAD = """
    INSERT INTO temp.dead
    SELECT seq FROM exchange WHERE session IN (SELECT session FROM temp.gone)
    UNION SELECT e.seq FROM erased z JOIN exchange e ON e.session = z.session AND e.seq <= z.through"""

_OWN_CALLS = "SELECT e.seq, e.headers, e.envelope, e.tip FROM exchange e WHERE e.session = :session"
_SHARED = f"""
    WITH RECURSIVE own(seq, headers, envelope, tip) AS MATERIALIZED ({_OWN_CALLS}),
    named(seq) AS (SELECT DISTINCT m.value FROM epoch x, json_each(x.originals) m WHERE x.session = :session),
    link(link) AS (
        SELECT tip FROM own
        UNION SELECT r.tip FROM own JOIN round r ON r.exchange = own.seq WHERE r.tip IS NOT NULL
        UNION SELECT h.tip FROM own JOIN held h ON h.exchange = own.seq
        UNION SELECT raw.parent FROM link JOIN raw ON raw.link = link.link),
    part(blob) AS (
        SELECT headers FROM own UNION SELECT envelope FROM own
        UNION SELECT r.envelope FROM own JOIN round r ON r.exchange = own.seq WHERE r.envelope IS NOT NULL
        UNION SELECT o.headers FROM own JOIN outcome o ON o.exchange = own.seq
        UNION SELECT h.envelope FROM own JOIN held h ON h.exchange = own.seq
        UNION SELECT m.value FROM epoch x, json_each(x.rendered) m WHERE x.session = :session
        UNION SELECT m.value FROM named JOIN original o ON o.id = named.seq, json_each(o.messages) m
            WHERE o.session = :session
        UNION SELECT text FROM summary WHERE session = :session UNION SELECT notes FROM summary WHERE session = :session
        UNION SELECT m.value FROM summary x, json_each(x.messages) m WHERE x.session = :session
        UNION SELECT raw.blob FROM link JOIN raw ON raw.link = link.link)
    SELECT b.id, b.digest FROM part JOIN blob b ON b.id = part.blob"""
_PRIVATE = f"""
    WITH own(seq, headers, envelope, tip) AS MATERIALIZED ({_OWN_CALLS})
    SELECT o.received AS id, o.digest AS digest FROM own JOIN outcome o ON o.exchange = own.seq
    UNION SELECT t.received, t.digest FROM own JOIN trailer t ON t.exchange = own.seq
    UNION SELECT g.answer, g.digest FROM own JOIN reading g ON g.exchange = own.seq
    UNION SELECT g.error, g.error_digest FROM own JOIN reading g ON g.exchange = own.seq WHERE g.error IS NOT NULL
    UNION SELECT edits, edits_digest FROM epoch WHERE session = :session
    UNION SELECT rounds, rounds_digest FROM recalled WHERE session = :session
    UNION SELECT content, digest FROM memory WHERE session = :session AND content IS NOT NULL"""
_LIST = """
    INSERT OR IGNORE INTO temp.candidate
    SELECT c.id, c.digest, length(p.bytes), :session FROM ({found}) c JOIN payload p ON p.id = c.id"""
# what a recipe names is in its envelope, but for a chain that is its only one (`tip`)
_CHAIN = """
    WITH RECURSIVE link(link) AS (SELECT :link UNION SELECT raw.parent FROM link JOIN raw ON raw.link = link.link)
    SELECT b.id, b.digest FROM link JOIN raw ON raw.link = link.link JOIN blob b ON b.id = raw.blob"""
_OWN_RECIPES = """
    SELECT envelope FROM exchange WHERE session = :session
    UNION SELECT r.envelope FROM exchange e JOIN round r ON r.exchange = e.seq
        WHERE e.session = :session AND r.envelope IS NOT NULL
    UNION SELECT h.envelope FROM exchange e JOIN held h ON h.exchange = e.seq WHERE e.session = :session"""
_MEMBER = """
    INSERT OR IGNORE INTO temp.candidate
    SELECT b.id, b.digest, length(p.bytes), ? FROM blob b JOIN payload p ON p.id = b.id
    WHERE b.tenant = ? AND b.digest = ?"""

_LIVE_RECIPES = """
    SELECT envelope AS part, tip FROM exchange WHERE seq > :exchange AND seq NOT IN (SELECT exchange FROM temp.dead)
    UNION SELECT envelope, tip FROM round
        WHERE seq > :round AND envelope IS NOT NULL AND exchange NOT IN (SELECT exchange FROM temp.dead)
    UNION SELECT envelope, tip FROM held WHERE seq > :held AND exchange NOT IN (SELECT exchange FROM temp.dead)"""
_LIVE = (
    f"WITH live(part, tip) AS ({_LIVE_RECIPES}) SELECT part FROM live",
    "SELECT headers FROM exchange WHERE seq > :exchange AND seq NOT IN (SELECT exchange FROM temp.dead)",
    "SELECT headers FROM outcome WHERE seq > :outcome AND exchange NOT IN (SELECT exchange FROM temp.dead)",
    f"""WITH RECURSIVE live(part, tip) AS ({_LIVE_RECIPES}),
    link(link) AS (SELECT tip FROM live UNION SELECT raw.parent FROM link JOIN raw ON raw.link = link.link)
    SELECT raw.blob FROM link JOIN raw ON raw.link = link.link""",
    # epochs that are left, and those of other sessions that they follow, or that calls were sent with
    """WITH own(seq, parent) AS (
        SELECT x.seq, x.parent FROM epoch x JOIN payload p ON p.id = x.edits
        WHERE x.seq > :epoch AND x.session NOT IN (SELECT session FROM temp.gone)),
    live(seq) AS MATERIALIZED (
        SELECT seq FROM own UNION SELECT parent FROM own WHERE parent IS NOT NULL
        UNION SELECT epoch FROM decision WHERE seq > :decision AND epoch IS NOT NULL
            AND exchange NOT IN (SELECT exchange FROM temp.dead)
        UNION SELECT epoch FROM recalled WHERE seq > :recalled AND exchange NOT IN (SELECT exchange FROM temp.dead))
    SELECT x.edits FROM live JOIN epoch x ON x.seq = live.seq
    UNION SELECT m.value FROM live JOIN epoch x ON x.seq = live.seq, json_each(x.rendered) m
    UNION SELECT m.value FROM live JOIN epoch x ON x.seq = live.seq, json_each(x.originals) n
        JOIN original o ON o.id = n.value, json_each(o.messages) m""",
    """WITH RECURSIVE part(seq) AS (
        SELECT x.seq FROM summary x WHERE x.seq > :summary AND x.session NOT IN (SELECT session FROM temp.gone)
            AND NOT EXISTS (SELECT 1 FROM erased z WHERE z.session = x.session AND z.at_ms >= x.made_ms)
        UNION SELECT e.other FROM part JOIN summary_edge e ON e.summary = part.seq AND e.relation = 'parent')
    SELECT x.text FROM part JOIN summary x ON x.seq = part.seq
    UNION SELECT x.notes FROM part JOIN summary x ON x.seq = part.seq
    UNION SELECT m.value FROM part JOIN summary x ON x.seq = part.seq, json_each(x.messages) m""",
)
_KEEP = "DELETE FROM temp.candidate WHERE payload IN ({found})"
_CONTENT = "SELECT codec, bytes FROM payload WHERE id = ?"

# of each sealed table: the sessions with rows behind a number
_NEW_OF = {
    **dict.fromkeys(("epoch", "decision", "pin", "summary", "recalled", "memory", "source"), "t.session"),
    **dict.fromkeys(("exchange",), "t.session"),
    **dict.fromkeys(
        ("round", "outcome", "trailer", "reading", "held"), "(SELECT session FROM exchange WHERE seq = t.exchange)"
    ),
}

Heads = Mapping[str, int]
NO_HEADS: Heads = dict.fromkeys(SEALED, 0)


def read_heads(connection: sqlite3.Connection) -> Heads:
    """Return the last `seq` of each sealed table."""
    heads = {}
    for table in SEALED:
        (heads[table],) = connection.execute(f"SELECT ifnull(max(seq), 0) FROM {table}").fetchone()
    return heads


def has_new_rows(connection: sqlite3.Connection, sessions: Sequence[int], since: Heads) -> bool:
    """Return whether anything of these sessions was recorded since."""
    wanted = orjson.dumps(sessions).decode()
    return any(
        connection.execute(
            f"SELECT 1 FROM {table} t WHERE t.seq > ? AND {of} IN (SELECT value FROM json_each(?)) LIMIT 1",
            (since[table], wanted),
        ).fetchone()
        for table, of in _NEW_OF.items()
    )


def list_unshared(connection: sqlite3.Connection, sessions: Sequence[int]) -> tuple[list[Content], int]:
    """Return the content of sessions that nothing else refers to, and the stored size of what they share with others.

    What they share among themselves belongs to the first one. Uses temporary tables of the connection.
    """
    _begin(connection, sessions)
    for session in sessions:
        _list_own(connection, session)
    total = _measure(connection)
    subtract_live(connection, NO_HEADS)
    found = list_candidates(connection)
    return found, total - sum(each.size for each in found)


def load_candidates(connection: sqlite3.Connection, sessions: Sequence[int], contents: Iterable[Content]) -> None:
    """Fill the temporary tables of another connection with what `list_unshared` found."""
    _begin(connection, sessions)
    connection.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", contents)


def list_candidates(connection: sqlite3.Connection) -> list[Content]:
    """Return what is to be erased, by payload, as far as it is still there."""
    query = """
        SELECT c.payload, c.digest, c.size, c.session FROM temp.candidate c JOIN payload p ON p.id = c.payload
        ORDER BY c.payload"""
    return [Content(*row) for row in connection.execute(query)]


def subtract_live(connection: sqlite3.Connection, since: Heads) -> None:
    """Take out of the temporary table what rows behind these numbers refer to."""
    for found in _LIVE:
        connection.execute(_KEEP.format(found=found), since)
    members = {
        digest: payload
        for payload, digest in connection.execute(
            "SELECT c.payload, c.digest FROM temp.candidate c JOIN blob b ON b.id = c.payload"
        )
    }
    if not members:
        return
    named = _read_recipes(connection, _LIVE_RECIPES, since)
    shared = named.digests & members.keys()
    connection.executemany("DELETE FROM temp.candidate WHERE payload = ?", [(members[digest],) for digest in shared])
    for link in named.links:
        connection.execute(_KEEP.format(found=f"SELECT c.id FROM ({_CHAIN}) c"), {"link": link})


def _begin(connection: sqlite3.Connection, sessions: Sequence[int]) -> None:
    for statement in _TABLES:
        connection.execute(statement)
    connection.executemany("INSERT INTO temp.gone VALUES (?)", [(session,) for session in sessions])
    connection.execute(_DEAD)


def _list_own(connection: sqlite3.Connection, session: int) -> None:
    own = {"session": session}
    for found in (_PRIVATE, _SHARED):
        connection.execute(_LIST.format(found=found), own)
    named = _read_recipes(connection, f"SELECT envelope AS part FROM ({_OWN_RECIPES})", own)
    (tenant,) = connection.execute("SELECT tenant FROM session WHERE id = ?", (session,)).fetchone()
    connection.executemany(_MEMBER, [(session, tenant, digest) for digest in named.digests])
    for link in named.links:
        connection.execute(_LIST.format(found=_CHAIN), {"session": session, "link": link})


class _Named(NamedTuple):
    """The digests of blobs and the links of chains that recipes name."""

    digests: set[bytes]
    links: set[bytes]


def _read_recipes(connection: sqlite3.Connection, recipes: str, bounds: Mapping[str, int]) -> _Named:
    """Read recipes by the ids of their envelopes. One that was erased names nothing any more."""
    named = _Named(set(), set())
    for (envelope,) in connection.execute(f"SELECT DISTINCT part FROM ({recipes})", bounds):
        row = connection.execute(_CONTENT, (envelope,)).fetchone()
        for piece in join_recipe(unpack(*row), b"") if row is not None else ():
            if isinstance(piece, BlobPiece):
                named.digests.add(piece.digest)
            elif isinstance(piece, ChainPiece) and piece.link:
                named.links.add(piece.link)
    return named


def _measure(connection: sqlite3.Connection) -> int:
    (size,) = connection.execute("SELECT ifnull(sum(size), 0) FROM temp.candidate").fetchone()
    return int(size)
