"""Queries on exchanges: sessions and sums over them, single calls and their bodies, and responses without a reading.

Our own calls are counted separately from the client's. The number of statements does not depend on the length of a
listing. A body is rebuilt byte for byte, or an error says what is missing. Of responses without a reading, only the
newest are returned: a killed server leaves some, and unreadable ones are found again at each start.
"""

import sqlite3
from dataclasses import replace
from itertools import groupby
from typing import cast

from proxy.engine.ports import ALL_SESSIONS, MOST_HELD, MOST_SHADOWS, MOST_UNREAD, MOST_UNREAD_BYTES
from proxy.model.epoch import OUTSIDE, Original, Plan, StoredOriginal, name_file
from proxy.model.errors import Erased, NotFound, StoreUnavailable
from proxy.model.exchange import Completeness, Headers, ReceivedRow, SessionKey, Timings, Usage
from proxy.model.log import (
    SHADOW,
    AuxiliaryUsage,
    ExchangeRow,
    RoundRow,
    Selection,
    SessionRow,
    ShadowRow,
    UnreadRow,
)
from proxy.model.manifest import BlobPiece, Manifest, Piece, compute_digest, compute_root_link, encode_recipe
from proxy.store.constraints import fit_text
from proxy.store.sqlite import context_queries
from proxy.store.sqlite.codec import RELATIONS, decode_headers, join_recipe
from proxy.store.sqlite.context_queries import Row, refuse_erased
from proxy.store.sqlite.lineage_queries import find_branches, load_positions
from proxy.wire import OWN_FORMAT

# The longest chain that is followed: longer than any body that fits in memory, and an end if a fault made a cycle.
_LONGEST = 4_000_000

_WALK = f"""
    WITH RECURSIVE chain(depth, parent, gap, blob) AS (
        SELECT 0, parent, gap, blob FROM raw WHERE link = ?
        UNION ALL
        SELECT chain.depth + 1, raw.parent, raw.gap, raw.blob FROM chain JOIN raw ON raw.link = chain.parent
        LIMIT {_LONGEST})
    SELECT chain.parent, chain.gap, iif(p.codec = 0, p.bytes, unpack(p.codec, p.bytes))
    FROM chain LEFT JOIN payload p ON p.id = chain.blob ORDER BY chain.depth DESC"""

_PAYLOAD = "SELECT unpack(codec, bytes) FROM payload WHERE id = ?"

_BLOB = """
    SELECT unpack(p.codec, p.bytes) FROM blob b LEFT JOIN payload p ON p.id = b.id
    WHERE b.tenant = ? AND b.digest = ?"""

_FINGERPRINT = "SELECT fingerprint FROM tenant WHERE id = ?"

_KEY = """
    SELECT s.key, t.fingerprint, s.upstream, s.family, s.parent
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.key = ?"""

_REQUEST = """
    SELECT s.tenant, e.envelope, e.tip FROM exchange e JOIN session s ON s.id = e.session WHERE e.id = ?"""

_MANIFEST = """
    SELECT unpack(p.codec, p.bytes), e.tip, e.size, e.whole FROM exchange e LEFT JOIN payload p ON p.id = e.envelope
    WHERE e.id = ?"""

_FILE = "SELECT s.key FROM exchange e JOIN session s ON s.id = e.session WHERE e.id = ? AND e.kind = 'recorded'"

_HELD = """
    SELECT s.tenant, h.envelope, h.tip FROM exchange e JOIN session s ON s.id = e.session
    JOIN held h ON h.exchange = e.seq WHERE e.id = ?"""

_LIST_HELD = """
    SELECT e.id, h.history, h.key, h.digest FROM session s JOIN exchange e ON e.session = s.id
    JOIN held h ON h.exchange = e.seq WHERE s.key = ? AND h.history <> '' ORDER BY e.n DESC LIMIT ?"""

# where the client's own bytes were sent, those are in `held` if they came in a content-encoding, or with references
_SENT = """
    SELECT s.tenant, coalesce(r.envelope, h.envelope, e.envelope), coalesce(r.tip, h.tip, e.tip)
    FROM exchange e JOIN session s ON s.id = e.session JOIN round r ON r.exchange = e.seq
    LEFT JOIN held h ON h.exchange = e.seq AND h.history = '' WHERE e.id = ? AND r.k = ?"""

_RECEIVED = """
    SELECT o.received, o.whole, o.exchange FROM exchange e JOIN outcome o ON o.exchange = e.seq
    WHERE e.id = ? AND o.k = ?"""

