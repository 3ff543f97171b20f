"""Epochs, plans and pins as rows; what a store does with them is in `context_contract`."""

import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from proxy.model.manifest import digest_of
from proxy.model.record import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.epochs import commit
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.problem import Dangling
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_epoch,
    make_key,
    make_opening,
    make_original,
    make_pin,
    make_plan,
    make_turns,
)
from tests.store.sqlite.disk import tables

TURNS = make_turns(4)
RAW = [content for _, content in TURNS]
LEDGER = b'{"role":"user","content":"[what was done]"}'


class Log:
    """A log with one call, and what each batch adds to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.known = RowIdCache(connection)
        self.known.load()
        self.add(make_opening(body=chain_body(TURNS)))

    def add(self, *records: Record) -> dict[str, int]:
        """Store records; returns the number of new rows by table."""
        before, batch = tables(self.connection), Batch(self.known)
        for record in records:
            batch.add(record)
        batch.write(self.connection)
        added = {name: rows - before.get(name, 0) for name, rows in tables(self.connection).items()}
        return {name: rows for name, rows in added.items() if rows}


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[Log]:
    connection = connect_writer(policy)
    yield Log(connection)
    connection.close()


def test_of_what_an_epoch_sends_only_what_is_new_is_stored(log: Log) -> None:
    epoch = make_epoch("p1", (RAW[0], LEDGER, RAW[3]), [make_original("r1", RAW[1], RAW[2])])
    assert log.add(epoch) == {
        "blob": 1,  # the ledger
        "payload": 2,  # and the edits
        "original": 1,
        "epoch": 1,
    }
    again = replace(epoch, id="p2", parent="p1", originals=(*epoch.originals, make_original("r2", RAW[3])))
    assert log.add(again) == {"payload": 1, "original": 1, "epoch": 1}
    assert log.connection.execute("SELECT parent, originals FROM epoch").fetchall() == [(None, "[1]"), (1, "[1,2]")]
    assert log.connection.execute("SELECT count(DISTINCT rendered) FROM epoch").fetchone() == (1,)


def test_what_comes_in_one_batch_may_refer_to_each_other(log: Log) -> None:
    original = make_original("r1", RAW[1])
    added = log.add(
        make_opening("e2"),
        make_epoch("p1", originals=[original, original], exchange="e2"),
        make_epoch("p2", originals=[original], parent="p1"),
        make_plan("e2", epoch="p2"),
    )
    assert (added["original"], added["epoch"], added["decision"]) == (1, 2, 1)
    assert log.connection.execute("SELECT originals FROM epoch").fetchall() == [("[1,1]",), ("[1]",)]
    assert log.connection.execute("SELECT exchange, epoch FROM decision").fetchone() == (2, 2)


def test_a_plan_and_a_pin_are_one_row_each(log: Log) -> None:
    assert log.add(make_plan("e1", owed=3), make_pin(b"n" * 16, is_on=False)) == {"decision": 1, "pin": 1}
    assert log.connection.execute("SELECT session, exchange, k, epoch, owed FROM decision").fetchone() == (
        *(1, 1, 0),
        *(None, 3.0),
    )
    assert log.connection.execute("SELECT session, node, is_on FROM pin").fetchone() == (1, b"n" * 16, 0)


def test_one_that_remembers_nothing_knows_epochs_and_references_again(log: Log) -> None:
    original = make_original("r1", RAW[1], RAW[2])
    log.add(make_epoch("p1", originals=[original]))
    log.known.forget()
    log.known.load()
    assert log.add(make_epoch("p2", originals=[original], parent="p1"))["epoch"] == 1
    with pytest.raises(ValueError, match="something else"):
        log.add(make_epoch("p3", originals=[make_original("r1", RAW[2], RAW[1])]))


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (make_epoch(session="nobody"), "session"),
        (make_epoch(exchange="e2"), "exchange"),
        (make_epoch(parent="p0"), "epoch"),
        (make_epoch(originals=[make_original("r1", b"x")]), "message"),
        (make_epoch(session=make_key("spy", OTHER_TENANT).id, originals=[make_original("r1", RAW[0])]), "message"),
        (make_plan("e2"), "exchange"),
        (make_plan("e1", epoch="p0"), "epoch"),
        (make_pin(b"n" * 16, session="nobody"), "session"),
    ],
)
def test_what_refers_to_nothing_is_dangling(log: Log, record: Record, what: str) -> None:
    log.add(make_opening("spied", key=make_key("spy", OTHER_TENANT)))
    with pytest.raises(Dangling, match=what):
        log.add(record)


def test_a_digest_commits_to_all_that_an_epoch_names() -> None:
    original = make_original("r1", RAW[1])
    digests = {
        commit([], []),
        commit([digest_of(RAW[1])], []),
        commit([digest_of(RAW[2])], []),
        commit([digest_of(RAW[1]), digest_of(RAW[2])], []),
        commit([digest_of(RAW[2]), digest_of(RAW[1])], []),
        commit([], [("s", original)]),
        commit([], [("t", original)]),
        commit([], [("s", original), ("s", original)]),
        commit([], [("s", replace(original, id="r2"))]),
        commit([], [("s", replace(original, wire="responses"))]),
        commit([], [("s", replace(original, place=2))]),
        commit([], [("s", replace(original, offset=1))]),
        commit([], [("s", make_original("r1", RAW[2]))]),
        commit([], [("s", make_original("r1", RAW[1], RAW[2]))]),
    }
    assert len(digests) == 14
