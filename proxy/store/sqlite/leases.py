"""Leases in the log's file. Rule: the writer's thread takes them, between two commits; who cannot be told has none.

They end with the process, for one alone writes the file (BEHAVIOUR B32e): what a killed one held the next one ends.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable

from proxy.engine.ports import Clock
from proxy.store.sqlite.problem import advise
from proxy.store.storable import fit_text

_log = logging.getLogger(__name__)

_EXPIRE = "DELETE FROM lease WHERE until_ms <= ?"
_ACQUIRE = """
    INSERT INTO lease(key, owner, until_ms) VALUES (:key, :owner, :until)
    ON CONFLICT(key) DO UPDATE SET until_ms = excluded.until_ms WHERE owner = excluded.owner"""
_RENEW = "UPDATE lease SET until_ms = :until WHERE key = :key AND owner = :owner"
_END = "DELETE FROM lease"
_RELEASE = "DELETE FROM lease WHERE key = :key AND owner = :owner"

# What comes before it in the thread is a commit, or a disk that fails: nobody works on what nobody may.
_MOST_SECONDS = 2.0

Errand = Callable[[sqlite3.Connection], None]


class SqliteLeases:
    """The `Leases` port; `put` has an errand run in the writer's thread, and is False where it never will be."""

    def __init__(self, put: Callable[[Errand], bool], clock: Clock, most_seconds: float = _MOST_SECONDS) -> None:
        self._put = put
        self._clock = clock
        self._most_seconds = most_seconds

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Have the lease for so long from now: True where nobody else has it, or its time is over."""
        return await self._ask(_ACQUIRE, key, owner, seconds)

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Keep it for so long from now; False where its holder is another, or its time is over."""
        return await self._ask(_RENEW, key, owner, seconds)

    async def release(self, key: str, owner: str) -> None:
        """Give it up; nothing happens where the owner does not hold it."""
        await self._ask(_RELEASE, key, owner)

    async def _ask(self, statement: str, key: str, owner: str, seconds: float = 0.0) -> bool:
        """Whether the statement changed a lease."""
        now = self._clock.now_ms()
        named = {"key": fit_text(key), "owner": fit_text(owner), "until": now + round(seconds * 1000)}
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[bool] = loop.create_future()

        def run(connection: sqlite3.Connection) -> None:
            is_changed = _change(connection, now, statement, named)
            try:
                loop.call_soon_threadsafe(changed.set_result, is_changed)
            except RuntimeError:  # the loop is closed: nobody waits any more
                _log.debug("the event loop ended before a lease was told")

        if self._put(run):
            await asyncio.wait((changed,), timeout=self._most_seconds)
        return changed.done() and changed.result()


def end_leases(connection: sqlite3.Connection) -> None:
    """End what is held; for whoever has the file's lock, and so knows that the holder has ended."""
    try:
        connection.execute(_END)
    except sqlite3.Error as error:
        _log.warning("leases of the process before could not be ended: %s", advise(error))


def _change(connection: sqlite3.Connection, now: int, statement: str, named: dict[str, object]) -> bool:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_EXPIRE, (now,))
        count = connection.execute(statement, named).rowcount
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _log.warning("a lease could not be had: %s", advise(error))
        return False
    return count == 1
