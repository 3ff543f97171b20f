"""Summaries as rows; what a store does with them is in `summary_contract`."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from proxy.model.manifest import digest_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.problem import Dangling
from proxy.store.sqlite.summaries import commit
from tests.store.samples import make_condensed, make_leaf, make_opening
from tests.store.sqlite.test_epochs import RAW, Log

ONE, TWO = make_leaf("one", RAW[:2]), make_leaf("two", RAW[2:], 2, supersedes=())
BOTH = make_condensed("both", [ONE, TWO])


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[Log]:
    connection = connect_writer(policy)
    yield Log(connection)
    connection.close()


def test_a_summary_is_a_row_and_an_edge_for_each_that_it_names(log: Log) -> None:
    # its text, and its notes
    assert log.add(ONE) == {"blob": 2, "payload": 2, "summary": 1}
    assert log.add(replace(TWO, supersedes=())) == {"summary": 1}  # text and notes are the same
    assert log.add(replace(BOTH, supersedes=("two",))) == {"blob": 1, "payload": 1, "summary": 1, "summary_edge": 3}
    edges = log.connection.execute("SELECT * FROM summary_edge ORDER BY relation, i").fetchall()
    assert edges == [(3, "parent", 0, 1), (3, "parent", 1, 2), (3, "supersedes", 0, 2)]
    assert log.connection.execute("SELECT count(DISTINCT text), max(exchange) FROM summary").fetchone() == (2, None)


def test_what_comes_in_one_batch_may_refer_to_each_other(log: Log) -> None:
    added = log.add(make_opening("e2"), replace(ONE, exchange="e2"), TWO, BOTH, BOTH)
    assert (added["summary"], added["summary_edge"]) == (3, 2)
    assert log.connection.execute("SELECT max(exchange) FROM summary").fetchone() == (2,)


def test_one_that_remembers_nothing_knows_summaries_again(log: Log) -> None:
    log.add(ONE, TWO)
    log.known.forget()
    log.known.load()
    assert log.add(ONE) == {}
    with pytest.raises(ValueError, match="another summary"):
        log.add(replace(TWO, text="another"))
    assert log.add(BOTH)["summary"] == 1


def test_what_refers_to_nothing_is_dangling_and_what_is_not_whole_is_no_value(log: Log) -> None:
    log.add(ONE)
    for summary, what in (
        (replace(TWO, session="nobody"), "session"),
        (replace(TWO, exchange="e9"), "exchange"),
        (make_leaf("x", [b"never sent"]), "message"),
        (BOTH, "summary"),
        (replace(TWO, supersedes=("x",)), "summary"),
    ):
        with pytest.raises(Dangling, match=what):
            log.add(summary)
    with pytest.raises(ValueError, match="made of"):
        log.add(replace(BOTH, parents=("one",)))


def test_a_digest_commits_to_all_that_a_summary_names() -> None:
    one, two = digest_of(RAW[0]), digest_of(RAW[1])
    digests = {
        commit([], [], []),
        commit([one], [], []),
        commit([one, two], [], []),
        commit([two, one], [], []),
        commit([], ["a"], []),
        commit([], [], ["a"]),
        commit([], ["a", "b"], []),
        commit([], ["b", "a"], []),
        commit([], ["a"], ["b"]),
    }
    assert len(digests) == 9