_TRAILERS = "SELECT received FROM trailer WHERE exchange = ? AND k = ? ORDER BY i"


def load_request(connection: sqlite3.Connection, exchange: str) -> bytes:
    """Return what `LogReader.load_request` does."""
    row = _expect(connection, _REQUEST, (exchange,), f"there is no exchange {exchange}")
    refuse_erased(connection, exchange)
    return _load_body(connection, *row)


def load_manifest(connection: sqlite3.Connection, exchange: str) -> Manifest:
    """Return what `LogReader.load_manifest` does."""
    envelope, tip, size, whole = _expect(connection, _MANIFEST, (exchange,), f"there is no exchange {exchange}")
    refuse_erased(connection, exchange)
    recipe = encode_recipe(join_recipe(_expect_content((envelope,)), tip))
    return Manifest(recipe, (), (), size, whole)


def load_original(connection: sqlite3.Connection, reference: str) -> StoredOriginal:
    """Return what `LogReader.load_original` does, also for a file that a program has put into the log."""
    try:
        return context_queries.load_original(connection, reference)
    except Erased:
        raise
    except NotFound:
        exchange = fit_text(name_file(reference))
        row = connection.execute(_FILE, (exchange,)).fetchone()
        if row is None:
            raise
    raw = load_request(connection, exchange)
    original = Original(reference, (compute_digest(raw),), OWN_FORMAT.name, OUTSIDE)
    return StoredOriginal(row[0], original, (raw,))


def load_held(connection: sqlite3.Connection, exchange: str) -> bytes:
    """Return what `LogReader.load_held` does."""
    row = _expect(connection, _HELD, (exchange,), f"exchange {exchange} has no held history")
    refuse_erased(connection, exchange)
    return _load_body(connection, *row)


def list_held(connection: sqlite3.Connection, session: str) -> list[ReceivedRow]:
    """Return what `HeldCalls.list_held` does."""
    return [ReceivedRow(*row) for row in connection.execute(_LIST_HELD, (fit_text(session), MOST_HELD))]


def load_sent(connection: sqlite3.Connection, exchange: str, k: int) -> bytes:
    """Return what `LogReader.load_sent` does."""
    row = _expect(connection, _SENT, (exchange, k), f"there is no round {k} of exchange {exchange}")
    refuse_erased(connection, exchange)
    return _load_body(connection, *row)


def load_received(connection: sqlite3.Connection, exchange: str, k: int) -> bytes:
    """Return what `LogReader.load_received` does."""
    missing = f"there is no answer to round {k} of exchange {exchange}"
    received, whole, seq = _expect(connection, _RECEIVED, (exchange, k), missing)
    refuse_erased(connection, exchange)
    # after a capped body there is a gap, so trailers must not be appended to it
    trailers = [] if whole else connection.execute(_TRAILERS, (seq, k)).fetchall()
    return b"".join([_load_payload(connection, payload) for payload in (received, *[row[0] for row in trailers])])


def _load_body(connection: sqlite3.Connection, tenant: int, envelope: int, tip: bytes) -> bytes:
    """Return the body that an envelope and a tip describe. Raises NotFound if a part was erased."""
    recipe = _load_payload(connection, envelope)
    try:
        pieces = join_recipe(recipe, tip)
    except ValueError as error:
        raise StoreUnavailable(f"a recipe in the log is damaged ({error}); run `palimpsest verify`") from error
    return b"".join([_load_piece(connection, tenant, piece) for piece in pieces])


def _load_piece(connection: sqlite3.Connection, tenant: int, piece: Piece) -> bytes:
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, BlobPiece):
        return _expect_content(connection.execute(_BLOB, (tenant, piece.digest)).fetchone())
    return _load_chain(connection, tenant, piece.link)


def _load_chain(connection: sqlite3.Connection, tenant: int, tip: bytes) -> bytes:
    rows = connection.execute(_WALK, (tip,)).fetchall()
    start = rows[0][0] if rows else tip
    (fingerprint,) = connection.execute(_FINGERPRINT, (tenant,)).fetchone()
    if start != compute_root_link(fingerprint):
        raise StoreUnavailable("a chain in the log does not reach its root; run `palimpsest verify`")
    parts: list[bytes] = []
    for _, gap, content in rows:
        if content is None:
            raise NotFound("a part of this body was erased")
        parts += (gap, content)
    return b"".join(parts)


def _load_payload(connection: sqlite3.Connection, payload: int) -> bytes:
    """Return content by row id. Raises NotFound if it was erased."""
    return _expect_content(connection.execute(_PAYLOAD, (payload,)).fetchone())


