"""Queries on managed context: epochs, pins, originals behind references, summaries, and memory.

Requests wait for them: each statement reads many contents by their row ids, each content is read once, and old epochs
are not read. An epoch of which a part was erased is useless, and left out.

The messages that a summary covers are found through its parents. Parents are older than their summary, so there is no
cycle. Their spans are adjacent, so the leaves in the order of their spans yield the messages in order.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from proxy.engine.ports import (
    MOST_EPOCHS,
    MOST_NOTED,
    MOST_RECALLED_ANSWERS,
    MOST_SOURCES,
    MOST_SUMMARIES,
    NEWEST_EPOCHS,
    NEWEST_USES,
)
from proxy.model.epoch import (
    Epoch,
    EpochUse,
    Original,
    Pin,
    Recalled,
    SourceNote,
    StoredContext,
    StoredOriginal,
    Summary,
)
from proxy.model.errors import Erased, NotFound, StoreUnavailable, tell_day
from proxy.model.memory import MemoryOrder, StoredMemory
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import REPORT, decode_hidden, decode_remembered, encode_ids, unpack

_SESSION = "SELECT id FROM session WHERE key = ?"
_DIGESTS = "SELECT id, digest FROM blob WHERE id IN (SELECT value FROM json_each(?))"
_CONTENTS = "SELECT id, codec, bytes FROM payload WHERE id IN (SELECT value FROM json_each(?))"

Row = tuple[Any, ...]


@contextmanager
def expect_sound() -> Iterator[None]:
    """Raise StoreUnavailable for errors of damaged rows: invalid JSON in a list, a missing original or digest."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise StoreUnavailable("what the log has of managed context is damaged; run `palimpsest verify`") from error


def find_session(connection: sqlite3.Connection, session: str) -> int:
    """Return the row id of the session with this key. Raises NotFound."""
    row = connection.execute(_SESSION, (fit_text(session),)).fetchone()
    if row is None:
        raise NotFound(f"there is no session {session}")
    return int(row[0])


def load_digests(connection: sqlite3.Connection, blobs: Iterable[int]) -> Mapping[int, bytes]:
    """Return digests of shared content by row id of the blob."""
    return {blob: digest for blob, digest in fetch(connection, _DIGESTS, blobs)}


def load_contents(connection: sqlite3.Connection, blobs: Iterable[int]) -> Mapping[int, bytes]:
    """Return shared content by row id of the blob. Erased content is left out."""
    return {blob: unpack(codec, stored) for blob, codec, stored in fetch(connection, _CONTENTS, blobs)}


def fetch(connection: sqlite3.Connection, query: str, ids: Iterable[int]) -> Sequence[Row]:
    """Return the rows of a query whose only parameter is a list of row ids."""
    return connection.execute(query, (encode_ids(ids),)).fetchall()


# the session and those that it continues, the nearest first
_LINE = f"""
    WITH RECURSIVE line(id) AS (
        SELECT id FROM session WHERE key = ?
        UNION SELECT a.source FROM line JOIN adoption a ON a.session = line.id LIMIT {MOST_SOURCES + 1})
    SELECT id FROM line"""

_EPOCHS = """
    SELECT x.id, s.key, x.view, ifnull(before.id, ''), x.through, x.depth, x.why, ifnull(e.id, ''), x.opened_ms,
        x.tokens_before, x.tokens_after, x.edits, x.rendered, x.originals, ifnull(x.tool, x'')
    FROM epoch x JOIN session s ON s.id = x.session
    LEFT JOIN epoch before ON before.seq = x.parent LEFT JOIN exchange e ON e.seq = x.exchange
    WHERE x.seq IN ({chosen}) ORDER BY x.seq"""
# Not all epochs are read, since unpacking 1 MB of content takes 10 ms, and most of many epochs are no longer in use.
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
_ALL_EPOCHS = _EPOCHS.format(chosen="SELECT seq FROM epoch WHERE session = ?")
_NTH_EPOCH = _EPOCHS.format(chosen="SELECT seq FROM epoch WHERE session = ? ORDER BY seq LIMIT 1 OFFSET ?")

_ORIGINALS = """
    SELECT id, name, wire, place, start, messages FROM original WHERE id IN (SELECT value FROM json_each(?))"""

_ORIGINAL = """
    SELECT s.key, o.id, o.name, o.wire, o.place, o.start, o.messages
    FROM original o JOIN session s ON s.id = o.session WHERE o.name = ?"""

