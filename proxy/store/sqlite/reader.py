"""Reading the log. Rule: own connections that cannot write; a long listing takes no more statements than a short."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import cast

import aiosqlite

from proxy.engine.ports import ALL_SESSIONS, MOST_UNREAD, MOST_UNREAD_BYTES
from proxy.model.epoch import Epoch, StoredContext, StoredOriginal
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import Completeness, Headers, Kind, Mode, SessionKey, Timings, Usage
from proxy.model.lineage import StoredSession
from proxy.model.log import (
    AuxiliaryUsage,
    Bill,
    BranchRow,
    ExchangeRow,
    RoundRow,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
)
from proxy.model.manifest import digest_of, encode_recipe
from proxy.model.plan import Plan
from proxy.model.summary import Summary
from proxy.store.branches import find_branches
from proxy.store.sqlite.backup import copy_log
from proxy.store.sqlite.bodies import count_links, load_body, load_payload
from proxy.store.sqlite.codec import decode_headers
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.context import list_epochs, load_context, load_epoch, load_original
from proxy.store.sqlite.dag import list_summaries
from proxy.store.sqlite.desk import ReaderThread
from proxy.store.sqlite.envelope import join_recipe
from proxy.store.sqlite.growth import RELATIONS
from proxy.store.sqlite.listing import (
    COUNT_SESSIONS,
    FEW_SESSIONS,
    LAST_CHARACTER,
    Query,
    list_bills,
    select_session,
    select_sessions,
    sum_auxiliary,
)
from proxy.store.sqlite.problem import FILE_ERRORS
from proxy.store.sqlite.recall import has_sessions, recall_sessions
from proxy.store.sqlite.stands import load_stands
from proxy.store.sqlite.unread import list_unread
from proxy.store.sqlite.verify import verify_log
from proxy.store.storable import fit_text

_IDS = "SELECT key FROM session WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_HAS_SESSION = "SELECT 1 FROM session WHERE key = ?"
# In the order of the table: the index of names would lead to its rows in that of the names.
_NAMED = "SELECT id, key FROM session NOT INDEXED WHERE id > ? AND family <> '' ORDER BY id LIMIT ?"
_MOST_NAMED = 256  # they keep the event loop for half a millisecond at most

_EXCHANGES = """
    SELECT e.seq, e.id, s.key AS session, e.n, e.kind, e.wire, e.mode, e.model, e.method, e.target, e.size, e.whole,
        e.opened_ms, e.tip, e.changes, unpack(eh.codec, eh.bytes) AS headers,
        unpack(ee.codec, ee.bytes) AS envelope,
        r.k AS round_k, r.upstream AS round_upstream,
        o.status AS round_status, o.changes AS round_changes, unpack(oh.codec, oh.bytes) AS round_headers,
        o.completeness AS round_completeness, o.whole AS round_whole, o.head_ms, o.first_byte_ms, o.total_ms,
        o.size + ifnull((SELECT sum(t.size) FROM trailer t WHERE t.exchange = o.exchange AND t.k = o.k), 0)
        AS round_size,
        o.error AS round_error, unpack(ge.codec, ge.bytes) AS answer_error,
        unpack(ga.codec, ga.bytes) AS answer,
        g.input, g.output, g.cached, g.written, g.reasoning, g.finish,
        t.relation, t.is_side, ifnull(d.hash, t.outer) AS stand, t.depth, t.base,
        c.view, c.rung, ifnull(h.id, '') AS epoch, c.pressure, c.reason, c.tokens_client, c.tokens_upstream, c.usable,
        c.owed, c.saving
    FROM session s
    JOIN exchange e ON e.session = s.id
    LEFT JOIN step t ON t.session = e.session AND t.n = e.n
    LEFT JOIN node d ON d.session = t.session AND d.n = t.tip
    LEFT JOIN payload eh ON eh.id = e.headers
    LEFT JOIN payload ee ON ee.id = e.envelope
    LEFT JOIN round r ON r.exchange = e.seq
    LEFT JOIN outcome o ON o.exchange = r.exchange AND o.k = r.k
    LEFT JOIN payload oh ON oh.id = o.headers
    LEFT JOIN reading g ON g.exchange = r.exchange AND g.k = r.k
    LEFT JOIN decision c ON c.exchange = r.exchange AND c.k = r.k
    LEFT JOIN epoch h ON h.seq = c.epoch
    LEFT JOIN payload ga ON ga.id = g.answer
    LEFT JOIN payload ge ON ge.id = g.error
    WHERE s.key = ?1 AND e.n > ?2 AND e.n <= ?2 + ?3 ORDER BY e.n, r.k"""

# in the order of the fields of `Plan`
_DECISION = (
    "view",
    "rung",
    "epoch",
    "pressure",
    "reason",
    "tokens_client",
    "tokens_upstream",
    "usable",
    "owed",
    "saving",
)

_CALLS = _EXCHANGES.replace("unpack(ga.codec, ga.bytes) AS answer", "NULL AS answer")

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
        return await self._list_exchanges(_EXCHANGES, session, after, limit)

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """As `list_exchanges`, but every `answer` is empty."""
        return await self._list_exchanges(_CALLS, session, after, limit)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """The branches of a session in the order in which they began. Raises NotFound for an unknown session."""
        parents, stands = await self._listings.ask(lambda connection: load_stands(connection, session))
        return await asyncio.to_thread(find_branches, parents, stands)

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
        return [_make_exchange(list(group)) for _, group in groupby(rows, key=lambda row: row["seq"])]

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


def _make_exchange(rows: list[sqlite3.Row]) -> ExchangeRow:
    row = rows[0]
    return ExchangeRow(
        seq=row["seq"],
        id=row["id"],
        session=row["session"],
        n=row["n"],
        kind=cast(Kind, row["kind"]),
        wire=row["wire"],
        mode=cast(Mode, row["mode"]),
        model=row["model"],
        method=row["method"],
        target=row["target"],
        headers=_make_headers(row["headers"], row["changes"]),
        request_size=row["size"],
        is_capped=bool(row["whole"]),
        digest=_digest_recipe(row["envelope"], row["tip"]),
        opened_ms=row["opened_ms"],
        rounds=tuple(_make_rounds(rows)),
        relation="" if row["relation"] is None else RELATIONS[row["relation"]],
        is_side=bool(row["is_side"]),
        tip=row["stand"] or b"",
        depth=row["depth"] or 0,
        base=row["base"] or 0,
    )


def _make_rounds(rows: Iterable[sqlite3.Row]) -> list[RoundRow]:
    return [_make_round(row) for row in rows if row["round_k"] is not None]


def _make_round(row: sqlite3.Row) -> RoundRow:
    usage = Usage(row["input"], row["output"], row["cached"], row["written"], row["reasoning"])
    has_outcome = row["round_status"] is not None
    return RoundRow(
        k=row["round_k"],
        upstream=row["round_upstream"],
        status=row["round_status"] or 0,
        headers=_make_headers(row["round_headers"], row["round_changes"]),
        completeness=cast(Completeness, row["round_completeness"]) if has_outcome else "",
        received_size=row["round_size"] or 0,
        is_capped=bool(row["round_whole"]),
        timings=Timings(row["head_ms"], row["first_byte_ms"], row["total_ms"]) if has_outcome else None,
        error=row["round_error"] or (row["answer_error"] or b"").decode("utf-8"),
        answer=row["answer"] or b"",
        usage=None if usage == Usage() else usage,
        finish=row["finish"] or "",
        plan=None if row["rung"] is None else Plan(row["id"], row["round_k"], *[row[name] for name in _DECISION]),
    )


def _make_headers(base: bytes | None, changes: bytes | None) -> Headers:
    return () if base is None else decode_headers(base, changes or b"")


def _digest_recipe(envelope: bytes | None, tip: bytes) -> bytes:
    """The digest of a recipe; empty where it was erased."""
    return b"" if envelope is None else digest_of(encode_recipe(join_recipe(envelope, tip)))
