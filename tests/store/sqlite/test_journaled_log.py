"""The log with a journal in front of it, as a whole."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from proxy.model.manifest import keep_whole
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.journal import journal_path, read_journal_position
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from tests.store.samples import make_key, make_opening, make_outcome, make_round
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import FULL, LOCKED, Disk


async def list_ids(archive: SqliteArchive) -> list[str]:
    return [row.id for row in await archive.list_exchanges(make_key().id)]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_mark_moves_with_the_records_it_stands_for(
    open_archive: Opener, disk: Disk, policy: StorePolicy, is_stored: bool
) -> None:
    archive = open_archive(durability="normal", journal_hold_ms=1)
    if not is_stored:
        disk.fail("COMMIT", FULL)
    commit = disk.hold("COMMIT")
    archive.append(make_opening())
    await disk.arrived("COMMIT")
    connection = sqlite3.connect(policy.path)
    assert read_journal_position(connection).place == 0
    commit.set()
    await archive.list_sessions()
    (count,) = connection.execute("SELECT count(*) FROM exchange").fetchone()
    assert (count == 1) == (read_journal_position(connection).place > 0)
    connection.close()


async def test_closing_while_the_store_fails_leaves_the_journal_to_the_next_start(
    open_archive: Opener, disk: Disk, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive(durability="normal", close_ms=30)
    disk.fail("BEGIN", *[LOCKED] * 1000)
    assert all([archive.append(make_opening(f"e{i}")).result() for i in range(3)])
    large = archive.append(make_opening("e3", keep_whole(bytes(300_000))))
    await archive.close()
    assert not await large
    assert (archive.health.dropped, archive.health.pending) == (1, 3)
    assert "3 records are in" in caplog.text
    assert journal_path(policy.path).exists()
    recover_log(policy)
    reader = SqliteReader(policy.path)
    try:
        assert [row.id for row in await reader.list_exchanges(make_key().id)] == ["e0", "e1", "e2"]
    finally:
        await reader.close()


async def test_readers_see_what_was_appended_before(open_archive: Opener, tmp_path: Path) -> None:
    archive = open_archive(durability="normal", hold_ms=60_000, journal_hold_ms=60_000)
    archive.append(make_opening("e0"), make_round("e0"), make_outcome("e0"), is_urgent=False)
    assert await archive.load_received("e0", 0)
    archive.append(make_opening("e1"))
    assert [row.exchanges for row in await archive.list_sessions()] == [2]
    archive.append(make_opening("e2"))
    assert (await archive.verify()).exchanges == 3
    archive.append(make_opening("e3", keep_whole(b"new")), make_round("e3"))
    assert await archive.load_sent("e3", 0) == b"new"
    archive.append(make_opening("e4", keep_whole(b"newer")))
    assert await archive.load_request("e4") == b"newer"
    archive.append(make_opening("e5"))
    assert await list_ids(archive) == [f"e{i}" for i in range(6)]
    archive.append(make_opening("e6"))
    await archive.backup(tmp_path / "copy.db")
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT count(*) FROM exchange").fetchone() == (7,)
    copy.close()


async def test_readers_do_not_wait_for_a_store_that_fails(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(durability="normal", journal_hold_ms=60_000)
    archive.append(make_opening("e0"))
    assert await list_ids(archive) == ["e0"]
    rollback = disk.hold("ROLLBACK")
    disk.fail("COMMIT", FULL)
    archive.append(make_opening("e1"))
    reading = asyncio.ensure_future(list_ids(archive))
    await disk.arrived("ROLLBACK")
    retry = disk.hold("BEGIN")
    rollback.set()
    await disk.arrived("BEGIN")
    assert "database or disk is full" in archive.health.problem
    assert await list_ids(archive) == ["e0"]
    retry.set()
    assert await reading == ["e0", "e1"]


async def test_a_log_whose_journal_cannot_be_made_waits_for_its_commits(
    open_archive: Opener, disk: Disk, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fail("INSERT INTO meta VALUES", FULL)
    archive = open_archive(durability="normal")
    assert "answers wait for the log's commits instead" in caplog.text
    assert not journal_path(policy.path).exists()
    stored = archive.append(make_opening())
    assert not stored.done()
    assert await stored
