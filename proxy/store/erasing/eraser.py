"""Erases sessions from log.db: finds what is theirs alone, has the writer delete it, and overwrites what SQLite leaves.

A person's erasure deletes all at once; retention deletes in steps, after each of which the writer is free for four
times as long. Afterwards the write-ahead log is emptied, and the gaps in pages are overwritten, in steps as well, since
nobody may write meanwhile. That is noted in the log until it is done, so that a start after a crash goes on with it.
Where files of a session's memory are to be removed is noted in the row of its erasure, until that is done.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import orjson
from msgspec.structs import replace

from proxy.engine.ports import Clock
from proxy.model.erasing import Cause, ErasableSession, SessionErasure
from proxy.model.errors import Erased, NotFound, StoreUnavailable, tell_day
from proxy.store.erasing.deletion import Deletion, is_unwiped, note_wiped
from proxy.store.erasing.gaps import PageGaps
from proxy.store.erasing.reach import Content, Heads, list_unshared, read_heads
from proxy.store.memory_files import remove_memory
from proxy.store.sqlite.connection import FILE_ERRORS, FileIdentity, advise, connect_reader

T = TypeVar("T")

_log = logging.getLogger(__name__)

# One step of retention: a few milliseconds each.
_STEP_CONTENTS, _STEP_BYTES = 200, 1024 * 1024
_LOAD_STEP = 2000
_REST = 4.0
_LONGEST_SCAN_S = 0.02
_WAL_TRIES, _WAL_PAUSE_S = 100, 0.05

_FIND = "SELECT id FROM session WHERE key = ?"
_STATE = """
    SELECT (SELECT max(seq) FROM exchange WHERE session = s.id), (SELECT count(*) FROM exchange WHERE session = s.id),
        (SELECT max(through) FROM erased WHERE session = s.id), (SELECT max(at_ms) FROM erased WHERE session = s.id)
    FROM session s WHERE s.id = ?"""
_ERASED = "SELECT payloads, bytes, cause, at_ms FROM erased WHERE session = ? ORDER BY seq DESC LIMIT 1"
_REMAINS = """
    SELECT s.key, x.session, x.remains FROM erased x JOIN session s ON s.id = x.session
    WHERE x.remains <> x'' ORDER BY x.seq"""
_REMOVED = "UPDATE erased SET remains = x'' WHERE session = ? AND remains = ?"
_SAME_BEGINNING = """
    SELECT DISTINCT o.key FROM node n
    JOIN node m ON substr(m.hash, 1, 6) = substr(n.hash, 1, 6) AND m.is_answer IN (0, 1) AND m.hash = n.hash
    JOIN session s ON s.id = n.session JOIN session o ON o.id = m.session
    WHERE n.session = ?1 AND n.parent = 0 AND o.id <> ?1 AND o.tenant = s.tenant
    AND (SELECT max(seq) FROM exchange WHERE session = o.id)
        > ifnull((SELECT max(through) FROM erased WHERE session = o.id), 0)
    ORDER BY o.id"""
_CHILDREN = (
    "SELECT c.key FROM session s JOIN session c ON c.parent = s.key WHERE s.id = ? AND s.key <> '' ORDER BY c.id"
)
_CONTINUED_BY = """
    SELECT DISTINCT s.key FROM adoption a JOIN session s ON s.id = a.session WHERE a.source = ? ORDER BY s.id"""
_IDLE = """
    SELECT s.key, (SELECT opened_ms FROM exchange WHERE session = s.id ORDER BY n DESC LIMIT 1) AS last_ms
    FROM session s
    WHERE (SELECT max(seq) FROM exchange WHERE session = s.id)
        > ifnull((SELECT max(through) FROM erased WHERE session = s.id), 0)
    AND last_ms < ? ORDER BY last_ms LIMIT ?"""


class ErasableLog(Protocol):
    """The log as erasing needs it (`store/sqlite/archive`)."""

    @property
    def path(self) -> Path:
        """The path of the log."""
        ...

    async def run_task(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Run a task in the writer thread, behind the records that were appended before."""
        ...

    def note_erased_in_thread(self, rows: int, content: int) -> None:
        """Drop what the writer remembers of the log."""
        ...

    def note_erased(self) -> None:
        """Have everybody drop what they remember of the log, and overwrite what the journal has of it."""
        ...


class _Remains(NamedTuple):
    """A session, its row id, and the directory that has files of it."""

    key: str
    session: int
    mirror: bytes


class _Plan(NamedTuple):
    """What is to be deleted of sessions, by row id, and where the log ended then."""

    sessions: tuple[int, ...]
    heads: Heads
    found: list[Content]
    kept_bytes: int


