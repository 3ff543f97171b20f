"""The writer's cache of row ids, links, counters and seals, and the rows of one transaction.

Entries are added while a transaction is built, before it is committed. That is safe only because `forget` follows
every failed commit, and because no other process writes to the file.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from proxy.model.exchange import Headers
from proxy.model.manifest import (
    LINK_SIZE,
    BlobPiece,
    ChainPiece,
    compute_digest,
    compute_root_link,
    decode_recipe,
    encode_recipe,
)
from proxy.store.constraints import fit_text
from proxy.store.sqlite.codec import SMALL, drop_unset, pack, seal_after, split_recipe
from proxy.store.sqlite.figures.bills import read_filled
from proxy.store.sqlite.schema import ADDED, TALLIED, note_seal_head, note_tally, read_tally, weigh_row

K = TypeVar("K")
V = TypeVar("V")

NO_SEAL = b""
SEALED = (
    *("exchange", "round", "outcome", "trailer", "reading", "epoch", "decision", "pin", "summary", "recalled"),
    *("memory", "held", "source", "erased"),
)

_LINK = bytes(LINK_SIZE)
_BEFORE_LINK = encode_recipe((ChainPiece(_LINK),))[:-LINK_SIZE]
_LONGEST_CACHED_RECIPE = 4096

# The id of an erased payload is not used again, since records still refer to it.
_LAST = {
    "tenant": "SELECT ifnull(max(id), 0) FROM tenant",
    "session": "SELECT ifnull(max(id), 0) FROM session",
    "original": "SELECT ifnull(max(id), 0) FROM original",
    "payload": """SELECT max(
        ifnull((SELECT max(id) FROM payload), 0), ifnull((SELECT max(payload) FROM erasure), 0))""",
}
_FIND_BLOB = "SELECT id FROM blob WHERE tenant = ? AND digest = ?"
_HAS_ERASURES = "SELECT EXISTS (SELECT 1 FROM erasure)"
_HAS_PAYLOAD = "SELECT 1 FROM payload WHERE id = ?"
_FIND_LINK = "SELECT 1 FROM raw WHERE link = ?"
_FIND_TENANT = "SELECT id FROM tenant WHERE fingerprint = ?"
_FIND_SESSION = """
    SELECT s.id, t.id, t.fingerprint, (SELECT max(e.n) FROM exchange e WHERE e.session = s.id)
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.key = ?"""
_FIND_EXCHANGE = """
    SELECT e.seq, t.id, t.fingerprint, s.key, e.n
    FROM exchange e JOIN session s ON s.id = e.session JOIN tenant t ON t.id = s.tenant WHERE e.id = ?"""


Value = int | float | str | bytes | None
# What a row refers to: the id in its column, and the digest or name that the seal commits to.
Reference = tuple[int, str | bytes]


class DanglingReference(Exception):
    """A record refers to something the log does not hold."""


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
class OpenSession:
    """A session's row id, its tenant, and the number of its last exchange."""

    id: int
    tenant: Tenant
    n: int


@dataclass(frozen=True, slots=True)
class HeaderBase:
    """Stored headers. Others with the same names are stored as differences from them."""

    blob: Reference
    headers: Headers


@dataclass(slots=True)
class SealHead:
    """The last row of a sealed table."""

    seq: int
    seal: bytes


class GenerationCache(Generic[K, V]):
    """A cache of two generations. A look-up is one or two dictionary reads, without the reordering of an exact LRU.

    Entries stay until `age`, so that a transaction finds all entries that it has added, whatever the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value, or None."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self._young[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Store the value."""
        self._young[key] = value

    def age(self) -> None:
        """Drop the old generation if the young one has reached the limit."""
        if len(self._young) >= self._limit:
            self._old = self._young
            self._young = {}

    def clear(self) -> None:
        """Forget everything."""
        self._young = {}
        self._old = {}


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope, its digest, and the digests of the blobs that the recipe names."""

    content: bytes
    digest: bytes
    blobs: tuple[bytes, ...]


class EnvelopeCache(GenerationCache[tuple[bytes, bytes], Envelope]):
    """Envelopes by the bytes before and after the chain in a recipe. A client's next call usually has the same."""

    def split(self, recipe: bytes) -> tuple[Envelope, bytes, tuple[bytes, ...]]:
        """Return envelope, tip, and the links of all chains of a recipe. Raises ValueError if it is not a recipe."""
        at = recipe.find(_BEFORE_LINK) if len(recipe) <= _LONGEST_CACHED_RECIPE else -1
        start = at + len(_BEFORE_LINK)
        end = start + LINK_SIZE
        key = recipe[:at], recipe[end:]
        known = self.get(key) if at >= 0 else None
        if known is not None:
            tip = recipe[start:end]
            return known, tip, (tip,)
        content, tip, pieces = split_recipe(recipe)
        blobs = tuple([piece.digest for piece in pieces if isinstance(piece, BlobPiece)])
        envelope = Envelope(content, compute_digest(content), blobs)
        if tip and at >= 0 and _are_pieces(key[0]):
            self.put(key, envelope)
        return envelope, tip, tuple([piece.link for piece in pieces if isinstance(piece, ChainPiece)])