# when the session of an exchange was erased, if the exchange was there then
_ERASED_CALL = """
    SELECT s.key, max(z.at_ms) FROM exchange e JOIN erased z ON z.session = e.session AND z.through >= e.seq
    JOIN session s ON s.id = e.session WHERE e.id = ?"""
_ERASED_AT = "SELECT max(z.at_ms) FROM session s JOIN erased z ON z.session = s.id WHERE s.key = ?"
# of the session itself or of one that continues it; an erased epoch has no edits
_IS_NAMED = """
    WITH RECURSIVE line(id) AS (
        SELECT id FROM session WHERE key = ?
        UNION SELECT a.session FROM line JOIN adoption a ON a.source = line.id)
    SELECT 1 FROM epoch x JOIN payload p ON p.id = x.edits, json_each(x.originals) m
    WHERE x.session IN line AND m.value = ? LIMIT 1"""

# the newest pin of each node
_PINS = """
    SELECT s.key, p.node, p.is_on, p.at_ms FROM pin p JOIN session s ON s.id = p.session
    WHERE p.seq IN (SELECT max(seq) FROM pin WHERE session IN (SELECT value FROM json_each(?)) GROUP BY session, node)
    AND NOT EXISTS (SELECT 1 FROM erased z WHERE z.session = p.session AND z.at_ms >= p.at_ms)
    ORDER BY p.seq"""

# steps from one view to the next, so that the time hardly depends on the number of decisions
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

_GIVEN_UP = """
    SELECT DISTINCT view FROM epoch
    WHERE session IN (SELECT value FROM json_each(?)) AND why = 'uncompacted' ORDER BY view"""

_RECALLED = f"""
    SELECT e.id, s.key, x.view, h.id, x.node, x.count, x.tokens, x.rounds
    FROM recalled x JOIN exchange e ON e.seq = x.exchange JOIN session s ON s.id = x.session
    JOIN epoch h ON h.seq = x.epoch
    WHERE x.session IN (SELECT value FROM json_each(?)) ORDER BY x.seq DESC LIMIT {MOST_RECALLED_ANSWERS}"""

_SOURCES = f"""
    SELECT s.key, e.id, x.node, x.kind FROM source x JOIN exchange e ON e.seq = x.exchange
    JOIN session s ON s.id = x.session
    WHERE x.session IN (SELECT value FROM json_each(?)) ORDER BY x.seq DESC LIMIT {MOST_NOTED}"""

# of each request only the last round counts: an earlier one was refused
_USES = f"""
    WITH newest AS MATERIALIZED (
        SELECT seq, view, exchange, k, epoch FROM decision
        WHERE session IN (SELECT value FROM json_each(?)) AND epoch IS NOT NULL ORDER BY seq DESC LIMIT {NEWEST_USES})
    SELECT d.view, ifnull(h.hash, t.outer), x.id
    FROM newest d JOIN epoch x ON x.seq = d.epoch AND x.depth > 0
    JOIN exchange e ON e.seq = d.exchange JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN node h ON h.session = t.session AND h.n = t.tip
    WHERE NOT EXISTS (SELECT 1 FROM decision l WHERE l.exchange = d.exchange AND l.k > d.k)
    ORDER BY d.seq"""


@expect_sound()
def load_context(connection: sqlite3.Connection, session: str) -> StoredContext:
    """Return what `LogReader.load_context` does."""
    line = [row for (row,) in connection.execute(_LINE, (fit_text(session),))]
    named = (encode_ids(line),)
    pins = [Pin(key, node, bool(is_on), at_ms) for key, node, is_on, at_ms in connection.execute(_PINS, named)]
    owed: dict[str, float] = {}
    for row in reversed(line):  # the session's own values come last, and override the others
        owed.update(connection.execute(_OWED, (row,)).fetchall())
    epochs = tuple(_load_epochs(connection, _IN_USE, named))
    unsent = tuple(id for (id,) in connection.execute(_UNSENT, named))
    summaries = tuple(load_live_summaries(connection, line))
    given_up = tuple(view for (view,) in connection.execute(_GIVEN_UP, named))
    recalled = tuple(_load_recalled(connection, named))
    sources = tuple([SourceNote(*row) for row in reversed(connection.execute(_SOURCES, named).fetchall())])
    return StoredContext(epochs, tuple(pins), tuple(owed.items()), summaries, unsent, given_up, recalled, sources)


