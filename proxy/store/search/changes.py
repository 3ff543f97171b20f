"""What is new in the log since a position: messages by session, epochs, summaries, and erasures.

A session's nodes are numbered as they come, and each names the call that brought it, so that a message is read once,
where it was new. Its bytes are found without reading the history before it: the nodes from the call's last one back,
and the slices of the body from its last one back, are the same messages; the hash of a node proves it.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple

from proxy.model.errors import ProxyError
from proxy.model.lineage import NODE_SIZE, extend_chain
from proxy.store.search.entries import ANSWER, MESSAGE, REQUEST, list_body_items, load_payload
from proxy.store.sqlite.codec import unpack
from proxy.store.sqlite.exchange_queries import load_request
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.json_values import JSON_ERRORS, load_lenient

TABLES = ("exchange", "reading", "epoch", "summary", "erasure")
"""The tables of the log that are followed, by `seq`."""

_PAGE = 512

_CHANGED = """
    SELECT session FROM exchange WHERE seq > ? AND seq <= ?
    UNION SELECT e.session FROM reading g JOIN exchange e ON e.seq = g.exchange WHERE g.seq > ? AND g.seq <= ?
    ORDER BY 1"""
_NODES = """
    SELECT n, hash, parent, ifnull(outer, x''), is_answer, exchange FROM node
    WHERE session = ? AND n > ? ORDER BY n LIMIT ?"""
_NODE = "SELECT hash, parent, ifnull(outer, x'') FROM node WHERE session = ? AND n = ?"
_CALL = """
    SELECT e.seq, e.id, e.wire, e.tip, e.opened_ms, t.tip, ifnull(h.hash, t.outer), t.depth, t.base
    FROM exchange e JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN node h ON h.session = t.session AND h.n = t.tip
    WHERE e.session = ? AND e.n = ?
    AND NOT EXISTS (SELECT 1 FROM erased z WHERE z.session = e.session AND z.through >= e.seq)"""
_SLICES = """
    WITH RECURSIVE chain(depth, parent, blob) AS (
        SELECT 1, parent, blob FROM raw WHERE link = ?1
        UNION ALL
        SELECT chain.depth + 1, raw.parent, raw.blob FROM chain JOIN raw ON raw.link = chain.parent
        WHERE chain.depth < ?2)
    SELECT chain.blob, p.codec, p.bytes FROM chain LEFT JOIN payload p ON p.id = chain.blob ORDER BY chain.depth"""
_ANSWERS = "SELECT answer FROM reading WHERE exchange = ? ORDER BY k DESC"
_SESSION = "SELECT s.key, t.fingerprint FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.id = ?"
_EPOCHS = """
    SELECT x.seq, x.session, x.through, x.depth, ifnull(x.exchange, 0), x.opened_ms, p.codec, p.bytes
    FROM epoch x LEFT JOIN payload p ON p.id = x.edits WHERE x.seq > ? AND x.seq <= ? ORDER BY x.seq"""
_SUMMARIES = """
    SELECT x.seq, x.session, x.id, x.last, ifnull(x.exchange, 0), x.made_ms, p.codec, p.bytes
    FROM summary x LEFT JOIN payload p ON p.id = x.text WHERE x.seq > ? AND x.seq <= ? ORDER BY x.seq"""
_LATEST = "SELECT ifnull(max(seq), 0) FROM exchange WHERE session = ? AND opened_ms <= ?"
_FIND_NODE = """
    SELECT min(n) FROM node INDEXED BY node_hash
    WHERE substr(hash, 1, 6) = substr(?1, 1, 6) AND is_answer IN (0, 1) AND session = ?2 AND hash = ?1"""


class BringingCall(NamedTuple):
    """A call that brought messages."""

    seq: int
    id: str
    form: Format
    at_ms: int


class NewMessage(NamedTuple):
    """A message that is new in its session, and where the log has its bytes (`entries`).

    `turn` is the number of its node, `digest` its form; one without a form belongs to the node after it.
    """

    turn: int
    node: bytes
    digest: bytes
    call: BringingCall
    raw: bytes
    holder_kind: int
    holder: int
    item: int


class _Slice(NamedTuple):
    """A raw message of a request; None if it was erased."""

    raw: bytes | None
    kind: int
    holder: int
    item: int


_SOURCE = "SELECT kind FROM source WHERE session = ? AND node = ? ORDER BY seq DESC LIMIT 1"

_Row = tuple[int, bytes, int, bytes, int, int]


def read_heads(log: sqlite3.Connection) -> dict[str, int]:
    """Return the last `seq` of each table that is followed."""
    heads = {}
    for table in TABLES:
        (heads[table],) = log.execute(f"SELECT ifnull(max(seq), 0) FROM {table}").fetchone()
    return heads


def read_source(log: sqlite3.Connection, session: int, node: bytes) -> str:
    """Return the kind of prompt source that a request told of its newest message, the one with this node, or empty."""
    row = log.execute(_SOURCE, (session, node)).fetchone() if has_sources(log) else None
    return "" if row is None else str(row[0])


def has_sources(log: sqlite3.Connection) -> bool:
    """Return whether the log is of a version that keeps what requests tell of sources."""
    return log.execute("SELECT 1 FROM sqlite_master WHERE name = 'source'").fetchone() is not None


def read_seal(log: sqlite3.Connection, seq: int) -> int:
    """Return a number that identifies the first `seq` exchanges of the log; 0 for none, or if they are not there."""
    row = log.execute("SELECT seal FROM exchange WHERE seq = ?", (seq,)).fetchone()
    return 0 if row is None else int.from_bytes(row[0][:7])


def list_changed(log: sqlite3.Connection, since: Mapping[str, int], until: Mapping[str, int]) -> list[int]:
    """Return the row ids of the sessions with calls or answers in this part of the log."""
    bounds = [edge[table] for table in ("exchange", "reading") for edge in (since, until)]
    return [session for (session,) in log.execute(_CHANGED, bounds)]


def read_session_key(log: sqlite3.Connection, session: int) -> tuple[str, bytes]:
    """Return the id of a session, and the fingerprint of its tenant."""
    key, tenant = log.execute(_SESSION, (session,)).fetchone()
    return key, tenant


def list_epochs(log: sqlite3.Connection, since: int, until: int) -> list[tuple[int, int, bytes, int, int, int, bytes]]:
    """Return seq, session, last node, depth, exchange, time and edits of the epochs; erased ones are left out."""
    rows = log.execute(_EPOCHS, (since, until)).fetchall()
    return [(*row[:6], unpack(row[6], row[7])) for row in rows if row[7] is not None]


def list_summaries(log: sqlite3.Connection, since: int, until: int) -> list[tuple[int, int, str, bytes, int, int, str]]:
    """Return seq, session, id, last node, exchange, time and text of the summaries; erased ones are left out."""
    rows = log.execute(_SUMMARIES, (since, until)).fetchall()
    return [(*row[:6], unpack(row[6], row[7]).decode(errors="replace")) for row in rows if row[7] is not None]


def find_latest_call(log: sqlite3.Connection, session: int, at_ms: int) -> int:
    """Return the seq of the newest exchange of a session that was opened until then, 0 for none."""
    (seq,) = log.execute(_LATEST, (session, at_ms)).fetchone()
    return int(seq)


def find_turn(log: sqlite3.Connection, session: int, node: bytes) -> int:
    """Return the number of a node in a session, 0 if it has none."""
    (n,) = log.execute(_FIND_NODE, (node, session)).fetchone()
    return n or 0


def list_chain(log: sqlite3.Connection, session: int, turn: int, most: int) -> list[int]:
    """Return the turns of a chain that ends with `turn`, the first one first, `most` at most."""
    found: list[int] = []
    while turn and len(found) < most:
        found.append(turn)
        row = log.execute(_NODE, (session, turn)).fetchone()
        turn = row[1] if row else 0
    return found[::-1]


def read_new_messages(log: sqlite3.Connection, session: int, after: int) -> Iterator[NewMessage | int]:
    """Yield the messages of a session's nodes after number `after`, and each node's number when it is done.

    Messages whose bytes are not in the log, or cannot be told from others, are left out.
    """
    while rows := log.execute(_NODES, (session, after, _PAGE)).fetchall():
        for (exchange, is_answer), group in groupby(rows, key=lambda row: (row[5], row[4])):
            new = list(group)
            found = _match(log, session, exchange, new, is_answer=bool(is_answer))
            for row in new:
                yield from found.get(row[0], ())
                yield row[0]
        after = rows[-1][0]


def _match(
    log: sqlite3.Connection, session: int, exchange: int, rows: Sequence[_Row], *, is_answer: bool
) -> Mapping[int, list[NewMessage]]:
    """Return the messages of nodes that one call brought, by the node's number."""
    row = log.execute(_CALL, (session, exchange)).fetchone()
    if row is None or row[2] not in FORMATS:
        return {}
    call = BringingCall(row[0], row[1], FORMATS[row[2]], row[4])
    if is_answer:
        turns = {node: n for n, node, *_ in rows if find_turn(log, session, node) == n}  # else it was in a request
        return _match_answers(log, call, row[6] or b"", turns)
    slices = _list_slices(log, call, row[3], row[7] - row[8])
    return _match_slices(log, session, call, slices, turn=row[5], wanted={n for n, *_ in rows})


