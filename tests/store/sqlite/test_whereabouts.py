import asyncio
import logging
from pathlib import Path

import pytest

from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import FileIdentity, LogReplaced
from proxy.store.sqlite.journal import journal_path
from proxy.store.sqlite.recovery import recover_log
from tests.store.samples import make_opening, make_round
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.crashing import read_ids
from tests.store.sqlite.disk import LIMIT, Disk


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Ear(logging.Handler):
    """Hears what a thread logs."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the event loop."""
        self._loop.call_soon_threadsafe(self.heard.set)


@pytest.fixture
def now() -> Now:
    return Now()


def test_a_file_that_is_in_its_place_is_fine(tmp_path: Path, now: Now) -> None:
    (tmp_path / "log.db").touch()
    whereabouts = FileIdentity(tmp_path / "log.db", 1000, now)
    for now.seconds in range(5):
        whereabouts.check()


def test_where_nobody_can_tell_the_commits_do(tmp_path: Path, now: Now) -> None:
    path = tmp_path / ("x" * 300)  # too long a name for any file
    whereabouts = FileIdentity(path, 1000, now)
    now.seconds = 2.0
    whereabouts.check()


def test_a_file_that_is_gone_is_noticed_within_a_second_and_so_is_its_return(tmp_path: Path, now: Now) -> None:
    path = tmp_path / "log.db"
    path.touch()
    whereabouts = FileIdentity(path, 1000, now)
    path.rename(tmp_path / "moved")
    now.seconds = 0.9
    whereabouts.check()  # nobody asks before each record
    now.seconds = 1.0
    for _ in range(2):
        with pytest.raises(LogReplaced):
            whereabouts.check()
    (tmp_path / "moved").rename(path)
    whereabouts.check()


def test_another_file_in_its_place_is_noticed(tmp_path: Path, now: Now) -> None:
    (tmp_path / "log.db").touch()
    (tmp_path / "other").touch()
    whereabouts = FileIdentity(tmp_path / "log.db", 1000, now)
    (tmp_path / "other").replace(tmp_path / "log.db")
    now.seconds = 1.0
    with pytest.raises(LogReplaced):
        whereabouts.check()


def test_a_directory_that_is_gone_is_noticed(tmp_path: Path, now: Now) -> None:
    place = tmp_path / "data"
    place.mkdir()
    (place / "log.db").touch()
    whereabouts = FileIdentity(place / "log.db", 1000, now)
    (place / "log.db").unlink()
    place.rmdir()
    place.touch()
    now.seconds = 1.0
    with pytest.raises(LogReplaced):
        whereabouts.check()


async def test_records_wait_while_the_log_is_gone_and_are_written_once_it_is_back(
    open_archive: Opener, policy: StorePolicy, disk: Disk
) -> None:
    ear, log = Ear(), logging.getLogger("proxy.store.sqlite.writer")
    log.addHandler(ear)
    archive = open_archive(look_ms=0)
    assert await archive.append(make_opening("e1"))
    policy.path.rename(policy.path.with_name("moved"))
    begun = disk.count("BEGIN")
    waiting = archive.append(make_opening("e2"))
    async with asyncio.timeout(LIMIT):
        await ear.heard.wait()
    log.removeHandler(ear)
    assert "was deleted or replaced while the server runs; put it back, or restart the server" in archive.health.problem
    assert not waiting.done() and disk.count("BEGIN") == begun
    policy.path.with_name("moved").rename(policy.path)
    assert await waiting
    assert archive.health.problem == ""


async def test_records_that_wait_for_a_log_that_is_gone_for_good_are_counted_as_lost(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = open_archive(look_ms=0, close_ms=1)
    policy.path.unlink()
    waiting = archive.append(make_opening("e2"), make_round("e2"))
    await archive.close()
    assert await waiting is False
    assert archive.health.dropped == 2


@pytest.mark.parametrize("is_journal_gone", [False, True])
async def test_what_is_in_the_journal_alone_is_kept_or_told_to_be_lost(
    open_archive: Opener, policy: StorePolicy, is_journal_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive(durability="normal", look_ms=0, close_ms=1)
    policy.path.rename(policy.path.with_name("moved"))
    assert archive.append(make_opening("e2"), make_round("e2")).result()
    if is_journal_gone:
        journal_path(policy.path).unlink()
    await archive.close()
    policy.path.with_name("moved").rename(policy.path)
    recover_log(policy)
    assert read_ids(policy.path) == ([] if is_journal_gone else ["e2"])
    assert ("2 records are lost" in caplog.text) == is_journal_gone
