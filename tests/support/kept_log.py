"""The log of a test: a SQLite file in a directory of its own, which is gone with the test's event loop."""

import asyncio
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from proxy.model.log import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.connection import connect_writer, prepare_file

R = TypeVar("R")


_closing: set[asyncio.Task[None]] = set()  # a loop alone does not keep a task from being collected


@cache
def _make_empty_log() -> bytes:
    """A log without records, to be copied: making one takes four times as long as opening it."""
    with TemporaryDirectory() as folder:
        policy = StorePolicy(Path(folder) / "log.db")
        prepare_file(policy.path)
        connect_writer(policy).close()
        return policy.path.read_bytes()


class KeptLog:
    """The `Archive` of the package, opened with its first use, and what was appended to it. Its loop closes it.

    `folder` is where its file stays, `policy` what else is set of the store.
    """

    def __init__(self, folder: Path | None = None, **policy: Any) -> None:
        self.records: list[Record] = []
        self._kept_in, self._settings = folder, policy

    @cached_property
    def _policy(self) -> StorePolicy:
        folder = TemporaryDirectory()
        path = (self._kept_in or Path(folder.name)) / "log.db"
        path.write_bytes(_make_empty_log())
        _closing.add(task := asyncio.create_task(self._close_at_the_end()))
        task.add_done_callback(_closing.discard)
        task.add_done_callback(lambda _: folder.cleanup())
        return StorePolicy(path, **self._settings)

    @cached_property
    def stored(self) -> SqliteArchive:
        """The log itself."""
        return open_sqlite(self._policy, asyncio.get_running_loop())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stored, name)

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Append records, as the port says."""
        self.records += records
        return self.stored.append(*records, is_urgent=is_urgent)

    def of(self, kind: type[R]) -> list[R]:
        """All records of a kind, in order."""
        return [record for record in self.records if isinstance(record, kind)]

    async def reopen(self) -> None:
        """Close the file, and open it as another process would."""
        await self.stored.close()
        self.stored = open_sqlite(self._policy, asyncio.get_running_loop())

    async def _close_at_the_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.stored.close()
