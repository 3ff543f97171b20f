"""Vectors of passages in index.db, and which passages have none yet. There are none unless `recall` names a model.

A row has the codes (`retrieval.vectors`) of one batch of a session's passages, and how far that batch went, so that the
position and the vectors cannot differ after a kill. Only what people and models say gets a vector, and summaries of it:
outputs of tools are found by their words. One model has made all vectors; those of another are dropped.

`stamp` is random and belongs to one file of one model: vectors of passages that were listed before an index was made
anew, where others have their numbers now, do not fit, and are dropped.
"""

import os
import sqlite3
from array import array
from collections.abc import Collection, Iterator
from typing import NamedTuple

import orjson

from proxy.model.search import EntryKind
from proxy.retrieval.passages import cut_text
from proxy.retrieval.postings import PASSAGE_BITS, PLACE_SHIFT, SESSION_SHIFT, get_kind, read_place
from proxy.retrieval.vectors import PassageBatch, PassageText, VectorBatch
from proxy.store.search.entries import load_text
from proxy.store.search.schema import PLACES_IN_ROW

MOST_PASSAGES, MOST_CHARACTERS = 64, 48_000
"""The most passages of a batch, and their characters together."""
MOST_COMPARED = 20_000
"""The most passages that a query is compared with, those of the newest sessions first."""
MOST_LOOKED_AT = 4_096
"""The most passages that are looked at for one batch."""
_WORTH: frozenset[EntryKind] = frozenset({"message", "summary", "broadcast"})
_LONGEST_PASSAGE = 2_000

_TABLES = (
    """CREATE TABLE IF NOT EXISTS vector(
        session INTEGER NOT NULL, until INTEGER NOT NULL, count INTEGER NOT NULL, numbers BLOB NOT NULL,
        codes BLOB NOT NULL, PRIMARY KEY(session, until)) STRICT""",
    """CREATE TABLE IF NOT EXISTS vector_model(
        name TEXT PRIMARY KEY, mark TEXT NOT NULL, width INTEGER NOT NULL) STRICT, WITHOUT ROWID""",
)
_HAS_TABLES = "SELECT 1 FROM {schema}.sqlite_master WHERE name = 'vector_model'"
_MODEL = "SELECT mark, width FROM {schema}.vector_model WHERE name = ?"
_PLACES = "SELECT places FROM place WHERE session = ? AND row >= ? ORDER BY row"
_ENTRY = "SELECT address, holder, exchange FROM entry WHERE id = ?"
_LATEST = """
    SELECT session, numbers, codes FROM idx.vector WHERE session IN (SELECT value FROM json_each(?)) AND count
    ORDER BY session DESC, until DESC"""
_LATEST_OF_ALL = "SELECT session, numbers, codes FROM idx.vector WHERE count ORDER BY session DESC, until DESC"
_COUNT = """
    SELECT ifnull(sum(made), 0), ifnull(sum(passages - until), 0) FROM (
        SELECT v.session, sum(v.count) AS made, max(v.until) AS until, s.passages
        FROM {schema}.vector v JOIN {schema}.session s ON s.id = v.session GROUP BY v.session)"""


class VectorCount(NamedTuple):
    """The passages that have a vector, and those of the same sessions that were not looked at yet."""

    made: int = 0
    left: int = 0


def list_passages(log: sqlite3.Connection, index: sqlite3.Connection, key: str, model: str) -> PassageBatch:
    """Return the next passages of a session that need a vector of this model. Vectors of another model are dropped."""
    stamp = _prepare(index, model)
    row = log.execute("SELECT id FROM session WHERE key = ?", (key,)).fetchone()
    known = None if row is None else index.execute("SELECT passages FROM session WHERE id = ?", row).fetchone()
    if known is None:
        return PassageBatch(stamp=stamp)
    since = _find_position(index, row[0])
    found: list[PassageText] = []
    size, until = 0, since
    for number, entry, at in _list_new(index, row[0], since):
        if len(found) == MOST_PASSAGES or size >= MOST_CHARACTERS or number - since >= MOST_LOOKED_AT:
            break
        until = number + 1
        text = _load_passage(log, index, entry, at) if at >= 0 else ""
        if text:
            found.append(PassageText(number, text[:_LONGEST_PASSAGE]))
            size += len(found[-1].text)
    return PassageBatch(stamp=stamp, passages=tuple(found), since=since, until=until, left=known[0] - until)