def _list_slices(log: sqlite3.Connection, call: BringingCall, tip: bytes, count: int) -> list[_Slice]:
    """Return the last `count` messages of a request, the last one first."""
    if tip:
        found = log.execute(_SLICES, (tip, count)).fetchall() if count > 0 else []
        return [
            _Slice(None if stored is None else unpack(codec, stored), MESSAGE, blob, 0) for blob, codec, stored in found
        ]
    try:
        items = list_body_items(call.form, load_request(log, call.id))
    except ProxyError:  # a part of it was erased
        return []
    return [_Slice(raw, REQUEST, call.seq, i) for i, raw in enumerate(items)][::-1][: max(0, count)]


def _match_slices(
    log: sqlite3.Connection, session: int, call: BringingCall, slices: Sequence[_Slice], *, turn: int, wanted: set[int]
) -> Mapping[int, list[NewMessage]]:
    """Return the messages of the wanted nodes, which are among those that end with `turn`."""
    found: dict[int, list[NewMessage]] = {}
    reader, last = call.form.reader, (0, b"")
    for each in slices:
        form = b"\0" if each.raw is None else reader.read_item(each.raw).form
        if form:
            row = log.execute(_NODE, (session, turn)).fetchone() if turn else None
            if row is None:
                break
            node, parent, before = row
            if parent:
                before = log.execute(_NODE, (session, parent)).fetchone()[0]
            if each.raw is not None and extend_chain(before, (form,))[0] != node:
                break  # what is sent is not what was recorded as sent
            last, turn = (turn, node), parent
        if last[0] in wanted and each.raw is not None:
            message = NewMessage(*last, form, call, each.raw, each.kind, each.holder, each.item)
            found.setdefault(last[0], []).insert(0, message)
    return found


