import os
import sqlite3
from collections import deque
from collections.abc import Iterator
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
from proxy.store.sqlite.journal import (
    JOURNAL_SIZE,
    Journal,
    JournalContent,
    JournalPosition,
    Records,
    RingBuffer,
    advance_journal_position,
    has_entry_behind,
    journal_path,
    read_entries,
    read_journal_position,
    store_journal_position,
)
from proxy.store.sqlite.journal import JournalPosition as Place
from proxy.store.sqlite.schema import bring_up_to_date
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
from tests.store.sqlite.disk import FULL, Disk

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
    st.builds(make_step, _texts, _nodes, tip=_bytes, relation=st.sampled_from(get_args(Relation)), fingerprints=_marks),
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


NONCE = 0x1122334455667788
HEADER = 24


def make_ring(size: int = 256, filler: bytes = b"\0", nonce: int = NONCE) -> tuple[RingBuffer, memoryview]:
    area = memoryview(bytearray(filler * size))
    return RingBuffer(area, nonce), area


def read_payloads(area: memoryview, place: int = 0, nonce: int = NONCE) -> list[bytes]:
    return [payload for payload, _ in read_entries(area, nonce, place)]


def test_entries_of_another_ring_are_not_read() -> None:
    old, area = make_ring()
    for payload in (b"a" * 40, b"b" * 40, b"c" * 40):
        old.add(payload)
    ring = RingBuffer(area, NONCE + 1)
    assert read_payloads(area, nonce=NONCE + 1) == []
    ring.add(b"x" * 40)  # as long as the first of the old ones: the second follows on it, byte for byte
    assert read_payloads(area, nonce=NONCE + 1) == [b"x" * 40]


def test_a_ring_goes_on_behind_the_entries_that_are_there() -> None:
    ring, area = make_ring(512)
    for i in range(20):  # some turns, so that places are far beyond the size
        ring.free(ring.add(b"%060d" % i))
    freed = ring.end
    kept = [ring.add(payload) for payload in (b"a" * 40, b"b" * 40)]
    again = RingBuffer(area, NONCE)
    again.resume(freed)
    assert (again.end, again.end - again.freed) == (ring.end, ring.end - ring.freed)
    last = again.add(b"c" * 40)
    assert read_payloads(area, freed) == [b"a" * 40, b"b" * 40, b"c" * 40]
    again.free(kept[0])
    while place := again.add(b"d" * 40):
        last = place
    assert read_payloads(area, kept[0])[:2] == [b"b" * 40, b"c" * 40]
    again.free(last)
    assert again.end - again.freed == 0


def tear(before: bytes, after: bytes, at: int, size: int, cut: int) -> memoryview:
    """The area when `cut` bytes of an entry of `size` bytes at `at` were written: payload first, header last."""
    order = [*range(at + HEADER, at + size), *range(at, at + HEADER)]
    area = bytearray(before)
    for i in order[:cut]:
        area[i] = after[i]
    return memoryview(area)


@pytest.mark.parametrize("filler", [b"\0", b"\xa5"])
def test_an_entry_torn_at_any_byte_is_not_read_and_those_before_it_are(filler: bytes) -> None:
    ring, area = make_ring(filler=filler)
    kept = ring.add(b"kept")
    before = bytes(area)
    end = ring.add(b"this one is torn")
    for cut in range(end - kept):
        torn = tear(before, bytes(area), kept, end - kept, cut)
        assert read_payloads(torn) == [b"kept"] or bytes(torn) == bytes(area)
    assert read_payloads(area) == [b"kept", b"this one is torn"]


def test_an_entry_torn_over_one_of_an_earlier_turn_is_not_read() -> None:
    ring, area = make_ring(128)
    ring.free(ring.add(b"a" * 40))
    before = bytes(area)
    place = 64
    end = ring.add(b"b" * 40)
    for cut in range(64):
        torn = tear(before, bytes(area), 0, 64, cut)
        assert read_payloads(torn, place) == [] or bytes(torn) == bytes(area)
    assert [end for _, end in read_entries(area, NONCE, place)] == [end]


def test_damage_to_any_byte_ends_what_is_read_there() -> None:
    ring, area = make_ring()
    first = ring.add(b"sound...")
    second = ring.add(b"damaged.")
    ring.add(b"behind..")
    for i in range(first, second):
        for bit in range(8):
            area[i] ^= 1 << bit
            assert read_payloads(area) == [b"sound..."]
            area[i] ^= 1 << bit
    assert len(read_payloads(area)) == 3


def test_a_front_laid_down_after_a_place_is_seen() -> None:
    ring, area = make_ring(128)
    assert not has_entry_behind(area, NONCE, 0)
    first = ring.add(b"a" * 40)
    assert not has_entry_behind(area, NONCE, 0)
    ring.free(ring.add(b"b" * 40))
    ring.add(b"c")
    assert has_entry_behind(area, NONCE, first)
    assert not has_entry_behind(area, NONCE + 1, first)


@given(st.lists(st.one_of(st.integers(0, 130), st.sampled_from(["free", "free all"])), max_size=60))
def test_any_order_of_adding_and_freeing_loses_nothing_that_was_not_freed(steps: "list[int | str]") -> None:
    ring, area = make_ring(256, b"\x7f")
    kept: deque[tuple[bytes, int]] = deque()
    mark = 0
    for number, step in enumerate(steps):
        if isinstance(step, int):
            payload = bytes([number]) * step
            place = ring.add(payload)
            if place:
                kept.append((payload, place))
            else:
                assert kept, "an empty ring takes whatever is not larger than it"
        else:
            while kept:
                mark = kept.popleft()[1]
                ring.free(mark)
                if step == "free":
                    break
        assert list(read_entries(area, NONCE, mark)) == list(kept)
        assert ring.end - ring.freed <= 256


@pytest.fixture
def log(tmp_path: Path, disk: Disk) -> Iterator[sqlite3.Connection]:
    connection = disk.connect(tmp_path / "log.db", isolation_level=None)
    bring_up_to_date(connection)
    yield connection
    connection.close()


def test_a_mark_is_what_was_set_last(log: sqlite3.Connection) -> None:
    store_journal_position(log, JournalPosition(2**64 - 1, 7))
    store_journal_position(log, JournalPosition(5))
    assert read_journal_position(log) == JournalPosition(5, 0)


def test_a_mark_moves_with_the_transaction(log: sqlite3.Connection) -> None:
    store_journal_position(log, JournalPosition(5))
    for end, place in (("ROLLBACK", 0), ("COMMIT", 2**40)):
        log.execute("BEGIN")
        advance_journal_position(log, 2**40)
        log.execute(end)
        assert read_journal_position(log) == JournalPosition(5, place)


@pytest.mark.parametrize("word", ["BEGIN", "INSERT INTO meta", "COMMIT"])
def test_a_mark_that_cannot_be_set_is_as_before(log: sqlite3.Connection, disk: Disk, word: str) -> None:
    store_journal_position(log, JournalPosition(5, 6))
    disk.fail(word, FULL)
    with pytest.raises(sqlite3.OperationalError):
        store_journal_position(log, JournalPosition(7))
    assert not log.in_transaction
    assert read_journal_position(log) == JournalPosition(5, 6)
