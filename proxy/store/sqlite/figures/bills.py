"""The tables `bill` and `tally`, derived from the record: a row for each round, and sums over those charged alike.

The record of a round is in six tables, from which 100,000 calls take seconds to read. The writer derives rows behind
commits, `CHUNK` calls at a time, up to the call that `meta` names. Readers derive those of later calls themselves, in
the same way. A record that comes later for a call up to there has the rows of this call derived again, in its own
transaction. So rows are never older than the record, and may be derived anew at any time. `tally` sums up what `bill`
has: what it is taken from, or added to, is taken from the sum, or added to it.

`own_input`, `own_read` and `own_written` are what the client's own request would have used, and `paid_read` is what was
read in its place: the SQL function `own_usage` has both from `pricing.estimate_own`.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from proxy.context.epoch_decision import HOLDOUT
from proxy.context.pricing import estimate_own
from proxy.model.epoch import Plan, Rung
from proxy.model.exchange import Usage
from proxy.model.figures import TIERS
from proxy.model.log import LogFault
from proxy.store.sqlite.codec import encode_ids

CHUNK = 256
"""Calls of which rows are derived in one transaction, which takes some 5 ms."""

_VERSION = 4
_KEY = "bills"
_SEQ_SIZE = 8

COLUMNS = (
    *("session", "n", "k", "exchange", "at_ms", "kind", "mode", "upstream", "model", "view", "rung", "is_held"),
    *("epoch", "status", "completeness", "is_side", "is_last", "is_end", "input", "output", "read", "written"),
    *("client", "sent", "usable", "saving", "own_input", "own_read", "own_written", "paid_read"),
    *("first_byte_ms", "total_ms", "overhead_ms"),
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
        ifnull(c.reason = '{HOLDOUT}', 0) AS is_held, c.epoch, o.status, ifnull(o.completeness, '') AS completeness,
        -- A call that is no part of a conversation: a session was begun by hand, or a file is kept.
        iif(e.kind = 'recorded' AND e.wire = '', 1, ifnull(t.is_side, 0)) AS is_side,
        NOT EXISTS (SELECT 1 FROM round later WHERE later.exchange = e.seq AND later.k > r.k) AS is_last,
        CASE WHEN g.exchange IS NULL OR g.finish = '' OR g.finish IN ({_TOOL_FINISHES}) THEN 0
            WHEN e.wire <> 'responses' THEN 1
            ELSE NOT ifnull((SELECT {_CALLS_TOOL} FROM payload p WHERE p.id = g.answer), 0) END AS is_end,
        g.input, g.output, g.cached AS read, g.written, c.tokens_client, c.tokens_upstream AS sent,
        ifnull(c.usable, 0) AS usable, c.saving AS estimate, c.client_read, c.sent_read, o.first_byte_ms, o.total_ms,
        o.overhead_ms,
        own_usage(c.rung, c.tokens_client, c.tokens_upstream, c.client_read, c.sent_read, c.own_expected,
            c.sent_expected, c.window, g.input, g.cached, g.written) AS own
    FROM exchange e {{hint}}
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN round r ON r.exchange = e.seq
    LEFT JOIN outcome o ON o.exchange = r.exchange AND o.k = r.k
    LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    LEFT JOIN decision c ON c.exchange = r.exchange AND c.k = r.k
    WHERE {{chosen}}"""

_ROWS = f"""
    SELECT {_NAMES} FROM (
        SELECT *, iif(own IS NULL AND rung <> 'original', estimate, NULL) AS saving,
            CASE WHEN own IS NOT NULL THEN json_extract(own, '$[0]')
                WHEN tokens_client IS NOT NULL AND input > 0 AND sent > 0
                    THEN CAST(1.0 * tokens_client * input / sent + 0.5 AS INTEGER)
                WHEN tokens_client IS NOT NULL AND input IS NULL THEN tokens_client
                WHEN rung IN ('', 'original') THEN input ELSE tokens_client END AS client,
            json_extract(own, '$[1]') AS own_input, json_extract(own, '$[2]') AS own_read,
            json_extract(own, '$[3]') AS own_written, json_extract(own, '$[4]') AS paid_read
        FROM ({{facts}}))"""


def derive_own(
    rung: Rung | None, client: int | None, sent: int | None, client_read: int | None, sent_read: int | None, *rest: Any
) -> str | None:
    """Return what `estimate_own` does for the columns of a round, as JSON: the size, what was used, what was read."""
    own_expected, sent_expected, window, input, read, written = rest
    if rung is None:
        return None
    plan = Plan("", 0, "", rung, tokens_client=client, tokens_upstream=sent, client_read=client_read)
    plan = replace(
        plan, sent_read=sent_read, own_expected=own_expected, sent_expected=sent_expected, window=window or 0
    )
    found = estimate_own(plan, Usage(input, None, read, written))
    if found is None:
        return None
    own = found.own
    return f"[{found.size},{own.input},{own.cached},{own.written or 0},{found.paid.cached}]"


