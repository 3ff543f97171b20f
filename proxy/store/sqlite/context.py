"""How sessions are managed, as the log has it. Rule: on the path of a request: each content is read once, old ones not.

An epoch of which a part was erased is of no use any more, and left out.
"""

import sqlite3
from collections.abc import Iterable, Mapping

import orjson

from proxy.engine.ports import MOST_EPOCHS, MOST_SOURCES, NEWEST_EPOCHS
from proxy.model.epoch import Epoch, Original, Pin, StoredContext, StoredOriginal
from proxy.model.errors import NotFound
from proxy.store.sqlite.contents import (
    Row,
    expect_sound,
    fetch,
    find_session,
    list_ids,
    load_contents,
    load_digests,
)
from proxy.store.sqlite.dag import load_covered, load_live
from proxy.store.storable import fit_text

# the session and those it goes on from, the nearest first
_LINE = f"""
    WITH RECURSIVE line(id) AS (
        SELECT id FROM session WHERE key = ?
        UNION SELECT a.source FROM line JOIN adoption a ON a.session = line.id LIMIT {MOST_SOURCES + 1})
    SELECT id FROM line"""

_EPOCHS = """
    SELECT x.id, s.key, x.view, ifnull(before.id, ''), x.through, x.depth, x.why, ifnull(e.id, ''), x.opened_ms,
        x.tokens_before, x.tokens_after, x.edits, x.rendered, x.originals
    FROM epoch x JOIN session s ON s.id = x.session
    LEFT JOIN epoch before ON before.seq = x.parent LEFT JOIN exchange e ON e.seq = x.exchange
    WHERE x.seq IN ({chosen}) ORDER BY x.seq"""
# Content is deflated, and 1 MB of it takes 10 ms: of a long line of epochs most are behind the request's own by now.
_IN_USE = _EPOCHS.format(
    chosen=f"""
        WITH line AS MATERIALIZED (
            SELECT seq, view, parent, row_number() OVER (PARTITION BY view ORDER BY seq DESC) AS age FROM epoch
            WHERE session IN (SELECT value FROM json_each(?))),
        chosen AS (
            SELECT seq, row_number() OVER (PARTITION BY view ORDER BY seq DESC) AS n FROM line
            WHERE age <= {NEWEST_EPOCHS} OR seq NOT IN (SELECT parent FROM line WHERE parent IS NOT NULL))
        SELECT seq FROM chosen WHERE n <= {MOST_EPOCHS}"""
)
_ALL = _EPOCHS.format(chosen="SELECT seq FROM epoch WHERE session = ?")
_NTH = _EPOCHS.format(chosen="SELECT seq FROM epoch WHERE session = ? ORDER BY seq LIMIT 1 OFFSET ?")

_ORIGINALS = """
    SELECT id, name, wire, place, start, messages FROM original WHERE id IN (SELECT value FROM json_each(?))"""

_ORIGINAL = """
    SELECT s.key, o.id, o.name, o.wire, o.place, o.start, o.messages
    FROM original o JOIN session s ON s.id = o.session WHERE o.name = ?"""

# of each node the newest
_PINS = """
    SELECT s.key, p.node, p.is_on, p.at_ms FROM pin p JOIN session s ON s.id = p.session
    WHERE p.seq IN (SELECT max(seq) FROM pin WHERE session IN (SELECT value FROM json_each(?)) GROUP BY session, node)
    ORDER BY p.seq"""

# from one view to the next, so that it matters little how many decisions there are
_OWED = """
    WITH RECURSIVE seen(view) AS (
        SELECT min(view) FROM decision WHERE session = ?1
        UNION ALL
        SELECT (SELECT min(d.view) FROM decision d WHERE d.session = ?1 AND d.view > seen.view) FROM seen
        WHERE seen.view IS NOT NULL)
    SELECT view, (
        SELECT d.owed FROM decision d WHERE d.session = ?1 AND d.view = seen.view ORDER BY d.seq DESC LIMIT 1)
    FROM seen WHERE view IS NOT NULL"""


_UNSENT = """
    WITH line AS MATERIALIZED (SELECT value AS id FROM json_each(?))
    SELECT x.id FROM line JOIN epoch x ON x.session = line.id
    WHERE x.why = 'manual' AND x.seq NOT IN (SELECT y.parent FROM line JOIN epoch y ON y.session = line.id
        WHERE y.parent IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM line JOIN decision d ON d.session = line.id AND d.view = x.view WHERE d.epoch = x.seq)
    ORDER BY x.seq"""


