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
from proxy.model.exchange import Usage
from proxy.model.figures import Charge, RoundFigures, SessionFigures, SessionHead
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import decode_headers, encode_ids
from proxy.store.sqlite.figures.bills import COLUMNS, read_filled, select_rows

_FEW = 4096  # newer calls than these are found by their sessions

_IDS = "SELECT id FROM session WHERE key IN (SELECT value FROM json_each(?))"
_NAMES = ", ".join(COLUMNS)
_CHOSEN = "{table}session IN (SELECT value FROM json_each(:sessions))"
_ROWS = f"""
    SELECT {_NAMES} FROM bill WHERE exchange <= :filled AND {{stored}}
    UNION ALL {{newer}}"""

# A call of the conversation that is not ours; a call that failed, or whose response broke off.
_MAIN = "kind = 'managed' AND NOT is_side"
_FAILED = "is_last AND (status >= 400 OR status = 0 OR completeness IN ('failed', 'truncated'))"
# The tokens that were sent: as the provider counted them, or as we did where it answered without saying how many.
_SENT = "ifnull(input, iif(status BETWEEN 200 AND 299, sent, NULL))"
_USED = f"kind <> 'auxiliary' AND {_SENT} IS NOT NULL"
_MANAGED = "mode = 'manage' AND kind <> 'passthrough'"

_FIGURES = f"""
    WITH row AS MATERIALIZED ({{rows}}),
    sums AS (
        SELECT session, sum(kind <> 'auxiliary' AND {_FAILED}) AS errors, sum(is_last AND is_end AND {_MAIN}) AS ends,
            max(at_ms) FILTER (WHERE status IS NULL AND is_last) AS opened_ms, max(at_ms + total_ms) AS ended_ms,
            sum(ifnull(client, {_SENT})) FILTER (WHERE {_USED}) AS client, sum({_SENT}) FILTER (WHERE {_USED}) AS sent,
            sum(output) FILTER (WHERE {_USED}) AS output, sum(read) FILTER (WHERE {_USED}) AS read,
            sum(input) FILTER (WHERE {_USED} AND read IS NOT NULL) AS told
        FROM row GROUP BY session),
    own AS (SELECT session, max(n), mode FROM row WHERE kind <> 'auxiliary' AND is_last GROUP BY session),
    newest AS (SELECT session, max(n), is_end FROM row WHERE is_last AND {_MAIN} GROUP BY session),
    sized AS (
        SELECT session, max(n), view, client, ifnull(input, sent) AS sent, usable FROM row
        WHERE is_last AND {_MAIN} AND ifnull(input, sent) IS NOT NULL GROUP BY session),
    viewed AS (SELECT session, max(n), view FROM row WHERE is_last AND {_MAIN} AND view <> '' GROUP BY session),
    budgeted AS (SELECT session, max(n), usable FROM row WHERE is_last AND {_MAIN} AND usable > 0 GROUP BY session),
    planned AS (
        SELECT session, max(n) AS n, count(DISTINCT n) AS plans FROM row WHERE rung = 'plan' AND {_MANAGED}
        GROUP BY session),
    later AS (
        SELECT row.session, count(*) AS calls FROM planned JOIN row ON row.session = planned.session
        WHERE row.n > planned.n AND is_last AND k >= 0 AND kind <> 'auxiliary' AND {_MANAGED} GROUP BY row.session)
    SELECT s.key, ifnull(own.mode, ''), ifnull(sums.errors, 0), ifnull(sums.ends, 0), ifnull(newest.is_end, 1),
        sums.opened_ms,
        CAST(sums.ended_ms AS INTEGER), sums.client, sums.sent, sums.output,
        ifnull(sums.read, 0), ifnull(sums.told, 0), ifnull(viewed.view, ''), ifnull(sized.client, sized.sent),
        sized.sent, ifnull(budgeted.usable, 0),
        (SELECT count(*) FROM epoch x WHERE x.session = sums.session AND x.why NOT IN ('revert', 'refused')),
        (SELECT count(*) FROM summary x WHERE x.session = sums.session),
        ifnull(planned.plans, 0), ifnull(later.calls, 0)
    FROM sums JOIN session s ON s.id = sums.session
        LEFT JOIN own ON own.session = sums.session LEFT JOIN newest ON newest.session = sums.session
        LEFT JOIN sized ON sized.session = sums.session LEFT JOIN viewed ON viewed.session = sums.session
        LEFT JOIN budgeted ON budgeted.session = sums.session
        LEFT JOIN planned ON planned.session = sums.session LEFT JOIN later ON later.session = sums.session"""

_DAY_MS = 86_400_000
_CHARGES = f"""
    WITH row AS ({{rows}}),
    part AS (
        SELECT session, at_ms / {_DAY_MS} AS day, upstream, model, kind = 'auxiliary' AS is_auxiliary,
            kind <> 'auxiliary' AND {_MANAGED} AND own_input IS NOT NULL AS is_own,
            kind <> 'auxiliary' AND {_MANAGED} AND own_input IS NULL AND saving IS NOT NULL AS is_estimate,
            {{tier}} AS tier, {{own_tier}} AS own_tier, input, output, ifnull(read, 0) AS read,
            ifnull(written, 0) AS written, paid_read, own_input, own_read, own_written, saving
        FROM row WHERE input IS NOT NULL)
    SELECT s.key, day, part.upstream, model, is_auxiliary, is_own, is_estimate, max(input),
        sum(max(0, input - read - written)), ifnull(sum(output), 0), sum(read), sum(written),
        max(own_input), sum(max(0, own_input - own_read - own_written)), sum(own_read), sum(own_written),
        sum(max(0, input - paid_read - written)), sum(paid_read), sum(saving)
    FROM part JOIN session s ON s.id = part.session
    GROUP BY part.session, day, part.upstream, model, is_auxiliary, is_own, is_estimate, tier, own_tier"""

