"""What a kill leaves in the journal, and the log with a journal as a whole."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.journal import Journal, journal_path, read_journal_position
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from tests.store.samples import (
    chain_body,
    make_condensed,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_outcome,
    make_plan,
    make_round,
    make_trailer,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.crashing import crash, read_ids
from tests.store.sqlite.disk import FULL, LOCKED, Disk

ROOT = Path(__file__).parents[3]

# Appends 30 calls and is killed: before the writer has any of them, or in the middle of the commit or right behind it,
# which the event loop never hears of.
KILLED = """
import asyncio, os, signal, sqlite3, sys
from pathlib import Path
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from tests.store.samples import (
    make_chain, make_epoch, make_fingerprint, make_opening, make_outcome, make_pin, make_plan, make_reply, make_round,
    make_step,
)

path, moment = Path(sys.argv[1]), sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Connection(sqlite3.Connection):
    is_armed = False

    def execute(self, sql, *parameters):
        if self.is_armed and moment == "in the commit" and sql == "COMMIT":
            die()
        cursor = super().execute(sql, *parameters)
        if self.is_armed and moment == "after the commit" and sql == "COMMIT":
            die()
        return cursor

async def main():
    policy = StorePolicy(path, journal_batch_ms=60_000 if moment == "before the commit" else 1)
    connect = lambda *a, **o: sqlite3.connect(*a, factory=Connection, **o)
    archive = open_sqlite(policy, asyncio.get_running_loop(), connect)
    Connection.is_armed = True
    for i in range(30):
        asked, answer = make_chain(f"{i}", f"!{i}")
        opening, step = make_opening(f"e{i}"), make_step(f"e{i}", [asked])
        replies = [make_reply(f"e{i}", [answer], [make_fingerprint(f"call:{i}", answer)])] if i % 5 == 0 else []
        managed = [make_epoch(f"p{i}"), make_plan(f"e{i}", epoch=f"p{i}", owed=i + 0.5), make_pin(asked.node)]
        stored = archive.append(opening, step, make_round(f"e{i}"), make_outcome(f"e{i}"), *replies, *managed)
        assert stored.result() is True
    if moment == "before the commit":
        die()
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def policy(tmp_path: Path) -> StorePolicy:
    return StorePolicy(tmp_path / "data" / "log.db", busy_ms=1, close_ms=2000)


def kill(policy: StorePolicy, moment: str = "before the commit") -> Path:
    """A server's death with 30 calls in its journal; the journal it left."""
    command = [sys.executable, "-c", KILLED, str(policy.path), moment]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode == -signal.SIGKILL
    return journal_path(policy.path)


async def check_all_there(archive: SqliteArchive | SqliteReader) -> None:
    rows = await archive.list_exchanges(make_key().id)
    assert [row.id for row in rows] == [f"e{i}" for i in range(30)]
    assert all(row.rounds[0].completeness == "complete" for row in rows)
    assert len(await archive.list_branches(make_key().id)) == 30
    plans = [make_plan(f"e{i}", epoch=f"p{i}", owed=i + 0.5) for i in range(30)]
    assert [row.rounds[0].plan for row in rows] == plans
    context = await archive.load_context(make_key().id)
    assert context.epochs == tuple(make_epoch(f"p{i}") for i in range(30))
    assert (len(context.pins), context.owed) == (30, (("gpt-4o", 29.5),))
    (stored,) = await archive.recall((), ("call:25",), make_key("new"))
    assert (len(stored.nodes), len(stored.fingerprints)) == (36, 6)
    assert (await archive.verify()).faults == ()


