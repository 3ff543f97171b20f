"""The schema of log.db, and what brings a log of an earlier version up to date: what it lacks is added in place.

- Content: only `payload` has it, so that an erasure deletes rows of this table only. `blob` names repeated content
  (slices, large members, headers, envelopes) by digest, once per tenant. Responses never repeat, so they have no row in
  `blob`, which saves one random page write for each; their digest is beside the reference.
- `raw` is the byte chain. Its key is the link itself, which commits to tenant, parent, gap and content.
- A recipe is an envelope (a blob, shared by all calls with equal parameters) and the tip of its chain. Headers are
  those of an earlier call (a blob) and the values that differ (`changes`, not content).
- The record: `exchange`, `round`, `outcome`, `trailer` and `reading`. `seq` is contiguous, and `seal` is H(previous
  seal, row), so that `verify` detects a removed or altered row.
- Managed context: `epoch`, `decision` (a `Plan`), `pin`, `summary`, `recalled`, `memory`, sealed in the same way.
  `rendered` and `messages` are JSON lists of blob ids, `originals` one of ids in `original`, whose rows several
  epochs may name. The digest of an epoch commits to all that its lists name. `summary.notes` is reason, files, block
  and facts as JSON; `messages` are those of a leaf. `summary_edge` has what a summary was made of and what it
  supersedes, in order; its digest commits to both. (`plan` and `round.plan` were never used; they stay empty.)
- Lineage: `node`, `step`, `mark` and `adoption`, derived from the record and numbered by `n` within each session. A
  node's `seal` commits to the earlier nodes of its session. It has four bytes only, since every message has one.
- `held` has the client's own body of an exchange whose history we hold, `exchange` the whole request that it became.
  Without a `history` it has the body as it came, in its content-encoding, and `exchange` has it decoded.
  `source` is managed context: what a request told of its newest message.
- `erasure` names each payload that was deleted. `erased` says of which session, up to which exchange, when and why; its
  digest commits to the rows of `erasure` with its session as their scope, since the session's last row of `erased`.
  `erased.remains` is the directory of files of memory that are still to be removed, and no part of the seal. Content
  that comes again is stored again, under the id that it had.
- `session`, `step`, `mark` and `adoption` have no seals. `meta` has a tally for each of these tables.

Triggers abort UPDATE, DELETE, and an INSERT whose key exists, since REPLACE deletes without firing delete triggers on
connections that did not set `recursive_triggers`. Mutable are `meta`, `permit`, `lease`, `bill` and `tally`, which are
derived from the record (`store/sqlite/figures`); `erased.remains` may be emptied; a payload may be deleted while
`permit` has a row. Foreign keys exist among record tables only, so that SQLite refuses an outcome whose round was lost.
References to content have no foreign keys, each of which would cost a look-up: the writer makes them in the same
transaction, and `verify` checks them.

A column that is added later comes last in its table and has a default, or is NULL in older rows. `migration` names the
versions that a log had; the names of later ones sort after those of earlier ones.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from proxy.model.errors import StoreUnavailable
from proxy.store.sqlite.codec import drop_unset, seal_after

VERSION = "m014_own_sizes"
"""The version of the schema, to be raised whenever that changes. Earlier ones were m001_record to m013_remains."""

APPLICATION_ID = 0x50414C49  # "PALI"

_SALT_SIZE = 32
_TALLY_SIZE = 16
_SEQ_SIZE = 8

_TABLES = """
CREATE TABLE migration(name TEXT PRIMARY KEY, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE tenant(id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE blob(
    id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
    UNIQUE(tenant, digest)) STRICT;
CREATE TABLE payload(id INTEGER PRIMARY KEY, codec INTEGER NOT NULL, bytes BLOB NOT NULL) STRICT;
CREATE TABLE raw(
    link BLOB PRIMARY KEY, parent BLOB NOT NULL, gap BLOB NOT NULL, blob INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE session(
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL REFERENCES tenant(id),
    upstream TEXT NOT NULL, family TEXT NOT NULL, created_ms INTEGER NOT NULL, parent TEXT NOT NULL DEFAULT '') STRICT;
CREATE INDEX session_tenant ON session(tenant);
CREATE INDEX session_family ON session(family) WHERE family <> '';
CREATE INDEX session_parent ON session(parent) WHERE parent <> '';
CREATE TABLE plan(
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES session(id), view TEXT NOT NULL, tip BLOB NOT NULL,
    mode TEXT NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, value TEXT NOT NULL,
    UNIQUE(session, view, tip, mode, attempt)) STRICT;
CREATE TABLE exchange(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    headers INTEGER NOT NULL, envelope INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
    kind TEXT NOT NULL, wire TEXT NOT NULL, mode TEXT NOT NULL, model TEXT NOT NULL, method TEXT NOT NULL,
    target TEXT NOT NULL, changes BLOB NOT NULL, tip BLOB NOT NULL, size INTEGER NOT NULL, whole BLOB NOT NULL,
    opened_ms INTEGER NOT NULL,
    UNIQUE(session, n)) STRICT;
CREATE INDEX exchange_auxiliary ON exchange(session, opened_ms) WHERE kind = 'auxiliary';
-- envelope, tip, size and whole are NULL where the client's own bytes were sent
CREATE TABLE round(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, envelope INTEGER, exchange INTEGER NOT NULL REFERENCES exchange(seq),
    k INTEGER NOT NULL, upstream TEXT NOT NULL, tip BLOB, size INTEGER, whole BLOB, plan INTEGER,
    UNIQUE(exchange, k)) STRICT;
CREATE TABLE outcome(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, headers INTEGER NOT NULL, exchange INTEGER NOT NULL,
    k INTEGER NOT NULL, changes BLOB NOT NULL, received INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
    whole BLOB NOT NULL, status INTEGER NOT NULL, completeness TEXT NOT NULL, head_ms REAL NOT NULL,
    first_byte_ms REAL NOT NULL, total_ms REAL NOT NULL, error TEXT NOT NULL, overhead_ms REAL,
    UNIQUE(exchange, k), FOREIGN KEY(exchange, k) REFERENCES round(exchange, k)) STRICT;
CREATE TABLE trailer(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, exchange INTEGER NOT NULL, k INTEGER NOT NULL, i INTEGER NOT NULL,
    received INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
    UNIQUE(exchange, k, i), FOREIGN KEY(exchange, k) REFERENCES outcome(exchange, k)) STRICT;
-- `error` is content: a provider's message may quote the client's messages, and must be erasable.
CREATE TABLE reading(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, exchange INTEGER NOT NULL, k INTEGER NOT NULL,
    answer INTEGER NOT NULL, digest BLOB NOT NULL, error INTEGER, error_digest BLOB, input INTEGER, output INTEGER,
    cached INTEGER, written INTEGER, reasoning INTEGER, finish TEXT NOT NULL,
    UNIQUE(exchange, k), FOREIGN KEY(exchange, k) REFERENCES outcome(exchange, k)) STRICT;
CREATE TABLE erasure(
    seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, scope TEXT NOT NULL, payload INTEGER NOT NULL,
    digest BLOB NOT NULL) STRICT;
CREATE INDEX erasure_payload ON erasure(payload);
CREATE INDEX erasure_scope ON erasure(scope);
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE permit(token TEXT PRIMARY KEY) STRICT;
-- The key begins with the session and counts within it, so that rows which are read together are stored together. An
-- index holds six bytes of a hash: with ten million nodes, one look-up in ten million hits another node and continues.
-- `parent`: n of the previous node, or 0 at the start of a chain, where `outer` is the hash of its parent.
CREATE TABLE node(
    session INTEGER NOT NULL, n INTEGER NOT NULL, hash BLOB NOT NULL, parent INTEGER NOT NULL, outer BLOB,
    is_answer INTEGER NOT NULL, exchange INTEGER NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE INDEX node_hash ON node(substr(hash, 1, 6), is_answer, session);
-- n: that of the exchange; tip: n of the node, or 0 if it is not of this session, where `outer` is its hash
CREATE TABLE step(
    session INTEGER NOT NULL, n INTEGER NOT NULL, tip INTEGER NOT NULL, outer BLOB, depth INTEGER NOT NULL,
    base INTEGER NOT NULL, relation INTEGER NOT NULL, is_side INTEGER NOT NULL, layers BLOB,
    PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
-- key: the first six bytes of the name's SHA-256
CREATE TABLE mark(
    session INTEGER NOT NULL, n INTEGER NOT NULL, node INTEGER NOT NULL, key BLOB NOT NULL, name TEXT NOT NULL,
    form BLOB NOT NULL,
    PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE INDEX mark_key ON mark(key, session);
CREATE TABLE adoption(
    session INTEGER NOT NULL, n INTEGER NOT NULL, source INTEGER NOT NULL, node INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
-- exchange and parent are NULL where there is none; digest: see `codec.digest_epoch`
CREATE TABLE epoch(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    id TEXT NOT NULL UNIQUE, view TEXT NOT NULL, parent INTEGER REFERENCES epoch(seq), through BLOB NOT NULL,
    depth INTEGER NOT NULL, why TEXT NOT NULL, exchange INTEGER REFERENCES exchange(seq), opened_ms INTEGER NOT NULL,
    tokens_before INTEGER NOT NULL, tokens_after INTEGER NOT NULL, edits INTEGER NOT NULL, edits_digest BLOB NOT NULL,
    rendered TEXT NOT NULL, originals TEXT NOT NULL, digest BLOB NOT NULL, tool BLOB) STRICT;
CREATE INDEX epoch_session ON epoch(session);
CREATE TABLE original(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, session INTEGER NOT NULL REFERENCES session(id),
    wire TEXT NOT NULL, place INTEGER NOT NULL, start INTEGER NOT NULL, messages TEXT NOT NULL) STRICT;
CREATE TABLE decision(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    exchange INTEGER NOT NULL REFERENCES exchange(seq), k INTEGER NOT NULL, view TEXT NOT NULL, rung TEXT NOT NULL,
    epoch INTEGER REFERENCES epoch(seq), pressure TEXT NOT NULL, reason TEXT NOT NULL, tokens_client INTEGER,
    tokens_upstream INTEGER, usable INTEGER NOT NULL, owed REAL NOT NULL, saving REAL, client_read INTEGER,
    sent_read INTEGER, own_expected INTEGER, sent_expected INTEGER, window INTEGER, soft INTEGER,
    UNIQUE(exchange, k)) STRICT;
CREATE INDEX decision_view ON decision(session, view);
CREATE TABLE pin(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id), node BLOB NOT NULL,
    is_on INTEGER NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE INDEX pin_session ON pin(session);
-- exchange is NULL where there is none; digest: see `codec.digest_summary`
CREATE TABLE summary(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    text INTEGER NOT NULL, notes INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, wire TEXT NOT NULL, start INTEGER NOT NULL,
    stop INTEGER NOT NULL, last BLOB NOT NULL, kind TEXT NOT NULL, level INTEGER NOT NULL,
    is_provisional INTEGER NOT NULL, tokens INTEGER NOT NULL, covered INTEGER NOT NULL, made_ms INTEGER NOT NULL,
    exchange INTEGER REFERENCES exchange(seq), model TEXT NOT NULL, calls TEXT NOT NULL, messages TEXT NOT NULL,
    digest BLOB NOT NULL) STRICT;
CREATE INDEX summary_session ON summary(session);
CREATE TABLE summary_edge(
    summary INTEGER NOT NULL, relation TEXT NOT NULL, i INTEGER NOT NULL, other INTEGER NOT NULL,
    PRIMARY KEY(summary, relation, i)) STRICT, WITHOUT ROWID;
CREATE TABLE lease(key TEXT PRIMARY KEY, owner TEXT NOT NULL, until_ms INTEGER NOT NULL) STRICT;
-- rounds: a payload, so that it can be erased
CREATE TABLE recalled(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), view TEXT NOT NULL,
    epoch INTEGER NOT NULL REFERENCES epoch(seq), node BLOB NOT NULL, count INTEGER NOT NULL, tokens INTEGER NOT NULL,
    rounds INTEGER NOT NULL, rounds_digest BLOB NOT NULL) STRICT;
CREATE INDEX recalled_session ON recalled(session);
-- kind: `report` or that of an order; last: empty in an order; content: a payload of a report, so that it can be erased
CREATE TABLE memory(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id), kind TEXT NOT NULL,
    item TEXT NOT NULL, at_ms INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, last BLOB NOT NULL,
    content INTEGER, digest BLOB) STRICT;
CREATE INDEX memory_session ON memory(session);
CREATE TABLE held(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, envelope INTEGER NOT NULL,
    exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), history TEXT NOT NULL, key TEXT NOT NULL,
    digest BLOB NOT NULL, tip BLOB NOT NULL, size INTEGER NOT NULL, whole BLOB NOT NULL) STRICT;
CREATE TABLE source(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
    exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), node BLOB NOT NULL, kind TEXT NOT NULL) STRICT;
CREATE INDEX source_session ON source(session);
-- bill and tally: derived from the record (`store/sqlite/figures`), and so without guards and seals
CREATE TABLE bill(
    session INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, exchange INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, kind TEXT NOT NULL, mode TEXT NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL,
    view TEXT NOT NULL, rung TEXT NOT NULL, is_held INTEGER NOT NULL, epoch INTEGER, status INTEGER,
    completeness TEXT NOT NULL, is_side INTEGER NOT NULL, is_last INTEGER NOT NULL, is_end INTEGER NOT NULL,
    input INTEGER, output INTEGER, read INTEGER, written INTEGER, client INTEGER, sent INTEGER,
    usable INTEGER NOT NULL, saving REAL, own_input INTEGER, own_read INTEGER, own_written INTEGER, paid_read INTEGER,
    first_byte_ms REAL, total_ms REAL, overhead_ms REAL,
    PRIMARY KEY(session, n, k)) STRICT, WITHOUT ROWID;
CREATE TABLE tally(
    session INTEGER NOT NULL, day INTEGER NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL,
    share INTEGER NOT NULL, tier INTEGER NOT NULL, own_tier INTEGER NOT NULL, rounds INTEGER NOT NULL,
    errors INTEGER NOT NULL, ends INTEGER NOT NULL, plans INTEGER NOT NULL, held INTEGER NOT NULL,
    counted INTEGER NOT NULL, client INTEGER NOT NULL, sent INTEGER NOT NULL, told INTEGER NOT NULL,
    fresh INTEGER NOT NULL, output INTEGER NOT NULL, read INTEGER NOT NULL, written INTEGER NOT NULL,
    own_fresh INTEGER NOT NULL, own_read INTEGER NOT NULL, own_written INTEGER NOT NULL, paid_fresh INTEGER NOT NULL,
    paid_read INTEGER NOT NULL, saving REAL NOT NULL, largest INTEGER NOT NULL, largest_own INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL, calls INTEGER NOT NULL DEFAULT 0, own_output INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY(session, day, upstream, model, share, tier, own_tier)) STRICT, WITHOUT ROWID;
-- through: the last exchange of the session then; until: the last row of `erasure`; remains: see above
CREATE TABLE erased(
    seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id), cause TEXT NOT NULL,
    at_ms INTEGER NOT NULL, through INTEGER NOT NULL, until INTEGER NOT NULL, payloads INTEGER NOT NULL,
    bytes INTEGER NOT NULL, digest BLOB NOT NULL, remains BLOB NOT NULL DEFAULT x'') STRICT;
CREATE INDEX erased_session ON erased(session);
"""
# The tables without guards: state, and what is derived from the record.
_MUTABLE = ("meta", "permit", "lease", "bill", "tally")
# Where a change or a removal is allowed, by trigger.
_REFUSED_WHEN = {
    "payload_hold": "NOT EXISTS (SELECT 1 FROM permit)",
    "erased_keep": """
        NEW.remains <> x'' OR NEW.seq IS NOT OLD.seq OR NEW.seal IS NOT OLD.seal OR NEW.session IS NOT OLD.session
        OR NEW.cause IS NOT OLD.cause OR NEW.at_ms IS NOT OLD.at_ms OR NEW.through IS NOT OLD.through
        OR NEW.until IS NOT OLD.until OR NEW.payloads IS NOT OLD.payloads OR NEW.bytes IS NOT OLD.bytes
        OR NEW.digest IS NOT OLD.digest""",
}
# Every key of a table, as an SQL condition that a row with this key exists: the primary key first.
_KEYS = """
    WITH key(number, name) AS (
        SELECT 99, name FROM pragma_table_info(:table) WHERE pk
        UNION ALL SELECT l.seq, i.name FROM pragma_index_list(:table) l JOIN pragma_index_info(l.name) i
            WHERE l.origin = 'u')
    SELECT 'EXISTS (SELECT 1 FROM ' || :table || ' WHERE ' || group_concat(name || ' = NEW.' || name, ' AND ') || ')'
    FROM key GROUP BY number ORDER BY number DESC"""
_OBJECTS = """
    SELECT type, name, ifnull(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid"""

# The columns that were added to a table with seals or a tally. They are its last ones, and NULL in older rows:
# seals and tallies leave out those at the end of a row that are NULL.
ADDED = {"decision": 6, "step": 1, "epoch": 1, "outcome": 1}
# The tables whose rows have no seals, and to whose rows nothing else commits. A tally covers all rows of a table.
TALLIED = {
    "session": "SELECT id, key, tenant, upstream, family, created_ms, parent FROM session",
    "step": "SELECT session, n, tip, outer, depth, base, relation, is_side, layers FROM step",
    "mark": "SELECT session, n, node, key, name, form FROM mark",
    "adoption": "SELECT session, n, source, node, at_ms FROM adoption",
}


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block changes, or take all of it back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Add what a log lacks of the schema, in one transaction: a new one all of it, an older one what came since.

    Raises StoreUnavailable for a foreign or newer database.
    """
    with transaction(connection):
        if read_version(connection) == VERSION:
            return
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        with closing(make_schema()) as made:
            _add_missing(connection, made)
        for table in TALLIED:
            if read_tally(connection, table) is None:
                note_tally(connection, table, tally_rows(connection, table))
        if not read_salt(connection):
            note_value(connection, "salt", os.urandom(_SALT_SIZE))
        row = (VERSION, int(time.time() * 1000))
        connection.execute("INSERT INTO migration(name, at_ms) VALUES (?, ?)", row)


def make_schema() -> sqlite3.Connection:
    """Return an empty log in memory, without what each log has of its own."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(_TABLES)
    for table in [name for kind, name in list_objects(made) if kind == "table" and name not in _MUTABLE]:
        keys = " OR ".join(key for (key,) in made.execute(_KEYS, {"table": table}))
        for name, event, refused in (("keep", "UPDATE", ""), ("hold", "DELETE", ""), ("once", "INSERT", keys)):
            when = _REFUSED_WHEN.get(f"{table}_{name}", refused)
            made.execute(
                f"CREATE TRIGGER {table}_{name} BEFORE {event} ON {table} {when and f'WHEN {when}'}"
                f" BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    return made


def list_objects(connection: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return the statements of tables, indexes and triggers, by type and name, however they are spaced."""
    objects = connection.execute(_OBJECTS)
    return {(kind, name): " ".join(sql.split()).replace("( ", "(") for kind, name, sql in objects}


def _add_missing(connection: sqlite3.Connection, made: sqlite3.Connection) -> None:
    """Add tables, columns, indexes and triggers that a log lacks, and replace triggers that are others now."""
    there = list_objects(connection)
    for (kind, name), statement in list_objects(made).items():
        if kind == "table" and (kind, name) in there:
            known = {column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")}
            for _, column, form, is_needed, default, _ in made.execute(f"PRAGMA table_info({name})"):
                if column not in known:
                    needed = f" NOT NULL DEFAULT {default}" if is_needed else ""
                    connection.execute(f"ALTER TABLE {name} ADD COLUMN {column} {form}{needed}")
        elif there.get((kind, name)) != statement:
            connection.execute(f"DROP {kind} IF EXISTS {name}")
            connection.execute(statement)


def read_version(connection: sqlite3.Connection) -> str:
    """Return the version of the schema of a file, empty for an empty file.

    Raises StoreUnavailable for a foreign or newer database.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        if application or list_objects(connection):
            raise StoreUnavailable("the file is a database of another program; choose another data directory (--data)")
        return ""
    (version,) = connection.execute("SELECT ifnull(max(name), '') FROM migration").fetchone()
    if version > VERSION:
        raise StoreUnavailable(
            f"the log was written by a newer version of palimpsest (its schema is at {version}); upgrade this one"
        )
    return str(version)


def weigh_row(row: Sequence[Any]) -> int:
    """Return what a row adds to the tally of its table, a sum that does not depend on the order of rows."""
    return int.from_bytes(seal_after(b"", tuple(row)), "big")


def tally_rows(connection: sqlite3.Connection, table: str) -> int:
    """Compute the tally of a table from its rows."""
    added = ADDED.get(table, 0)
    rows = connection.execute(TALLIED[table])
    return sum(weigh_row(drop_unset(row, added)) for row in rows) % (1 << 8 * _TALLY_SIZE)


def note_tally(connection: sqlite3.Connection, table: str, tally: int) -> None:
    """Store the tally that a table should have, in the current transaction."""
    note_value(connection, f"tally:{table}", (tally % (1 << 8 * _TALLY_SIZE)).to_bytes(_TALLY_SIZE, "big"))


def read_tally(connection: sqlite3.Connection, table: str) -> int | None:
    """Return the stored tally of a table, or None if there is none."""
    value = read_value(connection, f"tally:{table}")
    return int.from_bytes(value, "big") if value else None


def note_seal_head(connection: sqlite3.Connection, table: str, seq: int, seal: bytes) -> None:
    """Store the last row of a sealed table, in the transaction that adds it.

    A seal commits only to earlier rows, so this value is needed to detect that the last rows were removed. It detects
    loss, not forgery: whoever alters a log on purpose can alter this value, too.
    """
    note_value(connection, f"end:{table}", seq.to_bytes(_SEQ_SIZE, "big") + seal)


def read_seal_head(connection: sqlite3.Connection, table: str) -> tuple[int, bytes] | None:
    """Return the stored number and seal of the last row of a table, or None if there are none."""
    value = read_value(connection, f"end:{table}")
    return (int.from_bytes(value[:_SEQ_SIZE], "big"), value[_SEQ_SIZE:]) if value else None


def note_value(connection: sqlite3.Connection, key: str, value: bytes) -> None:
    """Store a value about the log itself, in the current transaction."""
    statement = "INSERT INTO meta(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    connection.execute(statement, (key, value))


def read_value(connection: sqlite3.Connection, key: str) -> bytes:
    """Return the value that `note_value` stored, or empty bytes."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return bytes(row[0]) if row else b""


def read_salt(connection: sqlite3.Connection) -> bytes:
    """Return the random bytes, made with the log, that salt the fingerprints of credentials."""
    return read_value(connection, "salt")
