import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.epoch import Pin, Plan, Rung
from proxy.model.exchange import Usage
from proxy.model.lineage import Adoption, CallFingerprint, NodeRow, Relation
from proxy.model.log import Record
from proxy.model.manifest import Manifest
from proxy.store.sqlite.journal import JOURNAL_SIZE, Journal, JournalContent, Records, journal_path
from proxy.store.sqlite.journal import JournalPosition as Place
from tests.store.samples import (
    chain_body,
    make_epoch,
    make_opening,
    make_original,
    make_outcome,
    make_reading,
    make_reply,
    make_round,
    make_step,
    make_trailer,
    make_turns,
    split_bodies,
)

SMALL = 8192


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db.journal"


def read(path: Path, place: int = 0) -> list[tuple[Record, ...] | None]:
    return [records for records, _ in JournalContent(path.read_bytes()).read(place)]


_counts = st.none() | st.integers(-(2**63), 2**64 - 1)
_usages = st.none() | st.builds(Usage, _counts, _counts, _counts, _counts, _counts)
_texts = st.text(max_size=20)
_bytes = st.binary(max_size=60)
_headers = st.lists(st.tuples(_bytes, _bytes), max_size=3).map(tuple)
_bodies = split_bodies().map(lambda body: body[1])
_nodes = st.lists(st.builds(NodeRow, _bytes, _bytes, st.booleans()), max_size=3)
_marks = st.lists(st.builds(CallFingerprint, _texts, _bytes, _bytes), max_size=3)
_originals = st.lists(st.builds(make_original, _texts, _bytes, place=st.integers(0, 9)), max_size=2)
_amounts = st.floats(allow_nan=False)
_records: st.SearchStrategy[Record] = st.one_of(
    st.builds(make_opening, _texts, _bodies, model=_texts, headers=_headers),
    st.builds(make_round, _texts, st.integers(0, 9), st.none() | _bodies),
    st.builds(make_outcome, _texts, received=_bytes, whole=_bytes, headers=_headers, error=_texts),
    st.builds(make_trailer, st.integers(0, 9), _bytes),
    st.builds(make_reading, _texts, answer=_bytes, usage=_usages, finish=_texts, error=_texts),
    st.builds(make_step, _texts, _nodes, tip=_bytes, relation=st.sampled_from(get_args(Relation)), marks=_marks),
    st.builds(make_reply, _texts, _nodes, _marks, k=st.integers(0, 9)),
    st.builds(Adoption, _texts, _texts, _bytes, st.integers(0, 2**40)),
    st.builds(make_epoch, _texts, st.lists(_bytes), _originals, view=_texts, parent=_texts, edits=_bytes),
    st.builds(Plan, _texts, st.integers(0, 9), _texts, st.sampled_from(get_args(Rung)), _texts, owed=_amounts),
    st.builds(Pin, _texts, _bytes, st.booleans(), st.integers(0, 2**40)),
)


def test_records_of_the_version_before_are_understood() -> None:
    opening = make_opening()
    fields = list(msgspec.structs.astuple(opening))
    fields[1] = msgspec.structs.astuple(opening.session)[:-1]  # it had no `parent`
    payload = msgspec.msgpack.encode([["Opening", *fields]])
    assert msgspec.msgpack.decode(payload, type=Records) == (opening,)


@given(st.lists(_records, max_size=4).map(tuple))
def test_records_of_every_kind_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, records: tuple[Record, ...]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.journal"
    journal = Journal(path, 65536)
    place = journal.add(records)
    assert place
    ((found, end),) = JournalContent(path.read_bytes()).read(0)
    assert (found, end) == (records, place)
    assert [type(record) for record in found or ()] == [type(record) for record in records]
    journal.remove()


def test_a_journal_is_a_file_of_its_size_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal(path)
    finally:
        os.umask(before)
    status = path.stat()
    assert (status.st_mode & 0o777, status.st_size) == (0o600, JOURNAL_SIZE)
    assert status.st_blocks * 512 >= JOURNAL_SIZE, "a page without room on the disk would end the process"
    journal.remove()
    assert not path.exists()