@pytest.mark.parametrize("moment", ["before the commit", "in the commit", "after the commit"])
@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_after_kill_9_all_that_was_acknowledged_is_there_exactly_once(
    open_archive: Opener, policy: StorePolicy, moment: str, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = await asyncio.to_thread(kill, policy, moment)
    assert read_ids(policy.path) == ([f"e{i}" for i in range(30)] if moment == "after the commit" else [])
    archive = open_archive(durability=durability)
    await check_all_there(archive)
    assert "could not be stored" not in caplog.text, "nothing was tried a second time"
    assert path.exists() == (durability == "normal")
    assert await archive.append(make_opening("e30"))
    await archive.close()
    assert not path.exists()


async def test_a_replay_that_is_killed_goes_on_where_it_was(
    open_archive: Opener, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    path = await asyncio.to_thread(kill, policy)
    content = path.read_bytes()
    for _ in range(2):  # the second time everything is in the log, and the file as it was
        recover_log(policy)
        assert not path.exists()
        path.write_bytes(content)
    archive = open_archive()
    await check_all_there(archive)
    assert "could not be stored" not in caplog.text
    await archive.close()


async def test_a_log_is_recovered_for_readers_without_a_server(policy: StorePolicy) -> None:
    path = await asyncio.to_thread(kill, policy)
    recover_log(policy)
    assert not path.exists()
    reader = SqliteReader(policy.path)
    try:
        await check_all_there(reader)
    finally:
        await reader.close()


async def test_summaries_that_a_kill_left_behind_are_brought_in(policy: StorePolicy) -> None:
    turns = make_turns(3)
    leaf = make_leaf("a", [raw for _, raw in turns], text="é")
    condensed = make_condensed("b", [leaf])
    await asyncio.to_thread(crash, policy, (make_opening("e1", chain_body(turns)),), (leaf, condensed), (leaf,))
    recover_log(policy)
    reader = SqliteReader(policy.path)
    try:
        assert list(await reader.list_summaries(leaf.session)) == [leaf, condensed]
        assert (await reader.verify()).faults == ()
    finally:
        await reader.close()


async def test_beside_a_server_recovery_leaves_its_journal_alone(
    open_archive: Opener, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive(durability="normal", journal_batch_ms=60_000)
    archive.append(make_opening("e1"))
    recover_log(policy)
    assert read_ids(policy.path) == [] and journal_path(policy.path).exists()
    assert caplog.text == ""
    assert await archive.load_request("e1") == b"{}"


async def test_a_backup_put_in_place_beside_an_old_write_ahead_log_is_not_written_over(
    policy: StorePolicy, tmp_path: Path
) -> None:
    await asyncio.to_thread(crash, policy, (make_opening("e1"),))
    reader = SqliteReader(policy.path)
    await reader.backup(tmp_path / "copy.db")
    await reader.close()
    policy.path.write_bytes((tmp_path / "copy.db").read_bytes())
    assert policy.path.with_name("log.db-wal").stat().st_size
    with pytest.raises(StoreUnavailable, match="which would be written over it"):
        recover_log(policy)
    assert policy.path.read_bytes() == (tmp_path / "copy.db").read_bytes()


def test_recovery_makes_nothing_where_nothing_is(policy: StorePolicy) -> None:
    recover_log(policy)
    assert not policy.path.parent.exists()
    policy.path.parent.mkdir()
    journal_path(policy.path).write_bytes(b"left over")
    recover_log(policy)
    assert [path.name for path in policy.path.parent.iterdir()] == ["log.db.journal"]


def test_recovery_that_may_not_write_only_warns(policy: StorePolicy, caplog: pytest.LogCaptureFixture) -> None:
    path = crash(policy, (make_opening("e1"),))
    policy.path.with_name("log.db.lock").unlink()
    policy.path.with_name("log.db.lock").mkdir()  # nobody can open that, whatever his rights
    recover_log(policy)
    assert "the last records of a killed server are still in" in caplog.text
    assert path.exists() and read_ids(policy.path) == []


def test_recovery_of_a_log_that_is_locked_only_warns_and_lets_go(
    policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    path = crash(policy, (make_opening("e1"),))
    other = sqlite3.connect(policy.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    recover_log(policy)
    other.close()
    assert "end that process" in caplog.text and path.exists()
    recover_log(policy)
    assert read_ids(policy.path) == ["e1"]


@pytest.mark.parametrize("error", [FULL, LOCKED], ids=str)
async def test_a_log_that_takes_no_writes_is_not_opened_and_the_journal_is_kept(
    open_archive: Opener, policy: StorePolicy, disk: Disk, error: Exception
) -> None:
    path = await asyncio.to_thread(crash, policy, (make_opening("e1"),), (make_opening("e2"),))
    disk.fail("INSERT INTO exchange", error)
    told = rf"2 groups of records .*log\.db\.journal are not in the log yet: .*{error}\)\. They are kept; start again"
    with pytest.raises(StoreUnavailable, match=told):
        open_archive(must_write=True)
    assert path.exists()
    archive = open_archive()  # nothing is held by the one that failed
    assert [row.id for row in await archive.list_exchanges(make_key().id)] == ["e1", "e2"]
    await archive.close()


def test_records_the_log_refuses_are_named_and_passed_over(
    policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    first, good = (make_opening("e1"), make_round("e1")), (make_opening("e2"),)
    path = crash(policy, first, (make_outcome("e1", k=7),), (make_opening("e1"),), good)
    recover_log(policy)
    assert read_ids(policy.path) == ["e1", "e2"]
    assert "kinds Outcome could not be stored and are lost: IntegrityError" in caplog.text
    assert "2 groups of records of a killed server were written to the log, 2 could not be" in caplog.text
    assert not path.exists()


def test_an_entry_nobody_understands_is_passed_over(policy: StorePolicy, caplog: pytest.LogCaptureFixture) -> None:
    odd = make_trailer("no number", b"")  # type: ignore[arg-type]
    path = crash(policy, (make_opening("e1"),), (odd,), (make_opening("e2"),))
    recover_log(policy)
    assert read_ids(policy.path) == ["e1", "e2"] and not path.exists()
    assert "an entry of the journal is damaged" in caplog.text


@pytest.mark.parametrize("damage", ["another log", "name", "garbage"])
def test_a_journal_that_is_not_the_logs_is_put_aside_and_never_read(
    policy: StorePolicy, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = crash(policy, (make_opening("e1"),))
    content = bytearray(path.read_bytes())
    if damage == "another log":
        other = replace(policy, path=tmp_path / "other" / "log.db")
        content = bytearray(crash(other, (make_opening("theirs"),)).read_bytes())
    elif damage == "name":
        content[8] ^= 1
    else:
        content = bytearray(os.urandom(5000))
    path.write_bytes(content)
    recover_log(policy)
    assert read_ids(policy.path) == []
    assert not path.exists()
    assert path.with_name("log.db.journal.aside").read_bytes() == content
    assert "belongs to another log, or is damaged" in caplog.text


def test_a_journal_is_not_put_aside_in_the_place_of_another(policy: StorePolicy) -> None:
    path = crash(policy, (make_opening("e1"),))
    for i in range(3):
        path.write_bytes(b"%d" % i * 5000)
        recover_log(policy)
    names = [path.with_name(f"log.db.journal.aside{number}") for number in ("", ".2", ".3")]
    assert [name.read_bytes()[:1] for name in names] == [b"0", b"1", b"2"]


def test_a_journal_that_goes_on_from_a_later_log_is_put_aside(policy: StorePolicy) -> None:
    """An old copy of the log beside the newest journal: what lies between is gone."""
    path = crash(policy, (make_opening("e1"),))
    journal = Journal(path)
    for _ in range(2):
        journal.free(journal.add((make_trailer(0, b"in a log of later"),)))
    last = journal.add((make_opening("e9"),))
    journal.close()
    connection = sqlite3.connect(policy.path)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'journal'", (journal.nonce.to_bytes(8, "little"),))
    connection.commit()
    connection.close()
    assert last > 4 * 1024 * 1024
    recover_log(policy)
    assert read_ids(policy.path) == []
    assert path.with_name("log.db.journal.aside").exists()


def test_a_journal_that_was_only_begun_is_nothing(policy: StorePolicy, caplog: pytest.LogCaptureFixture) -> None:
    path = crash(policy, (make_opening("e1"),))
    recover_log(policy)
    Journal(path).close()  # killed before the log knew of it
    caplog.clear()
    recover_log(policy)
    assert caplog.text == ""
    assert [each.name for each in policy.path.parent.iterdir() if "journal" in each.name] == []


async def list_ids(archive: SqliteArchive) -> list[str]:
    return [row.id for row in await archive.list_exchanges(make_key().id)]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_mark_moves_with_the_records_it_stands_for(
    open_archive: Opener, disk: Disk, policy: StorePolicy, is_stored: bool
) -> None:
    archive = open_archive(durability="normal", journal_batch_ms=1)
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
    large = archive.append(make_opening("e3", make_manifest(bytes(300_000))))
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
    archive = open_archive(durability="normal", batch_ms=60_000, journal_batch_ms=60_000)
    archive.append(make_opening("e0"), make_round("e0"), make_outcome("e0"), is_urgent=False)
    assert await archive.load_received("e0", 0)
    archive.append(make_opening("e1"))
    assert [row.exchanges for row in await archive.list_sessions()] == [2]
    archive.append(make_opening("e2"))
    assert (await archive.verify()).exchanges == 3
    archive.append(make_opening("e3", make_manifest(b"new")), make_round("e3"))
    assert await archive.load_sent("e3", 0) == b"new"
    archive.append(make_opening("e4", make_manifest(b"newer")))
    assert await archive.load_request("e4") == b"newer"
    archive.append(make_opening("e5"))
    assert await list_ids(archive) == [f"e{i}" for i in range(6)]
    archive.append(make_opening("e6"))
    await archive.backup(tmp_path / "copy.db")
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT count(*) FROM exchange").fetchone() == (7,)
    copy.close()


async def test_readers_do_not_wait_for_a_store_that_fails(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(durability="normal", journal_batch_ms=60_000)
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
    assert "responses wait for the log's commits instead" in caplog.text
    assert not journal_path(policy.path).exists()
    stored = archive.append(make_opening())
    assert not stored.done()
    assert await stored