_ROUNDS = """
    WITH row AS ({rows}),
    numbered AS (
        SELECT seq, row_number() OVER (ORDER BY seq) AS number FROM epoch
        WHERE session IN (SELECT value FROM json_each(:sessions)))
    SELECT n, k, at_ms, kind, mode, upstream, model, view, rung, ifnull(numbered.number, 0), status, completeness,
        is_side, is_last, input, output, read, written, client, sent, usable, saving, own_input, own_read, own_written,
        paid_read, first_byte_ms, total_ms
    FROM row LEFT JOIN numbered ON numbered.seq = row.epoch
    WHERE n > :after AND n <= :after + :limit ORDER BY n, k"""

# the first call that is part of the conversation, else the first that was read
_HEADS = """
    SELECT s.key, e.id, e.n, e.wire, unpack(p.codec, p.bytes), e.changes, e.whole <> x''
    FROM session s JOIN exchange e ON e.seq = ifnull(
        (SELECT x.seq FROM exchange x JOIN step t ON t.session = x.session AND t.n = x.n
            WHERE x.session = s.id AND x.kind = 'managed' AND x.wire <> '' AND NOT t.is_side ORDER BY x.n LIMIT 1),
        (SELECT x.seq FROM exchange x WHERE x.session = s.id AND x.kind <> 'auxiliary' ORDER BY x.n LIMIT 1))
    LEFT JOIN payload p ON p.id = e.headers
    WHERE s.id IN (SELECT value FROM json_each(?))"""


def load_figures(connection: sqlite3.Connection, sessions: Sequence[str]) -> list[SessionFigures]:
    """Return what `FigureLog.load_figures` does."""
    query, key = _select_rows(connection, _list_ids(connection, sessions))
    rows = connection.execute(_FIGURES.format(rows=query), key)
    return [SessionFigures(*(*row[:4], bool(row[4]), *row[5:])) for row in rows]


def sum_charges(
    connection: sqlite3.Connection, sessions: Sequence[str] | None = None, tiers: Sequence[int] = ()
) -> list[Charge]:
    """Return what `FigureLog.sum_charges` does."""
    query, key = _select_rows(connection, None if sessions is None else _list_ids(connection, sessions))
    named = {"tier": _count_tiers("input", tiers), "own_tier": _count_tiers("ifnull(own_input, 0)", tiers)}
    return [_make_charge(row) for row in connection.execute(_CHARGES.format(rows=query, **named), key)]


def load_rounds(
    connection: sqlite3.Connection, session: str, after: int = 0, limit: int = 10_000
) -> list[RoundFigures]:
    """Return what `FigureLog.load_rounds` does. Raises NotFound."""
    ids = _list_ids(connection, (session,))
    if not ids:
        raise NotFound(f"there is no session {session}")
    query, key = _select_rows(connection, ids)
    rows = connection.execute(_ROUNDS.format(rows=query), {**key, "after": after, "limit": limit})
    return [RoundFigures(*(*row[:12], bool(row[12]), bool(row[13]), *row[14:])) for row in rows]


def load_heads(connection: sqlite3.Connection, sessions: Sequence[str]) -> list[SessionHead]:
    """Return what `FigureLog.load_heads` does."""
    rows = connection.execute(_HEADS, (encode_ids(_list_ids(connection, sessions)),))
    return [
        SessionHead(*(*row[:4], () if row[4] is None else decode_headers(row[4], row[5]), bool(row[6]))) for row in rows
    ]


def _list_ids(connection: sqlite3.Connection, sessions: Iterable[str]) -> list[int]:
    names = orjson.dumps([fit_text(session) for session in sessions]).decode()
    return [id for (id,) in connection.execute(_IDS, (names,))]


def _select_rows(connection: sqlite3.Connection, sessions: list[int] | None) -> tuple[str, dict[str, object]]:
    """Return the query for the rows of sessions, None: of all, and its parameters."""
    filled = read_filled(connection)
    (last,) = connection.execute("SELECT ifnull(max(seq), 0) FROM exchange").fetchone()
    key: dict[str, object] = {"filled": filled}
    if sessions is None:
        return _ROWS.format(stored="true", newer=select_rows("e.seq > :filled")), key
    key["sessions"] = encode_ids(sessions)
    # a sign keeps SQLite from using the index of what it precedes
    is_short = last - filled <= _FEW
    chosen = _CHOSEN.format(table="+e." if is_short else "e.")
    seq = "e.seq" if is_short else "+e.seq"
    newer = select_rows(f"{seq} > :filled AND {chosen}")
    return _ROWS.format(stored=_CHOSEN.format(table=""), newer=newer), key


def _count_tiers(column: str, tiers: Sequence[int]) -> str:
    return " + ".join(f"({column} > {int(tier)})" for tier in tiers) or "0"


def _make_charge(row: Sequence[Any]) -> Charge:
    session, day, upstream, model, is_auxiliary, is_own, is_estimate, largest, *sums = row
    fresh, output, read, written, largest_own, own_fresh, own_read, own_written, paid_fresh, paid_read, saving = sums
    charge = Charge(session, day, upstream, model, bool(is_auxiliary), Usage(fresh, output, read, written), largest)
    if is_estimate:
        return replace(charge, saving=saving)
    if not is_own:
        return charge
    own = Usage(own_fresh, output, own_read, own_written)
    return replace(charge, own=own, paid=Usage(paid_fresh, output, paid_read, written), largest_own=largest_own)