def test_one_that_others_could_read_is_made_private(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o644)
    Journal(path, SMALL).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_added_is_in_the_file_at_once_and_stays_when_it_is_let_go(path: Path) -> None:
    journal = Journal(path, SMALL)
    place = journal.add((make_opening(), make_round()))
    journal.add((make_outcome(),))
    assert read(path) == [(make_opening(), make_round()), (make_outcome(),)]
    journal.close()
    assert read(path, place) == [(make_outcome(),)]


def test_what_was_freed_makes_room(path: Path) -> None:
    journal = Journal(path, SMALL)
    records = (make_outcome(received=bytes(3000)),)
    places = [journal.add(records) for _ in range(3)]
    assert places[0] and places[1] and not places[2]
    assert journal.is_filling
    journal.free(places[1])
    assert not journal.is_filling
    assert journal.add(records)
    journal.close()


@pytest.mark.parametrize(
    "record",
    [
        make_outcome(received=bytes(256 * 1024)),
        make_opening(model="lone \ud800 surrogate"),
        make_opening(opened_ms=2**80),
        make_reading(usage=Usage(input=10**30)),
    ],
    ids=["too large", "no text", "no integer", "no count"],
)
def test_what_cannot_be_kept_leaves_no_trace(path: Path, record: Record) -> None:
    journal = Journal(path)
    assert journal.add((record,)) == 0
    assert journal.add((make_opening(body=chain_body(make_turns(3))),))
    assert len(read(path)) == 1
    journal.close()


def test_a_new_journal_has_a_new_name_and_nothing_of_the_old(path: Path) -> None:
    old = Journal(path, SMALL)
    old.add((make_opening(),))
    old.close()
    new = Journal(path, SMALL)
    assert new.nonce != old.nonce
    assert JournalContent(path.read_bytes()).nonce == new.nonce
    assert JournalContent(path.read_bytes()).is_blank
    new.close()


def test_a_journal_goes_on_behind_what_one_before_it_holds(path: Path) -> None:
    first, second, third = ((make_opening(f"e{i}"),) for i in range(3))
    journal = Journal(path, SMALL)
    place = journal.add(first)
    journal.add(second)
    journal.close()
    again = Journal(path, position=Place(journal.nonce, place))
    again.add(third)
    assert (again.nonce, path.stat().st_size) == (journal.nonce, SMALL)
    again.close()
    assert read(path, place) == [second, third]


def test_a_journal_that_is_gone_is_not_made_anew_where_it_should_go_on(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Journal(path, position=Place(1, 0))
    assert not path.exists()


def test_a_journal_that_cannot_be_made_leaves_no_file(path: Path) -> None:
    with pytest.raises(OSError):
        Journal(path, -1)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"PALJRNL\x01", bytes(SMALL), b"x" * SMALL, b"PALJRNL\x02" + b"\1" * SMALL])
def test_a_file_that_is_no_journal_has_no_name(content: bytes) -> None:
    assert JournalContent(content).nonce == 0


def test_an_entry_that_is_no_record_is_none(path: Path) -> None:
    journal = Journal(path, SMALL)
    journal.add(("no record",))  # type: ignore[arg-type]
    journal.add((make_trailer(0, b"x"),))
    assert read(path) == [None, (make_trailer(0, b"x"),)]
    journal.close()


def test_a_gap_behind_what_follows_is_seen(path: Path) -> None:
    journal = Journal(path, SMALL)
    first = journal.add((make_opening(),))
    journal.free(journal.add((make_opening(),)))
    assert not JournalContent(path.read_bytes()).has_more(first)
    journal.add((make_opening(body=Manifest(b"", (), (), 0)),))
    assert JournalContent(path.read_bytes()).has_more(first)
    journal.close()


def test_all_names_of_a_log_have_one_journal(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"")
    (tmp_path / "alias").symlink_to(tmp_path / "log.db")
    assert journal_path(tmp_path / "alias") == journal_path(tmp_path / "log.db")
    assert journal_path(tmp_path / "log.db").name == "log.db.journal"