def _load_recalled(connection: sqlite3.Connection, named: tuple[object, ...]) -> Iterator[Recalled]:
    """Yield the newest of what was recalled, oldest first, without what was erased."""
    rows = connection.execute(_RECALLED, named).fetchall()
    contents = load_contents(connection, [row[-1] for row in rows])
    for *row, rounds in reversed(rows):
        if rounds in contents:
            yield Recalled(*(*row, decode_hidden(contents[rounds])))


_MEMORY = """
    SELECT x.seq, s.key, x.kind, x.item, x.at_ms, x.content FROM memory x JOIN session s ON s.id = x.session
    WHERE x.session IN (SELECT value FROM json_each(?)) ORDER BY x.seq"""


@expect_sound()
def load_memory(connection: sqlite3.Connection, session: str) -> StoredMemory:
    """Return what `MemoryLog.load_memory` does."""
    line = [row for (row,) in connection.execute(_LINE, (fit_text(session),))]
    rows = fetch(connection, _MEMORY, line)
    contents = load_contents(connection, {row[-1] for row in rows if row[-1] is not None})
    entries = [(row[0], decode_remembered(contents[row[-1]])) for row in rows if row[-1] in contents]
    orders = [(seq, MemoryOrder(key, kind, item, at_ms)) for seq, key, kind, item, at_ms, _ in rows if kind != REPORT]
    return StoredMemory(tuple(entries), tuple(orders))


def list_memory_requests(connection: sqlite3.Connection) -> list[str]:
    """Return what `MemoryReader.list_memory_requests` does."""
    # a bare column beside max() is that of the row with the maximum
    newest = """SELECT s.key, x.kind, max(x.seq) FROM memory x JOIN session s ON s.id = x.session
        WHERE x.kind IN ('request', 'clear', 'reset') GROUP BY x.session"""
    return [session for session, kind, _ in connection.execute(newest) if kind == "request"]


def list_uses(connection: sqlite3.Connection, session: str) -> list[EpochUse]:
    """Return what `LogReader.list_uses` does."""
    line = encode_ids(row for (row,) in connection.execute(_LINE, (fit_text(session),)))
    return [EpochUse(*row) for row in connection.execute(_USES, (line,))]


@expect_sound()
def list_epochs(connection: sqlite3.Connection, session: str) -> list[Epoch]:
    """Return what `LogReader.list_epochs` does. Raises NotFound."""
    rows = connection.execute(_ALL_EPOCHS, (find_session(connection, session),)).fetchall()
    edits = load_contents(connection, {row[11] for row in rows})
    originals = _load_originals(connection, rows)
    return [_make_epoch(row, edits.get(row[11], b""), (), originals) for row in rows]


@expect_sound()
def load_epoch(connection: sqlite3.Connection, session: str, n: int) -> Epoch:
    """Return what `LogReader.load_epoch` does. Raises NotFound."""
    key = (find_session(connection, session), max(0, n - 1))
    if n < 1 or connection.execute(_NTH_EPOCH, key).fetchone() is None:
        raise NotFound(f"there is no epoch {n} of session {session}")
    for epoch in _load_epochs(connection, _NTH_EPOCH, key):
        return epoch
    (at_ms,) = connection.execute(_ERASED_AT, (fit_text(session),)).fetchone()
    raise Erased(f"epoch {n} of session {session}, or a part of it, was erased{tell_day(at_ms)}", session, at_ms)


@expect_sound()
def load_original(connection: sqlite3.Connection, reference: str) -> StoredOriginal:
    """Return what `LogReader.load_original` does. Raises NotFound."""
    name = fit_text(reference)
    row = connection.execute(_ORIGINAL, (name,)).fetchone() or find_covered(connection, name)
    if row is None:
        raise NotFound(f"there is no reference {reference}")
    blobs = orjson.loads(row[6])
    digests, contents = load_digests(connection, blobs), load_contents(connection, blobs)
    at_ms = _find_erased(connection, row[0], row[1])
    if at_ms is not None or not contents.keys() >= set(blobs):
        raise Erased(f"what ref:{reference} names was erased{tell_day(at_ms)}", row[0], at_ms)
    return StoredOriginal(row[0], _make_original(row[1:], digests), tuple(contents[blob] for blob in blobs))


def refuse_erased(connection: sqlite3.Connection, exchange: str) -> None:
    """Raise Erased for a call of a session that was erased behind it, also for what other sessions still share."""
    session, at_ms = connection.execute(_ERASED_CALL, (exchange,)).fetchone()
    if at_ms is not None:
        raise Erased(f"this call was erased{tell_day(at_ms)}", session, at_ms)


