"""What the writer knows of the log: ids, links, counters. Rule: a cache before the tables; after a rollback, forget it.

Entries are put in while a batch is built, before it is committed. That is safe only because `forget` follows every
failed commit, and because no other process writes to the file.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any

from proxy.model.exchange import Headers
from proxy.model.manifest import root_of
from proxy.store.sqlite.envelope import Envelopes
from proxy.store.sqlite.recent import Recent
from proxy.store.sqlite.schema import TALLIED, note_tally, read_tally
from proxy.store.sqlite.targets import Targets
from proxy.store.sqlite.trees import Trees

NO_SEAL = b""
SEALED = ("exchange", "round", "outcome", "trailer", "reading", "epoch", "decision", "pin", "summary")

_BLOBS, _LINKS, _EXCHANGES, _SESSIONS, _HEADERS, _RECEIVED, _ENVELOPES = 8192, 8192, 4096, 4096, 256, 2048, 512

# The number of an erased payload is not given again: records go on naming it.
_LAST = {
    "tenant": "SELECT ifnull(max(id), 0) FROM tenant",
    "session": "SELECT ifnull(max(id), 0) FROM session",
    "original": "SELECT ifnull(max(id), 0) FROM original",
    "payload": """SELECT max(
        ifnull((SELECT max(id) FROM payload), 0), ifnull((SELECT max(payload) FROM erasure), 0))""",
}
_FIND_BLOB = "SELECT id FROM blob WHERE tenant = ? AND digest = ?"
_FIND_LINK = "SELECT 1 FROM raw WHERE link = ?"
_FIND_TENANT = "SELECT id FROM tenant WHERE fingerprint = ?"
_FIND_SESSION = """
    SELECT s.id, t.id, t.fingerprint, (SELECT max(e.n) FROM exchange e WHERE e.session = s.id)
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.key = ?"""
_FIND_EXCHANGE = """
    SELECT e.seq, t.id, t.fingerprint, s.key, e.n
    FROM exchange e JOIN session s ON s.id = e.session JOIN tenant t ON t.id = s.tenant WHERE e.id = ?"""


# what a row refers to: the id that stands in the column, and the digest or name that the seal commits to
Reference = tuple[int, str | bytes]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's row id, and the root of its chains."""

    id: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange's row id, its tenant, its session's key, and its number there."""

    seq: int
    tenant: Tenant
    session: str
    n: int


@dataclass(slots=True)
class Session:
    """A session's row id, its tenant, and the number of its last exchange."""

    id: int
    tenant: Tenant
    n: int


@dataclass(frozen=True, slots=True)
class HeaderBase:
    """Stored headers that others with the same names are described by."""

    blob: Reference
    headers: Headers


@dataclass(slots=True)
class SealHead:
    """The last row of a sealed table."""

    seq: int
    seal: bytes


