"""A session in memory: what proves something, what has something behind it, and how much of a chain it has had."""

from itertools import pairwise

import msgspec
import pytest

from proxy.engine.lineage.known import SessionNodes, Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow

ROOT, A, B, C, D = (letter * 16 for letter in (b"r", b"a", b"b", b"c", b"d"))


@pytest.fixture
def known() -> SessionNodes:
    return SessionNodes(SessionKey("s", b"t" * 16, "main", ""))


def test_a_node_proves_something_from_a_recorded_answer_on(known: SessionNodes) -> None:
    rows = [NodeRow(A, ROOT, False), NodeRow(B, A, True), NodeRow(C, B, False), NodeRow(D, C, False)]
    assert [known.add_node(row) for row in rows] == [False, True, True, True]
    assert [known.is_answer(node) for node in (A, B, C)] == [False, True, False]
    assert known.nodes == (A, B, C, D)


def test_a_node_that_turns_out_to_be_an_answer_proves_something_then(known: SessionNodes) -> None:
    assert not known.add_node(NodeRow(A, ROOT, False))
    assert known.add_node(NodeRow(A, ROOT, True))
    assert not known.add_node(NodeRow(A, ROOT, True))
    assert not known.add_node(NodeRow(A, ROOT, False))
    assert known.is_answer(A)


def test_an_answer_behind_an_answer_is_no_news_when_it_was_proven_before(known: SessionNodes) -> None:
    known.add_node(NodeRow(A, ROOT, True))
    assert known.add_node(NodeRow(B, A, False))
    assert not known.add_node(NodeRow(B, A, True))
    assert known.is_answer(B)


def test_a_leaf_has_nothing_behind_it(known: SessionNodes) -> None:
    known.add_node(NodeRow(A, ROOT, False))
    assert known.is_leaf(A)
    known.add_node(NodeRow(B, A, False))
    assert (known.is_leaf(A), known.is_leaf(B)) == (False, True)


def test_the_longest_known_beginning_is_measured_from_its_end(known: SessionNodes) -> None:
    for row in (NodeRow(A, ROOT, False), NodeRow(B, A, False)):
        known.add_node(row)
    assert [known.measure(chain) for chain in ([], [C], [A], [A, B], [A, B, C], [A, B, B, C])] == [0, 0, 1, 2, 2, 3]
    assert (known.has(A), known.has(C)) == (True, False)


def test_of_marks_with_one_name_the_first_stays(known: SessionNodes) -> None:
    known.add_mark(CallFingerprint("call:1", A, b"f"))
    known.add_mark(CallFingerprint("call:1", B, b"g"))
    assert known.marks == {"call:1": CallFingerprint("call:1", A, b"f")}


def test_weight_grows_with_what_is_new_only(known: SessionNodes) -> None:
    weights = [known.weight]
    for row in (NodeRow(A, ROOT, False), NodeRow(A, ROOT, True), NodeRow(B, A, False)):
        known.add_node(row)
        weights.append(known.weight)
    for name in ("call:1", "call:1", "call:2"):
        known.add_mark(CallFingerprint(name, A, b""))
        weights.append(known.weight)
    assert [after > before for before, after in pairwise(weights)] == [
        *(True, False, True),
        *(True, False, True),
    ]


def test_what_a_request_was_like_is_known_by_its_tip_and_that_of_the_conversation_counts(known: SessionNodes) -> None:
    main, ask = (Traits("m", has_tools=has, system=b"s", is_stream=True) for has in (True, False))
    assert known.get_way(A) is None
    known.note_way(A, ask, is_side=True)
    assert known.get_way(A) is ask
    known.traits = main
    known.note_way(A, msgspec.structs.replace(main), is_side=False)
    known.note_way(A, ask, is_side=True)
    assert known.get_way(A) is main  # one object for all that are alike
