"""Summaries as the log has them. Rule: what one covers is found through its parents, in steps as many as there are.

Parents are older than what was made of them, so that no way goes round; their spans follow on each other, so that the
leaves in the order of their spans are the messages in order.
"""

import sqlite3
from collections.abc import Iterable, Sequence

import orjson

from proxy.engine.ports import MOST_SUMMARIES
from proxy.model.summary import Summary
from proxy.store.sqlite.contents import (
    Row,
    expect_sound,
    fetch,
    find_session,
    list_ids,
    load_contents,
    load_digests,
)

_SUMMARIES = """
    SELECT x.seq, x.text, x.notes, x.messages, x.calls, x.id, s.key, x.wire, x.start, x.stop, x.last, x.kind, x.level,
        x.is_provisional, x.tokens, x.covered, x.made_ms, ifnull(e.id, ''), x.model
    FROM summary x JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.seq = x.exchange
    WHERE x.seq IN ({chosen}) ORDER BY x.seq"""
_ALL = _SUMMARIES.format(chosen="SELECT seq FROM summary WHERE session = ?")
_LIVE = _SUMMARIES.format(
    chosen=f"""
        WITH line AS MATERIALIZED (
            SELECT seq, last FROM summary WHERE session IN (SELECT value FROM json_each(?))),
        replaced AS (
            SELECT o.seq, max(o.last = line.last) AS is_everywhere
            FROM line JOIN summary_edge e ON e.summary = line.seq JOIN summary o ON o.seq = e.other GROUP BY o.seq)
        SELECT line.seq FROM line LEFT JOIN replaced ON replaced.seq = line.seq
        WHERE NOT ifnull(replaced.is_everywhere, 0)
        ORDER BY replaced.seq IS NOT NULL, line.seq DESC LIMIT {MOST_SUMMARIES}"""
)
_EDGES = """
    SELECT e.summary, e.relation, o.id FROM summary_edge e JOIN summary o ON o.seq = e.other
    WHERE e.summary IN (SELECT value FROM json_each(?)) ORDER BY e.summary, e.relation, e.i"""

_FIND = """
    SELECT s.key, x.seq, x.id, x.wire, x.start, x.stop FROM summary x JOIN session s ON s.id = x.session
    WHERE x.id = ?"""
_LEAVES = """
    WITH RECURSIVE part(seq) AS (
        SELECT ?
        UNION SELECT e.other FROM part JOIN summary_edge e ON e.summary = part.seq AND e.relation = 'parent')
    SELECT x.start, x.stop, x.messages FROM part JOIN summary x ON x.seq = part.seq
    WHERE x.kind = 'leaf' ORDER BY x.start"""


@expect_sound()
def list_summaries(connection: sqlite3.Connection, session: str) -> list[Summary]:
    """As `LogReader.list_summaries`, in the calling thread. Raises NotFound."""
    return _load(connection, connection.execute(_ALL, (find_session(connection, session),)).fetchall())


def load_live(connection: sqlite3.Connection, line: Iterable[int]) -> list[Summary]:
    """Those of sessions, by their rows, that may still be of use, oldest first (see `LogReader.load_context`)."""
    return [summary for summary in _load(connection, fetch(connection, _LIVE, line)) if summary.text]


def load_covered(connection: sqlite3.Connection, name: str) -> Row | None:
    """What the summary with this id covers, as a row of `original` with its session's key before it.

    Raises ValueError where its leaves do not make up its span.
    """
    row = connection.execute(_FIND, (name,)).fetchone()
    if row is None:
        return None
    key, seq, _, wire, start, stop = row
    blobs: list[int] = []
    for begin, end, messages in connection.execute(_LEAVES, (seq,)):
        found = orjson.loads(messages)
        if (begin, end) != (start + len(blobs), start + len(blobs) + len(found)):
            raise ValueError("its leaves do not follow on each other")
        blobs += found
    if start + len(blobs) != stop:
        raise ValueError("its leaves end elsewhere")
    return key, seq, name, wire, start, 0, list_ids(blobs)


def _load(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[Summary]:
    edges: dict[tuple[int, str], list[str]] = {}
    for seq, relation, other in fetch(connection, _EDGES, [row[0] for row in rows]):
        edges.setdefault((seq, relation), []).append(other)
    contents = load_contents(connection, {blob for row in rows for blob in row[1:3]})
    messages = {row[0]: orjson.loads(row[3]) for row in rows}
    digests = load_digests(connection, {blob for blobs in messages.values() for blob in blobs})
    return [
        _make(
            row,
            [contents.get(blob) for blob in row[1:3]],
            [tuple(edges.get((row[0], relation), ())) for relation in ("parent", "supersedes")],
            tuple([digests[blob] for blob in messages[row[0]]]),
        )
        for row in rows
    ]


def _make(
    row: Row, contents: Sequence[bytes | None], edges: Sequence[tuple[str, ...]], digests: tuple[bytes, ...]
) -> Summary:
    text, notes = contents
    parents, superseded = edges
    calls, name, *span, kind, level, is_provisional, tokens, covered, made_ms, exchange, model = row[4:]
    reason, files = orjson.loads(notes or b'["", []]')
    session, wire, start, stop, last = span
    return Summary(
        id=name,
        session=session,
        wire=wire,
        start=start,
        stop=stop,
        last=last,
        kind=kind,
        level=level,
        is_provisional=bool(is_provisional),
        text=(text or b"").decode(),
        tokens=tokens,
        covered=covered,
        made_ms=made_ms,
        exchange=exchange,
        model=model,
        reason=reason,
        calls=tuple(orjson.loads(calls)),
        parents=parents,
        supersedes=superseded,
        files=tuple(files),
        digests=digests,
    )
