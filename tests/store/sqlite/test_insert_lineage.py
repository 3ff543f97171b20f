"""Lineage as rows; what a store does with it is in `tree_contract`."""

import pytest
from msgspec.structs import replace

from proxy.model.lineage import Adoption
from proxy.model.log import Record
from proxy.store.sqlite.codec import seal_node
from proxy.store.sqlite.id_cache import DanglingReference
from tests.store.samples import (
    make_chain,
    make_fingerprint,
    make_key,
    make_node,
    make_opening,
    make_reply,
    make_step,
)
from tests.store.sqlite.conftest import WrittenLog

A, B, C, D = make_chain("a", "!b", "c", "!d")


@pytest.fixture
def log(written: WrittenLog) -> WrittenLog:
    return written


def list_tree_queries(log: WrittenLog, *records: Record) -> list[str]:
    """Store records in one transaction; the look-ups of nodes and marks that this took."""
    return [query for query in log.list_look_ups(*records) if "FROM node" in query or "FROM mark" in query]


def list_nodes(log: WrittenLog) -> list[tuple[object, ...]]:
    return log.select("SELECT n, hash, parent FROM node ORDER BY session, n")


def test_a_conversation_that_goes_on_needs_a_look_up_for_its_mark_alone(log: WrittenLog) -> None:
    first = (make_opening(), make_step("e1", [A, B]), make_reply("e1", [C], [make_fingerprint("c:1", C)]))
    assert not [query for query in list_tree_queries(log, *first) if "WHERE" in query]
    second = (make_opening("e2"), make_step("e2", [D]), make_reply("e2", [], [make_fingerprint("c:2", D)]))
    (query,) = list_tree_queries(log, *second)
    assert "FROM mark" in query


def test_one_that_remembers_nothing_goes_on_where_the_log_is(log: WrittenLog) -> None:
    log.add(make_opening(), make_step("e1", [A]), make_reply("e1", [B], [make_fingerprint("call:1", B)]))
    log.writer.forget()
    log.add(make_opening("e2"), make_step("e2", [A, C, D], fingerprints=[make_fingerprint("call:1", D)]))
    assert list_nodes(log) == [(1, A.node, 0), (2, B.node, 1), (3, C.node, 2), (4, D.node, 3)]
    seal = b""
    for n, row, exchange in ((1, A, 1), (2, B, 1), (3, C, 2), (4, D, 2)):
        seal = seal_node(seal, n, row.node, row.parent, is_answer=row.is_answer, exchange=exchange)
    assert log.select("SELECT seal FROM node WHERE n = 4") == [(seal,)]
    assert log.select("SELECT count(*) FROM mark") == [(1,)]


def test_a_node_that_was_seen_before_it_was_an_answer_is_there_twice_and_no_more(log: WrittenLog) -> None:
    seen, reply = replace(B, is_answer=False), make_reply("e1", [B])
    log.add(make_opening(), make_step("e1", [A, seen]), reply, reply)
    twice = [(1, A.node, 0), (2, B.node, 1), (3, B.node, 1)]
    assert list_nodes(log) == twice
    for is_known in (True, False):
        if not is_known:
            log.writer.forget()
        assert log.add(reply) == {}
        assert list_nodes(log) == twice
    log.add(make_reply("e1", [C]))
    assert list_nodes(log)[3:] == [(4, C.node, 2)]


def test_what_hangs_on_a_node_of_another_session_may_come_in_the_same_transaction(log: WrittenLog) -> None:
    other = make_node("x", B.node)
    log.add(
        make_opening(),
        make_step("e1", [A, B]),
        make_opening("e2", key=make_key("b")),
        make_step("e2", [other]),
        Adoption(make_key("b").id, make_key().id, B.node, 5),
        Adoption(make_key("b").id, make_key().id, B.node, 6),
    )
    assert log.select("SELECT parent, outer FROM node WHERE hash = ?", other.node) == [(0, B.node)]
    adoptions = "SELECT session, n, source, node, at_ms FROM adoption"
    assert log.select(adoptions) == [(2, 1, 1, 2, 5)]
    for is_known in (True, False):
        if not is_known:
            log.writer.forget()
        assert log.add(Adoption(make_key("b").id, make_key().id, B.node, 7)) == {}
    log.add(Adoption(make_key("b").id, make_key().id, A.node, 8))
    assert log.select(adoptions)[1:] == [(2, 2, 1, 1, 8)]


def test_a_node_of_a_transaction_that_failed_is_nothing_to_hang_on(log: WrittenLog) -> None:
    log.add(make_opening())
    with pytest.raises(DanglingReference):
        log.add(make_step("e1", [A, B], fingerprints=[make_fingerprint("call:1", B)]), make_step("e9", [C]))
    with pytest.raises(DanglingReference, match="before it"):
        log.add(make_step("e1", [C]))
    added = log.add(make_step("e1", [A, B], fingerprints=[make_fingerprint("call:1", B)]))
    assert added == {"node": 2, "step": 1, "mark": 1}


def test_a_mark_is_stored_once_in_each_session(log: WrittenLog) -> None:
    mark = make_fingerprint("call:1", A)
    assert log.add(make_opening(), make_step("e1", [A], fingerprints=[mark, mark]))["mark"] == 1
    for is_known in (True, False):
        if not is_known:
            log.writer.forget()
        assert log.add(make_reply("e1", [], [mark])) == {}
    assert log.add(make_reply("e1", [], [make_fingerprint("call:2", A)])) == {"mark": 1}
    assert log.add(make_opening("e2", key=make_key("b")), make_step("e2", [A], fingerprints=[mark]))["mark"] == 1


def test_a_look_up_does_not_go_through_the_session(log: WrittenLog) -> None:
    log.add(make_opening(), make_step("e1", [A, B], fingerprints=[make_fingerprint("call:1", A)]))
    log.writer.forget()
    other = (make_opening("e2", key=make_key("b")), make_step("e2", [make_node("x", B.node)]))
    queries = list_tree_queries(log, make_reply("e1", [A], [make_fingerprint("call:2", A)]), *other)
    looked = [query for query in queries if "substr(hash" in query or "mark_key" in query]
    assert len(looked) == 4
    for query in looked:
        ((*_, plan),) = log.select(f"EXPLAIN QUERY PLAN {query}")
        assert "INDEX node_hash" in str(plan) or "INDEX mark_key" in str(plan)


def test_nothing_of_a_new_session_is_looked_up(log: WrittenLog) -> None:
    log.add(make_opening())
    new = (make_opening("e2", key=make_key("b")), make_step("e2", [A, B], fingerprints=[make_fingerprint("call:1", A)]))
    assert [query for query in list_tree_queries(log, *new) if "INDEXED BY" in query] == []
