import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.engine.ports import MOST_FINGERPRINTS
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Usage
from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from tests.store.context_contract import ContextContract
from tests.store.contract import ArchiveContract
from tests.store.listing_contract import ListingContract
from tests.store.memory_contract import MemoryContract
from tests.store.samples import (
    chain_body,
    join_body,
    make_chain,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_step,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.summary_contract import SummaryContract
from tests.store.tree_contract import TreeArchive, TreeContract
from tests.store.unread_contract import UnreadContract

ROOT = Path(__file__).parents[3]


@pytest.fixture
def policy(tmp_path: Path) -> StorePolicy:
    return StorePolicy(tmp_path / "data" / "log.db", durability="normal", lock_ms=0)


def open_at(policy: StorePolicy) -> SqliteArchive:
    return open_sqlite(policy, asyncio.get_running_loop())


class TestSqliteArchive(
    ArchiveContract, ContextContract, ListingContract, MemoryContract, SummaryContract, TreeContract, UnreadContract
):
    @pytest.fixture(params=["full", "normal"])
    async def archive(self, policy: StorePolicy, request: pytest.FixtureRequest) -> AsyncIterator[TreeArchive]:
        archive = open_at(replace(policy, durability=request.param))
        yield archive
        await archive.close()


async def test_everything_is_there_after_a_restart_and_goes_on_from_there(policy: StorePolicy) -> None:
    turns = make_turns(8)
    archive = open_at(policy)
    salt = archive.salt
    await archive.append(make_opening("e1", chain_body(turns[:6])), make_round("e1"), make_outcome("e1"))
    await archive.close()

    archive = open_at(policy)
    assert archive.salt == salt and len(salt) == 32
    # the history is known from before: only what is new need be sent, and a reading finds its round
    assert await archive.append(
        make_opening("e2", chain_body(turns, known=6)), make_reading("e1", usage=Usage(input=3))
    )
    assert await archive.load_request("e2") == join_body(turns)
    rows = await archive.list_exchanges(make_key().id)
    assert [(row.seq, row.n, row.id) for row in rows] == [(1, 1, "e1"), (2, 2, "e2")]
    assert rows[0].rounds[0].usage == Usage(input=3)
    assert (await archive.verify()).faults == ()
    await archive.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from tests.store.samples import make_opening, make_outcome, make_round

async def main():
    archive = open_sqlite(StorePolicy(Path(sys.argv[1]), durability="normal"), asyncio.get_running_loop())
    for i in range(40):
        assert await archive.append(make_opening(f"e{i}"), make_round(f"e{i}"), make_outcome(f"e{i}"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_after_kill_9_all_that_was_acknowledged_is_there_and_the_log_opens_at_once(policy: StorePolicy) -> None:
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(policy.path)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    archive = open_at(policy)
    rows = await archive.list_exchanges(make_key().id)
    assert [row.id for row in rows] == [f"e{i}" for i in range(40)]
    assert all(row.rounds[0].completeness == "complete" for row in rows)
    assert (await archive.verify()).faults == ()
    assert await archive.append(make_opening("e40"))
    await archive.close()


async def test_after_kill_9_the_log_can_be_read_before_any_server_opens_it(policy: StorePolicy) -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(policy.path)], cwd=ROOT)
    recover_log(policy)
    reader = SqliteReader(policy.path)
    try:
        assert len(await reader.list_exchanges(make_key().id)) == 40
        assert (await reader.verify()).faults == ()
    finally:
        await reader.close()


async def test_files_and_directory_are_for_their_owner_alone_whatever_the_umask(policy: StorePolicy) -> None:
    before = os.umask(0)
    try:
        archive = open_at(policy)
    finally:
        os.umask(before)
    await archive.append(make_opening())
    names = {path.name: path.stat().st_mode & 0o777 for path in policy.path.parent.iterdir()}
    assert set(names) == {"log.db", "log.db-wal", "log.db-shm", "log.db.lock", "log.db.journal"}
    assert set(names.values()) == {0o600}
    assert policy.path.parent.stat().st_mode & 0o777 == 0o700
    await archive.close()


async def test_a_log_others_could_read_is_made_private_again(policy: StorePolicy) -> None:
    await open_at(policy).close()
    policy.path.chmod(0o644)
    await open_at(policy).close()
    assert policy.path.stat().st_mode & 0o777 == 0o600


async def test_a_second_writer_is_refused_and_told_who_holds_the_log(policy: StorePolicy) -> None:
    archive = open_at(policy)
    with pytest.raises(StoreUnavailable, match=rf"another process \(id {os.getpid()}\).*data directory"):
        open_at(policy)
    assert await archive.append(make_opening())
    await archive.close()
    await open_at(policy).close()


async def test_a_log_has_one_writer_by_whatever_name_it_is_called(policy: StorePolicy, tmp_path: Path) -> None:
    archive = open_at(policy)
    (tmp_path / "alias.db").symlink_to(policy.path)
    with pytest.raises(StoreUnavailable, match="another process"):
        open_at(StorePolicy(tmp_path / "alias.db", lock_ms=0))
    await archive.close()


def write_text(path: Path) -> None:
    path.write_bytes(b"dear diary, " * 1000)


def write_foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes(name TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(write_text, "is not a SQLite database"), (write_foreign, "a database of another program")],
)
async def test_a_file_that_is_no_log_is_refused_and_left_alone(
    policy: StorePolicy, spoil: Callable[[Path], None], reason: str
) -> None:
    policy.path.parent.mkdir()
    spoil(policy.path)
    before = policy.path.read_bytes()
    with pytest.raises(StoreUnavailable, match=reason):
        open_at(policy)
    assert policy.path.read_bytes() == before


