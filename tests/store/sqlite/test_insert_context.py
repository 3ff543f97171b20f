"""Epochs, plans, pins and summaries as rows; what a store does with them is in the contracts."""

import pytest
from msgspec.structs import replace

from tests.store.samples import (
    chain_body,
    make_condensed,
    make_epoch,
    make_leaf,
    make_opening,
    make_original,
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


def test_one_that_remembers_nothing_knows_epochs_and_references_again(log: WrittenLog) -> None:
    original = make_original("r1", RAW[1], RAW[2])
    log.add(make_epoch("p1", originals=[original]))
    log.writer.forget()
    assert log.add(make_epoch("p2", originals=[original], parent="p1"))["epoch"] == 1
    with pytest.raises(ValueError, match="something else"):
        log.add(make_epoch("p3", originals=[make_original("r1", RAW[2], RAW[1])]))


def test_a_summary_is_a_row_and_an_edge_for_each_that_it_names(log: WrittenLog) -> None:
    # its text, and its notes
    assert log.add(ONE) == {"blob": 2, "payload": 2, "summary": 1}
    assert log.add(replace(TWO, supersedes=())) == {"summary": 1}  # text and notes are the same
    assert log.add(replace(BOTH, supersedes=("two",))) == {"blob": 1, "payload": 1, "summary": 1, "summary_edge": 3}
    edges = log.connection.execute("SELECT * FROM summary_edge ORDER BY relation, i").fetchall()
    assert edges == [(3, "parent", 0, 1), (3, "parent", 1, 2), (3, "supersedes", 0, 2)]
    assert log.connection.execute("SELECT count(DISTINCT text), max(exchange) FROM summary").fetchone() == (2, None)


def test_one_that_remembers_nothing_knows_summaries_again(log: WrittenLog) -> None:
    log.add(ONE, TWO)
    log.writer.forget()
    assert log.add(ONE) == {}
    with pytest.raises(ValueError, match="another summary"):
        log.add(replace(TWO, text="another"))
    assert log.add(BOTH)["summary"] == 1


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
