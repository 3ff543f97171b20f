import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.model.epoch import Pin
from proxy.model.exchange import Outcome
from proxy.model.lineage import Adoption
from proxy.model.log import weigh_record
from proxy.model.memory import MemoryOrder, Remembered
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.journal import Journal, JournalContent
from proxy.store.sqlite.write_queue import QueuedWrite, WriteQueue
from tests.store.samples import make_chain, make_opening, make_outcome, make_plan, make_reading, make_round, make_step
from tests.support.scripted import LIMIT

WEIGHT = weigh_record(make_opening())


def list_exchanges(entries: list[QueuedWrite]) -> list[str]:
    return [
        record.exchange
        for entry in entries
        for record in entry.records
        if not isinstance(record, Adoption | Pin | Remembered | MemoryOrder)
    ]


class RecordedQueue:
    """A queue, and what it handed over."""

    def __init__(self, max_bytes: int = 100_000, batch_ms: int = 60_000, journal: Journal | None = None) -> None:
        self.handed: list[list[QueuedWrite]] = []
        self.policy = StorePolicy(Path("log.db"), spool_bytes=max_bytes, batch_ms=batch_ms, journal_batch_ms=batch_ms)
        self.queue = WriteQueue(asyncio.get_running_loop(), self.handed.append, self.policy, journal)

    def settle(self, is_stored: bool) -> None:
        for entries in self.handed:
            self.queue.settle(entries, is_stored)
        self.handed.clear()


async def test_what_is_held_goes_ahead_of_what_comes_later() -> None:
    recorded = RecordedQueue()
    recorded.queue.append((make_reading("e1"),), is_urgent=False)
    recorded.queue.append((make_reading("e2"),), is_urgent=False)
    assert recorded.handed == []
    recorded.queue.append((make_opening("e3"),), is_urgent=True)
    (entries,) = recorded.handed
    assert list_exchanges(entries) == ["e1", "e2", "e3"]
    recorded.queue.flush()
    assert len(recorded.handed) == 1


async def test_what_has_room_but_for_what_is_derived_is_kept_without_it() -> None:
    recorded = RecordedQueue(max_bytes=2 * WEIGHT)
    step = make_step(nodes=make_chain(*["m"] * 100))
    future = recorded.queue.append((make_opening(), make_plan(), make_round(), step), is_urgent=True)
    assert [entry.records for (entry,) in recorded.handed] == [(make_opening(), make_round())]
    assert (recorded.queue.dropped, recorded.queue.generation) == (2, 1)
    recorded.settle(True)
    assert future.result() is True
    assert (recorded.queue.pending, recorded.queue.pending_bytes) == (0, 0)
    assert recorded.queue.append((step,), is_urgent=True).result() is False


async def test_losses_are_loud_but_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    recorded = RecordedQueue(max_bytes=0)
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            recorded.queue.append((make_opening(),), is_urgent=True)
    assert "1 records are lost so far" in caplog.text
    assert "512 records are lost so far" in caplog.text
    assert len(caplog.records) == 10


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal", 16384)
    yield journal
    journal.remove()


def large(i: int) -> Outcome:
    return make_outcome(f"e{i}", received=bytes(5000))


