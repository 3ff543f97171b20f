import asyncio
import os
import sqlite3
import threading

import pytest

from proxy.engine.policy import Durability
from proxy.model.errors import StoreUnavailable
from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.schema import read_seal_head
from tests.store.samples import (
    chain_body,
    join_body,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import FULL, LIMIT, LOCKED, Disk


async def list_ids(archive: SqliteArchive) -> list[str]:
    return [row.id for row in await archive.list_exchanges(make_key().id)]


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
async def test_durability_is_what_sqlite_is_told_before_the_first_record(
    open_archive: Opener, disk: Disk, durability: Durability, synchronous: int
) -> None:
    open_archive(durability=durability)
    assert disk.connection is not None
    assert disk.connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert disk.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert disk.connection.execute("PRAGMA recursive_triggers").fetchone() == (1,)


async def test_a_future_is_not_done_before_the_commit_has_returned(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(durability="full")
    commit = disk.hold("COMMIT")
    stored = archive.append(make_opening(), make_round())
    await disk.arrived("COMMIT")
    # everything is written, only the commit has not returned: nobody may be told yet
    assert not stored.done()
    assert archive.health.pending == 2
    commit.set()
    assert await stored
    assert archive.health.pending == 0


async def test_what_queues_up_during_a_commit_makes_one_transaction(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    commit = disk.hold("COMMIT")
    first = archive.append(make_opening("e0"))
    await disk.arrived("COMMIT")
    others = [archive.append(make_opening(f"e{i}")) for i in range(1, 41)]
    before = disk.count("BEGIN")
    commit.set()
    assert await first and all(await asyncio.gather(*others))
    assert disk.count("BEGIN") == before + 1
    assert await list_ids(archive) == [f"e{i}" for i in range(41)]


async def test_large_records_are_not_all_put_in_one_transaction(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    commit = disk.hold("COMMIT")
    first = archive.append(make_opening("e0"))
    await disk.arrived("COMMIT")
    before = disk.count("BEGIN")
    bodies = [make_manifest(b"%d" % i + bytes(3_000_000)) for i in range(6)]
    others = [archive.append(make_opening(f"b{i}", body)) for i, body in enumerate(bodies)]
    commit.set()
    assert await first and all(await asyncio.gather(*others))
    assert disk.count("BEGIN") == before + 3


async def test_what_is_not_urgent_rides_with_the_next_that_is(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(batch_ms=60_000)
    await archive.append(make_opening("e1"), make_round("e1"), make_outcome("e1"))
    before = disk.count("BEGIN")
    reading = archive.append(make_reading("e1"), is_urgent=False)
    assert await archive.append(make_opening("e2"))
    assert reading.result()
    assert disk.count("BEGIN") == before + 1


async def test_where_tables_end_is_noted_again_once_the_store_works(
    open_archive: Opener, policy: StorePolicy, disk: Disk
) -> None:
    archive = open_archive()
    disk.fail("COMMIT", FULL)
    assert await archive.append(make_opening())
    await archive.close()
    log = sqlite3.connect(policy.path)
    end, last = read_seal_head(log, "exchange"), log.execute("SELECT seq, seal FROM exchange").fetchone()
    log.close()
    assert end is not None
    assert end == last


@pytest.mark.parametrize("word", ["BEGIN", "INSERT INTO exchange", "COMMIT"])
@pytest.mark.parametrize("error", [FULL, LOCKED, sqlite3.OperationalError("disk I/O error")], ids=str)
async def test_records_a_disk_refuses_are_kept_in_order_and_written_when_it_recovers(
    open_archive: Opener, disk: Disk, word: str, error: Exception
) -> None:
    archive = open_archive()
    assert await archive.append(make_opening("e0"))
    disk.fail(word, error, error)
    stored = [archive.append(make_opening(f"e{i}"), make_round(f"e{i}")) for i in range(1, 6)]
    assert all(await asyncio.gather(*stored))
    assert disk.waiting_failures == {}
    assert await list_ids(archive) == [f"e{i}" for i in range(6)]
    assert (archive.health.problem, archive.health.dropped, archive.health.generation) == ("", 0, 0)
    assert (await archive.verify()).faults == ()


async def test_a_rollback_that_fails_is_made_up_for(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    disk.fail("COMMIT", FULL)
    disk.fail("ROLLBACK", FULL)
    assert await archive.append(make_opening("e1"), make_round("e1"))
    assert disk.waiting_failures == {}
    assert await list_ids(archive) == ["e1"]
    assert (await archive.verify()).faults == ()


async def test_while_the_disk_refuses_health_says_so_and_what_to_do(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    rollback = disk.hold("BEGIN")
    disk.fail("BEGIN", FULL)
    stored = archive.append(make_opening())
    await disk.arrived("BEGIN")
    rollback.set()
    retry = disk.hold("BEGIN")
    await disk.arrived("BEGIN")  # the second attempt: the first has failed
    assert "database or disk is full" in archive.health.problem
    assert not stored.done()
    retry.set()
    assert await stored
    assert archive.health.problem == ""


async def test_another_process_that_locks_the_log_holds_nobody_up_for_good(
    open_archive: Opener, disk: Disk, policy: StorePolicy
) -> None:
    archive = open_archive()
    other = sqlite3.connect(policy.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    attempt = disk.hold("BEGIN")
    attempt.set()
    stored = archive.append(make_opening())
    for _ in range(2):
        await disk.arrived("BEGIN")
    assert "another process holds a lock" in archive.health.problem
    assert not stored.done()
    other.execute("ROLLBACK")
    other.close()
    assert await stored
    assert await list_ids(archive) == ["e1"]


async def test_at_the_cap_of_the_store_health_names_the_setting_and_the_log_is_sound(
    open_archive: Opener, disk: Disk, policy: StorePolicy
) -> None:
    archive = open_archive(max_bytes=400_000, close_ms=1)
    rollback = disk.hold("ROLLBACK")
    rollback.set()
    assert await archive.append(make_opening("e0"))
    stored = archive.append(make_opening("e1", make_manifest(os.urandom(600_000))))
    await disk.arrived("ROLLBACK")
    await disk.arrived("ROLLBACK")
    assert "store is full" in archive.health.problem and "store.max_bytes" in archive.health.problem
    assert not stored.done()
    await archive.close()
    assert not await stored
    again = open_archive()
    assert await list_ids(again) == ["e0"]
    assert (await again.verify()).faults == ()
    assert policy.path.stat().st_size <= 400_000


async def test_the_queue_is_bounded_and_drops_the_newest(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(spool_bytes=5000)
    commit = disk.hold("COMMIT")
    stored = [archive.append(make_opening(f"e{i}")) for i in range(8)]
    kept = [not future.done() for future in stored]
    assert kept == [True] * 4 + [False] * 4
    assert archive.health.pending_bytes <= 5000
    assert (archive.health.dropped, archive.health.generation) == (4, 4)
    commit.set()
    assert [await future for future in stored] == kept
    assert archive.health.pending_bytes == 0
    assert await archive.append(make_opening("e9"))
    assert await list_ids(archive) == ["e0", "e1", "e2", "e3", "e9"]


async def test_a_record_that_cannot_be_stored_does_not_sink_those_beside_it(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    commit = disk.hold("COMMIT")
    first = archive.append(make_opening("e0"))
    await disk.arrived("COMMIT")
    turns = make_turns(4)
    beside = [
        archive.append(make_opening("e1", chain_body(turns[:2]))),
        archive.append(make_opening("e0")),  # a duplicate
        archive.append(make_opening("e2", chain_body(turns, known=2))),
        archive.append(make_outcome("e2", k=7)),  # of no round
        archive.append(make_opening("e3", opened_ms=2**80)),  # no column takes it
        archive.append(make_opening("e4", chain_body(turns, known=4))),
    ]
    before = disk.count("BEGIN")
    commit.set()
    assert await first
    assert [await future for future in beside] == [True, False, True, False, False, True]
    assert disk.count("BEGIN") == before + 1 + len(beside)  # together, then each by itself, and that once
    assert (archive.health.dropped, archive.health.generation, archive.health.problem) == (3, 3, "")
    assert await list_ids(archive) == ["e0", "e1", "e2", "e4"]
    assert await archive.load_request("e4") == join_body(turns)
    assert (await archive.verify()).faults == ()


async def test_what_leans_on_a_dropped_record_is_dropped_too_until_it_is_sent_in_full(
    open_archive: Opener, disk: Disk
) -> None:
    archive = open_archive(spool_bytes=6000)
    turns = make_turns(4, size=2000)
    commit = disk.hold("COMMIT")
    blocking = archive.append(make_opening("e0", make_manifest(bytes(3500))))
    await disk.arrived("COMMIT")
    dropped = archive.append(make_opening("e1", chain_body(turns)))
    leaning = archive.append(make_opening("e2", chain_body(turns, known=4)))
    outcome = archive.append(make_outcome("e1"))
    assert dropped.done() and not leaning.done()
    commit.set()
    assert [await blocking, await dropped, await leaning, await outcome] == [True, False, False, False]
    generation = archive.health.generation
    assert generation == 3
    assert await archive.append(make_opening("e3", chain_body(turns[:2])))
    assert archive.health.generation == generation
    assert await archive.load_request("e3") == join_body(turns[:2])


async def test_a_failing_disk_in_the_middle_of_single_records_loses_none(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    commit = disk.hold("COMMIT")
    first = archive.append(make_opening("e0"))
    await disk.arrived("COMMIT")
    bad = archive.append(make_round("nobody"))
    good = [archive.append(make_opening(f"e{i}")) for i in range(1, 5)]
    commit.set()
    assert await first
    disk.fail("INSERT INTO exchange", FULL)
    assert not await bad
    assert all(await asyncio.gather(*good))
    assert await list_ids(archive) == [f"e{i}" for i in range(5)]


async def test_closing_while_the_store_fails_ends_in_time_and_says_what_was_lost(
    open_archive: Opener, disk: Disk
) -> None:
    archive = open_archive(close_ms=30)
    disk.fail("BEGIN", *[LOCKED] * 1000)
    stored = [archive.append(make_opening(f"e{i}")) for i in range(3)]
    await archive.close()
    assert [await future for future in stored] == [False] * 3
    assert (archive.health.dropped, archive.health.pending) == (3, 0)


async def test_closing_waits_for_a_store_that_recovers(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    disk.fail("BEGIN", LOCKED, LOCKED, LOCKED)
    stored = archive.append(make_opening())
    await archive.close()
    assert await stored


async def test_a_disk_that_hangs_does_not_keep_the_process_and_the_lock_is_not_given_away(
    open_archive: Opener, disk: Disk
) -> None:
    others = set(threading.enumerate())
    archive = open_archive(close_ms=1)
    commit = disk.hold("COMMIT")
    stored = archive.append(make_opening())
    await disk.arrived("COMMIT")
    await archive.close()
    assert not stored.done()
    (writer,) = [thread for thread in threading.enumerate() if thread.name == "log-writer" and thread not in others]
    assert writer.daemon
    with pytest.raises(StoreUnavailable, match="another process"):
        open_archive()
    commit.set()
    assert await asyncio.wait_for(stored, LIMIT)
    await asyncio.to_thread(writer.join, LIMIT)


async def test_closing_gives_up_what_came_last_as_well(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive(close_ms=1)
    attempt = disk.hold("BEGIN")
    disk.fail("BEGIN", *[LOCKED] * 1000)
    stored = [archive.append(make_opening("e1"))]
    await disk.arrived("BEGIN")
    stored += [archive.append(make_opening(f"f{i}")) for i in range(600)]
    attempt.set()
    await archive.close()
    assert [await future for future in stored] == [False] * 601


async def test_much_that_was_written_is_copied_into_the_log_in_a_pause(
    open_archive: Opener, disk: Disk, policy: StorePolicy
) -> None:
    archive = open_archive()
    copying = disk.hold("PRAGMA wal_checkpoint(PASSIVE)")
    copying.set()
    assert await archive.append(make_opening(body=make_manifest(os.urandom(2_000_000))))
    await disk.arrived("PRAGMA wal_checkpoint(PASSIVE)")
    # the next commit waits for the copy, should it come too soon
    assert await archive.append(make_opening("e2"))
    assert policy.path.stat().st_size > 2_000_000


async def test_too_much_is_copied_under_load_too(open_archive: Opener, disk: Disk) -> None:
    archive, begin = open_archive(), disk.hold("BEGIN")
    for i in range(2):
        archive.append(make_opening(f"e{i}", make_manifest(os.urandom(7_900_000))))
    await disk.arrived("BEGIN")
    last = archive.append(make_opening("last", make_manifest(os.urandom(900_000))))
    archive.flush()
    begin.set()  # all is queued: there is no pause in which it would be copied anyway
    assert await last
    steps = [step for step in disk.statements if step in ("COMMIT", "PRAGMA wal_checkpoint(PASSIVE)")]
    committed = len(steps) - steps[::-1].index("COMMIT")
    assert steps[committed - 2 : committed] == ["PRAGMA wal_checkpoint(PASSIVE)", "COMMIT"]


async def test_a_copy_that_fails_is_logged_and_writing_goes_on(
    open_archive: Opener, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive()
    copying = disk.hold("PRAGMA wal_checkpoint(PASSIVE)")
    disk.fail("PRAGMA wal_checkpoint", FULL, FULL)
    assert await archive.append(make_opening(body=make_manifest(os.urandom(2_000_000))))
    await disk.arrived("PRAGMA wal_checkpoint(PASSIVE)")
    copying.set()
    assert await archive.append(make_opening("e2"))
    assert "log.db-wal grows until one can: database or disk is full" in caplog.text
    await archive.close()
    assert "left beside the log; the next start reads it" in caplog.text
    assert await list_ids(open_archive()) == ["e1", "e2"]


async def test_the_log_line_of_a_lost_record_has_no_content(
    open_archive: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive()
    await archive.append(make_opening("e1", model="secret"))
    assert not await archive.append(make_opening("e1", model="secret"))
    assert "kinds Opening could not be stored and are lost: IntegrityError" in caplog.text
    assert "secret" not in caplog.text


def test_an_event_loop_that_is_gone_does_not_stop_the_writing(policy: StorePolicy, disk: Disk) -> None:
    loop = asyncio.new_event_loop()
    archive = open_sqlite(policy, loop, disk.connect)
    commit = disk.hold("COMMIT")

    async def leave() -> None:
        archive.append(make_opening())
        await disk.arrived("COMMIT")

    loop.run_until_complete(leave())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    commit.set()

    async def look() -> list[str]:
        await archive.close()
        again = open_sqlite(policy, asyncio.get_running_loop())
        ids = await list_ids(again)
        await again.close()
        return ids

    assert asyncio.run(look()) == ["e1"]
