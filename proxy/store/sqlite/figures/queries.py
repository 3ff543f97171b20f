"""Queries on figures: what sessions come to, what is charged alike, the rounds of a session, how sessions begin.

They sum up `bill`, and the rows of the newest calls that are not in it yet. Each reads a session as a whole: rows of
10,000 rounds take some 10 ms.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.model.errors import NotFound
from proxy.model.exchange import CONVERSATION, Usage
from proxy.model.figures import TIERS, Newest, RoundFigures, SessionHead, Tally
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import decode_headers, encode_ids
from proxy.store.sqlite.figures.bills import (
    COLUMNS,
    ESTIMATE,
    MANAGED,
    MERGED,
    OURS,
    OWN,
    TALLY_COLUMNS,
    TALLY_KEY,
    UNKNOWN,
    read_filled,
    select_rows,
    select_tallies,
)

_PLAIN_SUMS = ("rounds", "calls", "errors", "ends", "plans", "held", "counted", "client", "sent", "told", "ended_ms")
_FEW = 4096  # newer calls than these are found by their sessions

_NAMED_IDS = "SELECT key, id FROM session WHERE key IN (SELECT value FROM json_each(?))"
_NAMES = ", ".join(COLUMNS)
_CHOSEN = "{table}session IN (SELECT value FROM json_each(:sessions))"
_ROWS = f"""
    SELECT {_NAMES} FROM bill WHERE :filled > 0 AND {{stored}}
    UNION ALL {{newer}}"""

_PART_KEY = ", ".join(f"part.{name}" for name in TALLY_KEY.split(", "))
_TALLIES = f"""
    WITH part AS (
        SELECT {", ".join(TALLY_COLUMNS)} FROM tally WHERE rounds > 0 AND :filled > 0 AND {{stored}}
        UNION ALL SELECT {", ".join(TALLY_COLUMNS)} FROM ({{newer}}))
    SELECT s.key, {MERGED} FROM part JOIN session s ON s.id = part.session GROUP BY {_PART_KEY}"""

_NEWEST = """
    SELECT n, kind, mode, view, is_last, is_side, is_end, status, at_ms, client, ifnull(input, sent), usable
    FROM ({rows}) WHERE {place} ORDER BY n DESC, k DESC"""
_AT_ONCE = 32  # rounds that are read of a session, until all is known that is looked for
_COUNTS = """
    SELECT (SELECT count(*) FROM epoch WHERE session = ?1 AND why NOT IN ('revert', 'refused')),
        (SELECT count(*) FROM summary WHERE session = ?1), (SELECT max(n) FROM exchange WHERE session = ?1)"""

_LATER = f"""
    WITH row AS ({{rows}})
    SELECT count(*) FROM row WHERE is_last AND k >= 0 AND kind <> 'auxiliary' AND {MANAGED}
        AND NOT (kind = 'recorded' AND is_side)
        AND n > (SELECT max(n) FROM row WHERE rung = 'plan' AND {MANAGED})"""

_ROUNDS = """
    WITH row AS ({rows}),
    numbered AS (
        SELECT seq, row_number() OVER (ORDER BY seq) AS number FROM epoch
        WHERE session IN (SELECT value FROM json_each(:sessions)))
    SELECT n, k, at_ms, kind, mode, upstream, model, view, rung, ifnull(numbered.number, 0), status, completeness,
        is_side, is_last, input, output, read, written, client, sent, usable, saving, own_input, own_read, own_written,
        paid_read, first_byte_ms, total_ms, overhead_ms
    FROM row LEFT JOIN numbered ON numbered.seq = row.epoch
    WHERE n > :after AND n <= :after + :limit ORDER BY n, k"""

# the first call that is part of the conversation, else the first that was read
_HEADS = """
    SELECT s.key, e.id, e.n, e.wire, unpack(p.codec, p.bytes), e.changes, e.whole <> x''
    FROM session s JOIN exchange e ON e.seq = ifnull(
        (SELECT x.seq FROM exchange x JOIN step t ON t.session = x.session AND t.n = x.n
            WHERE x.session = s.id AND x.kind IN ('managed', 'recorded') AND x.wire <> '' AND NOT t.is_side
            ORDER BY x.n LIMIT 1),
        (SELECT x.seq FROM exchange x WHERE x.session = s.id AND x.kind <> 'auxiliary' ORDER BY x.n LIMIT 1))
    LEFT JOIN payload p ON p.id = e.headers
    WHERE s.id IN (SELECT value FROM json_each(?))"""


def load_newest(connection: sqlite3.Connection, sessions: Sequence[str]) -> list[Newest]:
    """Return what `LogReader.load_newest` does."""
    found = []
    for key, id in connection.execute(_NAMED_IDS, (_encode_names(sessions),)).fetchall():
        epochs, summaries, last = connection.execute(_COUNTS, (id,)).fetchone()
        if last is not None:
            newest = _read_newest(connection, key, id, last)
            found.append(replace(newest, epochs=epochs, summaries=summaries))
    return found


def _read_newest(connection: sqlite3.Connection, key: str, id: int, last: int) -> Newest:
    """Read the rounds of a session back from its call `last` until it is known what the newest are."""
    query, named = _select_rows(connection, [id])
    query = _NEWEST.format(rows=query, place="n > :after AND n <= :until")
    found: dict[str, Any] = {}
    apart = ""
    recalled = 0  # the newest call of the conversation, if the model recalled in it: an earlier round has its tokens
    for until in range(last, 0, -_AT_ONCE):
        rows = connection.execute(query, {**named, "after": until - _AT_ONCE, "until": until})
        for n, kind, mode, view, is_last, is_side, is_end, status, at_ms, client, sent, usable in rows:
            if not is_last:
                if n == recalled and client:
                    found["client"], recalled = client, 0
                continue
            if status is None:
                found.setdefault("opened_ms", at_ms)
            if kind == "recorded" and is_side:  # it has no mode of its own
                apart = mode
            elif kind != "auxiliary":
                found.setdefault("mode", mode)
            if kind in CONVERSATION and not is_side:
                found.setdefault("is_ended", bool(is_end))
                known = {"view": view} if view else {}
                if sent is not None:
                    recalled = n if client == 0 and "sent" not in found else recalled
                    known |= {"client": sent if client is None else client, "sent": sent}
                found = known | ({"usable": usable} if usable else {}) | found
        if found.keys() >= {"mode", "view", "sent", "usable"}:
            break
    return Newest(key, **({"mode": apart} | found))


def load_tallies(
    connection: sqlite3.Connection, sessions: Sequence[str] | None = None, tiers: Sequence[int] = TIERS
) -> list[Tally]:
    """Return what `LogReader.load_tallies` does."""
    ids = None if sessions is None else _list_ids(connection, sessions)
    stored, newer, key = _choose_rows(connection, ids)
    if tuple(tiers) == TIERS:
        query = _TALLIES.format(stored=stored, newer=select_tallies(newer))
    else:
        rows = _ROWS.format(stored=stored, newer=newer)
        query = _TALLIES.format(stored="false", newer=select_tallies(rows, tiers))
    return [_make_tally(row) for row in connection.execute(query, key)]


def count_later(connection: sqlite3.Connection, session: str) -> int:
    """Return what `LogReader.count_later` does."""
    query, key = _select_rows(connection, _list_ids(connection, (session,)))
    (count,) = connection.execute(_LATER.format(rows=query), key).fetchone()
    return int(count)


def load_rounds(
    connection: sqlite3.Connection, session: str, after: int = 0, limit: int = 10_000
) -> list[RoundFigures]:
    """Return what `LogReader.load_rounds` does. Raises NotFound."""
    ids = _list_ids(connection, (session,))
    if not ids:
        raise NotFound(f"there is no session {session}")
    query, key = _select_rows(connection, ids)
    rows = connection.execute(_ROUNDS.format(rows=query), {**key, "after": after, "limit": limit})
    return [RoundFigures(*(*row[:12], bool(row[12]), bool(row[13]), *row[14:])) for row in rows]


def load_heads(connection: sqlite3.Connection, sessions: Sequence[str]) -> list[SessionHead]:
    """Return what `LogReader.load_heads` does."""
    rows = connection.execute(_HEADS, (encode_ids(_list_ids(connection, sessions)),))
    return [
        SessionHead(*(*row[:4], () if row[4] is None else decode_headers(row[4], row[5]), bool(row[6]))) for row in rows
    ]


def _encode_names(sessions: Iterable[str]) -> str:
    return orjson.dumps([fit_text(session) for session in sessions]).decode()


def _list_ids(connection: sqlite3.Connection, sessions: Iterable[str]) -> list[int]:
    return [id for _, id in connection.execute(_NAMED_IDS, (_encode_names(sessions),))]


def _select_rows(connection: sqlite3.Connection, sessions: list[int]) -> tuple[str, dict[str, object]]:
    """Return the query for the rows of sessions, and its parameters."""
    stored, newer, key = _choose_rows(connection, sessions)
    return _ROWS.format(stored=stored, newer=newer), key


def _choose_rows(connection: sqlite3.Connection, sessions: list[int] | None) -> tuple[str, str, dict[str, object]]:
    """Return which stored rows are those of sessions, None: of all, the query for newer ones, and its parameters."""
    filled = read_filled(connection)
    (last,) = connection.execute("SELECT ifnull(max(seq), 0) FROM exchange").fetchone()
    key: dict[str, object] = {"filled": filled}
    if sessions is None:
        return "true", select_rows("e.seq > :filled"), key
    key["sessions"] = encode_ids(sessions)
    # a sign keeps SQLite from using the index of what it precedes
    is_short = last - filled <= _FEW
    chosen = _CHOSEN.format(table="+e." if is_short else "e.")
    newer = select_rows(f"{'e.seq' if is_short else '+e.seq'} > :filled AND {chosen}")
    return _CHOSEN.format(table=""), newer, key


def _make_tally(row: Sequence[Any]) -> Tally:
    found = dict(zip(TALLY_COLUMNS, row, strict=True))
    share, output, written = found["share"], found["output"], found["written"]
    is_ours, is_own = share == OURS, share == OWN
    own = Usage(found["own_fresh"], found["own_output"], found["own_read"], found["own_written"])
    return Tally(
        session=found["session"],
        day=found["day"],
        upstream=found["upstream"],
        model=found["model"],
        is_auxiliary=is_ours,
        usage=Usage(found["fresh"], output, found["read"], written),
        largest=found["largest"],
        own=own if is_own else None,
        paid=Usage(found["paid_fresh"], output, found["paid_read"], written) if is_own else None,
        largest_own=found["largest_own"] if is_own else 0,
        saving=found["saving"] if share == ESTIMATE else None,
        is_known=share != UNKNOWN,
        read=0 if is_ours else found["read"],
        output=0 if is_ours else output,
        **{name: found[name] for name in _PLAIN_SUMS},
    )
