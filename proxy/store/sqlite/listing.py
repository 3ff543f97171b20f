"""Which sessions there are, and sums over them. Rule: our own calls are counted beside the client's, not among them."""

import sqlite3

from proxy.engine.ports import ALL_SESSIONS
from proxy.model.exchange import Usage
from proxy.model.log import AuxiliaryUsage, Bill, Selection
from proxy.store.sqlite.contents import Row
from proxy.store.storable import fit_text

# Two ways to the latest exchange of the sessions with the newest activity, which is in order of seq, for the wall clock
# may jump. Of few sessions, the last exchange of each is one step in an index; of many (a client that names none makes
# one with every call), the newest exchanges that have no successor in their session are soon as many as are asked for.
FEW_SESSIONS = 1000
# Statuses by which an upstream turns away what it does not take for a call: nobody it knows, nothing it has.
TURNED_AWAY = frozenset({401, 403, 404, 405})
COUNT_SESSIONS = "SELECT ifnull(max(id), 0) FROM session"
_TURNED_AWAY = ", ".join(map(str, sorted(TURNED_AWAY)))
# What is listed has an exchange that became a call. Of what is passed on unread a call is what was answered well, and
# bears a session's name or has a body to post.
_CALLED = f"""
    EXISTS (SELECT 1 FROM exchange x JOIN session y ON y.id = x.session WHERE x.session = {{session}} AND (
        x.kind = 'auxiliary'
        OR x.kind = 'managed' AND NOT EXISTS (
            SELECT 1 FROM outcome o WHERE o.exchange = x.seq AND o.status IN ({_TURNED_AWAY}))
        OR x.kind = 'passthrough' AND (y.family <> '' OR x.method = 'POST') AND EXISTS (
            SELECT 1 FROM outcome o WHERE o.exchange = x.seq AND o.status BETWEEN 200 AND 299)))"""
_LATEST_OF_FEW = """
    SELECT s.id, (SELECT e.seq FROM exchange e WHERE e.session = s.id ORDER BY e.n DESC LIMIT 1) AS seq
    FROM session s WHERE {chosen} AND seq < :before ORDER BY 2 DESC LIMIT :limit"""
_LATEST_OF_MANY = """
    SELECT e.session AS id, e.seq FROM exchange e
    WHERE e.seq < :before AND {chosen}
        AND NOT EXISTS (SELECT 1 FROM exchange later WHERE later.session = e.session AND later.n = e.n + 1)
    ORDER BY e.seq DESC LIMIT :limit"""
_ONE = _LATEST_OF_FEW.format(chosen="s.key = :key")
_CHOSEN_BY = {
    name: f"s.{name} <> '' AND s.{name} >= :{name} AND s.{name} < :{name}_end" for name in ("family", "parent")
}
LAST_CHARACTER = "\U0010ffff"
# `forked`: sessions that are more than one chain of nodes from the first to the last; of the others nothing but whether
# a request ended there has to be known. `inner`: nodes with a tip behind them (see `store/branches`).
# `spent`: all calls, those of our own too, for the index that leads to them does not tell them apart; `aside`: these.
_SESSIONS = """
    WITH RECURSIVE latest AS MATERIALIZED ({latest}),
    forked AS MATERIALIZED (
        SELECT id FROM latest WHERE EXISTS (SELECT 1 FROM node d WHERE d.session = latest.id AND d.parent <> d.n - 1)),
    inner(session, n) AS (
        SELECT t.session, d.parent FROM forked CROSS JOIN step t ON t.session = forked.id
            JOIN node d ON d.session = t.session AND d.n = t.tip
        UNION
        SELECT inner.session, d.parent FROM inner JOIN node d ON d.session = inner.session AND d.n = inner.n),
    leaf AS MATERIALIZED (
        SELECT session, count(*) AS branches FROM (
            SELECT t.session, t.tip FROM forked CROSS JOIN step t ON t.session = forked.id WHERE t.tip > 0
            EXCEPT SELECT session, n FROM inner)
        GROUP BY session),
    spent AS MATERIALIZED (
        SELECT x.session, sum(g.input) AS input, sum(g.output) AS output
        FROM latest CROSS JOIN exchange x ON x.session = latest.id CROSS JOIN reading g ON g.exchange = x.seq
        GROUP BY x.session),
    called AS MATERIALIZED (
        SELECT x.session, x.seq FROM latest CROSS JOIN exchange x INDEXED BY exchange_auxiliary
            ON x.session = latest.id AND x.kind = 'auxiliary'),
    aside AS MATERIALIZED (
        SELECT c.session, count(DISTINCT c.seq) AS calls, sum(g.input) AS input, sum(g.output) AS output
        FROM called c LEFT JOIN reading g ON g.exchange = c.seq GROUP BY c.session),
    managed AS MATERIALIZED (
        SELECT c.session, sum(c.tokens_client) FILTER (WHERE c.tokens_upstream IS NOT NULL) AS counted,
            sum(c.tokens_upstream) FILTER (WHERE c.tokens_client IS NOT NULL) AS sent, sum(c.saving) AS saving
        FROM latest CROSS JOIN decision c ON c.session = latest.id GROUP BY c.session)
    SELECT s.key, s.family, s.upstream, s.created_ms, own.opened_ms,
        e.n - ifnull(aside.calls, 0), own.model, ifnull(spent.input, 0) - ifnull(aside.input, 0),
        ifnull(spent.output, 0) - ifnull(aside.output, 0), s.parent,
        CASE WHEN s.id IN (SELECT id FROM forked) THEN ifnull(leaf.branches, 0)
            ELSE EXISTS (SELECT 1 FROM step t WHERE t.session = s.id AND t.tip > 0) END,
        (SELECT count(*) FROM step t WHERE t.session = s.id AND t.is_side),
        ifnull((SELECT o.key FROM adoption a JOIN session o ON o.id = a.source WHERE a.session = s.id
            ORDER BY a.n LIMIT 1), ''),
        e.seq, ifnull(managed.counted, 0), ifnull(managed.sent, 0), managed.saving,
        ifnull(aside.calls, 0), ifnull(aside.input, 0), ifnull(aside.output, 0)
    FROM latest JOIN session s ON s.id = latest.id JOIN exchange e ON e.seq = latest.seq
        JOIN exchange own ON own.seq = ifnull((SELECT x.seq FROM exchange x
            WHERE x.session = latest.id AND x.kind <> 'auxiliary' ORDER BY x.n DESC LIMIT 1), latest.seq)
        LEFT JOIN leaf ON leaf.session = latest.id
        LEFT JOIN aside ON aside.session = latest.id
        LEFT JOIN spent ON spent.session = latest.id
        LEFT JOIN managed ON managed.session = latest.id
    ORDER BY latest.seq DESC"""

