"""A log that takes no writes at the start: the server starts, and nothing in the journal is lost by it."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.journal import Journal, JournalPosition, journal_path, store_journal_position
from proxy.store.sqlite.recovery import recover_log
from tests.store.samples import make_key, make_opening, make_outcome, make_reading, make_round, make_trailer
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.crashing import crash, read_ids
from tests.store.sqlite.disk import FULL, Disk


@pytest.fixture
def policy(tmp_path: Path) -> StorePolicy:
    return StorePolicy(tmp_path / "data" / "log.db", busy_ms=1, close_ms=2000)


async def restart_full(policy: StorePolicy, *names: str) -> bytes:
    """A server on a log that takes nothing, which is given calls and then killed; the journal it leaves."""
    disk = Disk()
    disk.fail("INSERT INTO exchange", *[FULL] * 1000)
    archive = open_sqlite(replace(policy, close_ms=1), asyncio.get_running_loop(), disk.connect)
    assert "database or disk is full" in archive.health.problem
    for name in names:
        assert archive.append(make_opening(name), make_round(name)).result() is True
    content = journal_path(policy.path).read_bytes()
    await archive.close()
    return content


async def test_a_server_goes_on_in_the_journal_of_a_log_that_takes_no_writes_and_all_comes_in_in_order(
    open_archive: Opener, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    path = await asyncio.to_thread(crash, policy, (make_opening("e1"),), (make_opening("e2"),))
    for names in (("e3", "e4"), (), ("e5",)):  # each start finds it full again, and is killed
        path.write_bytes(await restart_full(policy, *names))
    assert "2 groups of records that the previous server left" in caplog.text
    assert "4 groups of records that" in caplog.text
    archive = open_archive()
    assert archive.health.problem == ""
    assert [row.id for row in await archive.list_exchanges(make_key().id)] == ["e1", "e2", "e3", "e4", "e5"]
    assert (await archive.verify()).faults == ()
    await archive.close()
    assert not path.exists()
    assert "could not be stored" not in caplog.text


@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_what_a_log_did_not_take_at_the_start_is_written_as_soon_as_it_does(
    open_archive: Opener, policy: StorePolicy, disk: Disk, durability: str
) -> None:
    path = await asyncio.to_thread(crash, policy, (make_opening("e1"),), (make_opening("e2"),))
    disk.fail("INSERT INTO exchange", FULL, FULL)
    archive = open_archive(durability=durability)
    assert archive.health.pending == 2
    assert await archive.append(make_opening("e3", make_manifest(bytes(300_000))))  # too large for the journal: waits
    assert [row.id for row in await archive.list_exchanges(make_key().id)] == ["e1", "e2", "e3"]
    assert (archive.health.problem, archive.health.pending, archive.health.dropped) == ("", 0, 0)
    await archive.close()
    assert path.exists() == (durability == "full")
    recover_log(policy)
    assert read_ids(policy.path) == ["e1", "e2", "e3"] and not path.exists()


async def test_a_replay_that_the_log_took_a_part_of_goes_on_behind_that(
    open_archive: Opener, policy: StorePolicy, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    first = [(make_opening(f"e{i}"),) for i in range(256)]  # a transaction's worth
    last = (make_opening("last"), make_round("last"), make_outcome("last"), make_trailer(0, b"x", "last"))
    path = await asyncio.to_thread(crash, policy, *first, last)
    disk.fail("INSERT INTO trailer", *[FULL] * 1000)
    archive = open_archive(close_ms=1)
    assert archive.health.pending == len(last)
    assert archive.append(make_opening("new")).result() is True
    await archive.close()
    assert path.exists() and len(read_ids(policy.path)) == 256
    recover_log(policy)
    assert read_ids(policy.path)[255:] == ["e255", "last", "new"] and not path.exists()
    assert "2 groups of records of a killed server were written to the log, 0 could not be" in caplog.text


async def test_an_answer_whose_reading_waits_in_the_journal_is_not_read_again(
    open_archive: Opener, policy: StorePolicy, disk: Disk
) -> None:
    names = ("e1", "e2")
    answered = [record for name in names for record in (make_opening(name), make_round(name), make_outcome(name))]
    await asyncio.to_thread(crash, policy, tuple(answered))
    recover_log(policy)
    await asyncio.to_thread(crash, policy, (make_reading("e1"),))
    disk.fail("INSERT INTO reading", *[FULL] * 1000)
    archive = open_archive(close_ms=1)
    assert archive.health.pending == 1
    assert [row.exchange for row in await archive.list_unread()] == ["e2"]


def leave_damaged(policy: StorePolicy) -> str:
    """A journal of which an entry before the last is damaged, and the log's mark; the one call that can be read."""
    path = journal_path(policy.path)
    journal = Journal(path, 8192)
    places: list[int] = []
    while place := journal.add((make_opening(f"e{len(places)}", make_manifest(bytes(1000))),)):
        places.append(place)
    journal.free(places[-3])
    assert journal.add((make_opening("behind"),))
    journal.close()
    content = bytearray(path.read_bytes())
    content[64 + places[-1] - 100] ^= 1
    path.write_bytes(content)
    connection = sqlite3.connect(policy.path, isolation_level=None)
    store_journal_position(connection, JournalPosition(journal.nonce, places[-3]))
    connection.close()
    return f"e{len(places) - 2}"


async def test_nothing_is_added_to_a_journal_that_lost_a_part(
    open_archive: Opener, policy: StorePolicy, disk: Disk
) -> None:
    await open_archive().close()
    name = leave_damaged(policy)
    content = journal_path(policy.path).read_bytes()
    disk.fail("INSERT INTO exchange", *[FULL] * 1000)
    archive = open_archive(close_ms=1)
    assert archive.health.pending == 1
    assert not archive.append(make_opening("new")).done()
    await archive.close()
    assert journal_path(policy.path).read_bytes() == content
    recover_log(policy)
    assert read_ids(policy.path) == [name]
    assert not journal_path(policy.path).exists()
