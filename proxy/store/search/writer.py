"""Writes entries and their passages into index.db. All methods work in the transaction of the caller."""

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from proxy.context.references import make_reference
from proxy.model.lru import LruCache
from proxy.retrieval.passages import cut_passages
from proxy.retrieval.postings import (
    LENGTHS,
    MOST_IN_SESSION,
    MOST_PARTS,
    MOST_TURNS,
    PASSAGE_BITS,
    PLACE_SHIFT,
    SESSION_SHIFT,
    IndexedText,
    Lane,
    Passage,
    make_place,
)
from proxy.store.search.entries import pack_name
from proxy.store.search.schema import LANES, PLACES_IN_ROW
from proxy.store.search.texts import MessageText

_KNOWN_WORDS = 1 << 16
_SHORTEST_WORD, _LONGEST_WORD = 3, 40
_PLACE_BYTES = 8
_DIGEST_BYTES = 7

_ADD_ENTRY = """
    INSERT OR IGNORE INTO entry(id, address, holder, exchange, tool, name) VALUES (?, ?, ?, ?, ?, ?)"""
_PLACES = "SELECT places FROM place WHERE session = ? AND row = ?"
_ADD_STATISTIC = """
    INSERT INTO statistic(session, lane, passages, terms) VALUES (?, ?, ?, ?)
    ON CONFLICT (session, lane) DO UPDATE SET passages = passages + excluded.passages, terms = terms + excluded.terms"""
_ADD_SESSION = """
    INSERT INTO session(id, nodes, passages, stated_ms) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
    SET nodes = excluded.nodes, passages = excluded.passages, stated_ms = excluded.stated_ms"""


class IndexedSession(msgspec.Struct):
    """A session that is being indexed: how many of its nodes are, its passages, and the time that it last stated."""

    id: int
    key: str
    nodes: int = 0
    passages: int = 0
    stated_ms: int | None = None


class EntryOrigin(NamedTuple):
    """Where a text stands in its session, and where the log has it. `name` is its reference if the log has one.

    `node` is that of its message, or what else tells it from others of its turn; `exchange` the call that brought it.
    """

    turn: int
    part: int
    node: bytes
    address: int
    holder: int
    exchange: int
    name: str = ""


