"""Searches the index beside the process that writes it: the `Index` port, for the server and for commands."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import orjson
from msgspec.structs import replace

from proxy.engine.ports import Embed
from proxy.model.errors import StoreUnavailable
from proxy.model.search import Hit, IndexedEntry, IndexHealth, SearchAnswer, SearchQuery
from proxy.retrieval.passages import cut_text
from proxy.retrieval.phrases import Phrases, drop_copies, find_phrases, put_phrases_first
from proxy.retrieval.postings import Scored, get_kind, get_session, get_turn
from proxy.retrieval.query import make_question
from proxy.retrieval.ranking import Ranking, search
from proxy.retrieval.snippets import fill
from proxy.retrieval.vectors import find_similar
from proxy.store.constraints import fit_text
from proxy.store.search import schema
from proxy.store.search.changes import read_heads, read_source
from proxy.store.search.entries import load_text, pack_name, unpack_name
from proxy.store.search.indexer import count_behind, measure
from proxy.store.search.postings import IndexCache, SqlitePostings
from proxy.store.search.texts import MessageText, address_text
from proxy.store.search.vectors import list_codes
from proxy.store.sqlite.connection import FILE_ERRORS, connect_reader
from proxy.store.sqlite.reader import ReaderThread
from proxy.store.sqlite.schema import read_salt

MOST_SECONDS = 1.0
"""For how long a search may take. What has been found until then is the answer."""
_MOST_FILLED = 200
"""Entries whose lines are looked at to fill an answer."""
_TOKENS_OF_HIT = 100
_LONGEST_READ = 40_000
"""Characters around the best passage of an entry in which lines are looked for."""
_STEPS_BETWEEN_LOOKS = 20_000  # of SQLite's machine, about a millisecond
_NO_INDEX = "there is no index yet; the server makes it, or `palimpsest index`"

_SESSIONS_OF = "SELECT id FROM session WHERE tenant = (SELECT id FROM tenant WHERE fingerprint = ?)"
_ALL_OF_ONE = "SELECT count(*) FROM tenant"
_SESSION_IDS = "SELECT id FROM session WHERE key IN (SELECT value FROM json_each(?))"
_ENTRY = """
    SELECT e.id, e.address, e.holder, e.exchange, t.name, e.name FROM idx.entry e JOIN idx.tool t ON t.id = e.tool
    WHERE {chosen}"""
_PLACE = """
    SELECT s.key, t.fingerprint, ifnull(n.hash, x''), ifnull(x.id, ''), ifnull(x.n, 0), ifnull(x.opened_ms, 0)
    FROM session s JOIN tenant t ON t.id = s.tenant LEFT JOIN node n ON n.session = s.id AND n.n = ?
    LEFT JOIN exchange x ON x.seq = ? WHERE s.id = ?"""

T = TypeVar("T")


class _Entry(NamedTuple):
    """An entry that was found, with its text."""

    id: int
    name: int
    tool: str
    exchange: int
    text: MessageText


class SearchIndex:
    """The `Index` port. It reads on a connection and in a thread of its own, one search at a time.

    `health` returns what the process that writes the index last told; without it this looks itself. `embed` makes the
    vectors of queries, if the index has any.
    """

    def __init__(
        self,
        log: Path,
        health: Callable[[], IndexHealth] = IndexHealth,
        most_seconds: float = MOST_SECONDS,
        embed: Embed | None = None,
    ) -> None:
        self._log = log
        self._path = schema.find_index(log)
        self._health = health
        self._most_seconds = most_seconds
        self._embed = embed
        self._cache = IndexCache()
        self._reader: ReaderThread | None = None
        self._file = (0, 0)
        self._erasure = 0

    @property
    def health(self) -> IndexHealth:
        """How current the index is, as the process that writes it last told."""
        return self._health()

    async def search(self, query: SearchQuery) -> SearchAnswer:
        """Return what matches best. Never raises for any text. A time limit bounds it."""
        if self._embed is not None and self.health.vectors:
            query = replace(query, vector=await self._embed(query))
        end = time.monotonic() + self._most_seconds
        try:
            return await self._run(lambda connection: self._search(connection, query, lambda: time.monotonic() >= end))
        except StoreUnavailable:
            return SearchAnswer(is_complete=False, behind=self.health.behind)

    async def find_entry(self, reference: str) -> IndexedEntry | None:
        """Return the entry that an id of the index names, or None."""
        try:
            name = pack_name(reference)
        except ValueError:
            return None
        with suppress(StoreUnavailable):
            return await self._run(lambda connection: _find_entry(connection, name))
        return None

    async def look(self) -> IndexHealth:
        """Return how current the index is, from the files."""
        try:
            return await self._run(lambda connection: measure(connection, connection, self._path, schema_name="idx"))
        except StoreUnavailable as error:
            return IndexHealth(fault=str(error))

    async def close(self) -> None:
        """Close the connection for good."""
        if self._reader is not None:
            await self._reader.close()
            self._reader = None

    async def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on the index that is there now. Raises StoreUnavailable."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StoreUnavailable(_NO_INDEX) from error
        if (found.st_dev, found.st_ino) != self._file:  # made anew
            await self.close()
            self._file, self._cache = (found.st_dev, found.st_ino), IndexCache()
        if self._reader is None:
            self._reader = ReaderThread(self._log, connect_index)
        try:
            return await self._reader.run(query)
        except StoreUnavailable:
            await self.close()
            raise

    def _search(self, connection: sqlite3.Connection, query: SearchQuery, is_over: Callable[[], bool]) -> SearchAnswer:
        position = schema.read_meta(connection, "idx")
        behind = count_behind(read_heads(connection), position)
        if position.get("erasure", 0) != self._erasure:  # passages were taken out
            self._erasure, self._cache = position.get("erasure", 0), IndexCache()
        sessions = _list_sessions(connection, query)
        if sessions is not None and not sessions:
            return SearchAnswer(behind=behind)
        connection.set_progress_handler(is_over, _STEPS_BETWEEN_LOOKS)
        try:
            question = make_question(query.text, context=query.context, now_ms=int(time.time() * 1000))
            terms = {term for clue in (*question.clues, *question.context) for term in clue.terms}
            postings = SqlitePostings(connection, query, sessions, terms, cache=self._cache, is_over=is_over)
            ranking = search(
                question, postings, _count_candidates(query), is_over, alike=_find_alike(connection, query, sessions)
            )
        finally:
            connection.set_progress_handler(None, 0)
        hits = _fill(connection, query, ranking, is_over)
        return SearchAnswer(hits=tuple(hits), is_complete=ranking.is_complete, behind=behind)


def _find_alike(
    connection: sqlite3.Connection, query: SearchQuery, sessions: Collection[int] | None
) -> Mapping[int, float]:
    """Return the passages that are similar by their vectors, if the query has one."""
    vector = query.vector
    if vector is None:
        return {}
    return find_similar(vector.code, list_codes(connection, sessions, vector.model, vector.code))


def _count_candidates(query: SearchQuery) -> int:
    """Return how many entries are ranked: more than are shown, since one that repeats others is left out."""
    if query.tokens is not None or query.senders or find_phrases(query.text) != Phrases():
        return _MOST_FILLED
    return min(_MOST_FILLED, 2 * query.limit + 10)


def _fill(
    connection: sqlite3.Connection, query: SearchQuery, ranking: Ranking, is_over: Callable[[], bool]
) -> list[Hit]:
    """Return the entries with their best lines, up to a number of tokens if it is given, else of entries."""
    entries: dict[int, _Entry] = {}
    tokens = query.tokens if query.tokens is not None else _TOKENS_OF_HIT * query.limit
    found = _load_texts(connection, query, ranking, entries)
    if (phrases := find_phrases(query.text)) != Phrases():
        found = put_phrases_first(found, phrases, is_over)
    if query.tokens is None:
        found = drop_copies(found)
    snippets = fill(found, ranking.weights, tokens=tokens, seen=query.seen)
    if query.tokens is None:
        snippets = snippets[: query.limit]
    scores = {scored.entry: scored.score for scored in ranking.entries}
    return [_make_hit(connection, entries[each.entry], scores[each.entry], each.text) for each in snippets]


def _load_texts(
    connection: sqlite3.Connection, query: SearchQuery, ranking: Ranking, entries: dict[int, _Entry]
) -> Iterator[tuple[Scored, str]]:
    """Yield the ranked entries with their texts, as they are needed."""
    for scored in ranking.entries:
        entry = _load(connection, _ENTRY.format(chosen="e.id = ?"), scored.entry)
        if entry is None or (query.senders and not _is_of(connection, entry, query.senders)):
            continue
        entries[scored.entry] = entry
        text = entry.text.text
        passages = cut_text(text) if scored.is_narrow or len(text) > _LONGEST_READ else []
        if scored.is_narrow and scored.number < len(passages):
            text = text[slice(*passages[scored.number])]
        elif passages:
            middle = passages[min(scored.number, len(passages) - 1)][0]
            text = text[max(0, middle - _LONGEST_READ // 2) : middle + _LONGEST_READ // 2]
        yield scored, text


def connect_index(log: Path) -> sqlite3.Connection:
    """Return a connection that reads the log, with its index attached as `idx`. Raises StoreUnavailable."""
    path = schema.find_index(log)
    connection = connect_reader(log)
    try:
        connection.execute("ATTACH DATABASE ? AS idx", (f"{path.absolute().as_uri()}?mode=ro",))
        schema.check(connection, read_salt(connection), "idx")
    except (*FILE_ERRORS, schema.IndexUnusable) as error:
        connection.close()
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
    return connection


def _list_sessions(connection: sqlite3.Connection, query: SearchQuery) -> Collection[int] | None:
    """Return the row ids of the sessions that a query may see, or None for all."""
    named: set[int] | None = None
    if query.sessions is not None:
        keys = orjson.dumps([fit_text(key) for key in query.sessions]).decode()
        named = {id for (id,) in connection.execute(_SESSION_IDS, (keys,))}
    if query.tenant is None:
        return named
    try:
        fingerprint = bytes.fromhex(query.tenant)
    except ValueError:
        return ()
    own = {id for (id,) in connection.execute(_SESSIONS_OF, (fingerprint,))}
    if named is not None:
        return named & own
    (tenants,) = connection.execute(_ALL_OF_ONE).fetchone()
    return None if own and tenants == 1 else own


def _load(connection: sqlite3.Connection, statement: str, key: int) -> _Entry | None:
    """Return an entry with its text, or None if there is none or it was erased."""
    row = connection.execute(statement, (key,)).fetchone()
    if row is None:
        return None
    id, address, holder, exchange, tool, name = row
    text = load_text(connection, address, holder, exchange)
    return None if text is None else _Entry(id, name, tool, exchange, text)


def _find_entry(connection: sqlite3.Connection, name: int) -> IndexedEntry | None:
    entry = _load(connection, _ENTRY.format(chosen="e.name = ?"), name)
    if entry is None:
        return None
    key, fingerprint, node, exchange, n, at_ms = _read_place(connection, entry)
    return IndexedEntry(
        reference=unpack_name(name),
        tenant=fingerprint.hex(),
        session=key,
        node=node,
        exchange=exchange,
        n=n,
        role=entry.text.role,
        sender=_find_sender(connection, entry, node),
        tool=entry.tool,
        kind=get_kind(entry.id),
        at_ms=at_ms,
        text=entry.text.text,
    )


def _make_hit(connection: sqlite3.Connection, entry: _Entry, score: float, snippet: str) -> Hit:
    key, _, node, exchange, n, at_ms = _read_place(connection, entry)
    return Hit(
        reference=unpack_name(entry.name),
        session=key,
        node=node,
        exchange=exchange,
        n=n,
        role=entry.text.role,
        sender=_find_sender(connection, entry, node),
        tool=entry.tool,
        kind=get_kind(entry.id),
        at_ms=at_ms,
        snippet=snippet,
        score=score,
    )


def _is_of(connection: sqlite3.Connection, entry: _Entry, senders: Collection[str]) -> bool:
    _, _, node, *_ = _read_place(connection, entry)
    return _find_sender(connection, entry, node) in senders


def _find_sender(connection: sqlite3.Connection, entry: _Entry, node: bytes) -> str:
    """Return who said the text: as its message says, or as the request did that brought it."""
    if get_kind(entry.id) != "broadcast" or entry.text.kind == "broadcast":
        return entry.text.sender
    return address_text(entry.text, read_source(connection, get_session(entry.id), node)).sender


def _read_place(connection: sqlite3.Connection, entry: _Entry) -> tuple[str, bytes, bytes, str, int, int]:
    """Return session, tenant and node of an entry, and id, number and time of the call that brought it."""
    keys = (get_turn(entry.id), entry.exchange, get_session(entry.id))
    place: tuple[str, bytes, bytes, str, int, int] = connection.execute(_PLACE, keys).fetchone()
    return place
