"""The table `bill`: a row for each round with all that reports sum up, derived from the record.

The record of a round is in six tables, from which 100,000 calls take seconds to read. The writer derives rows behind
commits, `CHUNK` calls at a time, up to the call that `meta` names. Readers derive those of later calls themselves, in
the same way. A record that comes later for a call up to there has the rows of this call derived again, in its own
transaction. So rows are never older than the record, and may be derived anew at any time.

`own_input`, `own_read` and `own_written` are what the client's own request would have used (`pricing.estimate_own`),
and `paid_read` is what was read in its place.
"""

import sqlite3
from collections.abc import Iterable

from proxy.context.cache_misses import SLACK_SHARE, SLACK_TOKENS
from proxy.context.epoch_decision import HELD_OUT
from proxy.store.sqlite.codec import encode_ids

CHUNK = 256
"""Calls of which rows are derived in one transaction, which takes some 5 ms."""

_VERSION = 1
_KEY = "bills"
_SEQ_SIZE = 8

COLUMNS = (
    *("session", "n", "k", "exchange", "at_ms", "kind", "mode", "upstream", "model", "view", "rung", "is_held"),
    *("epoch", "status", "completeness", "is_side", "is_last", "is_end", "input", "output", "read", "written"),
    *("client", "sent", "usable", "saving", "own_input", "own_read", "own_written", "paid_read"),
    *("first_byte_ms", "total_ms"),
)
_NAMES = ", ".join(COLUMNS)

# What an answer that calls a tool finishes with. Responses always say `completed`: what they call is in their items.
_TOOL_FINISHES = "'tool_calls', 'function_call', 'tool_use'"
_CALL_ITEMS = ("function_call", "custom_tool_call", "local_shell_call", "shell_call", "computer_call", "mcp_call")
_CALLS_TOOL = " OR ".join(f"instr(unpack(p.codec, p.bytes), CAST('\"{name}\"' AS BLOB)) > 0" for name in _CALL_ITEMS)

# Of each call, or of each round: what the record says.
_FACTS = f"""
    SELECT e.session, e.n, ifnull(r.k, -1) AS k, e.seq AS exchange, e.opened_ms AS at_ms, e.kind, e.mode,
        ifnull(r.upstream, '') AS upstream, e.model, ifnull(c.view, '') AS view, ifnull(c.rung, '') AS rung,
        ifnull(c.reason = '{HELD_OUT}', 0) AS is_held, c.epoch, o.status, ifnull(o.completeness, '') AS completeness,
        ifnull(t.is_side, 0) AS is_side,
        NOT EXISTS (SELECT 1 FROM round later WHERE later.exchange = e.seq AND later.k > r.k) AS is_last,
        CASE WHEN g.exchange IS NULL OR g.finish = '' OR g.finish IN ({_TOOL_FINISHES}) THEN 0
            WHEN e.wire <> 'responses' THEN 1
            ELSE NOT ifnull((SELECT {_CALLS_TOOL} FROM payload p WHERE p.id = g.answer), 0) END AS is_end,
        g.input, g.output, g.cached AS read, g.written, c.tokens_client, c.tokens_upstream AS sent,
        ifnull(c.usable, 0) AS usable, c.saving AS estimate, c.client_read, c.sent_read, o.first_byte_ms, o.total_ms,
        iif(g.input > 0 AND c.tokens_upstream > 0, 1.0 * g.input / c.tokens_upstream, NULL) AS scale,
        c.tokens_client IS NOT NULL AND c.client_read IS NOT NULL AND c.sent_read IS NOT NULL AS is_sized
    FROM exchange e {{hint}}
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN round r ON r.exchange = e.seq
    LEFT JOIN outcome o ON o.exchange = r.exchange AND o.k = r.k
    LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    LEFT JOIN decision c ON c.exchange = r.exchange AND c.k = r.k
    WHERE {{chosen}}"""

# `pricing.estimate_own`, step by step. CAST rounds down what is positive.
_EXPECTED = """
    SELECT *, CASE WHEN tokens_client IS NOT NULL AND scale IS NOT NULL
                THEN CAST(tokens_client * scale + 0.5 AS INTEGER)
            WHEN tokens_client IS NOT NULL AND input IS NULL THEN tokens_client
            WHEN rung IN ('', 'original') THEN input ELSE tokens_client END AS client,
        iif(is_sized AND scale IS NOT NULL, min(sent_read, sent) * scale, NULL) AS expected
    FROM ({facts})"""