async def test_what_is_in_the_journal_is_safe_at_once_and_waits_for_company_even_if_urgent(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    stored = recorded.queue.append((make_opening(),), is_urgent=True)
    assert stored.result() is True
    recorded.queue.flush()
    assert (recorded.handed, recorded.queue.pending) == ([], 1)


async def test_what_is_in_the_journal_is_handed_over_after_its_time(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    handed = asyncio.get_running_loop().create_future()
    policy = StorePolicy(Path("log.db"), batch_ms=60_000, journal_batch_ms=1)
    recorded.queue = WriteQueue(asyncio.get_running_loop(), handed.set_result, policy, journal)
    recorded.queue.append((make_opening("e1"),), is_urgent=False)
    recorded.queue.append((make_opening("e2"),), is_urgent=True)
    entries = await asyncio.wait_for(handed, LIMIT)
    assert [entry.records for entry in entries] == [(make_opening("e1"),), (make_opening("e2"),)]


async def test_a_journal_more_than_half_full_waits_for_no_company(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    recorded.queue.append((large(1),), is_urgent=False)
    assert recorded.handed == []
    recorded.queue.append((large(2),), is_urgent=False)
    assert [len(entries) for entries in recorded.handed] == [2]


async def test_what_the_journal_does_not_take_waits_for_its_commit_and_so_does_all_behind_it(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    futures = [recorded.queue.append((large(i),), is_urgent=False) for i in range(4)]
    futures.append(recorded.queue.append((make_reading("small"),), is_urgent=False))
    assert [future.done() for future in futures] == [True, True, True, False, False]
    entries = [entry for entries in recorded.handed for entry in entries]
    assert list_exchanges(entries) == ["e0", "e1", "e2", "e3", "small"]
    recorded.queue.settle(entries[:4], True)
    assert futures[3].result() is True and not futures[4].done()
    assert not recorded.queue.append((make_reading("behind"),), is_urgent=False).done()
    recorded.settle(True)
    assert futures[4].done()


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "large")
    yield journal
    journal.remove()


def run_ahead(recorded: RecordedQueue, count: int) -> list["asyncio.Future[bool]"]:
    return [recorded.queue.append((make_reading(f"e{i}"),), is_urgent=True) for i in range(count)]


async def test_answers_run_ahead_of_the_writer_by_some_records_only(roomy: Journal) -> None:
    recorded = RecordedQueue(10_000_000, journal=roomy)
    futures = run_ahead(recorded, 1500)
    ahead = [future.done() for future in futures].index(False)
    assert 1000 < ahead < 1100
    assert not any(future.done() for future in futures[ahead:])
    recorded.settle(True)
    assert futures[-1].result() is True
    assert recorded.queue.append((make_reading("next"),), is_urgent=True).done()


async def test_who_ran_too_far_ahead_waits_until_the_writer_has_half_of_it_and_not_for_a_commit_of_his_own(
    roomy: Journal,
) -> None:
    recorded = RecordedQueue(10_000_000, journal=roomy)
    waiting = run_ahead(recorded, 1500)[-1]
    (entries,) = recorded.handed  # at once, for nobody else would hand them over; what came behind has its company
    assert len(entries) == 1025
    recorded.queue.settle(entries[:512], True)
    assert not waiting.done()
    ((*rest,),) = recorded.handed[1:]  # each commit takes along what has come meanwhile
    assert len(rest) == 475
    recorded.queue.settle(entries[512:988], True)
    assert waiting.result() is True and recorded.queue.pending == 512


async def test_what_runs_too_far_ahead_is_in_the_journal_all_the_same(roomy: Journal, tmp_path: Path) -> None:
    run_ahead(RecordedQueue(10_000_000, journal=roomy), 1500)
    left = JournalContent((tmp_path / "large").read_bytes())
    assert [records for records, _ in left.read(0)] == [(make_reading(f"e{i}"),) for i in range(1500)]


async def test_once_all_is_written_the_journal_takes_records_again(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    futures = [recorded.queue.append((large(i),), is_urgent=True) for i in range(4)]
    recorded.settle(True)
    assert all(future.result() for future in futures)
    assert recorded.queue.append((large(5),), is_urgent=True).done()
    assert recorded.queue.pending == 1


async def test_a_loss_after_a_future_said_true_is_counted_and_frees_nothing_yet(journal: Journal) -> None:
    recorded = RecordedQueue(journal=journal)
    for _ in range(3):
        recorded.queue.append((large(1),), is_urgent=True)
    recorded.settle(False)
    assert (recorded.queue.dropped, recorded.queue.generation, recorded.queue.pending) == (3, 3, 0)
    # the mark in the log still stands before them, until the next is stored, in the journal or not
    assert not recorded.queue.append((large(2),), is_urgent=True).done()
    recorded.settle(True)
    assert recorded.queue.append((large(3),), is_urgent=True).done()


async def test_what_finds_no_room_in_the_spool_is_not_in_the_journal_either(journal: Journal) -> None:
    recorded = RecordedQueue(max_bytes=0, journal=journal)
    assert recorded.queue.append((make_opening(),), is_urgent=True).result() is False
    assert journal.add((make_opening(),)) < 1000


async def test_whoever_drains_waits_for_all_that_was_appended(journal: Journal) -> None:
    for recorded in (RecordedQueue(journal=journal), RecordedQueue()):
        assert recorded.queue.drain() is None
        for i in range(3):
            recorded.queue.append((make_opening(f"e{i}"),), is_urgent=False)
        drained = recorded.queue.drain()
        assert drained is not None and drained is recorded.queue.drain()
        recorded.queue.append((make_opening("later"),), is_urgent=False)
        ((*most, last),) = recorded.handed
        recorded.queue.settle(most, True)
        assert not drained.done()
        recorded.queue.settle([last], True)
        assert drained.done()
        recorded.queue.close()
        assert recorded.queue.drain() is None
