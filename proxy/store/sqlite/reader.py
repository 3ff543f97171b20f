"""Reading the log over connections of its own, which cannot write, whether or not a server is writing it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import aiosqlite

from proxy.engine.ports import ALL_SESSIONS, MOST_UNREAD, MOST_UNREAD_BYTES
from proxy.model.epoch import Epoch, StoredContext, StoredOriginal, Summary
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import SessionKey
from proxy.model.lineage import StoredSession
from proxy.model.log import (
    AuxiliaryUsage,
    Bill,
    BranchRow,
    ExchangeRow,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
)
from proxy.store.constraints import fit_text
from proxy.store.sqlite.connection import FILE_ERRORS, connect_reader
from proxy.store.sqlite.context_queries import list_epochs, list_summaries, load_context, load_epoch, load_original
from proxy.store.sqlite.exchange_queries import (
    CALLS,
    COUNT_SESSIONS,
    EXCHANGES,
    FEW_SESSIONS,
    LAST_CHARACTER,
    Query,
    count_links,
    list_bills,
    list_unread,
    load_body,
    load_payload,
    make_exchange,
    select_session,
    select_sessions,
    sum_auxiliary,
)
from proxy.store.sqlite.lineage_queries import find_branches, has_sessions, load_positions, recall_sessions
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

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer, from one snapshot. Raises StoreUnavailable. Whoever goes away is not asked for any more."""
        self._expect_open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, question)

    async def close(self) -> None:
        """Let go of the file for good, once the question under way is answered."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._let_go)
            self._thread.shutdown(wait=False)

    def _expect_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the log is closed")

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        self._expect_open()  # it may have waited
        if self._connection is None:
            self._connection = self._connect(self._path)
        try:
            self._connection.execute("BEGIN")
            try:
                return question(self._connection)
            finally:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}; run `palimpsest verify`") from error

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_IDS = "SELECT key FROM session WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_HAS_SESSION = "SELECT 1 FROM session WHERE key = ?"
# In the order of the table: the index of names would lead to its rows in that of the names.
_NAMED = "SELECT id, key FROM session NOT INDEXED WHERE id > ? AND family <> '' ORDER BY id LIMIT ?"
_MOST_NAMED = 256  # they keep the event loop for half a millisecond at most

_KEY = """
    SELECT s.key, t.fingerprint, s.upstream, s.family, s.parent
    FROM session s JOIN tenant t ON t.id = s.tenant WHERE s.key = ?"""

_REQUEST = """
    SELECT s.tenant, e.envelope, e.tip FROM exchange e JOIN session s ON s.id = e.session WHERE e.id = ?"""

_SENT = """
    SELECT s.tenant, ifnull(r.envelope, e.envelope), ifnull(r.tip, e.tip)
    FROM exchange e JOIN session s ON s.id = e.session JOIN round r ON r.exchange = e.seq WHERE e.id = ? AND r.k = ?"""

_RECEIVED = """
    SELECT o.received, o.whole, o.exchange FROM exchange e JOIN outcome o ON o.exchange = e.seq
    WHERE e.id = ? AND o.k = ?"""

_TRAILERS = "SELECT received FROM trailer WHERE exchange = ? AND k = ? ORDER BY i"


class SqliteReader:
    """What can be read from a log, whether or not a server is writing it."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection] = connect_reader,
        few_sessions: int = FEW_SESSIONS,
    ) -> None:
        self._path = path
        self._connect = connect
        self._few_sessions = few_sessions
        self._is_closed = False
        self._connection: aiosqlite.Connection | None = None
        self._opening = asyncio.Lock()
        self._calls = ReaderThread(path, connect)  # what calls wait for; nothing else is asked there
        self._listings = ReaderThread(path, connect)

    async def open(self) -> None:
        """Connect now rather than with the first question. Raises StoreUnavailable."""
        async with self._opening:
            if self._is_closed:  # a late question would leave a connection, and its thread, that nobody closes
                raise StoreUnavailable("the log is closed")
            if self._connection is None:
                # made here and handed over: a connection that fails within aiosqlite leaves a thread behind
                connection = await asyncio.to_thread(self._connect, self._path)
                connection.row_factory = sqlite3.Row
                self._connection = await aiosqlite.Connection(lambda: connection, 64)

    async def close(self) -> None:
        """Let go of the file for good."""
        async with self._opening:
            self._is_closed = True
            await self._calls.close()
            await self._listings.close()
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Newest activity first."""
        ((count,),) = await self._fetch(COUNT_SESSIONS, ())
        return await self._list_sessions(select_sessions(selection, limit, is_many=count > self._few_sessions))

    async def find_session(self, session: str) -> SessionRow:
        """The session with this id. Raises NotFound."""
        for row in await self._list_sessions(select_session(session)):
            return row
        raise NotFound(f"there is no session {session}")

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """The ids of sessions that begin so, in order."""
        first = fit_text(prefix)
        return [row["key"] for row in await self._fetch(_IDS, (first, first + LAST_CHARACTER, limit))]

    async def list_named(self, after: int) -> Sequence[tuple[int, str]]:
        """Row ids and ids of some sessions with a name behind a row id, in order; none behind the last."""
        return await self._listings.ask(lambda connection: connection.execute(_NAMED, (after, _MOST_NAMED)).fetchall())

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """The exchanges of a session behind number `after`, oldest first. Raises NotFound for an unknown session."""
        return await self._list_exchanges(EXCHANGES, session, after, limit)

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """As `list_exchanges`, but every `answer` is empty."""
        return await self._list_exchanges(CALLS, session, after, limit)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """The branches of a session in the order in which they began. Raises NotFound for an unknown session."""
        parents, positions = await self._listings.ask(lambda connection: load_positions(connection, session))
        return await asyncio.to_thread(find_branches, parents, positions)

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Sessions that may hold what a request continues; newest last (see `Ancestry`)."""
        return await self._calls.ask(lambda connection: recall_sessions(connection, nodes, marks, session))

    async def count_links(self, links: Sequence[bytes]) -> int:
        """How many of the links of a chain, in its order, are in the log."""
        return await self._calls.ask(lambda connection: count_links(connection, links))

    async def find_key(self, session: str) -> SessionKey:
        """Whose the session with this id is, and what names it. Raises NotFound."""
        return SessionKey(*await self._find(_KEY, (session,), f"there is no session {session}"))

    async def has_sessions(self) -> bool:
        """False while the log has none."""
        return await self._calls.ask(has_sessions)

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Answers among the newest outcomes that nobody has read; newest first (see `Backlog`)."""
        return await self._listings.ask(lambda connection: list_unread(connection, limit, most_bytes))

    async def load_request(self, exchange: str) -> bytes:
        """The client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        tenant, envelope, tip = await self._find(_REQUEST, (exchange,), f"there is no exchange {exchange}")
        async with self._connected() as connection:
            return await load_body(connection, tenant, envelope, tip)

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """The body sent upstream in round k, byte for byte. Raises NotFound."""
        tenant, envelope, tip = await self._find(_SENT, (exchange, k), f"there is no round {k} of exchange {exchange}")
        async with self._connected() as connection:
            return await load_body(connection, tenant, envelope, tip)

    async def load_received(self, exchange: str, k: int) -> bytes:
        """The body the upstream answered with in round k, trailers included, as far as kept. Raises NotFound."""
        missing = f"there is no answer to round {k} of exchange {exchange}"
        received, whole, seq = await self._find(_RECEIVED, (exchange, k), missing)
        # behind a capped body there is a gap, so nothing that came later may be joined to it
        trailers = [] if whole else await self._fetch(_TRAILERS, (seq, k))
        async with self._connected() as connection:
            parts = [await load_payload(connection, part) for part in (received, *[row[0] for row in trailers])]
        return b"".join(parts)

    async def load_context(self, session: str) -> StoredContext:
        """How a session is managed: its epochs, pins and accounts (see `LogReader`)."""
        return await self._calls.ask(lambda connection: load_context(connection, session))

    async def load_original(self, reference: str) -> StoredOriginal:
        """What a reference stands for. Raises NotFound."""
        return await self._calls.ask(lambda connection: load_original(connection, reference))

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """All epochs of a session in the order in which they were opened, `rendered` empty. Raises NotFound."""
        return await self._listings.ask(lambda connection: list_epochs(connection, session))

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """The n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        return await self._listings.ask(lambda connection: load_epoch(connection, session, n))

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """All summaries of a session, oldest first. Raises NotFound."""
        return await self._listings.ask(lambda connection: list_summaries(connection, session))

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """What auxiliary calls opened since then came to (see `LogReader`)."""
        return await self._listings.ask(lambda connection: sum_auxiliary(connection, since_ms))

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        """What calls were sent as, and what was counted of them (see `LogReader`)."""
        return await self._listings.ask(lambda connection: list_bills(connection, after, limit))

    async def verify(self) -> Verification:
        """Re-derive every digest, link, recipe and seal from what is stored."""
        return await asyncio.to_thread(verify_log, self._path)

    async def backup(self, target: Path) -> None:
        """Copy the log as it stands to a new file. Raises Conflict where the file exists."""
        await asyncio.to_thread(copy_log, self._path, target)

    async def _list_exchanges(self, query: str, session: str, after: int, limit: int) -> list[ExchangeRow]:
        rows = await self._fetch(query, (fit_text(session), after, limit))
        if not rows:
            await self._find(_HAS_SESSION, (fit_text(session),), f"there is no session {session}")
        return [make_exchange(list(group)) for _, group in groupby(rows, key=lambda row: row["seq"])]

    async def _list_sessions(self, query: Query) -> list[SessionRow]:
        return [SessionRow(*row) for row in await self._fetch(*query)]

    async def _find(self, query: str, key: tuple[object, ...], missing: str) -> sqlite3.Row:
        rows = await self._fetch(query, key)
        if not rows:
            raise NotFound(missing)
        return rows[0]

    async def _fetch(self, query: str, key: tuple[object, ...] | dict[str, object]) -> list[sqlite3.Row]:
        async with self._connected() as connection:
            return list(await connection.execute_fetchall(query, key))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[aiosqlite.Connection]:
        await self.open()
        connection = self._connection
        assert connection is not None
        try:
            yield connection
        except FILE_ERRORS as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}; run `palimpsest verify`") from error
