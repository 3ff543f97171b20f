import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.schema import migrate
from tests.store.sqlite.disk import Disk


@pytest.fixture
def policy(tmp_path: Path) -> StorePolicy:
    return StorePolicy(tmp_path / "log.db", durability="full", busy_ms=1, lock_ms=0, close_ms=2000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A log as another program sees it: no pragma set."""
    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    migrate(connection)
    yield connection
    connection.close()


@pytest.fixture
def disk() -> Disk:
    return Disk()


class Opener:
    """Opens archives on the test's disk, and closes what the test left open."""

    def __init__(self, policy: StorePolicy, disk: Disk) -> None:
        self._policy = policy
        self._disk = disk
        self._opened: list[SqliteArchive] = []

    @property
    def path(self) -> Path:
        """Where the log is, unless told otherwise."""
        return self._policy.path

    def __call__(self, **changes: object) -> SqliteArchive:
        policy = replace(self._policy, **changes)  # type: ignore[arg-type]
        archive = open_sqlite(policy, asyncio.get_running_loop(), self._disk.connect)
        self._opened.append(archive)
        return archive

    async def close(self) -> None:
        self._disk.release()
        for archive in self._opened:
            await archive.close()


@pytest.fixture
async def open_archive(policy: StorePolicy, disk: Disk) -> AsyncIterator[Opener]:
    opener = Opener(policy, disk)
    yield opener
    await opener.close()
