import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.log import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.schema import bring_up_to_date
from proxy.store.sqlite.transaction import TransactionWriter
from tests.store.sqlite.disk import Disk, tables


@pytest.fixture
def policy(tmp_path: Path) -> StorePolicy:
    return StorePolicy(tmp_path / "log.db", durability="full", busy_ms=1, lock_ms=0, close_ms=2000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A log as another program sees it: no pragma set."""
    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    bring_up_to_date(connection)
    yield connection
    connection.close()


class WrittenLog:
    """A log, and what each transaction adds to it and looks up in it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.writer = TransactionWriter(connection)

    def add(self, *records: Record) -> Mapping[str, int]:
        """Store records in one transaction; the number of new rows by table."""
        before = tables(self.connection)
        count = self.writer.commit([records])
        added = {name: rows - before.get(name, 0) for name, rows in tables(self.connection).items() if name != "meta"}
        assert sum(added.values()) == count
        return {name: rows for name, rows in added.items() if rows}

    def list_look_ups(self, *records: Record) -> list[str]:
        """Store records in one transaction; the queries that this took."""
        statements: list[str] = []
        self.connection.set_trace_callback(statements.append)
        try:
            self.writer.commit([records])
        finally:
            self.connection.set_trace_callback(None)
        return [each for each in statements if each.lstrip().startswith("SELECT") and "--" not in each]

    def select(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        """What a query finds."""
        return self.connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def written(policy: StorePolicy) -> Iterator[WrittenLog]:
    """A new log, and what writes it."""
    log = WrittenLog(connect_writer(policy))
    yield log
    log.close()


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
