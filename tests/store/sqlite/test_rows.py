import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.manifest import digest_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import PACKED, RAW, seal_after
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import RowIdCache, Tenant
from proxy.store.sqlite.rows import Rows

INSERTS = {
    "blob": "INSERT INTO blob(id, tenant, digest, size) VALUES (?, ?, ?, ?)",
    "payload": "INSERT INTO payload(id, codec, bytes) VALUES (?, ?, ?)",
    "pin": "INSERT INTO pin(seq, seal, session, node, is_on, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
    "meta": "INSERT INTO meta(key, value) VALUES (?, ?)",
}
LONG = b"all work and no play " * 100


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    connection.execute("PRAGMA foreign_keys = OFF")
    yield connection
    connection.close()


@pytest.fixture
def rows(log: sqlite3.Connection) -> Rows:
    known = RowIdCache(log)
    known.load()
    return Rows(known, INSERTS)


def test_content_of_a_tenant_is_stored_once_and_that_of_another_again(log: sqlite3.Connection, rows: Rows) -> None:
    mine, other = Tenant(1, b""), Tenant(2, b"")
    digest = digest_of(LONG)
    found = [rows.share(tenant, digest, LONG) for tenant in (mine, mine, other)]
    assert found == [(1, digest), (1, digest), (2, digest)]
    assert rows.write(log) == 4
    assert log.execute("SELECT id, tenant, size FROM blob ORDER BY id").fetchall() == [(1, 1, 2100), (2, 2, 2100)]


def test_what_is_kept_is_packed_from_some_size_on(log: sqlite3.Connection, rows: Rows) -> None:
    assert [rows.keep(LONG[:1000]), rows.keep(LONG), rows.keep(LONG[:1000], 500)] == [1, 2, 3]
    rows.write(log)
    codecs = log.execute("SELECT codec FROM payload ORDER BY id").fetchall()
    assert codecs == [(RAW,), (PACKED,), (PACKED,)]


def test_a_sealed_row_follows_on_the_one_before_it(log: sqlite3.Connection, rows: Rows) -> None:
    assert [rows.append("pin", ((7, "s"),), (b"n", 1, at_ms)) for at_ms in (5, 6)] == [1, 2]
    rows.write(log)
    first = seal_after(b"", (1, "s", b"n", 1, 5))
    second = seal_after(first, (2, "s", b"n", 1, 6))
    assert log.execute("SELECT seq, seal, session, at_ms FROM pin ORDER BY seq").fetchall() == [
        (1, first, 7, 5),
        (2, second, 7, 6),
    ]


def test_a_row_without_a_seal_is_as_it_is(log: sqlite3.Connection, rows: Rows) -> None:
    rows.add("meta", ("a", b"b"))
    assert rows.write(log) == 1
    assert log.execute("SELECT value FROM meta WHERE key = 'a'").fetchone() == (b"b",)
