import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.manifest import digest_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.targets import Placed, ReferenceTarget, Targets
from proxy.store.summaries import Identity, Stretch
from tests.store.samples import chain_body, make_epoch, make_key, make_leaf, make_opening, make_original, make_turns

TURNS = make_turns(3)
LEAF = make_leaf("a", [raw for _, raw in TURNS[1:]], 1, text="a text")
PLACED = Placed(1, Identity(Stretch("chat_completions", 1, 3), LEAF.last, "leaf", 1, digest_of(b"a text")))
ORIGINAL = make_original("r1", TURNS[2][1], TURNS[0][1], TURNS[2][1], place=4, offset=9)


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    """A log with an epoch and its reference, and its writer's connection."""
    connection = connect_writer(policy)
    known = RowIdCache(connection)
    known.load()
    batch = Batch(known)
    batch.add(make_opening(body=chain_body(TURNS)))
    batch.add(make_epoch("p1"))
    batch.add(make_epoch("p2", originals=[ORIGINAL]))
    batch.add(LEAF)
    batch.write(connection)
    yield connection
    connection.close()


def count_questions(log: sqlite3.Connection, targets: Targets) -> int:
    questions: list[str] = []
    log.set_trace_callback(questions.append)
    assert targets.find_epoch("p2") == 2
    assert targets.find_target("r1") == ReferenceTarget(1, make_key().id, ORIGINAL)
    assert targets.find_summary("a") == PLACED
    log.set_trace_callback(None)
    return len(questions)


def test_what_is_in_the_tables_is_found_and_then_remembered(log: sqlite3.Connection) -> None:
    targets = Targets(log)
    assert [count_questions(log, targets) for _ in range(3)] == [4, 0, 0]
    targets.age()
    assert count_questions(log, targets) == 0
    targets.forget()
    assert count_questions(log, targets) == 4


def test_what_is_not_there_is_not_found(log: sqlite3.Connection) -> None:
    targets = Targets(log)
    assert (targets.find_epoch("p3"), targets.find_target("r2"), targets.find_summary("b")) == (None,) * 3


def test_after_forgetting_what_was_only_put_in_is_gone(log: sqlite3.Connection) -> None:
    targets = Targets(log)
    targets.put_epoch("p3", 3)
    target = targets.put_target(ReferenceTarget(2, "s", make_original("r2")))
    placed = targets.put_summary("b", PLACED)
    assert (targets.find_epoch("p3"), targets.find_target("r2"), targets.find_summary("b")) == (3, target, placed)
    targets.forget()
    assert (targets.find_epoch("p3"), targets.find_target("r2"), targets.find_summary("b")) == (None,) * 3
