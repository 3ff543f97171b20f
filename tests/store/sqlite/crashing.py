"""What a killed server leaves, byte for byte, without a process of its own."""

import asyncio
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

from proxy.model.log import Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.journal import journal_path


def crash(policy: StorePolicy, *appends: tuple[Record, ...]) -> Path:
    """Leave a log whose journal holds these appends, of which nothing is written; the journal."""
    path = journal_path(policy.path)

    async def leave() -> bytes:
        archive = open_sqlite(replace(policy, journal_batch_ms=60_000), asyncio.get_running_loop())
        for records in appends:
            assert archive.append(*records).result() is True
        content = path.read_bytes()
        shutil.copy(policy.path, policy.path.with_name("before"))
        shutil.copy(policy.path.with_name("log.db-wal"), policy.path.with_name("before-wal"))
        await archive.close()
        return content

    content = asyncio.run(leave())
    policy.path.with_name("before").replace(policy.path)
    policy.path.with_name("before-wal").replace(policy.path.with_name("log.db-wal"))
    path.write_bytes(content)
    return path


def read_ids(path: Path) -> list[str]:
    """What is in the log's file."""
    connection = sqlite3.connect(path)
    try:
        return [name for (name,) in connection.execute("SELECT id FROM exchange ORDER BY seq")]
    finally:
        connection.close()