def _expect_content(row: Row | None) -> bytes:
    if row is None or row[0] is None:
        raise NotFound("this content was erased")
    return bytes(row[0])


def _expect(connection: sqlite3.Connection, query: str, key: tuple[object, ...], missing: str) -> Row:
    row: Row | None = connection.execute(query, key).fetchone()
    if row is None:
        raise NotFound(missing)
    return row


# There are two queries for the sessions with the newest activity. The order is that of `seq`, since the wall clock may
# jump. With few sessions, an index yields the last exchange of each. With many (a client without session names makes
# one per call), the newest exchanges without a successor in their session soon reach the limit.
FEW_SESSIONS = 1000
# Statuses with which an upstream rejects a request as no valid call: unknown credential, path or method.
TURNED_AWAY = frozenset({401, 403, 404, 405})
_COUNT_SESSIONS = "SELECT ifnull(max(id), 0) FROM session"
_IDS = "SELECT key FROM session WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_HAS_SESSION = "SELECT 1 FROM session WHERE key = ?"
_TURNED_AWAY = ", ".join(map(str, sorted(TURNED_AWAY)))
# A listed session has at least one exchange that counts as a call. A passthrough counts if its status was 2xx and it
# names a session: else each file, picture and counting of tokens would be listed as a session of its own.
_CALLED = f"""
    EXISTS (SELECT 1 FROM exchange x JOIN session y ON y.id = x.session WHERE x.session = {{session}} AND (
        x.kind IN ('auxiliary', 'recorded')
        OR x.kind = 'managed' AND NOT EXISTS (
            SELECT 1 FROM outcome o WHERE o.exchange = x.seq AND o.status IN ({_TURNED_AWAY}))
        OR x.kind = 'passthrough' AND y.family <> '' AND EXISTS (
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
_CHOSEN_TENANT = "s.tenant = (SELECT t.id FROM tenant t WHERE t.fingerprint = :tenant)"
_LAST_CHARACTER = "\U0010ffff"
_VOLATILE = RELATIONS.index("volatile")
# `forked`: sessions whose nodes are more than one chain; others have one branch if any request ended in them.
# `inner`: nodes with a tip below them (see `lineage_queries`). `aside`: our own calls. The last column: whether there
# are tails that are not branches.
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
    aside AS MATERIALIZED (
        SELECT x.session, count(*) AS calls
        FROM latest CROSS JOIN exchange x INDEXED BY exchange_auxiliary
            ON x.session = latest.id AND x.kind = 'auxiliary'
        GROUP BY x.session)
    SELECT s.key, s.family, s.upstream, s.created_ms, own.opened_ms,
        e.n - ifnull(aside.calls, 0), own.model, s.parent,
        CASE WHEN s.id IN (SELECT id FROM forked) THEN ifnull(leaf.branches, 0)
            ELSE EXISTS (SELECT 1 FROM step t WHERE t.session = s.id AND t.tip > 0) END,
        (SELECT count(*) FROM step t WHERE t.session = s.id AND t.is_side),
        ifnull((SELECT o.key FROM adoption a JOIN session o ON o.id = a.source WHERE a.session = s.id
            ORDER BY a.n LIMIT 1), ''),
        e.seq, ifnull(aside.calls, 0),
        (SELECT max(z.at_ms) FROM erased z WHERE z.session = s.id AND z.through >= e.seq),
        EXISTS (SELECT 1 FROM step t WHERE t.session = s.id AND t.relation = {volatile})
    FROM latest JOIN session s ON s.id = latest.id JOIN exchange e ON e.seq = latest.seq
        JOIN exchange own ON own.seq = ifnull((SELECT x.seq FROM exchange x
            WHERE x.session = latest.id AND x.kind <> 'auxiliary' ORDER BY x.n DESC LIMIT 1), latest.seq)
        LEFT JOIN leaf ON leaf.session = latest.id
        LEFT JOIN aside ON aside.session = latest.id
    ORDER BY latest.seq DESC"""

_AUXILIARY = """
    SELECT s.key, ifnull(r.upstream, s.upstream) AS called, e.model, count(DISTINCT e.seq), sum(g.input), sum(g.output),
        sum(g.cached), sum(g.written), sum(g.reasoning)
    FROM exchange e INDEXED BY exchange_auxiliary JOIN session s ON s.id = e.session
        LEFT JOIN round r ON r.exchange = e.seq LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    WHERE e.kind = 'auxiliary' AND e.opened_ms >= ? GROUP BY s.key, called, e.model ORDER BY s.key, called, e.model"""