@expect_sound()
def load_context(connection: sqlite3.Connection, session: str) -> StoredContext:
    """As `LogReader.load_context`, in the calling thread."""
    line = [row for (row,) in connection.execute(_LINE, (fit_text(session),))]
    named = (list_ids(line),)
    pins = [Pin(key, node, bool(is_on), at_ms) for key, node, is_on, at_ms in connection.execute(_PINS, named)]
    owed: dict[str, float] = {}
    for row in reversed(line):  # its own come last, and count
        owed.update(connection.execute(_OWED, (row,)).fetchall())
    epochs = tuple(_load_epochs(connection, _IN_USE, named))
    unsent = tuple(id for (id,) in connection.execute(_UNSENT, named))
    return StoredContext(epochs, tuple(pins), tuple(owed.items()), tuple(load_live(connection, line)), unsent)


@expect_sound()
def list_epochs(connection: sqlite3.Connection, session: str) -> list[Epoch]:
    """As `LogReader.list_epochs`, in the calling thread. Raises NotFound."""
    rows = connection.execute(_ALL, (find_session(connection, session),)).fetchall()
    edits = load_contents(connection, {row[11] for row in rows})
    originals = _load_originals(connection, rows)
    return [_make_epoch(row, edits.get(row[11], b""), (), originals) for row in rows]


@expect_sound()
def load_epoch(connection: sqlite3.Connection, session: str, n: int) -> Epoch:
    """As `LogReader.load_epoch`, in the calling thread. Raises NotFound."""
    key = (find_session(connection, session), max(0, n - 1))
    if n < 1 or connection.execute(_NTH, key).fetchone() is None:
        raise NotFound(f"there is no epoch {n} of session {session}")
    for epoch in _load_epochs(connection, _NTH, key):
        return epoch
    raise NotFound("a part of this epoch was erased")


@expect_sound()
def load_original(connection: sqlite3.Connection, reference: str) -> StoredOriginal:
    """As `LogReader.load_original`, in the calling thread. Raises NotFound."""
    name = fit_text(reference)
    row = connection.execute(_ORIGINAL, (name,)).fetchone() or load_covered(connection, name)
    if row is None:
        raise NotFound(f"there is no reference {reference}")
    blobs = orjson.loads(row[6])
    digests, contents = load_digests(connection, blobs), load_contents(connection, blobs)
    if not contents.keys() >= set(blobs):
        raise NotFound("this content was erased")
    return StoredOriginal(row[0], _make_original(row[1:], digests), tuple(contents[blob] for blob in blobs))


def _load_epochs(connection: sqlite3.Connection, query: str, key: tuple[object, ...]) -> list[Epoch]:
    """Those of which nothing was erased, with their content."""
    rows = connection.execute(query, key).fetchall()
    needed = [[row[11], *orjson.loads(row[12])] for row in rows]
    contents = load_contents(connection, {blob for blobs in needed for blob in blobs})
    originals = _load_originals(connection, rows)
    return [
        _make_epoch(row, contents[blobs[0]], tuple([contents[blob] for blob in blobs[1:]]), originals)
        for row, blobs in zip(rows, needed, strict=True)
        if contents.keys() >= set(blobs)
    ]


def _load_originals(connection: sqlite3.Connection, rows: Iterable[Row]) -> Mapping[int, Original]:
    """All that epochs name, by their rows."""
    named = {each for row in rows for each in orjson.loads(row[13])}
    found = fetch(connection, _ORIGINALS, named)
    digests = load_digests(connection, {blob for row in found for blob in orjson.loads(row[5])})
    return {row[0]: _make_original(row, digests) for row in found}


def _make_epoch(row: Row, edits: bytes, rendered: tuple[bytes, ...], originals: Mapping[int, Original]) -> Epoch:
    named = tuple([originals[each] for each in orjson.loads(row[13])])
    return Epoch(*(*row[:11], edits, rendered, named))


def _make_original(row: Row, digests: Mapping[int, bytes]) -> Original:
    _, name, wire, place, start, messages = row
    return Original(name, tuple([digests[blob] for blob in orjson.loads(messages)]), wire, place, start)
