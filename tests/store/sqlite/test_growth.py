"""Lineage as rows; what a store does with it is in `tree_contract`."""

import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from proxy.model.lineage import Adoption
from proxy.model.record import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.growth import seal_node
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.problem import Dangling
from tests.store.samples import (
    make_chain,
    make_key,
    make_mark,
    make_node,
    make_opening,
    make_reply,
    make_step,
)

A, B, C, D = make_chain("a", "!b", "c", "!d")


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    yield connection
    connection.close()


def write(log: sqlite3.Connection, known: RowIdCache, *records: Record) -> list[str]:
    """Store records as one batch; the look-ups it took."""
    questions: list[str] = []
    log.set_trace_callback(questions.append)
    batch = Batch(known)
    for record in records:
        batch.add(record)
    log.set_trace_callback(None)
    batch.write(log)
    known.age()
    return [question for question in questions if "FROM node" in question or "FROM mark" in question]


def load(log: sqlite3.Connection) -> RowIdCache:
    known = RowIdCache(log)
    known.load()
    return known


def list_nodes(log: sqlite3.Connection) -> list[tuple[int, bytes, int]]:
    return log.execute("SELECT n, hash, parent FROM node ORDER BY session, n").fetchall()


def test_a_turn_takes_two_nodes_a_step_and_a_mark(log: sqlite3.Connection) -> None:
    known = load(log)
    write(log, known, make_opening(), make_step("e1", [A]), make_reply("e1", [B], [make_mark("call:1", B)]))
    assert list_nodes(log) == [(1, A.node, 0), (2, B.node, 1)]
    assert log.execute("SELECT n, tip, outer, depth, base, relation, is_side FROM step").fetchall() == [
        (1, 1, None, 1, 0, 1, 0)
    ]
    assert log.execute("SELECT n, node, name FROM mark").fetchall() == [(1, 2, "call:1")]


def test_a_conversation_that_goes_on_needs_a_look_up_for_its_mark_alone(log: sqlite3.Connection) -> None:
    known = load(log)
    questions = write(log, known, make_opening(), make_step("e1", [A, B]), make_reply("e1", [C], [make_mark("c:1", C)]))
    assert questions == []
    questions = write(log, known, make_opening("e2"), make_step("e2", [D]), make_reply("e2", [], [make_mark("c:2", D)]))
    assert len(questions) == 1 and "FROM mark" in questions[0]


def test_one_that_remembers_nothing_goes_on_where_the_log_is(log: sqlite3.Connection) -> None:
    write(log, load(log), make_opening(), make_step("e1", [A]), make_reply("e1", [B], [make_mark("call:1", B)]))
    write(log, load(log), make_opening("e2"), make_step("e2", [A, C, D], marks=[make_mark("call:1", D)]))
    assert list_nodes(log) == [(1, A.node, 0), (2, B.node, 1), (3, C.node, 2), (4, D.node, 3)]
    seal = b""
    for n, row, exchange in ((1, A, 1), (2, B, 1), (3, C, 2), (4, D, 2)):
        seal = seal_node(seal, n, row.node, row.parent, row.is_answer, exchange)
    assert log.execute("SELECT seal FROM node WHERE n = 4").fetchone() == (seal,)
    assert log.execute("SELECT count(*) FROM mark").fetchone() == (1,)


def test_a_node_that_was_seen_before_it_was_an_answer_is_there_twice_and_no_more(log: sqlite3.Connection) -> None:
    seen, reply = replace(B, is_answer=False), make_reply("e1", [B])
    known = load(log)
    write(log, known, make_opening(), make_step("e1", [A, seen]), reply, reply)
    twice = [(1, A.node, 0), (2, B.node, 1), (3, B.node, 1)]
    assert list_nodes(log) == twice
    for each in (known, load(log)):
        write(log, each, reply)
        assert list_nodes(log) == twice
    write(log, known, make_reply("e1", [C]))
    assert list_nodes(log)[3:] == [(4, C.node, 2)]


def test_what_hangs_on_a_node_of_another_session_may_come_in_the_same_batch(log: sqlite3.Connection) -> None:
    other = make_node("x", B.node)
    known = load(log)
    write(
        log,
        known,
        make_opening(),
        make_step("e1", [A, B]),
        make_opening("e2", key=make_key("b")),
        make_step("e2", [other]),
        Adoption(make_key("b").id, make_key().id, B.node, 5),
        Adoption(make_key("b").id, make_key().id, B.node, 6),
    )
    assert log.execute("SELECT parent, outer FROM node WHERE hash = ?", (other.node,)).fetchone() == (0, B.node)
    assert log.execute("SELECT session, n, source, node, at_ms FROM adoption").fetchall() == [(2, 1, 1, 2, 5)]


def test_what_hangs_on_nothing_is_refused(log: sqlite3.Connection) -> None:
    known = load(log)
    write(log, known, make_opening())
    with pytest.raises(Dangling, match="before it"):
        Batch(known).add(make_step("e1", [B]))
    with pytest.raises(Dangling, match="exchange"):
        Batch(known).add(make_step("e2", [A]))
    with pytest.raises(Dangling, match="session"):
        Batch(known).add(Adoption("nobody", make_key().id, A.node, 5))


def test_a_seal_commits_to_all_of_a_node() -> None:
    seals = {
        seal_node(b"", 1, A.node, A.parent, False, 1),
        seal_node(b"s", 1, A.node, A.parent, False, 1),
        seal_node(b"", 2, A.node, A.parent, False, 1),
        seal_node(b"", 1, B.node, A.parent, False, 1),
        seal_node(b"", 1, A.node, B.parent, False, 1),
        seal_node(b"", 1, A.node, A.parent, True, 1),
        seal_node(b"", 1, A.node, A.parent, False, 2),
    }
    assert len(seals) == 7
