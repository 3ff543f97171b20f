import sqlite3
from collections.abc import Callable, Iterator
from weakref import ref

import pytest
from msgspec.structs import replace

from proxy.model.exchange import Headers
from proxy.model.manifest import Blob, BlobPiece, ChainPiece, Manifest, digest_of, encode_recipe, keep_whole
from proxy.model.record import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.problem import Dangling
from tests.store.samples import (
    ANSWER,
    OTHER_TENANT,
    chain_body,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_turns,
)
from tests.store.sqlite.disk import tables
from tests.support.garbage import no_collector

Store = Callable[..., dict[str, int]]


class Log:
    """A log, and what each batch adds to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.known = RowIdCache(connection)
        self.known.load()

    def add(self, *records: Record) -> dict[str, int]:
        """Store records; returns the number of new rows by table."""
        before, batch = tables(self.connection), Batch(self.known)
        for record in records:
            batch.add(record)
        count = batch.write(self.connection)
        added = {name: rows - before.get(name, 0) for name, rows in tables(self.connection).items()}
        assert sum(added.values()) == count
        return {name: rows for name, rows in added.items() if rows}


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[Log]:
    connection = connect_writer(policy)
    yield Log(connection)
    connection.close()


def test_a_call_takes_as_few_rows_as_can_be(log: Log) -> None:
    log.add(make_opening("e0", chain_body(make_turns(1))), make_round("e0"), make_outcome("e0"), make_reading("e0"))
    body = chain_body(make_turns(2), known=1)
    added = log.add(make_opening("e1", body), make_round("e1"), make_outcome("e1"), make_reading("e1"))
    assert added == {
        "blob": 1,  # the new slice; headers and envelope are known
        "payload": 2,  # the slice and the answer, which the reading shares
        "raw": 1,
        "exchange": 1,
        "round": 1,
        "outcome": 1,
        "reading": 1,
    }


def test_a_batch_is_let_go_with_all_it_holds(log: Log) -> None:
    with no_collector():
        batch = Batch(log.known)
        batch.add(make_opening("e0", chain_body(make_turns(1))))
        held = ref(batch)
        del batch
        assert held() is None


def test_a_history_sent_again_adds_no_content(log: Log) -> None:
    body = chain_body(make_turns(9))
    log.add(make_opening("e1", body))
    assert log.add(make_opening("e2", body)) == {"exchange": 1}


def test_of_a_history_sent_again_only_the_tail_is_looked_up(log: Log) -> None:
    turns = make_turns(700)
    log.add(make_opening("e1", chain_body(turns[:699])))
    log.known.forget()
    log.known.load()
    questions: list[str] = []
    log.connection.set_trace_callback(questions.append)
    log.add(make_opening("e2", chain_body(turns)))
    log.connection.set_trace_callback(None)
    assert sum("raw WHERE link" in question for question in questions) <= 3
    assert sum("FROM blob" in question for question in questions) <= 6


def test_content_repeated_at_another_place_is_stored_once(log: Log) -> None:
    content = b'{"role":"user","content":"again"}'
    added = log.add(make_opening("e1", chain_body([(b"", content), (b",", content), (b",", content)])))
    assert added["raw"] == 3
    assert log.add(make_opening("e2", chain_body([(b" ", content)]))) == {"raw": 1, "exchange": 1}


def test_large_members_are_stored_once(log: Log) -> None:
    tools = Blob(digest_of(b"tools" * 200), b"tools" * 200)
    first = Manifest(encode_recipe((b"{", BlobPiece(tools.digest))), (), (tools,), 1001)
    again = Manifest(encode_recipe((b"[", BlobPiece(tools.digest))), (), (), 1001)
    log.add(make_opening("e1", first))
    assert log.add(make_opening("e2", again)) == {"blob": 1, "payload": 1, "exchange": 1}  # the other envelope


def test_headers_are_told_by_what_differs_from_those_of_another_call(log: Log) -> None:
    def fields(date: bytes) -> Headers:
        return ((b"date", date), (b"server", b"cloudflare"))

    log.add(make_opening("e1"), make_round("e1"), make_outcome("e1", headers=fields(b"Mon")))
    log.add(make_opening("e2"), make_round("e2"), make_outcome("e2", headers=fields(b"Tue")))
    rows = log.connection.execute("SELECT headers, changes FROM outcome ORDER BY seq").fetchall()
    assert rows[0][0] == rows[1][0]
    assert [changes for _, changes in rows] == [b"", b'[[0,"Tue"]]']


def test_headers_of_other_tenants_are_not_borrowed(log: Log) -> None:
    log.add(make_opening("e1"))
    log.add(make_opening("e2", key=make_key("b", OTHER_TENANT)))
    owners = "SELECT b.tenant FROM exchange e JOIN blob b ON b.id = e.headers ORDER BY e.seq"
    assert log.connection.execute(owners).fetchall() == [(1,), (2,)]


def test_an_answer_that_is_read_otherwise_than_received_is_stored_beside_it(log: Log) -> None:
    log.add(make_opening(), make_round(), make_outcome(received=b"data: x\n\n"))
    assert log.add(make_reading(answer=ANSWER)) == {"payload": 1, "reading": 1}


def test_a_providers_error_is_content(log: Log) -> None:
    log.add(make_opening(), make_round(), make_outcome())
    assert log.add(make_reading(error="you said: secret")) == {"payload": 1, "reading": 1}


def test_seals_go_on_from_one_batch_to_the_next(log: Log) -> None:
    log.add(make_opening("e1"), make_opening("e2"))
    log.known.forget()
    log.known.load()
    log.add(make_opening("e3"))
    rows = log.connection.execute("SELECT seq, seal FROM exchange ORDER BY seq").fetchall()
    assert [seq for seq, _ in rows] == [1, 2, 3]
    assert len({seal for _, seal in rows}) == 3 and all(len(seal) == 16 for _, seal in rows)


def test_text_of_the_outside_is_fitted_wherever_it_stands(log: Log) -> None:
    key = replace(make_key(), id="s\ud800", upstream="u\ud800", family="f\ud800")
    opening = replace(make_opening("e\ud800", key=key), target="/\ud800", method="P\ud800")
    log.add(opening, replace(make_round("e\ud800"), upstream="u\ud800"), make_outcome("e\ud800", error="\ud800"))
    assert log.connection.execute("SELECT key, upstream, family FROM session").fetchone() == ("s?", "u?", "f?")
    assert log.connection.execute("SELECT id, target, method FROM exchange").fetchone() == ("e?", "/?", "P?")


@pytest.mark.parametrize(
    "record",
    [
        make_round("e2"),
        make_outcome("e2"),
        make_reading("e2"),
        make_opening("e2", chain_body(make_turns(2), known=1)),
        make_opening("e2", chain_body(make_turns(2), known=2)),
        make_round("e1", 1, chain_body(make_turns(2), known=2)),
        make_opening("e2", replace(keep_whole(b"x"), blobs=())),
        make_opening("e2", Manifest(encode_recipe((ChainPiece(b"a" * 16), ChainPiece(b"b" * 16))), (), (), 0)),
    ],
)
def test_what_refers_to_nothing_is_dangling(log: Log, record: Record) -> None:
    log.add(make_opening("e1"))
    with pytest.raises(Dangling):
        log.add(record)


def test_a_recipe_that_cannot_be_read_is_a_value_error(log: Log) -> None:
    with pytest.raises(ValueError, match="recipe"):
        log.add(make_opening("e1", Manifest(b"\x07\x00\x00\x00\x00", (), (), 0)))
