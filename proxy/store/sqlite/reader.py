"""Reads the log over its own read-only connections, whether or not a server is writing it."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from proxy.engine.ports import ALL_SESSIONS
from proxy.model.errors import StoreUnavailable
from proxy.model.log import BranchRow, ExchangeRow, Selection, SessionRow, Verification
from proxy.store.sqlite import context_queries, exchange_queries, lineage_queries
from proxy.store.sqlite.connection import FILE_ERRORS, connect_reader
from proxy.store.sqlite.exchange_queries import FEW_SESSIONS
from proxy.store.sqlite.figures import queries as figure_queries
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.verify import verify_log

P = ParamSpec("P")
T = TypeVar("T")


class ReaderThread:
    """One connection and its thread, both created for the first query. It runs one query at a time.

    A query runs in the thread as a whole: returning to the event loop after each statement would take longer than most.
    """

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palimpsest-reader")

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in one snapshot. Raises StoreUnavailable. A query that is cancelled while it waits is not run."""
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
        self._expect_open()  # it may have been closed while this waited
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


def _make_method(
    query: Callable[Concatenate[sqlite3.Connection, P], T], *, is_call: bool = False
) -> "Callable[Concatenate[SqliteReader, P], Coroutine[Any, Any, T]]":
    """Return a method of the reader that runs a query. `is_call` if a request waits for it."""

    async def ask(self: "SqliteReader", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(lambda log: query(log, *args, **kwargs), is_call=is_call)

    return ask


class SqliteReader:
    """The `LogReader`, `Ancestry`, `HeldCalls` and `Backlog` ports over log.db. The ports document the methods.

    Queries that requests wait for have a separate connection, so that they never wait for a report.
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

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return the same as `list_exchanges`, but every `answer` is empty."""
        return await self._ask(
            lambda log: exchange_queries.list_exchanges(log, session, after, limit, has_answers=False)
        )

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """Return the branches of a session in the order in which they began. Raises NotFound for no session."""
        parents, positions = await self._ask(lambda log: lineage_queries.load_positions(log, session))
        return await asyncio.to_thread(lineage_queries.find_branches, parents, positions)

    find_session = _make_method(exchange_queries.find_session)
    list_ids = _make_method(exchange_queries.list_ids)
    list_exchanges = _make_method(exchange_queries.list_exchanges)
    load_request = _make_method(exchange_queries.load_request)
    load_manifest = _make_method(exchange_queries.load_manifest)
    load_held = _make_method(exchange_queries.load_held)
    load_sent = _make_method(exchange_queries.load_sent)
    load_received = _make_method(exchange_queries.load_received)
    find_key = _make_method(exchange_queries.find_key)
    list_unread = _make_method(exchange_queries.list_unread)
    list_shadows = _make_method(exchange_queries.list_shadows)
    sum_auxiliary = _make_method(exchange_queries.sum_auxiliary)
    number_calls = _make_method(lineage_queries.number_calls)
    load_newest = _make_method(figure_queries.load_newest)
    load_tallies = _make_method(figure_queries.load_tallies)
    count_later = _make_method(figure_queries.count_later)
    load_rounds = _make_method(figure_queries.load_rounds)
    load_heads = _make_method(figure_queries.load_heads)
    list_nodes = _make_method(lineage_queries.list_nodes)
    list_epochs = _make_method(context_queries.list_epochs)
    load_epoch = _make_method(context_queries.load_epoch)
    list_summaries = _make_method(context_queries.list_summaries)

    recall = _make_method(lineage_queries.recall_sessions, is_call=True)
    count_links = _make_method(lineage_queries.count_links, is_call=True)
    has_sessions = _make_method(lineage_queries.has_sessions, is_call=True)
    list_held = _make_method(exchange_queries.list_held, is_call=True)
    load_context = _make_method(context_queries.load_context, is_call=True)
    list_uses = _make_method(context_queries.list_uses, is_call=True)
    load_memory = _make_method(context_queries.load_memory, is_call=True)
    list_memory_requests = _make_method(context_queries.list_memory_requests)
    load_original = _make_method(exchange_queries.load_original, is_call=True)

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
        """Wait until the log has what this process has appended. A reader alone appends nothing."""