class SqliteEraser:
    """The `Eraser` port over log.db. It does one thing after another."""

    def __init__(
        self,
        log: ErasableLog,
        clock: Clock,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        mirror: str = "",
    ) -> None:
        self._log = log
        self._clock = clock
        self._rest = rest
        self._mirror = os.fsencode(Path(mirror).absolute()) if mirror else b""
        self._lock = asyncio.Lock()
        self._identity = FileIdentity(log.path, 0)
        self._gaps: PageGaps | None = None

    async def measure(self, session: str) -> SessionErasure:
        """Return what erasing a session would do. Raises NotFound, and Erased if nothing is left of it."""
        await self._log.run_task(_wait)
        return (await asyncio.to_thread(self._read, partial(_describe, session=session)))[0]

    async def erase(self, session: str, cause: Cause = "person") -> SessionErasure:
        """Erase a session in one transaction, then overwrite what is left of it in the files of the log.

        If it was erased before, and not to the end, go on with that. `remove_rest` does what is left to do outside.
        Raises what `measure` does, Conflict if the session is called meanwhile, and StoreUnavailable.
        """
        async with self._lock:
            self._log.note_erased()  # from here on, bodies are recorded without reference to what may go
            await self._log.run_task(_wait)
            described, plan = await asyncio.to_thread(self._read, partial(_describe, session=session))
            if plan is None:
                return replace(described, is_done=True, is_overwritten=await self._try_to_overwrite())
            deletion = Deletion(plan.sessions, plan.heads, cause, self._clock.now_ms(), self._mirror)
            await self._log.run_task(partial(self._delete_all, deletion, plan.found))
            self._log.note_erased()
            is_overwritten = await self._try_to_overwrite()
        return _finish(described, deletion, is_overwritten=is_overwritten)

    async def erase_slowly(self, sessions: Sequence[str], cause: Cause) -> int:
        """Erase sessions in steps, behind traffic. Return the bytes that were deleted.

        Raises Conflict if one of them is called meanwhile, and StoreUnavailable.
        """
        async with self._lock:
            self._log.note_erased()
            await self._log.run_task(_wait)
            plan = await asyncio.to_thread(self._read, partial(_plan, keys=sessions))
            deletion = Deletion(plan.sessions, plan.heads, cause, self._clock.now_ms(), self._mirror)
            try:
                await self._log.run_task(partial(deletion.load, found=plan.found[:_LOAD_STEP]))
                for start in range(_LOAD_STEP, len(plan.found), _LOAD_STEP):
                    more = plan.found[start : start + _LOAD_STEP]
                    await self._work(partial(_load_more, found=more))
                while await self._work(partial(self._delete_some, deletion)):
                    pass
            finally:
                self._log.note_erased()
        return deletion.bytes

    async def overwrite(self) -> bool:
        """Overwrite what is left of erased content in the files of the log. Return whether none is left."""
        async with self._lock:
            return await self._overwrite()

    async def remove_rest(self) -> Mapping[str, str]:
        """Remove the files of memory of erased sessions. Return where those of which session could not be removed."""
        left: dict[str, str] = {}
        async with self._lock:
            for each in await self._log.run_task(_list_remains):
                folder = Path(os.fsdecode(each.mirror))
                try:
                    await asyncio.to_thread(remove_memory, folder, each.key)
                except OSError as error:
                    extra = {"session": each.key}
                    _log.error("files of the memory of an erased session are left: %s", error, extra=extra)
                    left[each.key] = str(folder)
                else:
                    await self._log.run_task(partial(_note_removed, each))
        return left

    async def list_idle(self, before_ms: int, limit: int) -> Sequence[ErasableSession]:
        """Return sessions that have content and were not called since, the longest idle one first."""

        def read(log: sqlite3.Connection) -> list[ErasableSession]:
            return [ErasableSession(*row) for row in log.execute(_IDLE, (before_ms, limit))]

        return await asyncio.to_thread(self._read, read)

    async def measure_used(self) -> int:
        """Return the bytes of the log's file that are in use."""
        return await asyncio.to_thread(measure_used, self._log.path)

    def close(self) -> None:
        """Release the file. Call it once the log is closed."""
        if self._gaps is not None:
            self._gaps.close()
            self._gaps = None

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query over a connection of its own, with temporary tables, in one snapshot."""
        return _read_log(self._log.path, query)

    async def _work(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Run one step in the writer thread, then leave it alone for four times as long."""
        began = time.monotonic()
        result = await self._log.run_task(task)
        await self._rest(_REST * (time.monotonic() - began))
        return result

    def _delete_all(self, deletion: Deletion, found: Sequence[Content], connection: sqlite3.Connection) -> None:
        deletion.delete_all(connection, found)
        self._log.note_erased_in_thread(deletion.contents, deletion.bytes)

    def _delete_some(self, deletion: Deletion, connection: sqlite3.Connection) -> bool:
        before = deletion.contents, deletion.bytes
        is_left = deletion.delete_some(connection, _STEP_CONTENTS, _STEP_BYTES)
        self._log.note_erased_in_thread(deletion.contents - before[0], deletion.bytes - before[1])
        return is_left

    async def _try_to_overwrite(self) -> bool:
        try:
            return await self._overwrite()
        except StoreUnavailable as error:  # the session is erased all the same, and a later run goes on with it
            _log.error("a session was erased, but bytes of it may be left in the files of the log: %s", error)
            return False

    async def _overwrite(self) -> bool:
        if not await self._log.run_task(is_unwiped):
            return True
        after: int | None = 0
        tries = _WAL_TRIES
        while after is not None:
            try:
                step = await self._work(partial(self._overwrite_some, after))
            except OSError as error:
                raise StoreUnavailable(f"{self._log.path} cannot be written: {error}; check the disk") from error
            if step == after:  # somebody reads from the write-ahead log, or another process writes it
                tries -= 1
                if not tries:
                    _log.warning("bytes of erased content may be left in the files of the log until no one reads it")
                    return False
                await self._rest(_WAL_PAUSE_S)
            else:
                after = step
        await self._log.run_task(_finish_wiping)
        return True

    def _overwrite_some(self, after: int, connection: sqlite3.Connection) -> int | None:
        """Overwrite some gaps. Return the last row id that is done, `after` if others prevent it, None for all."""
        self._identity.check()
        (wait_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                return after
            connection.execute("PRAGMA shrink_memory")  # pages in memory have the gaps as they were
            if self._gaps is None:
                self._gaps = PageGaps(self._log.path)
            return self._gaps.overwrite(connection, after, _LONGEST_SCAN_S)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {wait_ms}")


def _wait(connection: sqlite3.Connection) -> None:
    """Do nothing: what was recorded before is in the log then."""


def _finish_wiping(connection: sqlite3.Connection) -> None:
    note_wiped(connection)
    connection.execute("DROP TABLE IF EXISTS temp.candidate")


def _list_remains(connection: sqlite3.Connection) -> list[_Remains]:
    return [_Remains(*row) for row in connection.execute(_REMAINS)]


def _note_removed(remains: _Remains, connection: sqlite3.Connection) -> None:
    connection.execute(_REMOVED, (remains.session, remains.mirror))


def _load_more(connection: sqlite3.Connection, found: Sequence[Content]) -> None:
    connection.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", found)


def _plan(log: sqlite3.Connection, keys: Sequence[str]) -> _Plan:
    query = "SELECT id FROM session WHERE key IN (SELECT value FROM json_each(?)) ORDER BY id"
    sessions = tuple(id for (id,) in log.execute(query, (orjson.dumps(list(keys)).decode(),)))
    found, kept = list_unshared(log, sessions)
    return _Plan(sessions, read_heads(log), found, kept)


def _describe(log: sqlite3.Connection, session: str) -> tuple[SessionErasure, _Plan | None]:
    """Return what erasing a session does, and how; without a plan if it is erased and something remains to be done."""
    row = log.execute(_FIND, (session,)).fetchone()
    if row is None:
        raise NotFound(f"there is no session {session}")
    newest, calls, through, at_ms = log.execute(_STATE, row).fetchone()
    is_erased = through is not None and through >= newest
    if is_erased and not is_unwiped(log) and all(each.key != session for each in _list_remains(log)):
        raise Erased(f"session {session} was erased{tell_day(at_ms)}", session, at_ms)
    same, children, later = (
        tuple([key for (key,) in log.execute(query, row)]) for query in (_SAME_BEGINNING, _CHILDREN, _CONTINUED_BY)
    )
    if is_erased:
        contents, size, cause, at_ms = log.execute(_ERASED, row).fetchone()
        return SessionErasure(session, False, calls, contents, size, 0, same, children, later, cause, at_ms), None
    plan = _plan(log, (session,))
    size = sum(each.size for each in plan.found)
    described = SessionErasure(session, False, calls, len(plan.found), size, plan.kept_bytes, same, children, later)
    return described, plan


def _finish(described: SessionErasure, deletion: Deletion, *, is_overwritten: bool) -> SessionErasure:
    more = described.bytes - deletion.bytes  # what has come to be shared meanwhile
    return SessionErasure(
        described.session,
        True,
        described.calls,
        deletion.contents,
        deletion.bytes,
        described.kept_bytes + more,
        described.shared_with,
        described.children,
        described.continued_by,
        deletion.cause,
        deletion.at_ms,
        is_overwritten,
    )


def measure_used(log: Path) -> int:
    """Return the bytes of a log's file that are in use. Blocks. Raises StoreUnavailable."""
    return _read_log(log, _measure_used)


def _read_log(log: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    connection = connect_reader(log)
    try:
        connection.execute("PRAGMA query_only = OFF")  # for temporary tables; the file is opened read-only
        connection.execute("BEGIN")
        return query(connection)
    except FILE_ERRORS as error:
        raise StoreUnavailable(f"{log} cannot be read: {advise(error)}") from error
    finally:
        connection.close()


def _measure_used(log: sqlite3.Connection) -> int:
    (pages,) = log.execute("PRAGMA page_count").fetchone()
    (free,) = log.execute("PRAGMA freelist_count").fetchone()
    (size,) = log.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * size)