def select_rows(chosen: str, hint: str = "") -> str:
    """Return the query that derives the rows of the calls that an SQL condition on `exchange e` chooses."""
    return _ROWS.format(facts=_FACTS.format(chosen=chosen, hint=hint))


# The tokens that were sent: as the provider counted them, or as we did where it answered without saying how many.
_SIZE = "ifnull(input, iif(status BETWEEN 200 AND 299, sent, NULL))"
_IS_COUNTED = f"kind <> 'auxiliary' AND {_SIZE} IS NOT NULL"
MAIN = "kind IN ('managed', 'recorded') AND NOT is_side"
MANAGED = "mode = 'manage' AND kind <> 'passthrough'"
_FAILED = "is_last AND (status >= 400 OR status = 0 OR completeness IN ('failed', 'truncated'))"
# How the rounds of a sum are charged: not, for us, for the client, and what is known of the client's own requests.
# What was made elsewhere is not, whatever its usage: nothing was spent here.
UNKNOWN, OURS, PLAIN, OWN, ESTIMATE = range(5)
_SHARE = f"""CASE WHEN input IS NULL OR kind = 'recorded' THEN {UNKNOWN} WHEN kind = 'auxiliary' THEN {OURS}
    WHEN NOT ({MANAGED}) THEN {PLAIN}
    WHEN own_input IS NOT NULL THEN {OWN} WHEN saving IS NOT NULL THEN {ESTIMATE} ELSE {PLAIN} END"""
_DAY_MS = 86_400_000
_SUMS = {
    "rounds": "1",
    "calls": "is_last AND kind <> 'auxiliary'",
    "errors": f"ifnull(kind <> 'auxiliary' AND {_FAILED}, 0)",
    "ends": f"is_last AND is_end AND {MAIN}",
    "plans": f"rung = 'plan' AND {MANAGED}",
    "held": "is_held",
    "counted": _IS_COUNTED,
    "client": f"iif({_IS_COUNTED}, ifnull(client, {_SIZE}), 0)",
    "sent": f"iif({_IS_COUNTED}, {_SIZE}, 0)",
    "told": "iif(kind <> 'auxiliary' AND read IS NOT NULL, ifnull(input, 0), 0)",
    "fresh": "max(0, ifnull(input, 0) - ifnull(read, 0) - ifnull(written, 0))",
    "output": "ifnull(output, 0)",
    "read": "ifnull(read, 0)",
    "written": "ifnull(written, 0)",
    "own_fresh": "ifnull(max(0, own_input - own_read - own_written), 0)",
    "own_output": "iif(is_last, ifnull(output, 0), 0)",
    "own_read": "ifnull(own_read, 0)",
    "own_written": "ifnull(own_written, 0)",
    "paid_fresh": "ifnull(max(0, input - paid_read - ifnull(written, 0)), 0)",
    "paid_read": "ifnull(paid_read, 0)",
    "saving": "ifnull(saving, 0.0)",
}
_MOST = {
    "largest": "ifnull(input, 0)",
    "largest_own": "ifnull(own_input, 0)",
    "ended_ms": "ifnull(CAST(at_ms + total_ms AS INTEGER), 0)",
}
TALLY_KEY = "session, day, upstream, model, share, tier, own_tier"
TALLY_COLUMNS = (*TALLY_KEY.split(", "), *_SUMS, *_MOST)
_TALLY_NAMES = ", ".join(TALLY_COLUMNS)
MERGED = ", ".join(
    (
        *(f"part.{name}" for name in TALLY_KEY.split(", ")[1:]),
        *(f"sum(part.{name})" for name in _SUMS),
        *(f"max(part.{name})" for name in _MOST),
    )
)
"""All columns but the session, of sums that are put together, as `part`."""


def select_tallies(rows: str, tiers: Sequence[int] = TIERS, sign: str = "") -> str:
    """Return the query that sums up the rows of a query that are charged alike. `sign` is `-` for what is taken off."""
    sums = [f"{sign}sum({text}) AS {name}" for name, text in _SUMS.items()]
    most = [f"max({text}) AS {name}" for name, text in _MOST.items()]
    tier, own_tier = (_count_tiers(f"ifnull({column}, 0)", tiers) for column in ("input", "own_input"))
    return f"""
        SELECT session, at_ms / {_DAY_MS} AS day, upstream, model, {_SHARE} AS share, {tier} AS tier,
            {own_tier} AS own_tier, {", ".join(sums + most)}
        FROM ({rows}) GROUP BY 1, 2, 3, 4, 5, 6, 7"""