_WHOLE = """
    iif({end}.completeness = 'complete' AND {end}.status BETWEEN 200 AND 299 AND {said}.error IS NULL,
        unpack({kept}.codec, {kept}.bytes), NULL)"""
# `d`: the newest plan of the client's call that has its size; that of a round after which a model recalls has none
_SHADOWS = f"""
    SELECT c.id, s.key, c.n, e.wire, r.upstream, e.model, ifnull(o.status, 0),
        d.tokens_client, w.output, g.input, g.output, g.cached, g.written, g.reasoning, t.depth - h.depth,
        ifnull(w.finish, ''), ifnull(g.finish, ''),
        {_WHOLE.format(end="v", said="w", kept="a")}, {_WHOLE.format(end="o", said="g", kept="b")}
    FROM exchange e INDEXED BY exchange_auxiliary JOIN session s ON s.id = e.session
        JOIN exchange c ON c.id = substr(e.id, 1, length(e.id) - {len(SHADOW)})
        JOIN round r ON r.exchange = e.seq
        LEFT JOIN outcome o ON o.exchange = e.seq LEFT JOIN reading g ON g.exchange = e.seq
        LEFT JOIN outcome v ON v.exchange = c.seq AND v.k = (SELECT max(k) FROM round WHERE exchange = c.seq)
        LEFT JOIN reading w ON w.exchange = v.exchange AND w.k = v.k
        LEFT JOIN decision d ON d.seq = (SELECT max(seq) FROM decision WHERE exchange = c.seq AND tokens_client > 0)
        LEFT JOIN epoch h ON h.seq = d.epoch LEFT JOIN step t ON t.session = c.session AND t.n = c.n
        LEFT JOIN payload a ON a.id = w.answer LEFT JOIN payload b ON b.id = g.answer
    WHERE e.kind = 'auxiliary' AND e.opened_ms >= ? AND e.id GLOB '*{SHADOW}' ORDER BY e.seq DESC LIMIT ?"""

Query = tuple[str, dict[str, object]]


def list_sessions(
    connection: sqlite3.Connection, limit: int, selection: Selection, few: int = FEW_SESSIONS
) -> list[SessionRow]:
    """Return what `LogReader.list_sessions` does. A log with more than `few` sessions uses the other query."""
    (count,) = connection.execute(_COUNT_SESSIONS).fetchone()
    query = select_sessions(selection, limit, is_many=count > few)
    return [_read_session(connection, row) for row in connection.execute(*query).fetchall()]


def find_session(connection: sqlite3.Connection, session: str) -> SessionRow:
    """Return what `LogReader.find_session` does."""
    row = connection.execute(*select_session(session)).fetchone()
    if row is None:
        raise NotFound(f"there is no session {session}")
    return _read_session(connection, row)


def _read_session(connection: sqlite3.Connection, row: sqlite3.Row) -> SessionRow:
    *values, has_tails = row
    session = SessionRow(*values)
    if not has_tails:
        return session
    return replace(session, branches=len(find_branches(*load_positions(connection, session.id))))


