"""Sessions in memory: their nodes and fingerprints, found by what proves them, apart by tenant, and dropped whole."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from proxy.engine.lineage.session_index import REWRITES, SessionIndex, SessionNodes, Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession

ROOT, A, B, C, D = (letter * 16 for letter in (b"r", b"a", b"b", b"c", b"d"))
ONE, TWO = b"1" * 16, b"2" * 16
NODES = (NodeRow(A, ROOT, False), NodeRow(B, A, True), NodeRow(C, B, False))
MARKS = (CallFingerprint("call:x", B, b"f"),)


def key(name: str, tenant: bytes = ONE, upstream: str = "main") -> SessionKey:
    return SessionKey(name, tenant, upstream, "")


@pytest.fixture
def index() -> SessionIndex:
    return SessionIndex(1_000_000, is_complete=True)


def plant(index: SessionIndex, name: str, tenant: bytes = ONE, upstream: str = "main") -> None:
    index.open(key(name, tenant, upstream))
    index.add(name, NODES, MARKS)


def find_any(index: SessionIndex, node: bytes) -> Sequence[SessionNodes]:
    """Whoever's sessions in which this node proves something, the newest last."""
    found = index.by_node.get(node, ())
    return (found,) if isinstance(found, SessionNodes) else tuple(found)


def ids(found: object) -> list[str]:
    return [known.key.id for known in found]  # type: ignore[attr-defined]


def test_a_beginning_without_a_recorded_answer_leads_nowhere(index: SessionIndex) -> None:
    plant(index, "s")
    assert [ids(index.find_own(ONE, node)) for node in (ROOT, A, B, C)] == [[], [], ["s"], ["s"]]


def test_what_is_a_tenants_own_is_told_from_what_is_anyones(index: SessionIndex) -> None:
    plant(index, "s")
    plant(index, "t", TWO)
    assert (ids(index.find_own(ONE, B)), ids(index.find_own(TWO, B))) == (["s"], ["t"])
    assert ids(find_any(index, B)) == ["s", "t"]


def test_marks_are_a_tenants_at_an_upstream(index: SessionIndex) -> None:
    plant(index, "s")
    plant(index, "t", TWO)
    plant(index, "u", ONE, "other")
    assert ids(index.find_by_fingerprint(ONE, "main", "call:x")) == ["s"]
    assert ids(index.find_by_fingerprint(ONE, "other", "call:x")) == ["u"]
    assert ids(index.find_by_fingerprint(ONE, "main", "call:y")) == []


def test_thousands_of_another_tenants_namesakes_hide_nothing(index: SessionIndex) -> None:
    plant(index, "s")
    for i in range(1000):
        plant(index, f"t{i}", TWO)
    assert (ids(index.find_own(ONE, B)), ids(index.find_by_fingerprint(ONE, "main", "call:x"))) == (["s"], ["s"])
    assert len(find_any(index, B)) == len(index.find_own(TWO, B)) == 64
    assert index.find_own(TWO, B)[-1].key.id == "t999"


def test_a_mark_that_too_many_bear_tells_nothing(index: SessionIndex) -> None:
    for i in range(63):
        plant(index, f"s{i}")
    assert len(index.find_by_fingerprint(ONE, "main", "call:x")) == 63
    plant(index, "s63")
    assert index.find_by_fingerprint(ONE, "main", "call:x") == ()


def test_the_least_recently_opened_is_dropped_first_and_leaves_no_trace() -> None:
    index = SessionIndex(6000, is_complete=True)
    for name in ("s", "t", "s", "u"):
        plant(index, name)
    assert (index.is_complete, index.losses) == (True, 0)
    index.shrink()
    assert [index.get(name) is not None for name in "stu"] == [False, False, True]
    assert (ids(index.find_own(ONE, B)), ids(find_any(index, B))) == (["u"], ["u"])
    assert ids(index.find_by_fingerprint(ONE, "main", "call:x")) == ["u"]
    assert (index.is_complete, index.losses, len(index)) == (False, 2, 1)
    assert index.weight == index.open(key("u")).weight


def test_opening_a_session_again_makes_it_the_last_to_go() -> None:
    index = SessionIndex(8000, is_complete=True)
    for name in ("s", "t", "s", "u"):
        plant(index, name)
    index.shrink()
    assert [index.get(name) is not None for name in "stu"] == [True, False, True]


def test_the_last_session_stays_however_large_it_is() -> None:
    index = SessionIndex(10, is_complete=True)
    plant(index, "s")
    index.shrink()
    assert (len(index), index.is_complete) == (1, True)


