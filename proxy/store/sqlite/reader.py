"""Reading the log over connections of its own, which cannot write, whether or not a server is writing it."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from proxy.engine.ports import ALL_SESSIONS, MOST_UNREAD, MOST_UNREAD_BYTES
from proxy.model.epoch import Epoch, StoredContext, StoredOriginal, Summary
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import SessionKey
from proxy.model.lineage import StoredSession
from proxy.model.log import AuxiliaryUsage, Bill, BranchRow, ExchangeRow, Selection, SessionRow, UnreadRow, Verification
from proxy.store.sqlite import context_queries, exchange_queries, lineage_queries
from proxy.store.sqlite.connection import FILE_ERRORS, connect_reader
from proxy.store.sqlite.exchange_queries import FEW_SESSIONS
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.verify import verify_log

T = TypeVar("T")


class ReaderThread:
    """One connection and its thread, both made with the first query; one query at a time.

    To go back to the event loop after each statement would take longer than most of them.
    """

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palimpsest-reader")

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a query finds in one snapshot. Raises StoreUnavailable. One that is cancelled is not begun."""
        self._expect_open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, query)

    async def close(self) -> None:
        """Close the connection for good, once the query under way is done."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
            self._thread.shutdown(wait=False)

    def _expect_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the log is closed")

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._expect_open()  # it may have waited
        if self._connection is None:
            self._connection = self._connect(self._path)
        try:
            self._connection.execute("BEGIN")
            try:
                return query(self._connection)
            finally:
                self._connection.execute("COMMIT")
        except FILE_ERRORS as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}; run `palimpsest verify`") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SqliteReader:
    """The `LogReader`, `Ancestry` and `Backlog` ports over log.db.

    What requests wait for is asked over a connection of its own, so that it never waits behind a report.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection] = connect_reader,
        few_sessions: int = FEW_SESSIONS,
    ) -> None:
        self._path = path
        self._few_sessions = few_sessions
        self._calls = ReaderThread(path, connect)
        self._reports = ReaderThread(path, connect)

    async def close(self) -> None:
        """Close the connections for good."""
        await self._calls.close()
        await self._reports.close()

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Return sessions, newest activity first."""
        few = self._few_sessions
        return await self._ask(lambda log: exchange_queries.list_sessions(log, limit, selection, few))

    async def find_session(self, session: str) -> SessionRow:
        """Return the session with this id. Raises NotFound."""
        return await self._ask(lambda log: exchange_queries.find_session(log, session))

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Return the ids of sessions that begin so, in order."""
        return await self._ask(lambda log: exchange_queries.list_ids(log, prefix, limit))

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return the exchanges of a session behind number `after`, oldest first. Raises NotFound for no session."""
        return await self._ask(lambda log: exchange_queries.list_exchanges(log, session, after, limit))

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return the same as `list_exchanges`, but every `answer` is empty."""
        return await self._ask(
            lambda log: exchange_queries.list_exchanges(log, session, after, limit, has_answers=False)
        )

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """Return the branches of a session in the order in which they began. Raises NotFound for no session."""
        parents, positions = await self._ask(lambda log: lineage_queries.load_positions(log, session))
        return await asyncio.to_thread(lineage_queries.find_branches, parents, positions)

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Return sessions that may hold what a request continues; newest last (see `Ancestry`)."""
        return await self._ask(lambda log: lineage_queries.recall_sessions(log, nodes, marks, session), is_call=True)

    async def count_links(self, links: Sequence[bytes]) -> int:
        """Count the links of a chain, in its order, that are in the log."""
        return await self._ask(lambda log: exchange_queries.count_links(log, links), is_call=True)

    async def find_key(self, session: str) -> SessionKey:
        """Return whose the session with this id is, and what names it. Raises NotFound."""
        return await self._ask(lambda log: exchange_queries.find_key(log, session))

    async def has_sessions(self) -> bool:
        """Return False while the log has none."""
        return await self._ask(lineage_queries.has_sessions, is_call=True)

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Return responses among the newest outcomes that nobody has read; newest first (see `Backlog`)."""
        return await self._ask(lambda log: exchange_queries.list_unread(log, limit, most_bytes))

    async def load_request(self, exchange: str) -> bytes:
        """Return the client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        return await self._ask(lambda log: exchange_queries.load_request(log, exchange))

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """Return the body sent upstream in round k, byte for byte. Raises NotFound."""
        return await self._ask(lambda log: exchange_queries.load_sent(log, exchange, k))

    async def load_received(self, exchange: str, k: int) -> bytes:
        """Return the body of the response to round k, trailers included, as far as kept. Raises NotFound."""
        return await self._ask(lambda log: exchange_queries.load_received(log, exchange, k))

    async def load_context(self, session: str) -> StoredContext:
        """Return how a session is managed: its epochs, pins and accounts (see `LogReader`)."""
        return await self._ask(lambda log: context_queries.load_context(log, session), is_call=True)

    async def load_original(self, reference: str) -> StoredOriginal:
        """Return what a reference stands for. Raises NotFound."""
        return await self._ask(lambda log: context_queries.load_original(log, reference), is_call=True)

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """Return all epochs of a session in the order in which they opened, `rendered` empty. Raises NotFound."""
        return await self._ask(lambda log: context_queries.list_epochs(log, session))

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """Return the n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        return await self._ask(lambda log: context_queries.load_epoch(log, session, n))

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """Return all summaries of a session, oldest first. Raises NotFound."""
        return await self._ask(lambda log: context_queries.list_summaries(log, session))

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """Sum what auxiliary calls opened since then came to (see `LogReader`)."""
        return await self._ask(lambda log: exchange_queries.sum_auxiliary(log, since_ms))

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        """Return what calls were sent as, and what was counted of them (see `LogReader`)."""
        return await self._ask(lambda log: exchange_queries.list_bills(log, after, limit))

    async def verify(self) -> Verification:
        """Re-derive every digest, link, recipe and seal from what is stored."""
        await self._catch_up(is_call=False)
        return await asyncio.to_thread(verify_log, self._path)

    async def backup(self, target: Path) -> None:
        """Copy the log as it is to a new file, while it is written. Raises Conflict where the file exists."""
        await self._catch_up(is_call=False)
        await asyncio.to_thread(copy_log, self._path, target)

    async def _ask(self, query: Callable[[sqlite3.Connection], T], *, is_call: bool = False) -> T:
        await self._catch_up(is_call=is_call)
        return await (self._calls if is_call else self._reports).run(query)

    async def _catch_up(self, *, is_call: bool) -> None:
        """Wait until the log has what this process appended before: a mere reader appends nothing."""