def _are_pieces(beginning: bytes) -> bool:
    """Return whether a beginning ends between two pieces. If not, what looked like a chain is part of a literal."""
    try:
        decode_recipe(beginning)
    except ValueError:
        return False
    return True


class RowIdCache:
    """Look-ups of ids and links with bounded memory, and the last id and seal of each table."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.blobs: GenerationCache[tuple[int, bytes], int] = GenerationCache(8192)
        self.links: GenerationCache[bytes, bool] = GenerationCache(8192)
        self.exchanges: GenerationCache[str, Exchange] = GenerationCache(4096)
        self.sessions: GenerationCache[str, OpenSession] = GenerationCache(4096)
        self._tenants: GenerationCache[bytes, Tenant] = GenerationCache(4096)
        self.headers: GenerationCache[tuple[int, tuple[bytes, ...]], HeaderBase] = GenerationCache(256)
        self.received: GenerationCache[tuple[int, int], Reference] = GenerationCache(2048)
        self.envelopes = EnvelopeCache(512)
        self._caches = [each for each in vars(self).values() if isinstance(each, GenerationCache)]
        self._is_loaded = False
        self._whole: GenerationCache[int, bool] | None = None  # blobs that have content; None: all of them
        self._last: dict[str, int] = {}
        self.heads: dict[str, SealHead] = {}
        self.tallies: dict[str, int] = {}  # by table of `TALLIED`, the sum over its rows
        self._noted_heads: dict[str, int] = {}
        self._noted_tallies: dict[str, int] = {}
        self.filled = 0  # the last exchange of which reports have rows (`figures/bills`)
        self.late: set[int] = set()  # exchanges up to there to whose record this transaction adds

    def load(self) -> None:
        """Read the counters, the last seals and the tallies, unless they are known."""
        if self._is_loaded:
            return
        for table, query in _LAST.items():
            (self._last[table],) = self._connection.execute(query).fetchone()
        for table in SEALED:
            row = self._connection.execute(f"SELECT seq, seal FROM {table} ORDER BY seq DESC LIMIT 1").fetchone()
            self.heads[table] = SealHead(*row) if row else SealHead(0, NO_SEAL)
        self.tallies = {table: read_tally(self._connection, table) or 0 for table in TALLIED}
        self._noted_tallies = dict(self.tallies)
        self.filled = read_filled(self._connection)
        (has_erasures,) = self._connection.execute(_HAS_ERASURES).fetchone()
        self._whole = GenerationCache(8192) if has_erasures else None
        self._is_loaded = True

    def note_growth(self) -> None:
        """Note the last row and the tally of each table that has grown, in the transaction under way."""
        for table, head in self.heads.items():
            if head.seq != self._noted_heads.get(table, 0):
                note_seal_head(self._connection, table, head.seq, head.seal)
                self._noted_heads[table] = head.seq
        for table, tally in self.tallies.items():
            if tally != self._noted_tallies[table]:
                note_tally(self._connection, table, tally)
                self._noted_tallies[table] = tally

    def forget(self) -> None:
        """Drop everything, because some entries may not have been committed."""
        self._is_loaded = False
        self._noted_heads.clear()
        self.late.clear()
        for cache in self._caches:
            cache.clear()

    def age(self) -> None:
        """Drop entries that have not been used for long. Call it between two transactions only."""
        for cache in self._caches:
            cache.age()
        if self._whole is not None:
            self._whole.age()

    def next_id(self, table: str) -> int:
        """Return a new row id for tenant, session, original or payload. A blob has the id of its payload."""
        self._last[table] += 1
        return self._last[table]

    def find_blob(self, tenant: Tenant, digest: bytes) -> int | None:
        """Return the id of shared content."""
        key = (tenant.id, digest)
        found = self.blobs.get(key)
        if found is None:
            row = self._connection.execute(_FIND_BLOB, key).fetchone()
            if row:
                found = row[0]
                self.blobs.put(key, row[0])
        return found

    @property
    def has_erasures(self) -> bool:
        """Whether anything was ever erased from the log."""
        return self._whole is not None

    def is_erased(self, blob: int) -> bool:
        """Return whether the content of a blob was erased. Called again in the same transaction it returns False."""
        if self._whole is None or self._whole.get(blob):
            return False
        self._whole.put(blob, True)
        return self._connection.execute(_HAS_PAYLOAD, (blob,)).fetchone() is None

    def expect_message(self, tenant: Tenant, digest: bytes) -> int:
        """Return the id of a message's content. Raises DanglingReference."""
        blob = self.find_blob(tenant, digest)
        if blob is None:
            raise DanglingReference("a message that it refers to is not in the log")
        return blob

    def has_link(self, link: bytes) -> bool:
        """Return whether the chain up to the link is stored."""
        if self.links.get(link):
            return True
        if self._connection.execute(_FIND_LINK, (link,)).fetchone() is None:
            return False
        self.links.put(link, True)
        return True

    def find_tenant(self, fingerprint: bytes) -> Tenant | None:
        """Return the tenant with this fingerprint."""
        found = self._tenants.get(fingerprint)
        if found is None:
            row = self._connection.execute(_FIND_TENANT, (fingerprint,)).fetchone()
            if row:
                found = self.put_tenant(fingerprint, row[0])
        return found

    def put_tenant(self, fingerprint: bytes, tenant: int) -> Tenant:
        """Remember a tenant."""
        added = Tenant(tenant, compute_root_link(fingerprint))
        self._tenants.put(fingerprint, added)
        return added

    def find_session(self, key: str) -> OpenSession | None:
        """Return the session with this key. The caller counts its `n` in place."""
        found = self.sessions.get(key)
        if found is None:
            row = self._connection.execute(_FIND_SESSION, (key,)).fetchone()
            if row:
                tenant = self._tenants.get(row[2]) or self.put_tenant(row[2], row[1])
                found = OpenSession(row[0], tenant, row[3] or 0)
                self.sessions.put(key, found)
        return found

    def expect_session(self, name: str) -> tuple[OpenSession, Reference]:
        """Return the session with this id, and how a row refers to it. Raises DanglingReference."""
        key = fit_text(name)
        session = self.find_session(key)
        if session is None:
            raise DanglingReference("its session is not in the log")
        return session, (session.id, key)

    def expect_exchange(self, name: str) -> Exchange:
        """Return the exchange with this id. Raises DanglingReference."""
        exchange = fit_text(name)
        found = self.exchanges.get(exchange)
        if found is None:
            row = self._connection.execute(_FIND_EXCHANGE, (exchange,)).fetchone()
            if row is None:
                raise DanglingReference("its exchange is not in the log")
            tenant = self._tenants.get(row[2]) or self.put_tenant(row[2], row[1])
            found = Exchange(row[0], tenant, row[3], row[4])
            self.exchanges.put(exchange, found)
        if found.seq <= self.filled:
            self.late.add(found.seq)
        return found


