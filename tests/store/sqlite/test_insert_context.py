"""Epochs, plans, pins and summaries as rows; what a store does with them is in the contracts."""

import pytest
from msgspec.structs import replace

from proxy.model.log import Record
from proxy.store.sqlite.id_cache import DanglingReference
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_condensed,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_pin,
    make_plan,
    make_turns,
)
from tests.store.sqlite.conftest import WrittenLog

TURNS = make_turns(4)
RAW = [content for _, content in TURNS]
ONE, TWO = make_leaf("one", RAW[:2]), make_leaf("two", RAW[2:], 2, supersedes=())
BOTH = make_condensed("both", [ONE, TWO])
LEDGER = b'{"role":"user","content":"[what was done]"}'


@pytest.fixture
def log(written: WrittenLog) -> WrittenLog:
    """A log with one call."""
    written.add(make_opening(body=chain_body(TURNS)))
    return written


def test_of_what_an_epoch_sends_only_what_is_new_is_stored(log: WrittenLog) -> None:
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


def test_epochs_and_plans_of_one_transaction_may_refer_to_each_other(log: WrittenLog) -> None:
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


def test_a_plan_and_a_pin_are_one_row_each(log: WrittenLog) -> None:
    assert log.add(make_plan("e1", owed=3), make_pin(b"n" * 16, is_on=False)) == {"decision": 1, "pin": 1}
    assert log.connection.execute("SELECT session, exchange, k, epoch, owed FROM decision").fetchone() == (
        *(1, 1, 0),
        *(None, 3.0),
    )
    assert log.connection.execute("SELECT session, node, is_on FROM pin").fetchone() == (1, b"n" * 16, 0)


def test_one_that_remembers_nothing_knows_epochs_and_references_again(log: WrittenLog) -> None:
    original = make_original("r1", RAW[1], RAW[2])
    log.add(make_epoch("p1", originals=[original]))
    log.writer.forget()
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
def test_what_refers_to_nothing_is_dangling(log: WrittenLog, record: Record, what: str) -> None:
    log.add(make_opening("spied", key=make_key("spy", OTHER_TENANT)))
    with pytest.raises(DanglingReference, match=what):
        log.add(record)


def test_a_summary_is_a_row_and_an_edge_for_each_that_it_names(log: WrittenLog) -> None:
    # its text, and its notes
    assert log.add(ONE) == {"blob": 2, "payload": 2, "summary": 1}
    assert log.add(replace(TWO, supersedes=())) == {"summary": 1}  # text and notes are the same
    assert log.add(replace(BOTH, supersedes=("two",))) == {"blob": 1, "payload": 1, "summary": 1, "summary_edge": 3}
    edges = log.connection.execute("SELECT * FROM summary_edge ORDER BY relation, i").fetchall()
    assert edges == [(3, "parent", 0, 1), (3, "parent", 1, 2), (3, "supersedes", 0, 2)]
    assert log.connection.execute("SELECT count(DISTINCT text), max(exchange) FROM summary").fetchone() == (2, None)


def test_summaries_of_one_transaction_may_refer_to_each_other(log: WrittenLog) -> None:
    added = log.add(make_opening("e2"), replace(ONE, exchange="e2"), TWO, BOTH, BOTH)
    assert (added["summary"], added["summary_edge"]) == (3, 2)
    assert log.connection.execute("SELECT max(exchange) FROM summary").fetchone() == (2,)


def test_one_that_remembers_nothing_knows_summaries_again(log: WrittenLog) -> None:
    log.add(ONE, TWO)
    log.writer.forget()
    assert log.add(ONE) == {}
    with pytest.raises(ValueError, match="another summary"):
        log.add(replace(TWO, text="another"))
    assert log.add(BOTH)["summary"] == 1


def test_a_summary_that_refers_to_nothing_is_dangling_and_what_is_not_whole_is_no_value(log: WrittenLog) -> None:
    log.add(ONE)
    for summary, what in (
        (replace(TWO, session="nobody"), "session"),
        (replace(TWO, exchange="e9"), "exchange"),
        (make_leaf("x", [b"never sent"]), "message"),
        (BOTH, "summary"),
        (replace(TWO, supersedes=("x",)), "summary"),
    ):
        with pytest.raises(DanglingReference, match=what):
            log.add(summary)
    with pytest.raises(ValueError, match="made of"):
        log.add(replace(BOTH, parents=("one",)))


def test_what_is_in_the_tables_is_looked_up_once(log: WrittenLog) -> None:
    original = make_original("r1", RAW[1], RAW[2])
    log.add(make_epoch("p1", originals=[original]), ONE, TWO)

    def count_look_ups(n: int) -> int:
        epoch = make_epoch(f"p{n}", originals=[original], parent="p1")
        queries = log.list_look_ups(epoch, replace(BOTH, id=f"s{n}"))
        return sum(any(name in query for name in ("'p1'", "'r1'", "'one'", "'two'")) for query in queries)

    assert count_look_ups(2) == 0
    log.writer.forget()
    assert [count_look_ups(n) for n in (3, 4)] == [4, 0]
