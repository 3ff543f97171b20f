"""Answers in the log that nobody has read. Rule: only the newest outcomes are looked at, however many there are.

A killed server leaves some; those that nobody can read are found again at each start, so that it must cost little.
"""

import sqlite3

from proxy.model.exchange import SessionKey
from proxy.model.log import UnreadRow
from proxy.store.sqlite.codec import decode_headers

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

_CONTENT = "SELECT unpack(codec, bytes) FROM payload WHERE id = ?"


def list_unread(connection: sqlite3.Connection, limit: int, most_bytes: int) -> list[UnreadRow]:
    """As `Backlog.list_unread`, in the calling thread."""
    rows: list[UnreadRow] = []
    for payload, size, exchange, k, wire, tip, headers, changes, *key in connection.execute(_UNREAD, (limit,)):
        content = connection.execute(_CONTENT, (payload,)).fetchone() if size <= most_bytes else None
        if content is not None:
            most_bytes -= size
            session = SessionKey(*key)
            rows.append(UnreadRow(exchange, k, wire, session, tip, decode_headers(headers, changes), content[0]))
    return rows
