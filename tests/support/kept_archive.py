"""A fake archive whose log is a real SQLite file: what is recalled comes from there, so that it proves the store too.

The trees in memory stay, for the test's oracle to look at; the engine does not see them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy.model.errors import StoreUnavailable
from proxy.model.lineage import StoredSession
from proxy.model.log import Record, UnreadRow
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from tests.support.engine import FakeArchive


class KeptArchive(FakeArchive):
    """Keeps what is appended in a file too."""

    def __init__(self, path: Path) -> None:
        super().__init__(is_instant=True)
        self._policy = StorePolicy(path)
        self._log = self._open()

    def _open(self) -> SqliteArchive:
        return open_sqlite(self._policy, asyncio.get_running_loop())

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        self._log.append(*records, is_urgent=is_urgent)
        return super().append(*records, is_urgent=is_urgent)

    async def recall(self, *asked: Any, **named: Any) -> Sequence[StoredSession]:
        if self.refuses_recall:
            raise StoreUnavailable("the log cannot be read")
        return await self._log.recall(*asked, **named)

    async def list_unread(self, *asked: Any, **named: Any) -> Sequence[UnreadRow]:
        return await self._log.list_unread(*asked, **named)

    async def has_sessions(self) -> bool:
        return await self._log.has_sessions()

    async def reopen(self) -> None:
        await self._log.close()
        self._log = self._open()

    async def close(self) -> None:
        """Whatever was appended is in the log, and nothing is wrong with it."""
        faults = (await self._log.verify()).faults
        dropped = self._log.health.dropped
        await self._log.close()
        assert (faults, dropped) == ((), 0)
