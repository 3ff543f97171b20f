"""A log that an earlier version wrote: it opens, is brought up to date, and is as sound as it was."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import WriterLock, connect_reader, is_older
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from proxy.store.sqlite.schema import list_objects, make_schema
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    chain_body,
    make_chain,
    make_epoch,
    make_held,
    make_key,
    make_leaf,
    make_memory_order,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_plan,
    make_reading,
    make_recalled,
    make_remembered,
    make_round,
    make_source,
    make_step,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.old_forms import FORMS, write_as, write_old_log
from tests.store.sqlite.spoiling import spoil

ROOT = Path(__file__).parents[3]
CHAIN = make_chain("a", "!b", "c")
TURNS = make_turns(3)


@pytest.mark.parametrize("form", FORMS)
async def test_the_log_that_is_kept_of_each_version_is_brought_up_to_date_as_a_new_one_is_and_written_on(
    form: str, open_archive: Opener, policy: StorePolicy
) -> None:
    write_old_log(policy.path, form)
    sealed = read_seals(policy.path)
    assert is_older(policy.path)
    archive = open_archive()
    found = await archive.verify()
    assert (found.faults, found.exchanges > 4) == ((), True)
    assert b"Find the fault" in await archive.load_request(await find_first(archive))
    plan = replace(make_plan("e9", epoch="p9"), client_read=1, soft=7)
    epoch = replace(make_epoch("p9", (b"a ledger",), [make_original("r9", TURNS[1][1])]), tool=b"a tool")
    timed = make_outcome("e9")
    timed = replace(timed, status=500, timings=replace(timed.timings, overhead_ms=1.5))
    step = replace(make_step("e9", make_chain("a", "b")), layers=b"t" * 24)
    opening = make_opening("e9", chain_body(TURNS))
    assert await archive.append(opening, step, make_round("e9"), timed, epoch, plan)
    assert await archive.append(*(make_recalled("e9", "p9"), make_held("e9"), make_source("e9"), make_pin(b"n" * 16)))
    assert await archive.append(make_leaf("a", [TURNS[1][1], TURNS[2][1]], 1), make_remembered(), make_memory_order())
    (row,) = await archive.list_exchanges(make_key().id)
    assert (row.rounds[0].plan, row.rounds[0].timings, row.layers) == (plan, timed.timings, b"t" * 24)
    await archive.close()
    assert verify_log(policy.path).faults == ()
    assert sealed < read_seals(policy.path)
    log, made = sqlite3.connect(policy.path), make_schema()
    assert list_objects(log) == list_objects(made)
    log.close()
    made.close()


async def find_first(archive: SqliteArchive) -> str:
    """The id of the first call of the session with most calls."""
    session = max(await archive.list_sessions(), key=lambda row: row.exchanges)
    return (await archive.list_exchanges(session.id))[0].id


def read_seals(path: Path) -> set[tuple[str, int, bytes]]:
    """The seals of all rows."""
    log = sqlite3.connect(path)
    tables = [
        name for (name,) in log.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%seq INTEGER%seal BLOB%'")
    ]
    found = {(table, *row) for table in tables for row in log.execute(f"SELECT seq, seal FROM {table}")}
    log.close()
    return found


KILLED = """
import os, signal, sys
from pathlib import Path
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import connect_writer, sqlite3

class Killed(sqlite3.Connection):
    left = int(sys.argv[2])

    def execute(self, *statement):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return super().execute(*statement)

connect = lambda path, **given: sqlite3.connect(path, factory=Killed, **given)
log = connect_writer(StorePolicy(Path(sys.argv[1]), durability="full"), connect)
print(int(sys.argv[2]) - log.left)
"""


@pytest.mark.no_cover
async def test_a_kill_at_any_moment_leaves_the_log_as_it_was_or_up_to_date(
    old: Path, policy: StorePolicy, tmp_path: Path
) -> None:
    def run(at: int) -> subprocess.CompletedProcess[str]:
        for path in tmp_path.glob("log.db*"):
            path.unlink()
        shutil.copy(kept, old)
        command = [sys.executable, "-c", KILLED, str(old), str(at)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)

    kept = shutil.copy(old, tmp_path / "kept.db")
    statements = int(run(-1).stdout)
    assert statements > 60 and not is_older(old)
    for at in (1, 9, *range(12, statements - 1, statements // 4), statements - 1):
        assert run(at).returncode == -signal.SIGKILL
        assert is_older(old)
        recover_log(policy)
        assert not is_older(old) and verify_log(old).faults == ()
        reader = SqliteReader(old)
        assert [row.exchanges for row in await reader.list_sessions()] == [3]
        await reader.close()


@pytest.fixture
async def old(open_archive: Opener, policy: StorePolicy) -> Path:
    """A log of the first version, in the place of the test's."""
    archive = open_archive()
    for i in range(3):
        x = f"e{i}"
        archive.append(make_opening(x, chain_body(make_turns(i + 1))), make_round(x), make_outcome(x), make_reading(x))
    await archive.close()
    return write_as(policy.path, "m001_record")


@pytest.fixture
async def managed(open_archive: Opener, policy: StorePolicy) -> Path:
    """A log with an epoch, which any version since the third may have written."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)), make_step("e1", CHAIN), make_round("e1"), make_outcome("e1"))
    archive.append(make_epoch("p1", (b"a ledger",), [make_original("r1", TURNS[1][1])]), make_plan("e1", epoch="p1"))
    await archive.close()
    return policy.path


async def test_what_a_log_without_tallies_holds_is_counted_once_and_missed_from_then_on(
    managed: Path, open_archive: Opener, policy: StorePolicy
) -> None:
    write_as(managed, "m004_summaries")
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(policy.path)
    archive = open_archive()
    assert (await archive.verify()).faults == ()
    chain = make_chain("a", "!b", "c", "d")
    assert await archive.append(make_opening("e2"), make_step("e2", chain[3:], base=3), make_round("e2"))
    await archive.close()
    assert verify_log(policy.path).faults == ()
    spoil(policy.path, "UPDATE step SET is_side = 1 WHERE n = 1")
    assert [fault.where for fault in verify_log(policy.path).faults] == ["step"]


async def test_commands_bring_it_up_to_date_where_no_server_runs(old: Path, policy: StorePolicy) -> None:
    recover_log(policy)
    reader = SqliteReader(old)
    assert [row.exchanges for row in await reader.list_sessions()] == [3]
    await reader.close()
    assert verify_log(old).faults == ()


def test_a_log_in_use_that_is_older_is_left_alone(
    old: Path, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    lock = WriterLock(old.resolve())
    recover_log(policy)
    lock.release()
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(old)
    assert not caplog.records