_PAID = """
    SELECT *, iif(expected IS NULL, NULL, ifnull(read, CAST(expected + 0.5 AS INTEGER))) AS paid_read
    FROM ({expected})"""
_READ = f"""
    SELECT *, CASE WHEN 2 * sent_read < sent THEN client_read * scale
            WHEN abs(paid_read - expected) <= max({SLACK_TOKENS}, {SLACK_SHARE} * expected)
                THEN client_read * scale + paid_read - expected
            ELSE client_read * scale * min(1.0, paid_read / expected) END AS wanted
    FROM ({{paid}})"""
_OWN = """
    SELECT *, iif(expected IS NULL, NULL, client) AS own_input,
        iif(expected IS NULL, NULL, min(client, max(0, CAST(wanted + 0.5 AS INTEGER)))) AS own_read
    FROM ({read})"""
_ROWS = f"""
    SELECT {_NAMES} FROM (
        SELECT *, iif(expected IS NULL, estimate, NULL) AS saving,
            CASE WHEN expected IS NULL THEN NULL WHEN input - paid_read <= 0 THEN 0
                ELSE CAST((own_input - own_read) * min(1.0, 1.0 * ifnull(written, 0) / (input - paid_read)) + 0.5
                    AS INTEGER) END AS own_written
        FROM ({{own}}))"""


def select_rows(chosen: str, hint: str = "") -> str:
    """Return the query that derives the rows of the calls that an SQL condition on `exchange e` chooses."""
    query = _FACTS.format(chosen=chosen, hint=hint)
    for outer, name in ((_EXPECTED, "facts"), (_PAID, "expected"), (_READ, "paid"), (_OWN, "read"), (_ROWS, "own")):
        query = outer.format(**{name: query})
    return query


_LATE = "e.seq IN (SELECT value FROM json_each(?))"
_FORGET_LATE = f"DELETE FROM bill WHERE (session, n) IN (SELECT e.session, e.n FROM exchange e WHERE {_LATE})"
_DERIVE_LATE = f"INSERT INTO bill({_NAMES}) {select_rows(_LATE)}"
_DERIVE = f"INSERT OR REPLACE INTO bill({_NAMES}) {select_rows('e.seq > ? AND e.seq <= ?')}"
_COMPARED = ", ".join(name for name in COLUMNS if name != "is_end")  # which the content says, and may be erased
_DERIVED = f"SELECT {_COMPARED} FROM ({select_rows('e.seq <= ?')}) ORDER BY session, n, k"
_STORED = f"SELECT {_COMPARED} FROM bill ORDER BY session, n, k"


def read_filled(connection: sqlite3.Connection) -> int:
    """Return the number of the last call of which rows are stored, 0 without one or if another version derived them."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    if row is None or row[0][_SEQ_SIZE:] != bytes([_VERSION]):
        return 0
    return int.from_bytes(row[0][:_SEQ_SIZE], "big")


def derive_late(connection: sqlite3.Connection, exchanges: Iterable[int]) -> None:
    """Derive the rows of calls again, in the transaction that adds to their record."""
    late = encode_ids(exchanges)
    connection.execute(_FORGET_LATE, (late,))
    connection.execute(_DERIVE_LATE, (late,))


def fill(connection: sqlite3.Connection, last: int) -> int:
    """Store the rows of the next calls, `CHUNK` at most, up to number `last`. Return the number of the last of them.

    It waits for no disk: what a crash takes is derived again.
    """
    filled = read_filled(connection)
    until = min(last, filled + CHUNK)
    (mode,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not filled:
                connection.execute("DELETE FROM bill")
            connection.execute(_DERIVE, (filled, until))
            value = until.to_bytes(_SEQ_SIZE, "big") + bytes([_VERSION])
            connection.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (_KEY, value))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    finally:
        connection.execute(f"PRAGMA synchronous = {mode}")
    return until


def find_difference(connection: sqlite3.Connection) -> str:
    """Return where a stored row first differs from what the record says, empty if none does."""
    filled = read_filled(connection)
    if not filled:
        return ""  # another version derived them, and nobody reads them
    stored = connection.execute(_STORED)
    for row in connection.execute(_DERIVED, (filled,)):
        if stored.fetchone() != row:
            return f"session {row[0]}, call {row[1]}, round {row[2]}"
    return "" if stored.fetchone() is None else "a call that is not in the record"