_AUXILIARY = """
    SELECT s.key, ifnull(r.upstream, s.upstream) AS called, e.model, count(DISTINCT e.seq), sum(g.input), sum(g.output),
        sum(g.cached), sum(g.written), sum(g.reasoning)
    FROM exchange e INDEXED BY exchange_auxiliary JOIN session s ON s.id = e.session
        LEFT JOIN round r ON r.exchange = e.seq LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    WHERE e.kind = 'auxiliary' AND e.opened_ms >= ? GROUP BY s.key, called, e.model ORDER BY s.key, called, e.model"""

_BILLS = """
    SELECT e.seq, s.key, e.kind, e.opened_ms, r.upstream, e.model, ifnull(c.rung, ''), ifnull(c.reason, ''),
        c.tokens_client, ifnull(c.usable, 0), g.input, g.output, g.cached, g.written, g.reasoning
    FROM exchange e JOIN session s ON s.id = e.session JOIN round r ON r.exchange = e.seq
        LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
        LEFT JOIN decision c ON c.exchange = r.exchange AND c.k = r.k
    WHERE e.seq IN (
        SELECT x.seq FROM exchange x
        WHERE x.seq > ? AND x.mode = 'manage' AND x.kind <> 'passthrough'
            AND EXISTS (SELECT 1 FROM round y WHERE y.exchange = x.seq)
        ORDER BY x.seq LIMIT ?)
    ORDER BY e.seq, r.k"""

Query = tuple[str, dict[str, object]]


def select_sessions(selection: Selection, limit: int, *, is_many: bool) -> Query:
    """The query for sessions, newest activity first; `is_many`: the log has more than `FEW_SESSIONS`."""
    chosen, key = _choose(selection)
    if is_many and not chosen:
        latest = _LATEST_OF_MANY.format(chosen=_CALLED.format(session="e.session"))
    else:
        called = "true" if selection.family else _CALLED.format(session="s.id")
        latest = _LATEST_OF_FEW.format(chosen=f"{chosen or 'true'} AND {called}")
    return _SESSIONS.format(latest=latest), {**key, "before": selection.before, "limit": limit}


def select_session(session: str) -> Query:
    """The query for the session with this id."""
    key: dict[str, object] = {"key": fit_text(session), "before": ALL_SESSIONS.before, "limit": 1}
    return _SESSIONS.format(latest=_ONE), key


def sum_auxiliary(connection: sqlite3.Connection, since_ms: int) -> list[AuxiliaryUsage]:
    """As `LogReader.sum_auxiliary`, in the calling thread."""
    rows = connection.execute(_AUXILIARY, (since_ms,)).fetchall()
    return [
        AuxiliaryUsage(session, upstream, model, calls, Usage(*usage))
        for session, upstream, model, calls, *usage in rows
    ]


def list_bills(connection: sqlite3.Connection, after: int, limit: int) -> list[Bill]:
    """As `LogReader.list_bills`, in the calling thread."""
    return [_make_bill(row[:6], row[6:10], Usage(*row[10:])) for row in connection.execute(_BILLS, (after, limit))]


def _make_bill(call: Row, plan: Row, usage: Usage) -> Bill:
    seq, session, kind, opened_ms, upstream, model = call
    rung, reason, tokens, usable = plan
    return Bill(seq, session, kind, opened_ms, upstream, model, usage, rung, reason, tokens, usable)


def _choose(selection: Selection) -> tuple[str, dict[str, object]]:
    """A condition under which sessions are chosen, empty for all of them, and its parameters."""
    beginnings = {"family": fit_text(selection.family), "parent": fit_text(selection.parent)}
    chosen = {name: text for name, text in beginnings.items() if text}
    ends = {f"{name}_end": text + LAST_CHARACTER for name, text in chosen.items()}
    return " AND ".join(_CHOSEN_BY[name] for name in chosen), {**chosen, **ends}