async def write_log(policy: StorePolicy, count: int = 200) -> None:
    archive = open_at(policy)
    for i in range(count):
        archive.append(
            make_opening(f"e{i}", make_manifest(os.urandom(900))), make_round(f"e{i}"), make_outcome(f"e{i}")
        )
    await archive.close()


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("filler", [b"\xa5", b"\0", b""], ids=["garbage", "zeros", "another page"])
async def test_a_damaged_log_is_refused_and_left_alone(policy: StorePolicy, place: float, filler: bytes) -> None:
    await write_log(policy)
    pages = policy.path.stat().st_size // 4096
    with policy.path.open("r+b") as file:
        file.seek(pages // 2 * 4096)
        another = file.read(4096)
        file.seek(int(pages * place) * 4096)
        file.write(filler * 4096 or another)
    before = policy.path.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"log\.db.*(damaged|malformed)"):
        await open_at(policy).close()
    assert policy.path.read_bytes() == before


@pytest.mark.parametrize("place", ["file/log.db", "directory"])
async def test_a_place_that_cannot_be_written_is_refused_with_what_to_change(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StoreUnavailable, match=r"cannot be written.*data directory"):
        open_at(StorePolicy(tmp_path / place))
    # the refusal holds nothing: once the place is right, it opens
    (tmp_path / "directory").rmdir()
    await open_at(StorePolicy(tmp_path / "directory")).close()


async def test_closing_leaves_one_file_that_is_the_whole_log(policy: StorePolicy, tmp_path: Path) -> None:
    archive = open_at(policy)
    await archive.append(make_opening(body=make_manifest(b"all of it")))
    await archive.close()
    assert not policy.path.with_name("log.db-wal").exists()
    moved = policy.path.rename(tmp_path / "moved.db")
    reader = SqliteReader(moved)
    assert await reader.load_request("e1") == b"all of it"
    await reader.close()


async def test_the_log_grows_with_what_is_new_and_not_with_the_history(policy: StorePolicy) -> None:
    """At most 1.5 times unseen slices and received bytes (BEHAVIOUR B32c), at 2.5 KB a turn that hardly compresses."""

    async def grow(first: int, last: int) -> tuple[int, int]:
        archive, new = open_at(policy), 0
        for i in range(first, last):
            content = [(b",", b'{"role":"%s","content":"%s"}' % (b"user", os.urandom(500).hex().encode()))] * 1
            turns.extend(content)
            received = b'{"choices":[{"message":{"role":"assistant","content":"%s"}}]}' % os.urandom(700).hex().encode()
            new += sum(len(gap) + len(each) for gap, each in content) + len(received)
            fields = ((b"date", b"Mon, 13 Oct 2025 09:00:%02d GMT" % (i % 60)), (b"x-request-id", b"req_%032d" % i))
            exchange = f"ex_{i:026d}"
            await archive.append(make_opening(exchange, chain_body(turns, known=len(turns) - 1)), make_round(exchange))
            archive.append(make_outcome(exchange, received=received, headers=fields))
            archive.append(make_reading(exchange, answer=received, usage=Usage(input=i, output=300)), is_urgent=False)
        await archive.close()
        return policy.path.stat().st_size, new

    turns: list[tuple[bytes, bytes]] = []
    before, _ = await grow(0, 40)
    after, new = await grow(40, 240)
    assert after - before < 1.5 * new


async def test_a_session_that_waits_to_be_written_is_recalled(open_archive: Opener) -> None:
    archive = open_archive(durability="normal", batch_ms=60_000, journal_batch_ms=60_000)
    nodes = make_chain("a", "!b")
    archive.append(make_opening(key=make_key("a")), make_step("e1", nodes), is_urgent=False)
    assert archive.health.pending == 2
    assert [each.key for each in await archive.recall((), (), make_key("a"))] == [make_key("a")]
    assert archive.health.pending == 0
    assert not await archive.recall((), (), make_key("b"))
    found = await archive.recall([row.node for row in nodes], ["call:x"] * MOST_FINGERPRINTS, make_key("b"))
    assert [each.key for each in found] == [make_key("a")]
