"""Takes out of the index what the log has erased: the sessions that had any of it, which are then indexed anew.

A text that was erased has left more than its own postings: a card tells the thought before a call, and a time that was
stated holds for what comes behind it. What remains of such a session is read again from the log. Terms of postings are
found without their texts by looking through all of them, which takes a second for some ten million.

The position goes back to the beginning of the log. All other sessions know how far they are indexed, and add nothing.
"""

import sqlite3
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

import orjson

from proxy.retrieval.postings import PASSAGE_BITS, SESSION_SHIFT, Lane
from proxy.store.search import schema, vectors
from proxy.store.search.changes import TABLES

ERASING = "erasing"
"""In `meta`: whether postings of erased content may still be in the files, until they are merged and overwritten."""

_MOST_PASSAGES, _MOST_SHARE = 50_000, 0.25
"""Passages that are taken out at most. If there are more, the whole index is made anew."""

_SESSIONS = """
    WITH RECURSIVE erased(payload) AS (SELECT payload FROM erasure WHERE seq > ?1 AND seq <= ?2),
    slice(link) AS (
        SELECT link FROM raw WHERE blob IN erased
        UNION SELECT raw.link FROM slice JOIN raw ON raw.parent = slice.link)
    SELECT session FROM exchange WHERE tip IN slice OR envelope IN erased
    UNION SELECT e.session FROM reading g JOIN exchange e ON e.seq = g.exchange WHERE g.answer IN erased
    UNION SELECT session FROM epoch WHERE edits IN erased
    UNION SELECT session FROM summary WHERE text IN erased
    UNION SELECT s.id FROM erasure e JOIN session s ON s.key = e.scope WHERE e.seq > ?1 AND e.seq <= ?2"""
_PASSAGES = "SELECT ifnull(sum(passages), 0) FROM session WHERE id IN (SELECT value FROM json_each(?))"
_TERMS = f"""
    SELECT doc, term FROM temp.terms_{{lane}}
    WHERE term >= ? AND term < ? AND doc >= ? AND doc < ?
    AND doc >> {PASSAGE_BITS} IN (SELECT value FROM json_each(?))"""
_FIRST_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def find_sessions(log: sqlite3.Connection, since: int, until: int) -> list[int]:
    """Return the row ids of the sessions of which something was erased in this part of the log."""
    return [session for (session,) in log.execute(_SESSIONS, (since, until))]


def are_few(index: sqlite3.Connection, sessions: Collection[int]) -> bool:
    """Return whether to take out these sessions takes less than to make the index anew."""
    (passages,) = index.execute(_PASSAGES, (_encode(sessions),)).fetchone()
    return bool(passages <= min(_MOST_PASSAGES, _MOST_SHARE * schema.count_passages(index)))


def remove_sessions(index: sqlite3.Connection, sessions: Collection[int], erasure: int) -> Iterator[None]:
    """Take sessions out of the index, and note that the log was followed up to this erasure; yield on the way.

    What is looked for between two steps must not change. The removal is one transaction, behind the last step. Postings
    are marked as deleted by it; merging removes them.
    """
    found: dict[Lane, dict[int, list[str]]] = {lane: {} for lane in schema.LANES}
    for lane in schema.LANES if sessions else ():
        yield from _find_terms(index, lane, sessions, found[lane])
    index.execute("BEGIN IMMEDIATE")
    if sessions:
        for lane, terms in found.items():
            rows = [(passage, " ".join(each)) for passage, each in sorted(terms.items())]
            index.executemany(f"INSERT INTO lane_{lane}(lane_{lane}, rowid, terms) VALUES ('delete', ?, ?)", rows)
        _remove_words(index, {term for each in found["text"].values() for term in each})
        for session in sessions:
            bounds = (session << SESSION_SHIFT, session + 1 << SESSION_SHIFT)
            index.execute("DELETE FROM entry WHERE id >= ? AND id < ?", bounds)
            for table in ("place", "seen", "alias", "statistic"):
                index.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
            index.execute("DELETE FROM session WHERE id = ?", (session,))
        vectors.remove_sessions(index, sessions)
        index.execute("DELETE FROM tool WHERE id NOT IN (SELECT tool FROM entry)")
        schema.write_meta(index, {**dict.fromkeys(TABLES, 0), "seal": 0, "is_complete": 0, ERASING: 1})
    schema.write_meta(index, {"erasure": erasure})
    index.execute("COMMIT")


def _find_terms(
    index: sqlite3.Connection, lane: Lane, sessions: Collection[int], found: dict[int, list[str]]
) -> Iterator[None]:
    """Find the terms of the passages of sessions; yield after those with the same first character."""
    index.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.terms_{lane} USING fts5vocab(main, lane_{lane}, instance)")
    bounds = (min(sessions) << PASSAGE_BITS, max(sessions) + 1 << PASSAGE_BITS, _encode(sessions))
    for letters in pairwise(("", *_FIRST_LETTERS, chr(sys.maxunicode))):
        for passage, term in index.execute(_TERMS.format(lane=lane), (*letters, *bounds)):
            found.setdefault(passage, []).append(term)
        yield


def _remove_words(index: sqlite3.Connection, terms: Iterable[str]) -> None:
    """Forget the words that are in no passage any more."""
    for term in terms:
        quoted = '"{}"'.format(term.replace('"', '""'))
        if index.execute("SELECT 1 FROM lane_text WHERE lane_text MATCH ? LIMIT 1", (quoted,)).fetchone() is None:
            index.execute("DELETE FROM word WHERE text = ?", (term,))


def _encode(numbers: Iterable[int]) -> str:
    return orjson.dumps(list(numbers)).decode()