def test_what_a_dropped_session_gains_is_left_to_the_log(index: SessionIndex) -> None:
    plant(index, "s")
    index.clear()
    losses = index.losses
    index.add("s", NODES, MARKS)
    assert (index.get("s"), index.find_own(ONE, B), find_any(index, B), index.weight) == (None, (), (), 0)
    assert index.losses > losses  # whatever was asked before, the log has more now


def test_clearing_forgets_everything(index: SessionIndex) -> None:
    plant(index, "s")
    index.clear()
    assert (len(index), index.weight, index.is_complete) == (0, 0, False)
    assert (index.find_own(ONE, B), find_any(index, B)) == ((), ())
    assert not index.find_by_fingerprint(ONE, "main", "call:x")


def test_a_session_of_the_log_adds_to_what_is_here(index: SessionIndex) -> None:
    index.open(key("s"))
    index.add("s", NODES[:1], ())
    known = index.absorb(StoredSession(key("s"), (C,), (*NODES, NodeRow(C, B, True)), MARKS))
    assert (known is index.get("s"), known.tips, known.is_answer(C)) == (True, {C}, True)
    weight = index.weight
    index.absorb(StoredSession(key("s"), (C,), NODES, MARKS))
    assert (index.weight, ids(index.find_own(ONE, B))) == (weight, ["s"])


def test_the_newest_chain_of_a_session_with_a_volatile_tail_is_traced(index: SessionIndex) -> None:
    stored = StoredSession(key("s"), (C,), NODES, MARKS, C)
    known = index.absorb(stored)
    assert (known.newest, known.rewrites) == ([A, B, C], REWRITES)
    known.newest, known.rewrites = [A], 0
    index.absorb(stored)  # what memory has of it is newer
    assert (known.newest, known.rewrites) == ([A], 0)
    assert index.absorb(StoredSession(key("t"), (C,), NODES, ())).newest == ()


def test_where_the_log_says_a_call_was_made_it_was_made(index: SessionIndex) -> None:
    """While the log could not be asked, a client's copy of the call was all that was known of it."""
    index.open(key("s"))
    index.add("s", NODES[:1], (CallFingerprint("call:x", A, b"f"), CallFingerprint("call:y", A, b"g")))
    weight = index.weight
    again = CallFingerprint("call:x", C, b"f")
    known = index.absorb(StoredSession(key("s"), (C,), (), (*MARKS, again)))
    assert {name: fingerprint.node for name, fingerprint in known.fingerprints.items()} == {"call:x": B, "call:y": A}
    assert index.weight == weight


@pytest.fixture
def known() -> SessionNodes:
    return SessionNodes(SessionKey("s", b"t" * 16, "main", ""))


def test_a_node_proves_something_from_a_recorded_answer_on(known: SessionNodes) -> None:
    rows = [NodeRow(A, ROOT, False), NodeRow(B, A, True), NodeRow(C, B, False), NodeRow(D, C, False)]
    assert [known.add_node(row) for row in rows] == [False, True, True, True]
    assert [known.is_answer(node) for node in (A, B, C)] == [False, True, False]
    assert tuple(known.standings) == (A, B, C, D)


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
    assert (A in known.standings, C in known.standings) == (True, False)


def test_of_marks_with_one_name_the_first_stays(known: SessionNodes) -> None:
    known.add_fingerprint(CallFingerprint("call:1", A, b"f"))
    known.add_fingerprint(CallFingerprint("call:1", B, b"g"))
    assert known.fingerprints == {"call:1": CallFingerprint("call:1", A, b"f")}


def test_weight_grows_with_what_is_new_only(known: SessionNodes) -> None:
    weights = [known.weight]
    for row in (NodeRow(A, ROOT, False), NodeRow(A, ROOT, True), NodeRow(B, A, False)):
        known.add_node(row)
        weights.append(known.weight)
    for name in ("call:1", "call:1", "call:2"):
        known.add_fingerprint(CallFingerprint(name, A, b""))
        weights.append(known.weight)
    assert [after > before for before, after in pairwise(weights)] == [
        *(True, False, True),
        *(True, False, True),
    ]


def test_what_a_request_was_like_is_known_by_its_tip_and_that_of_the_conversation_counts(known: SessionNodes) -> None:
    main, ask = (Traits("m", has_tools=has, system=b"s", is_stream=True) for has in (True, False))
    assert known.tip_traits.get(A) is None
    known.record_traits(A, ask, is_side=True)
    assert known.tip_traits.get(A) is ask
    known.traits = main
    known.record_traits(A, msgspec.structs.replace(main), is_side=False)
    known.record_traits(A, ask, is_side=True)
    assert known.tip_traits.get(A) is main  # one object for all that are alike
