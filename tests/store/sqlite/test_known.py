import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.manifest import digest_of, root_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import Exchange, RowIdCache
from tests.store.samples import (
    TENANT,
    chain_body,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_plan,
    make_reading,
    make_round,
    make_trailer,
    make_turns,
)

BODY = chain_body(make_turns(3))
ORIGINAL = make_original("r1", make_turns(3)[1][1])


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    """A log with one whole exchange in it, and its writer's connection."""
    connection = connect_writer(policy)
    known = RowIdCache(connection)
    known.load()
    batch = Batch(known)
    for record in (make_opening("e1", BODY), make_round("e1"), make_outcome("e1"), make_trailer(0, b"\n", "e1")):
        batch.add(record)
    batch.add(make_reading("e1", answer=b"{}", error="overloaded"))
    for derived in (make_epoch("p1", originals=[ORIGINAL]), make_plan("e1", epoch="p1"), make_pin(b"n" * 16)):
        batch.add(derived)
    batch.add(make_leaf("a", [make_turns(3)[0][1]]))
    batch.write(connection)
    yield connection
    connection.close()


def load(log: sqlite3.Connection) -> RowIdCache:
    known = RowIdCache(log)
    known.load()
    return known


def test_everything_is_found_in_the_tables_by_one_that_remembers_nothing(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None and tenant.root == root_of(TENANT)
    assert known.find_blob(tenant, BODY.slices[1].digest) is not None
    assert all(known.has_link(piece.link) for piece in BODY.slices)
    session = known.find_session(make_key().id)
    assert session is not None and (session.n, session.tenant) == (1, tenant)
    assert known.find_exchange("e1") == Exchange(1, tenant, make_key().id, 1)


def test_what_is_not_there_is_not_found(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None
    assert known.find_blob(tenant, digest_of(b"other")) is None
    assert not known.has_link(root_of(TENANT))
    assert known.find_session("other") is None
    assert known.find_exchange("e2") is None
    assert known.find_tenant(b"other") is None


def test_what_was_found_is_not_looked_up_again(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None
    questions: list[str] = []

    def ask() -> None:
        known.find_tenant(TENANT)
        known.find_blob(tenant, BODY.slices[0].digest)
        known.has_link(BODY.slices[0].link)
        known.find_session(make_key().id)
        known.find_exchange("e1")

    ask()
    log.set_trace_callback(questions.append)
    ask()
    assert questions == []
    log.set_trace_callback(None)


def test_after_forgetting_what_was_only_put_in_is_gone(log: sqlite3.Connection) -> None:
    known = load(log)
    first = known.next_id("payload")
    known.put_link(b"L" * 16)
    known.put_exchange("never stored", Exchange(9, known.put_tenant(b"n" * 16, 9), "s", 1))
    known.heads["exchange"].seq += 1
    known.targets.put_epoch("never stored", 9)
    known.forget()
    known.load()
    assert not known.has_link(b"L" * 16)
    assert known.find_exchange("never stored") is None
    assert known.find_tenant(b"n" * 16) is None
    assert known.targets.find_epoch("never stored") is None
    assert known.heads["exchange"].seq == 1
    assert known.next_id("payload") == first


def test_numbers_go_on_after_the_last(log: sqlite3.Connection) -> None:
    known = load(log)
    (last,) = log.execute("SELECT max(id) FROM payload").fetchone()
    assert [known.next_id("payload"), known.next_id("payload")] == [last + 1, last + 2]
    assert [known.next_id(table) for table in ("tenant", "session", "original")] == [2, 2, 2]
    assert {table: head.seq for table, head in known.heads.items()} == {
        "exchange": 1,
        "round": 1,
        "outcome": 1,
        "trailer": 1,
        "reading": 1,
        "epoch": 1,
        "decision": 1,
        "pin": 1,
        "summary": 1,
    }


def test_the_number_of_an_erased_payload_is_not_given_again(log: sqlite3.Connection) -> None:
    (last,) = log.execute("SELECT max(id) FROM payload").fetchone()
    log.execute("INSERT INTO permit VALUES ('erase')")
    log.execute(f"INSERT INTO erasure VALUES (1, 0, 'session s', {last}, x'00')")
    log.execute("DELETE FROM payload WHERE id > 1")
    assert load(log).next_id("payload") == last + 1


def test_an_empty_log_begins_with_one(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    known = load(connection)
    assert [known.next_id(table) for table in ("tenant", "session", "original", "payload")] == [1, 1, 1, 1]
    assert all((head.seq, head.seal) == (0, b"") for head in known.heads.values())
    connection.close()


def test_what_was_not_used_for_long_is_let_go(log: sqlite3.Connection) -> None:
    known = load(log)
    known.targets.put_epoch("never stored", 9)
    for _ in range(2):
        for i in range(4096):
            known.targets.put_epoch(f"x{i}", i)
        assert known.targets.find_epoch("x0") == 0
        known.age()
    assert known.targets.find_epoch("never stored") is None
