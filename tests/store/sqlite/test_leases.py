"""Leases in SQLite; what all of them do is in `lease_contract`."""

import sqlite3

import pytest

from proxy.engine.ports import Leases
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.maintenance import SqliteLeases, WriterTask
from proxy.store.sqlite.verify import verify_log
from proxy.store.sqlite.writer import Writer
from tests.store.lease_contract import LeaseContract
from tests.store.samples import make_opening
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import FULL, LOCKED, Disk
from tests.support.engine import FixedClock


class TestSqliteLeases(LeaseContract):
    @pytest.fixture(params=["full", "normal"])
    async def archive(self, open_archive: Opener, request: pytest.FixtureRequest) -> SqliteArchive:
        return open_archive(durability=request.param)

    @pytest.fixture
    async def leases(self, archive: SqliteArchive, clock: FixedClock) -> Leases:
        return archive.make_leases(clock)

    async def test_they_do_not_disturb_what_is_recorded(self, archive: SqliteArchive, leases: Leases) -> None:
        for i in range(20):
            stored = archive.append(make_opening(f"e{i}"))
            assert await leases.acquire("a", "me", 10)
            assert await stored
        assert len(await archive.list_exchanges(make_opening().session.id)) == 20
        assert (await archive.verify()).faults == ()


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


async def test_they_end_with_the_process(open_archive: Opener, policy: StorePolicy, clock: FixedClock) -> None:
    archive = open_archive()
    assert await archive.make_leases(clock).acquire("a", "the one before", 10)
    await archive.close()
    assert verify_log(policy.path).faults == ()
    leases = open_archive().make_leases(clock)
    assert await leases.acquire("a", "me", 10)


async def test_a_log_whose_leases_cannot_be_ended_opens_all_the_same(
    open_archive: Opener, disk: Disk, clock: FixedClock, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive()
    assert await archive.make_leases(clock).acquire("a", "the one before", 10)
    await archive.close()
    disk.fail("DELETE FROM lease", FULL)
    leases = open_archive().make_leases(clock)
    assert "could not be ended: " in caplog.text
    assert not await leases.acquire("a", "me", 10)
    clock.advance(10)
    assert await leases.acquire("a", "me", 10)


async def test_those_whose_time_is_over_are_not_kept(
    open_archive: Opener, policy: StorePolicy, clock: FixedClock
) -> None:
    leases = open_archive().make_leases(clock)
    for i in range(50):
        assert await leases.acquire(f"branch {i}", "me", 10)
        clock.advance(5)
    connection = sqlite3.connect(policy.path)
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (2,)
    connection.close()


@pytest.mark.parametrize("word", ["BEGIN", "DELETE", "\n    INSERT INTO lease", "COMMIT"])
async def test_where_the_store_fails_nobody_is_given_one(
    open_archive: Opener, disk: Disk, clock: FixedClock, word: str
) -> None:
    archive = open_archive()
    leases = archive.make_leases(clock)
    disk.fail(word, FULL, LOCKED)
    assert [await leases.acquire("a", "me", 10) for _ in range(3)] == [False, False, True]
    assert not disk.waiting_failures
    assert archive.health.problem == ""
    assert await archive.append(make_opening())
    assert not await leases.acquire("a", "you", 10)


async def test_beside_a_store_that_takes_nothing_nobody_waits(
    open_archive: Opener, disk: Disk, clock: FixedClock
) -> None:
    archive = open_archive()
    commit = disk.hold("COMMIT")
    archive.append(make_opening())
    await disk.arrived("COMMIT")
    put: list[WriterTask] = []
    leases = SqliteLeases(lambda errand: not put.append(errand), clock, most_seconds=0)  # type: ignore[func-returns-value]
    assert not await leases.acquire("a", "me", 10)
    commit.set()
    put[0](sqlite3.connect(":memory:"))  # what it says comes too late, and harms nobody


async def test_after_close_nobody_is_given_one(open_archive: Opener, clock: FixedClock) -> None:
    archive = open_archive()
    leases = archive.make_leases(clock)
    assert await leases.acquire("a", "me", 10)
    await archive.close()
    assert not await leases.acquire("b", "me", 10)
    await leases.release("a", "me")


def test_a_writer_that_stops_takes_no_errand_and_runs_those_that_it_took(policy: StorePolicy) -> None:
    ran: list[str] = []
    writer = Writer(connect_writer(policy), policy, lambda entries, is_stored: None)
    assert writer.put_task(lambda connection: ran.append("first"))
    writer.start()
    assert writer.put_task(lambda connection: ran.append("second"))
    assert writer.stop(2)
    assert not writer.put_task(lambda connection: ran.append("third"))
    assert ran == ["first", "second"]
