"""Sessions in memory: found by what proves them, apart by tenant, and dropped whole."""

import pytest

from proxy.engine.lineage.forest import Forest
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession

ROOT, A, B, C = (letter * 16 for letter in (b"r", b"a", b"b", b"c"))
ONE, TWO = b"1" * 16, b"2" * 16
NODES = (NodeRow(A, ROOT, False), NodeRow(B, A, True), NodeRow(C, B, False))
MARKS = (CallFingerprint("call:x", B, b"f"),)


def key(name: str, tenant: bytes = ONE, upstream: str = "main") -> SessionKey:
    return SessionKey(name, tenant, upstream, "")


@pytest.fixture
def forest() -> Forest:
    return Forest(1_000_000, is_complete=True)


def plant(forest: Forest, name: str, tenant: bytes = ONE, upstream: str = "main") -> None:
    forest.open(key(name, tenant, upstream))
    forest.add(name, NODES, MARKS)


def ids(found: object) -> list[str]:
    return [known.key.id for known in found]  # type: ignore[attr-defined]


def test_a_beginning_without_a_recorded_answer_leads_nowhere(forest: Forest) -> None:
    plant(forest, "s")
    assert [ids(forest.find_own(ONE, node)) for node in (ROOT, A, B, C)] == [[], [], ["s"], ["s"]]


def test_what_is_a_tenants_own_is_told_from_what_is_anyones(forest: Forest) -> None:
    plant(forest, "s")
    plant(forest, "t", TWO)
    assert (ids(forest.find_own(ONE, B)), ids(forest.find_own(TWO, B))) == (["s"], ["t"])
    assert ids(forest.find_any(B)) == ["s", "t"]


def test_marks_are_a_tenants_at_an_upstream(forest: Forest) -> None:
    plant(forest, "s")
    plant(forest, "t", TWO)
    plant(forest, "u", ONE, "other")
    assert ids(forest.find_by_mark(ONE, "main", "call:x")) == ["s"]
    assert ids(forest.find_by_mark(ONE, "other", "call:x")) == ["u"]
    assert ids(forest.find_by_mark(ONE, "main", "call:y")) == []


def test_thousands_of_another_tenants_namesakes_hide_nothing(forest: Forest) -> None:
    plant(forest, "s")
    for i in range(1000):
        plant(forest, f"t{i}", TWO)
    assert (ids(forest.find_own(ONE, B)), ids(forest.find_by_mark(ONE, "main", "call:x"))) == (["s"], ["s"])
    assert len(forest.find_any(B)) == len(forest.find_own(TWO, B)) == 64
    assert forest.find_own(TWO, B)[-1].key.id == "t999"


def test_a_mark_that_too_many_bear_tells_nothing(forest: Forest) -> None:
    for i in range(63):
        plant(forest, f"s{i}")
    assert len(forest.find_by_mark(ONE, "main", "call:x")) == 63
    plant(forest, "s63")
    assert forest.find_by_mark(ONE, "main", "call:x") == ()


def test_the_least_recently_opened_is_dropped_first_and_leaves_no_trace() -> None:
    forest = Forest(6000, is_complete=True)
    for name in ("s", "t", "s", "u"):
        plant(forest, name)
    assert (forest.is_complete, forest.losses) == (True, 0)
    forest.shrink()
    assert [forest.get(name) is not None for name in "stu"] == [False, False, True]
    assert (ids(forest.find_own(ONE, B)), ids(forest.find_any(B))) == (["u"], ["u"])
    assert ids(forest.find_by_mark(ONE, "main", "call:x")) == ["u"]
    assert (forest.is_complete, forest.losses, len(forest)) == (False, 2, 1)
    assert forest.weight == forest.open(key("u")).weight


def test_opening_a_session_again_makes_it_the_last_to_go() -> None:
    forest = Forest(8000, is_complete=True)
    for name in ("s", "t", "s", "u"):
        plant(forest, name)
    forest.shrink()
    assert [forest.get(name) is not None for name in "stu"] == [True, False, True]


def test_the_last_session_stays_however_large_it_is() -> None:
    forest = Forest(10, is_complete=True)
    plant(forest, "s")
    forest.shrink()
    assert (len(forest), forest.is_complete) == (1, True)


def test_what_a_dropped_session_gains_is_left_to_the_log(forest: Forest) -> None:
    plant(forest, "s")
    forest.clear()
    losses = forest.losses
    forest.add("s", NODES, MARKS)
    assert (forest.get("s"), forest.find_own(ONE, B), forest.find_any(B), forest.weight) == (None, (), (), 0)
    assert forest.losses > losses  # whatever was asked before, the log has more now


def test_clearing_forgets_everything(forest: Forest) -> None:
    plant(forest, "s")
    forest.clear()
    assert (len(forest), forest.weight, forest.is_complete) == (0, 0, False)
    assert (forest.find_own(ONE, B), forest.find_any(B)) == ((), ())
    assert not forest.find_by_mark(ONE, "main", "call:x")


def test_a_session_of_the_log_adds_to_what_is_here(forest: Forest) -> None:
    forest.open(key("s"))
    forest.add("s", NODES[:1], ())
    known = forest.absorb(StoredSession(key("s"), (C,), (*NODES, NodeRow(C, B, True)), MARKS))
    assert (known is forest.get("s"), known.tips, known.is_answer(C)) == (True, {C}, True)
    weight = forest.weight
    forest.absorb(StoredSession(key("s"), (C,), NODES, MARKS))
    assert (forest.weight, ids(forest.find_own(ONE, B))) == (weight, ["s"])


def test_where_the_log_says_a_call_was_made_it_was_made(forest: Forest) -> None:
    """While the log could not be asked, a client's copy of the call was all that was known of it."""
    forest.open(key("s"))
    forest.add("s", NODES[:1], (CallFingerprint("call:x", A, b"f"), CallFingerprint("call:y", A, b"g")))
    weight = forest.weight
    again = CallFingerprint("call:x", C, b"f")
    known = forest.absorb(StoredSession(key("s"), (C,), (), (*MARKS, again)))
    assert {name: mark.node for name, mark in known.marks.items()} == {"call:x": B, "call:y": A}
    assert forest.weight == weight