def _find_erased(connection: sqlite3.Connection, session: str, original: int) -> int | None:
    """Return when a session was erased, None unless it was, or if an epoch that is left names this original of it."""
    (at_ms,) = connection.execute(_ERASED_AT, (session,)).fetchone()
    if at_ms is None or connection.execute(_IS_NAMED, (session, original)).fetchone() is not None:
        return None
    return int(at_ms)


def _load_epochs(connection: sqlite3.Connection, query: str, key: tuple[object, ...]) -> list[Epoch]:
    """Load epochs with their content. Those of which a part was erased are left out."""
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
    """Load all originals that epochs name, by row id."""
    named = {each for row in rows for each in orjson.loads(row[13])}
    found = fetch(connection, _ORIGINALS, named)
    digests = load_digests(connection, {blob for row in found for blob in orjson.loads(row[5])})
    return {row[0]: _make_original(row, digests) for row in found}


def _make_epoch(row: Row, edits: bytes, rendered: tuple[bytes, ...], originals: Mapping[int, Original]) -> Epoch:
    named = tuple([originals[each] for each in orjson.loads(row[13])])
    return Epoch(*(*row[:11], edits, rendered, named, row[14]))


def _make_original(row: Row, digests: Mapping[int, bytes]) -> Original:
    _, name, wire, place, start, messages = row
    return Original(name, tuple([digests[blob] for blob in orjson.loads(messages)]), wire, place, start)


# behind `is_provisional` in the order of the fields of `Summary`
_SUMMARIES = """
    SELECT x.seq, x.text, x.notes, x.messages, x.calls, x.is_provisional,
        x.id, s.key, x.wire, x.start, x.stop, x.last, x.kind, x.level,
        x.tokens, x.covered, x.made_ms, ifnull(e.id, ''), x.model
    FROM summary x JOIN session s ON s.id = x.session LEFT JOIN exchange e ON e.seq = x.exchange
    WHERE x.seq IN ({chosen}) ORDER BY x.seq"""
_ALL_SUMMARIES = _SUMMARIES.format(chosen="SELECT seq FROM summary WHERE session = ?")
_LIVE_SUMMARIES = _SUMMARIES.format(
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

_FIND_SUMMARY = """
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
    """Return what `LogReader.list_summaries` does. Raises NotFound."""
    return _load_summaries(
        connection, connection.execute(_ALL_SUMMARIES, (find_session(connection, session),)).fetchall()
    )


def load_live_summaries(connection: sqlite3.Connection, line: Iterable[int]) -> list[Summary]:
    """Return the summaries of sessions, by row id, that may still be used, oldest first (`LogReader.load_context`)."""
    return [
        summary for summary in _load_summaries(connection, fetch(connection, _LIVE_SUMMARIES, line)) if summary.text
    ]


def find_covered(connection: sqlite3.Connection, name: str) -> Row | None:
    """Return what the summary with this id covers, as a row of `original` with the session key before it.

    Raises ValueError if its leaves do not cover its span exactly.
    """
    row = connection.execute(_FIND_SUMMARY, (name,)).fetchone()
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
    return key, seq, name, wire, start, 0, encode_ids(blobs)


def _load_summaries(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[Summary]:
    edges: dict[tuple[int, str], list[str]] = {}
    for seq, relation, other in fetch(connection, _EDGES, [row[0] for row in rows]):
        edges.setdefault((seq, relation), []).append(other)
    contents = load_contents(connection, {blob for row in rows for blob in row[1:3]})
    messages = {row[0]: orjson.loads(row[3]) for row in rows}
    digests = load_digests(connection, {blob for blobs in messages.values() for blob in blobs})
    return [
        _make_summary(
            row,
            [contents.get(blob) for blob in row[1:3]],
            [tuple(edges.get((row[0], relation), ())) for relation in ("parent", "supersedes")],
            tuple([digests[blob] for blob in messages[row[0]]]),
        )
        for row in rows
    ]


def _make_summary(
    row: Row, contents: Sequence[bytes | None], edges: Sequence[tuple[str, ...]], digests: tuple[bytes, ...]
) -> Summary:
    text, notes = contents
    reason, files, *added = orjson.loads(notes or b'["", []]')
    block, facts = (*added, "", ())[0], tuple(added[1]) if len(added) > 1 else ()
    first = (*row[6:14], bool(row[5]), (text or b"").decode(), *row[14:])
    return Summary(*(*first, reason, tuple(orjson.loads(row[4])), *edges, tuple(files), digests, block, facts))