class IndexWriter:
    """Adds sessions, entries and passages over the connection for writing. `secret` makes references unguessable."""

    def __init__(self, connection: sqlite3.Connection, secret: bytes) -> None:
        self._connection = connection
        self._secret = secret
        self._tools: dict[str, int] = {}
        self._words: LruCache[str, bool] = LruCache(_KNOWN_WORDS)
        self._rows: dict[Lane, list[tuple[int, str]]] = {lane: [] for lane in LANES}
        self._places: dict[int, list[int]] = {}
        self._totals: dict[tuple[int, int], list[int]] = {}

    def open_session(self, session: int, key: str) -> IndexedSession:
        """Return what the index has of a session."""
        row = self._connection.execute(
            "SELECT nodes, passages, stated_ms FROM session WHERE id = ?", (session,)
        ).fetchone()
        return IndexedSession(session, key, *(row or ()))

    def save_session(self, session: IndexedSession) -> None:
        """Store how far a session is indexed."""
        row = (session.id, session.nodes, session.passages, session.stated_ms)
        self._connection.execute(_ADD_SESSION, row)

    def note_seen(self, session: IndexedSession, digest: bytes, turn: int) -> bool:
        """Return whether a content is new in its session. The turn of one that is not becomes an alias of the first."""
        number = int.from_bytes(digest[:_DIGEST_BYTES])
        found = self._connection.execute(
            "SELECT turn FROM seen WHERE session = ? AND digest = ?", (session.id, number)
        ).fetchone()
        if found is None:
            self._connection.execute("INSERT INTO seen VALUES (?, ?, ?)", (session.id, number, turn))
            return True
        if found[0] != turn:
            self._connection.execute("INSERT OR IGNORE INTO alias VALUES (?, ?, ?)", (session.id, found[0], turn))
        return False

    def find_part(self, session: IndexedSession, turn: int, text: MessageText) -> int:
        """Return the first part of a turn that has no entry of this kind and role yet."""
        for part in range(MOST_PARTS - 1):
            key = _make_key(session.id, turn, part, text)
            if self._connection.execute("SELECT 1 FROM entry WHERE id = ?", (key,)).fetchone() is None:
                return part
        return MOST_PARTS - 1

    def add(self, session: IndexedSession, indexed: IndexedText, where: EntryOrigin) -> None:
        """Add an entry with its passages. One whose key is taken, or without a word, is left out."""
        passages = cut_passages(indexed)
        if not passages or where.turn >= MOST_TURNS or session.passages + len(passages) > MOST_IN_SESSION:
            return
        places = [make_place(where.turn, where.part, indexed, each) for each in passages]
        key = session.id << SESSION_SHIFT | places[0] >> PLACE_SHIFT
        name = pack_name(where.name or self._make_name(session.key, where, indexed))
        row = (key, where.address, where.holder, where.exchange, self._find_tool(indexed.tool), name)
        if self._connection.execute(_ADD_ENTRY, row).rowcount:
            self._add_passages(session, passages, places)

    def flush(self) -> None:
        """Write the passages that were added. To be called before the transaction is committed."""
        for lane, rows in self._rows.items():
            # FTS5 writes what it has in memory whenever a row id is not above the one before
            rows.sort()
            self._connection.executemany(f"INSERT INTO lane_{lane}(rowid, terms) VALUES (?, ?)", rows)
            self._add_words(rows if lane == "text" else ())
            rows.clear()
        for session, places in self._places.items():
            self._write_places(session, places)
        self._places.clear()
        totals = [(*key, *values) for key, values in self._totals.items()]
        self._connection.executemany(_ADD_STATISTIC, totals)
        self._totals.clear()

    def _add_passages(self, session: IndexedSession, passages: Sequence[Passage], places: Sequence[int]) -> None:
        stored = self._places.setdefault(session.id, [session.passages])
        for passage, place in zip(passages, places, strict=True):
            id = session.id << PASSAGE_BITS | session.passages
            self._rows[passage.lane].append((id, " ".join(passage.terms)))
            stored.append(place)
            total = self._totals.setdefault((session.id, LANES.index(passage.lane)), [0, 0])
            total[0] += 1
            total[1] += LENGTHS[passage.length]
            session.passages += 1

    def _write_places(self, session: int, stored: Sequence[int]) -> None:
        """Append places; the first value is the number of the first passage."""
        at, places = stored[0], stored[1:]
        while places:
            room = PLACES_IN_ROW - at % PLACES_IN_ROW
            packed = b"".join([place.to_bytes(_PLACE_BYTES, "little") for place in places[:room]])
            row = session, at // PLACES_IN_ROW
            if at % PLACES_IN_ROW:
                (before,) = self._connection.execute(_PLACES, row).fetchone()
                packed = before + packed
            self._connection.execute(
                "INSERT OR REPLACE INTO place(session, row, places) VALUES (?, ?, ?)", (*row, packed)
            )
            at, places = at + len(places[:room]), places[room:]

    def _add_words(self, rows: Iterable[tuple[int, str]]) -> None:
        """Add words that are new to the vocabulary."""
        known = self._words
        new = {
            word
            for word in {term for _, terms in rows for term in terms.split(" ")}
            if _SHORTEST_WORD <= len(word) <= _LONGEST_WORD
            and word.isalnum()
            and not word.isdigit()
            and word not in known
        }
        for word in new:
            known.put(word, True)
        self._connection.executemany("INSERT OR IGNORE INTO word(text) VALUES (?)", [(word,) for word in sorted(new)])

    def _find_tool(self, name: str) -> int:
        if name not in self._tools:
            self._connection.execute("INSERT OR IGNORE INTO tool(name) VALUES (?)", (name,))
            (id,) = self._connection.execute("SELECT id FROM tool WHERE name = ?", (name,)).fetchone()
            self._tools[name] = id
        return self._tools[name]

    def _make_name(self, session: str, where: EntryOrigin, indexed: IndexedText) -> str:
        told = b"entry\0%b%d:%b:%b" % (where.node, where.part, indexed.kind.encode(), indexed.role.encode())
        return make_reference(self._secret, session, sha256(told).digest())


def _make_key(session: int, turn: int, part: int, text: MessageText) -> int:
    place = make_place(turn, part, IndexedText(text="", role=text.role, kind=text.kind), Passage("text", 0, 0, ()))
    return session << SESSION_SHIFT | place >> PLACE_SHIFT
