"""Backups, checkpoints and leases; what every store's leases do is in `lease_contract`."""

import asyncio
import queue
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.engine.ports import Leases
from proxy.model.errors import Conflict, StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.maintenance import Checkpoint, SqliteLeases, WriterTask, copy_log
from proxy.store.sqlite.verify import verify_log
from proxy.store.sqlite.writer import Writer
from tests.store.lease_contract import LeaseContract
from tests.store.samples import chain_body, join_body, make_key, make_opening, make_turns
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import FULL, LOCKED, Disk
from tests.support.engine import FixedClock


async def test_a_copy_made_while_the_log_is_written_is_whole_and_goes_on_as_a_log(
    open_archive: Opener, disk: Disk, tmp_path: Path
) -> None:
    archive, target, turns = open_archive(), tmp_path / "copy.db", make_turns(20)
    for i in range(1, 20):
        await archive.append(make_opening(f"e{i}", chain_body(turns[:i], known=i - 1)))
    commit = disk.hold("COMMIT")
    late = archive.append(make_opening("e20", chain_body(turns, known=19)))
    await disk.arrived("COMMIT")
    await archive.backup(target)  # in the middle of the writer's transaction
    commit.set()
    assert await late

    copy = open_sqlite(StorePolicy(target), asyncio.get_running_loop())
    assert [row.n for row in await copy.list_exchanges(make_key().id)] == list(range(1, 20))
    assert await copy.load_request("e19") == join_body(turns[:19])
    assert copy.salt == archive.salt
    assert await copy.append(make_opening("e20", chain_body(turns, known=19)))
    assert (await copy.verify()).faults == ()
    await copy.close()


async def test_a_copy_is_its_owners_alone(open_archive: Opener, tmp_path: Path) -> None:
    await open_archive().backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


async def test_no_file_is_ever_replaced(open_archive: Opener, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("precious")
    with pytest.raises(Conflict, match="never replaces a file"):
        await open_archive().backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "precious"


async def test_a_place_that_cannot_be_written_is_refused(open_archive: Opener, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="could not be copied"):
        await open_archive().backup(tmp_path / "nowhere" / "copy.db")


async def test_a_copy_that_fails_half_way_leaves_nothing(
    open_archive: Opener, policy: StorePolicy, tmp_path: Path
) -> None:
    archive = open_archive()
    for i in range(300):
        archive.append(make_opening(f"e{i}", chain_body(make_turns(2, size=i + 50))))
    await archive.close()
    size = policy.path.stat().st_size
    with policy.path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 4096 * 4)
    with pytest.raises(StoreUnavailable, match="it is damaged"):
        copy_log(policy.path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


@pytest.fixture
def connection(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("INSERT INTO meta VALUES (hex(randomblob(8)), zeroblob(?))", (size,))


def wal_size(policy: StorePolicy) -> int:
    return policy.path.with_name("log.db-wal").stat().st_size


def test_too_much_is_overdue_whether_rows_or_content(connection: sqlite3.Connection) -> None:
    for rows, content in ((2048, 0), (0, 2048 * 4096)):
        checkpoint = Checkpoint(connection)
        checkpoint.count(rows - 1 if rows else 0, content - 4096 if content else 0)
        assert not checkpoint.is_overdue
        checkpoint.count(1 if rows else 0, 4096 if content else 0)
        assert checkpoint.is_overdue


def test_a_pause_copies_and_the_rest_after_it_empties_the_file(
    connection: sqlite3.Connection, policy: StorePolicy
) -> None:
    checkpoint = Checkpoint(connection)
    write(connection, 2_000_000)
    checkpoint.count(rows=1, content=2_000_000)
    checkpoint.run()
    assert policy.path.stat().st_size > 2_000_000
    assert wal_size(policy) > 2_000_000  # the file stays, to be written from its beginning
    assert checkpoint.due_s is not None
    checkpoint.run()
    assert wal_size(policy) == 0
    assert checkpoint.due_s is None


def test_a_reader_in_the_way_is_not_waited_for(connection: sqlite3.Connection, policy: StorePolicy) -> None:
    write(connection, 1000)
    reader = sqlite3.connect(policy.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM meta").fetchone()
    write(connection, 1000)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    Checkpoint(connection).finish()
    connection.set_trace_callback(None)
    assert statements.index("PRAGMA busy_timeout = 0") < statements.index("PRAGMA wal_checkpoint(TRUNCATE)")
    assert wal_size(policy) > 0
    reader.close()
    Checkpoint(connection).finish()
    assert wal_size(policy) == 0


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
    writer = Writer(connect_writer(policy), policy, lambda entries, is_stored: None, queue.SimpleQueue())
    assert writer.put_task(lambda connection: ran.append("first"))
    writer.start()
    assert writer.put_task(lambda connection: ran.append("second"))
    assert writer.stop(2)
    assert not writer.put_task(lambda connection: ran.append("third"))
    assert ran == ["first", "second"]
