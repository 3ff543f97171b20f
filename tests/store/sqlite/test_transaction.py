import pytest
from msgspec.structs import replace

from proxy.model.exchange import Headers
from proxy.model.log import Record
from proxy.model.manifest import ChainPiece, Manifest, encode_recipe, make_manifest
from proxy.store.sqlite.id_cache import DanglingReference
from proxy.store.sqlite.schema import read_seal_head
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_turns,
)
from tests.store.sqlite.conftest import WrittenLog


@pytest.fixture
def log(written: WrittenLog) -> WrittenLog:
    return written


def test_a_call_takes_as_few_rows_as_can_be(log: WrittenLog) -> None:
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


def test_of_a_history_sent_again_only_the_tail_is_looked_up(log: WrittenLog) -> None:
    turns = make_turns(700)
    log.add(make_opening("e1", chain_body(turns[:699])))
    log.writer.forget()
    questions = log.list_look_ups(make_opening("e2", chain_body(turns)))
    assert sum("raw WHERE link" in question for question in questions) <= 3
    assert sum("FROM blob" in question for question in questions) <= 6


def test_content_repeated_at_another_place_is_stored_once(log: WrittenLog) -> None:
    content = b'{"role":"user","content":"again"}'
    added = log.add(make_opening("e1", chain_body([(b"", content), (b",", content), (b",", content)])))
    assert added["raw"] == 3
    assert log.add(make_opening("e2", chain_body([(b" ", content)]))) == {"raw": 1, "exchange": 1}


def test_headers_are_told_by_what_differs_from_those_of_another_call(log: WrittenLog) -> None:
    def fields(date: bytes) -> Headers:
        return ((b"date", date), (b"server", b"cloudflare"))

    log.add(make_opening("e1"), make_round("e1"), make_outcome("e1", headers=fields(b"Mon")))
    log.add(make_opening("e2"), make_round("e2"), make_outcome("e2", headers=fields(b"Tue")))
    rows = log.connection.execute("SELECT headers, changes FROM outcome ORDER BY seq").fetchall()
    assert rows[0][0] == rows[1][0]
    assert [changes for _, changes in rows] == [b"", b'[[0,"Tue"]]']


def test_headers_of_other_tenants_are_not_borrowed(log: WrittenLog) -> None:
    log.add(make_opening("e1"))
    log.add(make_opening("e2", key=make_key("b", OTHER_TENANT)))
    owners = "SELECT b.tenant FROM exchange e JOIN blob b ON b.id = e.headers ORDER BY e.seq"
    assert log.connection.execute(owners).fetchall() == [(1,), (2,)]


@pytest.mark.parametrize(
    "record",
    [
        make_round("e2"),
        make_outcome("e2"),
        make_reading("e2"),
        make_opening("e2", chain_body(make_turns(2), known=1)),
        make_opening("e2", chain_body(make_turns(2), known=2)),
        make_round("e1", 1, chain_body(make_turns(2), known=2)),
        make_opening("e2", replace(make_manifest(b"x"), blobs=())),
        make_opening("e2", Manifest(encode_recipe((ChainPiece(b"a" * 16), ChainPiece(b"b" * 16))), (), (), 0)),
    ],
)
def test_what_refers_to_nothing_is_dangling(log: WrittenLog, record: Record) -> None:
    log.add(make_opening("e1"))
    with pytest.raises(DanglingReference):
        log.add(record)


def test_a_writer_that_knows_nothing_finds_everything_in_the_tables(log: WrittenLog) -> None:
    body = chain_body(make_turns(3))
    log.add(make_opening("e1", body), make_round("e1"))
    log.writer.forget()
    assert log.add(make_opening("e2", body), make_outcome("e1"), make_round("e2")) == {
        "exchange": 1,
        "round": 1,
        "outcome": 1,
        "blob": 1,  # the headers of the response
        "payload": 2,
    }
    assert log.select("SELECT n FROM exchange ORDER BY seq") == [(1,), (2,)]


def test_what_was_found_is_not_looked_up_again(log: WrittenLog) -> None:
    body = chain_body(make_turns(3))
    log.add(make_opening("e1", body))
    assert log.list_look_ups(make_opening("e2", body), make_round("e1")) == []
    log.writer.forget()
    assert log.list_look_ups(make_opening("e3", body), make_round("e2")) != []
    assert log.list_look_ups(make_opening("e4", body), make_round("e3")) == []


def test_what_a_failed_transaction_added_is_forgotten(log: WrittenLog) -> None:
    log.add(make_opening("e1"))
    body = chain_body(make_turns(1), tenant=OTHER_TENANT)
    with pytest.raises(DanglingReference):
        log.add(make_opening("e2", body, key=make_key("b", OTHER_TENANT)), make_round("e9"))
    assert log.select("SELECT count(*) FROM tenant") == [(1,)]
    with pytest.raises(DanglingReference):
        log.add(make_round("e2"))
    added = log.add(make_opening("e2", body, key=make_key("b", OTHER_TENANT)))
    assert (added["tenant"], added["session"], added["raw"], added["exchange"]) == (1, 1, 1, 1)
    assert log.select("SELECT seq, n FROM exchange ORDER BY seq") == [(1, 1), (2, 1)]


def test_the_number_of_an_erased_payload_is_not_given_again(log: WrittenLog) -> None:
    log.add(make_opening(), make_round(), make_outcome())
    ((last,),) = log.select("SELECT max(id) FROM payload")
    log.connection.execute("INSERT INTO permit VALUES ('erase')")
    log.connection.execute(f"INSERT INTO erasure VALUES (1, 0, 'session s', {last}, x'00')")
    log.connection.execute(f"DELETE FROM payload WHERE id = {last}")
    log.writer.forget()
    log.add(make_reading(answer=b"{}"))
    assert log.select("SELECT max(id) FROM payload") == [(last + 1,)]  # type: ignore[operator]


def test_the_last_row_of_each_sealed_table_is_noted_with_the_transaction(log: WrittenLog) -> None:
    assert read_seal_head(log.connection, "exchange") is None
    for n in (1, 2):
        log.add(make_opening(f"e{n}"))
        assert [read_seal_head(log.connection, "exchange")] == log.select(
            "SELECT seq, seal FROM exchange WHERE n = ?", n
        )
    assert read_seal_head(log.connection, "pin") is None
    log.writer.forget()
    log.add(make_opening("e3"))
    assert [read_seal_head(log.connection, "exchange")] == log.select("SELECT seq, seal FROM exchange WHERE n = 3")


def test_what_has_not_grown_is_not_noted_again(log: WrittenLog) -> None:
    log.add(make_opening())
    statements: list[str] = []
    log.connection.set_trace_callback(statements.append)
    log.add(make_round())
    log.connection.set_trace_callback(None)
    assert [each.split("'")[1] for each in statements if "INSERT INTO meta" in each] == ["end:round"]


def test_a_transaction_that_was_left_open_is_rolled_back(log: WrittenLog) -> None:
    log.connection.execute("BEGIN")
    log.connection.execute("INSERT INTO permit VALUES ('erase')")
    log.add(make_opening())
    assert log.select("SELECT * FROM permit") == []
