import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.lineage import root_of_chain
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.trees import NodePlace, Trees, key_of
from tests.store.samples import make_chain, make_key, make_mark, make_opening, make_step

A, B = make_chain("a", "!b")


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    known = RowIdCache(connection)
    known.load()
    batch = Batch(known)
    batch.add(make_opening())
    batch.add(make_step("e1", [A, B], marks=[make_mark("call:1", A)]))
    batch.write(connection)
    yield connection
    connection.close()


def test_a_tree_is_found_in_the_tables(log: sqlite3.Connection) -> None:
    trees = Trees(log)
    tree = trees.find(make_key().id)
    assert tree is not None
    assert (tree.session, tree.root, tree.nodes, tree.marks, tree.adoptions) == (1, root_of_chain("openai"), 2, 1, 0)
    assert (tree.seal,) == log.execute("SELECT seal FROM node WHERE n = 2").fetchone()
    assert trees.find("other") is None
    assert trees.find_place(tree, A.node) == NodePlace(1, False)
    assert trees.find_place(tree, B.node) == NodePlace(2, True)
    assert trees.find_place(tree, tree.root) is None
    assert trees.has_node(B.node) and not trees.has_node(tree.root)


def test_what_was_found_is_not_looked_up_again(log: sqlite3.Connection) -> None:
    trees = Trees(log)
    questions: list[str] = []

    def ask() -> None:
        tree = trees.find(make_key().id)
        assert tree is not None and trees.find_place(tree, A.node)

    ask()
    log.set_trace_callback(questions.append)
    ask()
    log.set_trace_callback(None)
    assert questions == []
    trees.forget()
    log.set_trace_callback(questions.append)
    ask()
    log.set_trace_callback(None)
    assert len(questions) == 2


def test_a_look_up_does_not_go_through_the_session(log: sqlite3.Connection) -> None:
    trees = Trees(log)
    tree = trees.find(make_key().id)
    assert tree is not None
    questions: list[str] = []
    log.set_trace_callback(questions.append)
    trees.find_place(tree, A.node)
    trees.take_mark(tree, key_of("call:2"), "call:2")
    trees.has_node(B.node)
    log.set_trace_callback(None)
    assert len(questions) == 3
    for question in questions:
        ((*_, plan),) = log.execute(f"EXPLAIN QUERY PLAN {question}")
        assert "INDEX node_hash" in plan or "INDEX mark_key" in plan


def test_a_mark_is_taken_once_in_each_session(log: sqlite3.Connection) -> None:
    trees = Trees(log)
    tree = trees.find(make_key().id)
    assert tree is not None
    assert not trees.take_mark(tree, key_of("call:1"), "call:1")
    assert trees.take_mark(tree, key_of("call:2"), "call:2")
    assert not trees.take_mark(tree, key_of("call:2"), "call:2")
    trees.forget()
    assert trees.take_mark(tree, key_of("call:2"), "call:2")


def test_nothing_of_a_new_session_is_looked_up(log: sqlite3.Connection) -> None:
    trees = Trees(log)
    trees.plant("new", 2, "openai")
    tree = trees.find("new")
    assert tree is not None and tree.is_plain
    questions: list[str] = []
    log.set_trace_callback(questions.append)
    assert trees.find_place(tree, A.node) is None
    assert trees.take_mark(tree, key_of("call:1"), "call:1")
    assert questions == []
    trees.age()
    assert trees.find_place(tree, A.node) is None
    assert len(questions) == 1
    assert trees.take_mark(tree, key_of("call:1"), "call:1")
    assert len(questions) == 1  # a tree that counts no marks has none in the table
    tree.marks += 1
    assert trees.take_mark(tree, key_of("call:2"), "call:2")
    assert len(questions) == 2
    log.set_trace_callback(None)