class RowBuffer:
    """The rows of one transaction by table, in the order of `inserts`, in which parents come first."""

    def __init__(self, ids: RowIdCache, inserts: Mapping[str, str]) -> None:
        self._ids = ids
        self._inserts = inserts
        self._rows: dict[str, list[tuple[Value, ...]]] = {table: [] for table in inserts}

    def add(self, table: str, row: tuple[Value, ...]) -> None:
        """Add a row to a table without seals."""
        self._rows[table].append(row)
        if table in TALLIED:
            self._ids.tallies[table] += weigh_row(drop_unset(row, ADDED.get(table, 0)))

    def add_sealed(
        self, table: str, references: Sequence[Reference | tuple[None, None]], values: tuple[Value, ...]
    ) -> int:
        """Add a row to a sealed table and return its id. The seal commits to the references' names, not their ids."""
        head = self._ids.heads[table]
        seq = head.seq + 1
        ids, names = zip(*references, strict=True) if references else ((), ())
        seal = seal_after(head.seal, (seq, *names, *drop_unset(values, ADDED.get(table, 0))))
        self._rows[table].append((seq, seal, *ids, *values))
        head.seq, head.seal = seq, seal
        return seq

    def add_blob(self, tenant: Tenant, digest: bytes, content: bytes) -> Reference:
        """Store content once under its digest, and again if it was erased. Return how a row refers to it."""
        blob = self._ids.find_blob(tenant, digest)
        if blob is None:
            blob = self.add_payload(content)
            self._rows["blob"].append((blob, tenant.id, digest, len(content)))
            self._ids.blobs.put((tenant.id, digest), blob)
        elif self._ids.is_erased(blob):
            self._rows["payload"].append((blob, *pack(content)))
        return blob, digest

    def add_payload(self, content: bytes, smallest: int = SMALL) -> int:
        """Store content without deduplication, packed from `smallest` bytes on. Return its id."""
        payload = self._ids.next_id("payload")
        self._rows["payload"].append((payload, *pack(content, smallest)))
        return payload

    def write(self, connection: sqlite3.Connection) -> int:
        """Insert all rows and clear the buffer. Return the number of rows."""
        count = 0
        for table, insert in self._inserts.items():
            rows = self._rows[table]
            if rows:
                connection.executemany(insert, rows)
                count += len(rows)
        self.clear()
        return count

    def clear(self) -> None:
        """Drop all rows."""
        for rows in self._rows.values():
            rows.clear()