class RowIdCache:
    """Look-ups of the writer, bounded in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._blobs: Recent[tuple[int, bytes], int] = Recent(_BLOBS)
        self._links: Recent[bytes, bool] = Recent(_LINKS)
        self._exchanges: Recent[str, Exchange] = Recent(_EXCHANGES)
        self._sessions: Recent[str, Session] = Recent(_SESSIONS)
        self._tenants: Recent[bytes, Tenant] = Recent(_SESSIONS)
        self.headers: Recent[tuple[int, tuple[bytes, ...]], HeaderBase] = Recent(_HEADERS)
        self.received: Recent[tuple[int, int], Reference] = Recent(_RECEIVED)
        self.envelopes = Envelopes(_ENVELOPES)
        self.trees = Trees(connection)
        self.targets = Targets(connection)
        self._recents: tuple[Recent[Any, Any], ...] = (
            self._blobs,
            self._links,
            self._exchanges,
            self._sessions,
            self._tenants,
            self.headers,
            self.received,
            self.envelopes,
        )
        self._is_loaded = False
        self._last: dict[str, int] = {}
        self.heads: dict[str, SealHead] = {}
        self.tallies: dict[str, int] = {}  # of the tables in `TALLIED`, what their rows come to
        self._noted: dict[str, int] = {}

    def load(self) -> None:
        """Read the counters and the last seals, unless they are known."""
        if self._is_loaded:
            return
        for table, query in _LAST.items():
            (self._last[table],) = self._connection.execute(query).fetchone()
        for table in SEALED:
            row = self._connection.execute(f"SELECT seq, seal FROM {table} ORDER BY seq DESC LIMIT 1").fetchone()
            self.heads[table] = SealHead(*row) if row else SealHead(0, NO_SEAL)
        self.tallies = {table: read_tally(self._connection, table) or 0 for table in TALLIED}
        self._noted = dict(self.tallies)
        self._is_loaded = True

    def note_tallies(self) -> None:
        """Note the tallies of tables that have grown, in the transaction under way."""
        for table, tally in self.tallies.items():
            if tally != self._noted[table]:
                note_tally(self._connection, table, tally)
                self._noted[table] = tally

    def forget(self) -> None:
        """Trust nothing any more: what was put in may not have been committed."""
        self._is_loaded = False
        self.trees.forget()
        self.targets.forget()
        for recent in self._recents:
            recent.clear()

    def age(self) -> None:
        """Let go of what has not been used for long; only between two batches."""
        self.trees.age()
        self.targets.age()
        for recent in self._recents:
            recent.age()

    def next_id(self, table: str) -> int:
        """A fresh row id of tenant, session, original or payload; blobs are numbered as their payloads."""
        self._last[table] += 1
        return self._last[table]

    def find_blob(self, tenant: Tenant, digest: bytes) -> int | None:
        """The id of shared content."""
        key = (tenant.id, digest)
        found = self._blobs.get(key)
        if found is None:
            row = self._connection.execute(_FIND_BLOB, key).fetchone()
            if row:
                found = row[0]
                self._blobs.put(key, row[0])
        return found

    def put_blob(self, tenant: Tenant, digest: bytes, blob: int) -> None:
        """Remember shared content."""
        self._blobs.put((tenant.id, digest), blob)

    def has_link(self, link: bytes) -> bool:
        """True where the chain up to the link is stored."""
        if self._links.get(link):
            return True
        if self._connection.execute(_FIND_LINK, (link,)).fetchone() is None:
            return False
        self._links.put(link, True)
        return True

    def put_link(self, link: bytes) -> None:
        """Remember a link."""
        self._links.put(link, True)

    def find_tenant(self, fingerprint: bytes) -> Tenant | None:
        """The tenant with this fingerprint."""
        found = self._tenants.get(fingerprint)
        if found is None:
            row = self._connection.execute(_FIND_TENANT, (fingerprint,)).fetchone()
            if row:
                found = self.put_tenant(fingerprint, row[0])
        return found

    def put_tenant(self, fingerprint: bytes, tenant: int) -> Tenant:
        """Remember a tenant."""
        added = Tenant(tenant, root_of(fingerprint))
        self._tenants.put(fingerprint, added)
        return added

    def find_session(self, key: str) -> Session | None:
        """The session with this key."""
        found = self._sessions.get(key)
        if found is None:
            row = self._connection.execute(_FIND_SESSION, (key,)).fetchone()
            if row:
                found = self.put_session(key, Session(row[0], self._recall_tenant(row[1], row[2]), row[3] or 0))
        return found

    def put_session(self, key: str, session: Session) -> Session:
        """Remember a session; its `n` is counted in place."""
        self._sessions.put(key, session)
        return session

    def find_exchange(self, exchange: str) -> Exchange | None:
        """The exchange with this id."""
        found = self._exchanges.get(exchange)
        if found is None:
            row = self._connection.execute(_FIND_EXCHANGE, (exchange,)).fetchone()
            if row:
                found = Exchange(row[0], self._recall_tenant(row[1], row[2]), row[3], row[4])
                self.put_exchange(exchange, found)
        return found

    def put_exchange(self, exchange: str, found: Exchange) -> None:
        """Remember an exchange."""
        self._exchanges.put(exchange, found)

    def _recall_tenant(self, tenant: int, fingerprint: bytes) -> Tenant:
        return self._tenants.get(fingerprint) or self.put_tenant(fingerprint, tenant)