def list_ids(connection: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Return what `LogReader.list_ids` does."""
    first = fit_text(prefix)
    return [key for (key,) in connection.execute(_IDS, (first, first + _LAST_CHARACTER, limit))]


def find_key(connection: sqlite3.Connection, session: str) -> SessionKey:
    """Return what `LogReader.find_key` does."""
    return SessionKey(*_expect(connection, _KEY, (session,), f"there is no session {session}"))


def select_sessions(selection: Selection, limit: int, *, is_many: bool) -> Query:
    """Return the query for sessions, newest activity first. `is_many` if the log has more than `FEW_SESSIONS`."""
    chosen, key = _choose(selection)
    if is_many and not chosen:
        latest = _LATEST_OF_MANY.format(chosen=_CALLED.format(session="e.session"))
    else:
        called = "true" if selection.family else _CALLED.format(session="s.id")
        latest = _LATEST_OF_FEW.format(chosen=f"{chosen or 'true'} AND {called}")
    return _SESSIONS.format(latest=latest, volatile=_VOLATILE), {**key, "before": selection.before, "limit": limit}


def select_session(session: str) -> Query:
    """Return the query for the session with this id."""
    key: dict[str, object] = {
        "key": fit_text(session),
        "before": ALL_SESSIONS.before,
        "limit": 1,
        "volatile": _VOLATILE,
    }
    return _SESSIONS.format(latest=_ONE, volatile=_VOLATILE), key


def sum_auxiliary(connection: sqlite3.Connection, since_ms: int) -> list[AuxiliaryUsage]:
    """Return what `LogReader.sum_auxiliary` does."""
    rows = connection.execute(_AUXILIARY, (since_ms,)).fetchall()
    return [
        AuxiliaryUsage(session, upstream, model, calls, Usage(*usage))
        for session, upstream, model, calls, *usage in rows
    ]


def list_shadows(connection: sqlite3.Connection, since_ms: int, limit: int = MOST_SHADOWS) -> list[ShadowRow]:
    """Return what `LogReader.list_shadows` does."""
    rows = []
    for row in connection.execute(_SHADOWS, (since_ms, limit)):
        exchange, session, n, wire, upstream, model, status, client, output, *used, age, cut, full, sent, own = row
        usage, expected, answers = Usage(*used), Usage(client, output), (sent or b"", own or b"")
        told = (wire, upstream, model, status, usage, expected, age, (cut, full), answers)
        rows.append(ShadowRow(exchange, session, n, *told))
    return rows


def _choose(selection: Selection) -> tuple[str, dict[str, object]]:
    """Return an SQL condition on sessions, empty for all of them, and its parameters."""
    beginnings = {"family": fit_text(selection.family), "parent": fit_text(selection.parent)}
    chosen = {name: text for name, text in beginnings.items() if text}
    ends = {f"{name}_end": text + _LAST_CHARACTER for name, text in chosen.items()}
    conditions = [_CHOSEN_BY[name] for name in chosen]
    if not selection.tenant:
        return " AND ".join(conditions), {**chosen, **ends}
    return " AND ".join((_CHOSEN_TENANT, *conditions)), {**chosen, **ends, "tenant": selection.tenant}


_UNREAD = """
    SELECT o.received, o.size, e.id, o.k, e.wire, ifnull(ifnull(d.hash, t.outer), x''), unpack(p.codec, p.bytes),
        o.changes, s.key, f.fingerprint, s.upstream, s.family, s.parent
    FROM (SELECT * FROM outcome ORDER BY seq DESC LIMIT ?) o
    JOIN exchange e ON e.seq = o.exchange
    JOIN session s ON s.id = e.session
    JOIN tenant f ON f.id = s.tenant
    JOIN payload p ON p.id = o.headers
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN node d ON d.session = t.session AND d.n = t.tip
    WHERE e.wire <> '' AND o.size > 0
        AND NOT EXISTS (SELECT 1 FROM reading g WHERE g.exchange = o.exchange AND g.k = o.k)
    ORDER BY o.seq DESC"""


def list_unread(
    connection: sqlite3.Connection, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES
) -> list[UnreadRow]:
    """Return what `Backlog.list_unread` does."""
    rows: list[UnreadRow] = []
    for payload, size, exchange, k, wire, tip, headers, changes, *key in connection.execute(_UNREAD, (limit,)):
        content = connection.execute(_PAYLOAD, (payload,)).fetchone() if size <= most_bytes else None
        if content is not None:
            most_bytes -= size
            session = SessionKey(*key)
            rows.append(UnreadRow(exchange, k, wire, session, tip, decode_headers(headers, changes), content[0]))
    return rows


_EXCHANGES = """
    SELECT e.seq, e.id, s.key AS session, e.n, e.kind, e.wire, e.mode, e.model, e.method, e.target, e.size, e.whole,
        e.opened_ms, e.tip, e.changes, unpack(eh.codec, eh.bytes) AS headers,
        unpack(ee.codec, ee.bytes) AS envelope,
        r.k AS round_k, r.upstream AS round_upstream,
        o.status AS round_status, o.changes AS round_changes, unpack(oh.codec, oh.bytes) AS round_headers,
        o.completeness AS round_completeness, o.whole AS round_whole, o.head_ms, o.first_byte_ms, o.total_ms,
        o.overhead_ms,
        o.size + ifnull((SELECT sum(t.size) FROM trailer t WHERE t.exchange = o.exchange AND t.k = o.k), 0)
        AS round_size,
        o.error AS round_error, unpack(ge.codec, ge.bytes) AS answer_error,
        unpack(ga.codec, ga.bytes) AS answer,
        g.input, g.output, g.cached, g.written, g.reasoning, g.finish,
        t.relation, t.is_side, ifnull(d.hash, t.outer) AS stand, t.depth, t.base, t.layers,
        c.view, c.rung, ifnull(h.id, '') AS epoch, c.pressure, c.reason, c.tokens_client, c.tokens_upstream, c.usable,
        c.owed, c.saving, c.client_read, c.sent_read, c.own_expected, c.sent_expected, ifnull(c.window, 0) AS window,
        ifnull(c.soft, 0) AS soft
    FROM session s
    JOIN exchange e ON e.session = s.id
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN node d ON d.session = t.session AND d.n = t.tip
    LEFT JOIN payload eh ON eh.id = e.headers
    LEFT JOIN payload ee ON ee.id = e.envelope
    LEFT JOIN round r ON r.exchange = e.seq
    LEFT JOIN outcome o ON o.exchange = r.exchange AND o.k = r.k
    LEFT JOIN payload oh ON oh.id = o.headers
    LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    LEFT JOIN decision c ON c.exchange = r.exchange AND c.k = r.k
    LEFT JOIN epoch h ON h.seq = c.epoch
    LEFT JOIN payload ga ON ga.id = g.answer
    LEFT JOIN payload ge ON ge.id = g.error
    WHERE s.key = ?1 AND e.n > ?2 AND e.n <= ?2 + ?3 ORDER BY e.n, r.k"""

# The columns of a decision have the names of the fields of `Plan` after the exchange and the round number.
_DECISION = Plan.__struct_fields__[2:]

# The columns of an exchange that have the names of the fields of `ExchangeRow`, and their values.
_AS_THEY_ARE = ("seq", "id", "session", "n", "kind", "wire", "mode", "model", "method", "target", "opened_ms")

_CALLS = _EXCHANGES.replace("unpack(ga.codec, ga.bytes) AS answer", "NULL AS answer")


def list_exchanges(
    connection: sqlite3.Connection, session: str, after: int = 0, limit: int = 100, *, has_answers: bool = True
) -> list[ExchangeRow]:
    """Return what `LogReader.list_exchanges` does."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    key = fit_text(session)
    rows = cursor.execute(_EXCHANGES if has_answers else _CALLS, (key, after, limit)).fetchall()
    if not rows:
        _expect(connection, _HAS_SESSION, (key,), f"there is no session {session}")
    return [_make_exchange(list(group)) for _, group in groupby(rows, key=lambda row: row["seq"])]


def _make_exchange(rows: list[sqlite3.Row]) -> ExchangeRow:
    """Make an exchange of its rows, one for each round."""
    row = rows[0]
    return ExchangeRow(
        **{name: row[name] for name in _AS_THEY_ARE},
        headers=_make_headers(row["headers"], row["changes"]),
        request_size=row["size"],
        is_capped=bool(row["whole"]),
        digest=_digest_recipe(row["envelope"], row["tip"]),
        rounds=tuple([_make_round(row) for row in rows if row["round_k"] is not None]),
        relation="" if row["relation"] is None else RELATIONS[row["relation"]],
        is_side=bool(row["is_side"]),
        tip=row["stand"] or b"",
        depth=row["depth"] or 0,
        base=row["base"] or 0,
        layers=row["layers"] or b"",
    )


def _make_round(row: sqlite3.Row) -> RoundRow:
    usage = Usage(row["input"], row["output"], row["cached"], row["written"], row["reasoning"])
    has_outcome = row["round_status"] is not None
    return RoundRow(
        k=row["round_k"],
        upstream=row["round_upstream"],
        status=row["round_status"] or 0,
        headers=_make_headers(row["round_headers"], row["round_changes"]),
        completeness=cast(Completeness, row["round_completeness"]) if has_outcome else "",
        received_size=row["round_size"] or 0,
        is_capped=bool(row["round_whole"]),
        timings=Timings(*[row[name] for name in Timings.__struct_fields__]) if has_outcome else None,
        error=row["round_error"] or (row["answer_error"] or b"").decode("utf-8"),
        answer=row["answer"] or b"",
        usage=None if usage == Usage() else usage,
        finish=row["finish"] or "",
        plan=None if row["rung"] is None else Plan(row["id"], row["round_k"], *[row[name] for name in _DECISION]),
    )


def _make_headers(base: bytes | None, changes: bytes | None) -> Headers:
    return () if base is None else decode_headers(base, changes or b"")


def _digest_recipe(envelope: bytes | None, tip: bytes) -> bytes:
    """Return the digest of a recipe, empty if it was erased."""
    return b"" if envelope is None else compute_digest(encode_recipe(join_recipe(envelope, tip)))
