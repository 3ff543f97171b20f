"""Every kind of record has a weight; rows are values."""

import pytest
from msgspec.structs import replace

from proxy.model.epoch import Epoch, HiddenRound, Original, Pin, Plan, Summary
from proxy.model.exchange import Outcome, Round, Timings, Trailer
from proxy.model.lineage import Adoption, CallFingerprint, Lineage, NodeRow, Reply
from proxy.model.log import (
    ArchiveHealth,
    BranchRow,
    Call,
    LogFault,
    Record,
    SessionRow,
    Verification,
    drop_derived,
    weigh_record,
    weigh_records,
)
from proxy.model.manifest import make_manifest
from proxy.model.memory import LearnedFact
from tests.store.samples import make_memory_order, make_recalled, make_remembered
from tests.support.engine import make_opening, make_reading

KILOBYTE = b"k" * 1024


def make_outcome(received: bytes) -> Outcome:
    return Outcome("x1", 0, 200, (), "complete", received, len(received), b"", Timings(1.0, 2.0, 3.0))


def make_reply(nodes: int, name: str = "call:a") -> Reply:
    row, fingerprint = NodeRow(b"n" * 16, b"p" * 16, True), CallFingerprint(name, b"n" * 16, b"f" * 16)
    return Reply("x1", 0, (row,) * nodes, (fingerprint,))


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (make_opening(body=make_manifest(b"")), make_opening(body=make_manifest(KILOBYTE))),
        (Round("x1", 0, "main", None), Round("x1", 0, "main", make_manifest(KILOBYTE))),
        (make_outcome(b""), make_outcome(KILOBYTE)),
        (Trailer("x1", 0, 0, b""), Trailer("x1", 0, 0, KILOBYTE)),
    ],
)
def test_a_record_weighs_at_least_what_it_holds_on_top_of_itself(small: Record, large: Record) -> None:
    assert weigh_record(small) > 0
    assert len(KILOBYTE) <= weigh_record(large) - weigh_record(small) <= len(KILOBYTE) + 128


def test_a_reading_has_a_weight_of_its_own() -> None:
    assert 0 < weigh_record(make_reading()) < 1024


def test_a_place_weighs_its_nodes_and_the_names_of_its_marks() -> None:
    assert weigh_record(make_reply(11)) - weigh_record(make_reply(1)) >= 10 * 32
    assert weigh_record(make_reply(1, "call:" + "x" * 100)) - weigh_record(make_reply(1)) >= 99
    reply = make_reply(3)
    assert weigh_record(Lineage("x1", "root", False, b"n" * 16, 3, 0, reply.nodes, reply.fingerprints)) == weigh_record(
        reply
    )
    assert 0 < weigh_record(Adoption("s1", "s2", b"n" * 16, 1)) < 1024


def make_epoch(*rendered: bytes, edits: bytes = b"", originals: tuple[Original, ...] = ()) -> Epoch:
    return Epoch("p1", "s1", "gpt-5", "", b"n" * 16, 4, "hard", "x1", 7, 90, 30, edits, rendered, originals)


def test_an_epoch_weighs_what_it_sends_and_what_it_refers_to() -> None:
    small = weigh_record(make_epoch())
    assert small > 0
    assert weigh_record(make_epoch(KILOBYTE, KILOBYTE)) - small >= 2048
    assert weigh_record(make_epoch(edits=KILOBYTE)) - small >= 1024
    assert weigh_record(make_epoch(originals=(Original("r1", (b"d" * 32,) * 10, "responses", 0),))) - small >= 10 * (
        33 + 32
    )


def test_a_plan_and_a_pin_have_a_weight_of_their_own() -> None:
    assert 0 < weigh_record(Plan("x1", 0, "gpt-5", "original")) < 1024
    assert 0 < weigh_record(Pin("s1", b"n" * 16, True, 7)) < 1024


def make_summary(text: str = "") -> Summary:
    return Summary("a", "s1", "w", 0, 1, b"n" * 16, "leaf", 1, False, text, 1, 2, 3)


def test_a_summary_weighs_its_text_and_what_it_names() -> None:
    small = weigh_record(make_summary())
    assert 0 < small < 1024
    assert weigh_record(make_summary("x" * 1000)) - small == 1000
    for name in ("calls", "parents", "supersedes", "files"):
        assert weigh_record(replace(make_summary(), **{name: ("ref:a",) * 10})) - small >= 10 * 50
    assert weigh_record(replace(make_summary(), digests=(b"d" * 32,) * 10)) - small >= 10 * (33 + 32)


def test_what_is_derived_is_left_out_and_the_rest_keeps_its_order() -> None:
    reply = make_reply(1)
    step = Lineage("x1", "root", False, b"n" * 16, 1, 0, reply.nodes, reply.fingerprints)
    adoption, pin = Adoption("s1", "s2", b"n" * 16, 1), Pin("s1", b"n" * 16, True, 7)
    opening, round_, plan = make_opening(), Round("x1", 0, "main", None), Plan("x1", 0, "gpt-5", "original")
    kept = (opening, round_, make_outcome(b""), Trailer("x1", 0, 0, b""), make_reading())
    assert drop_derived((step, *kept[:2], plan, make_epoch(), *kept[2:], reply, adoption, pin, make_summary())) == kept


def test_rows_with_the_same_content_are_equal() -> None:
    assert SessionRow("s", "f", "main", 1, 2, 3, "m") == SessionRow("s", "f", "main", 1, 2, 3, "m")
    assert Verification(1, 1, 1, 1, (LogFault("blob 7", "digest"),)) != Verification(1, 1, 1, 1, ())


def test_a_health_report_cannot_be_changed_by_who_reads_it() -> None:
    health = ArchiveHealth(problem="", pending=0, pending_bytes=0, dropped=0, generation=0)
    with pytest.raises(AttributeError):
        health.generation = 1  # type: ignore[misc]


def test_records_weigh_together_what_each_weighs() -> None:
    records: tuple[Record, ...] = (make_opening(), make_outcome(KILOBYTE))
    assert weigh_records(records) == sum(map(weigh_record, records))


def test_a_session_counts_its_auxiliary_calls_among_all_that_is_recorded() -> None:
    assert SessionRow("s", "f", "main", 0, 0, 3, "m", auxiliary=2).recorded == 5


def test_the_exchanges_of_a_branch_are_its_own_and_those_of_its_trunk_before_it_left() -> None:
    trunk = BranchRow(b"a", 2, (Call(1, "x1", 1), Call(3, "x3", 2)), "root", b"", False)
    branch = BranchRow(b"b", 2, (Call(2, "x2", 2),), "branch", b"n", False, trunk, 1)
    assert [call.n for call in branch.exchanges] == [1, 2]


def test_memory_weighs_as_its_texts() -> None:
    small, fact = make_remembered(), LearnedFact("fact", "k" * 1024)
    assert weigh_record(replace(small, summary="k" * 1024)) - weigh_record(small) >= 1000
    assert weigh_record(replace(small, facts=(*small.facts, fact))) - weigh_record(small) >= 1024
    assert 0 < weigh_record(make_memory_order()) < 1024
    assert drop_derived((small, make_memory_order())) == ()


def test_what_was_recalled_weighs_as_its_rounds() -> None:
    small = make_recalled()
    more = HiddenRound((b"x" * 1000,), (("call_1", "y" * 500),))
    large = replace(small, rounds=(*small.rounds, more))
    assert weigh_record(large) - weigh_record(small) == 1506
