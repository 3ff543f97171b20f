"""A log where nothing can be written: commands read it all the same, and a start says so at once."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.connection import WriterLock
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import make_key, make_opening, make_outcome, make_round
from tests.store.sqlite.crashing import crash

NOBODY = 65534


@contextlib.contextmanager
def locked_up(log: Path) -> Iterator[None]:
    """Nothing can be made or written in the directory of a log, whoever runs this: root is nobody meanwhile."""
    is_root = os.geteuid() == 0
    for path in (log.parent, *log.parent.iterdir()):
        if is_root:
            os.chown(path, NOBODY, -1)
    log.parent.chmod(0o555)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        log.parent.chmod(0o755)


@pytest.fixture
def policy() -> Iterator[StorePolicy]:
    """A log that somebody else may reach: the directories of pytest are root's alone where root runs it."""
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
    folder.chmod(0o755)
    yield StorePolicy(folder / "log.db", durability="full", busy_ms=1, lock_ms=0, close_ms=2000)
    shutil.rmtree(folder)


def write(policy: StorePolicy) -> None:
    """A log with a call in it, whose server has stopped."""

    async def record() -> None:
        archive = open_sqlite(policy, asyncio.get_running_loop())
        assert await archive.append(make_opening("e1"), make_round("e1"), make_outcome("e1"))
        await archive.close()

    asyncio.run(record())


def read(path: Path) -> list[str]:
    """The calls in a log, by the way that commands go."""

    async def ask() -> list[str]:
        reader = SqliteReader(path)
        try:
            assert [row.id for row in await reader.list_sessions()] == [make_key().id]
            assert await reader.load_request("e1") == b"{}"
            assert await reader.list_summaries(make_key().id) == []
            return [row.id for row in await reader.list_exchanges(make_key().id)]
        finally:
            await reader.close()

    return asyncio.run(ask())


def test_commands_read_a_log_beside_which_nothing_can_be_made(policy: StorePolicy, tmp_path: Path) -> None:
    write(policy)
    with locked_up(policy.path):
        recover_log(policy)
        assert read(policy.path) == ["e1"]
        assert verify_log(policy.path).faults == ()
        with tempfile.TemporaryDirectory() as folder:
            copy_log(policy.path, Path(folder) / "copy.db")
    assert sorted(path.name for path in policy.path.parent.iterdir()) == ["log.db", "log.db.lock"]
    WriterLock(policy.path).release()  # nobody holds it any more


def test_what_a_kill_left_is_read_there_too(policy: StorePolicy, caplog: pytest.LogCaptureFixture) -> None:
    write(policy)
    crash(replace(policy, durability="normal"), (make_opening("e2"),))
    policy.path.with_name("log.db-wal").unlink()  # all of it is in the log's file
    with locked_up(policy.path):
        recover_log(policy)
        assert read(policy.path) == ["e1"]
    assert "the last records of a killed server are still in" in caplog.text


def test_a_log_is_not_read_so_while_somebody_writes_it_or_not_all_of_it_is_there(policy: StorePolicy) -> None:
    write(policy)
    lock = WriterLock(policy.path)
    with locked_up(policy.path), pytest.raises(StoreUnavailable, match="is being written by another process"):
        read(policy.path)
    lock.release()
    policy.path.with_name("log.db-wal").write_bytes(b"of a server that was killed")
    with locked_up(policy.path), pytest.raises(StoreUnavailable, match=r"log\.db-wal beside it has what is not in it"):
        read(policy.path)
    policy.path.with_name("log.db-wal").unlink()
    policy.path.with_name("log.db.lock").chmod(0)
    with locked_up(policy.path), pytest.raises(StoreUnavailable, match=r"whether .* is being written is not known"):
        read(policy.path)
    policy.path.with_name("log.db.lock").unlink()
    with locked_up(policy.path):
        assert read(policy.path) == ["e1"], "a copy that no server ever had open"


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_start_says_at_once_that_nothing_can_be_written(policy: StorePolicy, durability: str) -> None:
    write(policy)
    policy.path.with_name("log.db-wal").touch()
    policy.path.with_name("log.db-shm").touch()

    async def start() -> None:
        open_sqlite(replace(policy, durability=durability), asyncio.get_running_loop())  # type: ignore[arg-type]

    with locked_up(policy.path), pytest.raises(StoreUnavailable, match=r"no file can be made in .* \(--data\)"):
        asyncio.run(start())