def _count_tiers(column: str, tiers: Sequence[int]) -> str:
    return " + ".join(f"({column} > {int(tier)})" for tier in tiers) or "0"


def _add_tallies(rows: str, sign: str = "") -> str:
    added = [f"{name} = {name} + excluded.{name}" for name in _SUMS]
    most = [f"{name} = max({name}, excluded.{name})" for name in _MOST]
    return f"""
        INSERT INTO tally({_TALLY_NAMES}) SELECT {_TALLY_NAMES} FROM ({select_tallies(rows, sign=sign)}) WHERE true
        ON CONFLICT({TALLY_KEY}) DO UPDATE SET {", ".join(added + most)}"""


_LATE, _NEXT = "e.seq IN (SELECT value FROM json_each(?))", "e.seq > ? AND e.seq <= ?"
_ROWS_OF = "(session, n) IN (SELECT e.session, e.n FROM exchange e WHERE {chosen})"
_LATE_ROWS, _NEXT_ROWS = (f"SELECT * FROM bill WHERE {_ROWS_OF.format(chosen=chosen)}" for chosen in (_LATE, _NEXT))
_ADD_LATE, _TAKE_LATE, _ADD = _add_tallies(_LATE_ROWS), _add_tallies(_LATE_ROWS, "-"), _add_tallies(_NEXT_ROWS)
_FORGET_LATE = f"DELETE FROM bill WHERE {_ROWS_OF.format(chosen=_LATE)}"
_DERIVE_LATE = f"INSERT INTO bill({_NAMES}) {select_rows(_LATE)}"
_DERIVE = f"INSERT INTO bill({_NAMES}) {select_rows(_NEXT)}"
_COMPARED = ", ".join(name for name in COLUMNS if name != "is_end")  # which the content says, and may be erased
_DERIVED = f"SELECT {_COMPARED} FROM ({select_rows('e.seq <= ?')}) ORDER BY session, n, k"
_STORED = f"SELECT {_COMPARED} FROM bill ORDER BY session, n, k"
_EXACT = ", ".join(name for name in (*TALLY_KEY.split(", "), *_SUMS) if name != "saving")
_SUMMED = f"SELECT {_EXACT} FROM ({select_tallies('SELECT * FROM bill')}) ORDER BY {TALLY_KEY}"
_TALLIED = f"SELECT {_EXACT} FROM tally WHERE rounds > 0 ORDER BY {TALLY_KEY}"


def read_filled(connection: sqlite3.Connection) -> int:
    """Return the number of the last call of which rows are stored, 0 without one or if another version derived them."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    if row is None or row[0][_SEQ_SIZE:] != bytes([_VERSION]):
        return 0
    return int.from_bytes(row[0][:_SEQ_SIZE], "big")


def derive_late(connection: sqlite3.Connection, exchanges: Iterable[int]) -> None:
    """Derive the rows of calls again, in the transaction that adds to their record."""
    late = (encode_ids(exchanges),)
    for statement in (_TAKE_LATE, _FORGET_LATE, _DERIVE_LATE, _ADD_LATE):
        connection.execute(statement, late)


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
                connection.execute("DELETE FROM tally")
            connection.execute(_DERIVE, (filled, until))
            connection.execute(_ADD, (filled, until))
            value = until.to_bytes(_SEQ_SIZE, "big") + bytes([_VERSION])
            connection.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (_KEY, value))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    finally:
        connection.execute(f"PRAGMA synchronous = {mode}")
    return until


def check_figures(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """Compare what reports sum up with what the record says."""
    if where := find_difference(connection):
        yield LogFault(f"figures of {where}", "differ from the record; they are only read by reports")


def find_difference(connection: sqlite3.Connection) -> str:
    """Return where stored rows and sums first differ from what the record says, empty if they do not."""
    filled = read_filled(connection)
    if not filled:
        return ""  # another version derived them, and nobody reads them
    stored = connection.execute(_STORED)
    for row in connection.execute(_DERIVED, (filled,)):
        if stored.fetchone() != row:
            return f"session {row[0]}, call {row[1]}, round {row[2] + 1}"
    if stored.fetchone() is not None:
        return "a call that is not in the record"
    sums = connection.execute(_TALLIED)
    for row in connection.execute(_SUMMED):
        if sums.fetchone() != row:
            return f"session {row[0]}, the sum over calls of day {row[1]}"
    return "" if sums.fetchone() is None else "the sum over calls that are not in the record"