def keep(log: sqlite3.Connection, index: sqlite3.Connection, key: str, model: str, batch: VectorBatch) -> str:
    """Store the vectors of a batch in one step. Those that do not fit the index any more are dropped.

    Return why they cannot be kept, or an empty text: their length has to be that of the others.
    """
    row = log.execute("SELECT id FROM session WHERE key = ?", (key,)).fetchone()
    found = index.execute(_MODEL.format(schema="main"), (model,)).fetchone() if _has_tables(index, "main") else None
    if row is None or found is None or found[0] != batch.stamp or _find_position(index, row[0]) != batch.since:
        return ""
    width = len(batch.codes[0]) if batch.codes else found[1]
    if any(len(code) != width for code in batch.codes) or found[1] not in (0, width):
        return (
            f"vectors have {8 * width} numbers, and others of {model} had {8 * found[1]}; `palimpsest index --rebuild`"
        )
    numbers = array("I", batch.numbers).tobytes()
    index.execute("BEGIN IMMEDIATE")
    try:
        if width != found[1]:
            index.execute("UPDATE vector_model SET width = ? WHERE name = ?", (width, model))
        values = (row[0], batch.until, len(batch.codes), numbers, b"".join(batch.codes))
        index.execute("INSERT INTO vector(session, until, count, numbers, codes) VALUES (?, ?, ?, ?, ?)", values)
        index.execute("COMMIT")
    except BaseException:
        index.execute("ROLLBACK")
        raise
    return ""


def remove_sessions(index: sqlite3.Connection, sessions: Collection[int]) -> None:
    """Delete the vectors of sessions, within a transaction of the caller's. No earlier batch fits then."""
    if _has_tables(index, "main"):
        index.executemany("DELETE FROM vector WHERE session = ?", [(session,) for session in sessions])
        index.execute("UPDATE vector_model SET mark = ?", (os.urandom(8).hex(),))


def list_codes(
    connection: sqlite3.Connection, sessions: Collection[int] | None, model: str, code: bytes
) -> Iterator[tuple[int, bytes]]:
    """Yield ids of passages and their codes, over a connection with the index attached as `idx`.

    `sessions` are row ids; None means all. Without vectors of this model, as long as this code, there are none.
    """
    found = connection.execute(_MODEL.format(schema="idx"), (model,)).fetchone() if _has_tables(connection) else None
    width = len(code)
    if found is None or found[1] != width:
        return
    if sessions is None:
        rows = connection.execute(_LATEST_OF_ALL)
    else:
        rows = connection.execute(_LATEST, (orjson.dumps(sorted(sessions)).decode(),))
    left = MOST_COMPARED
    for session, packed, codes in rows:
        numbers = array("I")
        numbers.frombytes(packed)
        for at, number in enumerate(numbers):
            yield session << PASSAGE_BITS | number, codes[at * width : (at + 1) * width]
        left -= len(numbers)
        if left <= 0:
            return


def count(connection: sqlite3.Connection, schema: str = "main") -> VectorCount:
    """Return how many vectors an index has."""
    if not _has_tables(connection, schema):
        return VectorCount()
    return VectorCount(*connection.execute(_COUNT.format(schema=schema)).fetchone())


def _has_tables(connection: sqlite3.Connection, schema: str = "idx") -> bool:
    return connection.execute(_HAS_TABLES.format(schema=schema)).fetchone() is not None


def _prepare(index: sqlite3.Connection, model: str) -> str:
    """Return the stamp of the vectors of this model, which are all that the index then has."""
    if _has_tables(index, "main"):
        found = index.execute(_MODEL.format(schema="main"), (model,)).fetchone()
        if found is not None:
            return str(found[0])
    stamp = os.urandom(8).hex()
    index.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES:
            index.execute(statement)
        index.execute("DELETE FROM vector")
        index.execute("DELETE FROM vector_model")
        index.execute("INSERT INTO vector_model(name, mark, width) VALUES (?, ?, 0)", (model, stamp))
        index.execute("COMMIT")
    except BaseException:
        index.execute("ROLLBACK")
        raise
    return stamp


def _find_position(index: sqlite3.Connection, session: int) -> int:
    (until,) = index.execute("SELECT ifnull(max(until), 0) FROM vector WHERE session = ?", (session,)).fetchone()
    return int(until)


def _list_new(index: sqlite3.Connection, session: int, since: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, entry, and which passage of its text it is, of the passages from number `since` on.

    It is -1 for one that gets no vector. A passage may stand in several lanes, one behind the other; it gets one.
    """
    number, last = since - since % PLACES_IN_ROW, (0, -1)
    for (packed,) in index.execute(_PLACES, (session, since // PLACES_IN_ROW)):
        places = array("q")
        places.frombytes(packed)
        for place in places:
            entry, at = session << SESSION_SHIFT | place >> PLACE_SHIFT, read_place(place)[0]
            is_wanted = get_kind(entry) in _WORTH and (entry != last[0] or at > last[1])
            if is_wanted:
                last = (entry, at)
            if number >= since:
                yield number, entry, at if is_wanted else -1
            number += 1


def _load_passage(log: sqlite3.Connection, index: sqlite3.Connection, entry: int, at: int) -> str:
    """Return the text of a passage, empty if it was erased."""
    row = index.execute(_ENTRY, (entry,)).fetchone()
    found = load_text(log, *row) if row is not None else None
    spans = cut_text(found.text) if found is not None else []
    if found is None or at >= len(spans):
        return ""
    text = found.text[slice(*spans[at])]
    return text.encode("utf-8", "replace").decode().strip()  # lone surrogates cannot be sent
