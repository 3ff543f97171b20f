import asyncio
import sqlite3
from pathlib import Path

import pytest

from proxy.model.errors import Conflict, StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.reader import SqliteReader
from tests.store.samples import chain_body, join_body, make_key, make_opening, make_turns
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import Disk


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


async def test_the_log_is_not_copied_onto_itself(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await archive.append(make_opening())
    with pytest.raises(Conflict):
        await archive.backup(policy.path)
    assert (await archive.verify()).exchanges == 1


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
    with pytest.raises(StoreUnavailable, match="could not be copied"):
        copy_log(policy.path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_a_log_can_be_copied_with_no_server(open_archive: Opener, policy: StorePolicy, tmp_path: Path) -> None:
    archive = open_archive()
    await archive.append(make_opening())
    await archive.close()
    reader = SqliteReader(policy.path)
    await reader.backup(tmp_path / "copy.db")
    await reader.close()
    connection = sqlite3.connect(tmp_path / "copy.db")
    assert connection.execute("SELECT id FROM exchange").fetchall() == [("e1",)]
    connection.close()