def _match_answers(
    log: sqlite3.Connection, call: BringingCall, tip: bytes, turns: Mapping[bytes, int]
) -> Mapping[int, list[NewMessage]]:
    """Return the messages of the first alternative of each answer to a call, by the number of the node."""
    found: dict[int, list[NewMessage]] = {}
    for (payload,) in log.execute(_ANSWERS, (call.seq,)):
        content = load_payload(log, payload)
        value = None if content is None else load_lenient(content)
        if content is None or not isinstance(value, dict):
            continue
        try:
            alternatives, echoes = call.form.read_reply(value), call.form.list_echoes(content)
        except JSON_ERRORS:
            continue
        items = alternatives[0] if alternatives else ()
        if len(items) != len(echoes):
            continue
        waiting: list[tuple[int, bytes]] = []
        for i, node in enumerate(extend_chain(tip, [item.form for item in items])):
            waiting.append((i, items[i].form))
            turn = turns.get(node, 0)
            if items[i].form and turn:
                found.setdefault(
                    turn, [NewMessage(turn, node, form, call, echoes[at], ANSWER, payload, at) for at, form in waiting]
                )
            if items[i].form:
                waiting = []
    return found


def read_opened(log: sqlite3.Connection, seq: int) -> int:
    """Return when an exchange was opened, 0 if there is none."""
    row = log.execute("SELECT opened_ms FROM exchange WHERE seq = ?", (seq,)).fetchone()
    return int(row[0]) if row else 0


def digest_text(text: str) -> bytes:
    """Return a digest of a text of ours, by which it is known when it comes again."""
    return sha256(b"text\0" + text.encode("utf-8", "surrogatepass")).digest()[:NODE_SIZE]
