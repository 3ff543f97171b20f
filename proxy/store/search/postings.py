"""What the ranking reads, over one connection to the log with the index attached as `idx`."""

import sqlite3
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import orjson

from proxy.model.lru import LruCache
from proxy.model.search import SearchQuery
from proxy.retrieval.postings import (
    PASSAGE_BITS,
    Lane,
    LaneStatistics,
    get_kind,
    get_role,
    get_session,
    get_turn,
)
from proxy.store.search.schema import LANES

MOST_POSTINGS = 8_000
"""Passages of one term, the newest ones: what more have says little, and to score so many takes 5 ms."""
BUDGETS: Mapping[Lane, int] = {"text": 12_000, "card": 4_000, "user": 4_000, "rule": 4_000}
"""Passages of all terms of a question together: the most frequent terms are left out where there are more."""
_LEAST_TERMS, _SHARE_OF_ONE = 2, 3
_MOST_RANGES = 16
_FRESH_SECONDS = 60.0
_KNOWN_GRAMS, _KNOWN_PLACES = 4_096, 1_000_000

# Reading ids as one JSON text takes a third of the time of reading rows.
_FIND = """
    SELECT json_group_array(id) FROM (
        SELECT rowid AS id FROM idx.lane_{lane} WHERE lane_{lane} MATCH ? AND rowid >= ? AND rowid < ?
        ORDER BY rowid DESC LIMIT ?)"""
_COUNT = """
    SELECT count(*) FROM (
        SELECT 1 FROM idx.lane_{lane} WHERE lane_{lane} MATCH ? AND rowid >= ? AND rowid < ? LIMIT ?)"""
# The same without limits to look at takes two thirds of the time.
_FIND_ALL = "SELECT json_group_array(rowid) FROM idx.lane_{lane} WHERE lane_{lane} MATCH ?"
_COUNT_ALL = "SELECT count(*) FROM (SELECT 1 FROM idx.lane_{lane} WHERE lane_{lane} MATCH ? LIMIT ?)"
_STATISTIC = "SELECT ifnull(sum(passages), 0), ifnull(sum(terms), 0) FROM idx.statistic WHERE lane = ?"
_STATISTIC_OF = """
    SELECT ifnull(sum(passages), 0), ifnull(sum(terms), 0) FROM idx.statistic
    WHERE lane = ? AND session IN (SELECT value FROM json_each(?))"""
_PLACES = "SELECT places FROM idx.place WHERE session = ? ORDER BY row"
_ENTRIES = """
    SELECT e.id, t.name, x.opened_ms FROM idx.entry e JOIN idx.tool t ON t.id = e.tool
    LEFT JOIN exchange x ON x.seq = e.exchange WHERE e.id IN (SELECT value FROM json_each(?))"""
_NODES = "SELECT n, hash FROM node WHERE session = ? AND n IN (SELECT value FROM json_each(?))"
_ALIASES = "SELECT first, turn FROM idx.alias WHERE session = ? AND first IN (SELECT value FROM json_each(?))"
_ALL = 1 << 62


class IndexCache:
    """What searches keep in memory of one index: its words, which may be a minute old, and places of passages."""

    def __init__(self) -> None:
        self._words = ""
        self._read_at = -_FRESH_SECONDS
        self._found: dict[str, tuple[str, ...]] = {}
        self._places: LruCache[int, array[int]] = LruCache(_KNOWN_PLACES, weigh=lambda _, places: len(places) + 1)

    def find_words(self, connection: sqlite3.Connection, gram: str) -> Sequence[str]:
        """Return the words that have these characters in them."""
        if time.monotonic() - self._read_at >= _FRESH_SECONDS:
            rows = connection.execute("SELECT text FROM idx.word").fetchall()
            self._words = "\n".join(["", *(word for (word,) in rows), ""])
            self._read_at = time.monotonic()
            self._found.clear()
        if gram not in self._found:
            if len(self._found) >= _KNOWN_GRAMS:
                self._found.clear()
            self._found[gram] = tuple(_list_words(self._words, gram))
        return self._found[gram]

    def load_places(self, connection: sqlite3.Connection, session: int, count: int) -> Sequence[int]:
        """Return the places of the `count` passages that a session has now: they are added to, and never changed."""
        known = self._places.get(session)
        if known is None or len(known) < count:
            known = array("q")
            for (packed,) in connection.execute(_PLACES, (session,)):
                known.frombytes(packed)
            self._places.put(session, known)
        return known


class SqlitePostings:
    """The `Postings` of the sessions that a query may see. `sessions` are row ids; None means all.

    `terms` are those of the question. Where there are many passages, the most frequent ones are found nowhere.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        query: SearchQuery,
        sessions: Collection[int] | None,
        terms: Collection[str],
        *,
        cache: IndexCache,
        is_over: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._is_over = is_over
        self._query = query
        self._sessions = None if sessions is None else frozenset(sessions)
        self._terms = frozenset(term for term in terms if term and "\0" not in term)
        self._cache = cache
        self._counts: dict[int, int] = {}
        self._dropped: dict[Lane, frozenset[str]] = {}
        self._found: dict[tuple[Lane, str], Sequence[int]] = {}
        self._few: set[tuple[Lane, str]] = set()  # terms whose passages need no limit
        self._measured: dict[Lane, LaneStatistics] = {}

    def measure(self, lane: Lane) -> LaneStatistics:
        """Return the statistics of a lane."""
        if lane not in self._measured:
            number = LANES.index(lane)
            if self._sessions is None:
                row = self._connection.execute(_STATISTIC, (number,)).fetchone()
            else:
                row = self._connection.execute(_STATISTIC_OF, (number, _encode(self._sessions))).fetchone()
            self._measured[lane] = LaneStatistics(row[0], row[1] / row[0] if row[0] else 0.0)
        return self._measured[lane]

    def find(self, lane: Lane, term: str) -> Sequence[int]:
        """Return the ids of the passages that have the term, ascending."""
        if not term or "\0" in term:
            return ()
        try:
            if lane not in self._dropped:
                self._dropped[lane] = self._leave_out(lane)
            if (lane, term) not in self._found:
                self._found[lane, term] = () if term in self._dropped[lane] else self._find(lane, term)
        except sqlite3.OperationalError:
            if not self._is_over():
                raise
            return ()
        return self._found[lane, term]

    def load_places(self, session: int) -> Sequence[int]:
        """Return the places of all passages of a session, by their number."""
        if not self._counts:
            self._counts = dict(self._connection.execute("SELECT id, passages FROM idx.session").fetchall())
        return self._cache.load_places(self._connection, session, self._counts.get(session, 0))

    def find_words(self, gram: str) -> Sequence[str]:
        """Return words that have these characters in them."""
        return self._cache.find_words(self._connection, gram)

    def select(self, entries: Sequence[int]) -> Sequence[int]:
        """Return those of the entries that may be in the answer, in the same order."""
        query = self._query
        chosen = [
            entry
            for entry in entries
            if (not query.kinds or get_kind(entry) in query.kinds)
            and (not query.roles or get_role(entry) in query.roles)
        ]
        if query.tools or query.since_ms or query.until_ms is not None:
            rows = self._connection.execute(_ENTRIES, (_encode(chosen),))
            fitting = {id for id, tool, at_ms in rows if self._fits(tool, at_ms or 0)}
            chosen = [entry for entry in chosen if entry in fitting]
        if query.within is not None or query.visible:
            chosen = self._select_nodes(chosen)
        return chosen

    def _list_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of ids in which the sessions have passages; all where they are too many."""
        if self._sessions is None or len(self._sessions) > _MOST_RANGES:
            return [(0, _ALL)]
        return [(session << PASSAGE_BITS, session + 1 << PASSAGE_BITS) for session in sorted(self._sessions)]

    def _find(self, lane: Lane, term: str) -> list[int]:
        if (lane, term) in self._few:
            (ids,) = self._connection.execute(_FIND_ALL.format(lane=lane), (_quote(term),)).fetchone()
            return list(orjson.loads(ids))
        statement, found = _FIND.format(lane=lane), list[int]()
        for bounds in self._list_ranges():
            (ids,) = self._connection.execute(statement, (_quote(term), *bounds, MOST_POSTINGS)).fetchone()
            found += reversed(orjson.loads(ids))
        if self._sessions is not None and len(self._sessions) > _MOST_RANGES:
            return [id for id in found if id >> PASSAGE_BITS in self._sessions]
        return found

    def _count(self, lane: Lane, term: str) -> int:
        """Return how many passages have the term, or so many that it is one of the most frequent ones."""
        statement, count, most = _COUNT.format(lane=lane), 0, BUDGETS[lane] // _SHARE_OF_ONE
        if self._sessions is None:
            (count,) = self._connection.execute(_COUNT_ALL.format(lane=lane), (_quote(term), most)).fetchone()
            if count < most:
                self._few.add((lane, term))
            return int(count)
        for bounds in self._list_ranges():
            count += self._connection.execute(statement, (_quote(term), *bounds, most)).fetchone()[0]
        return count

    def _leave_out(self, lane: Lane) -> frozenset[str]:
        """Return the terms of the question that are too frequent to be looked for in a lane."""
        if self.measure(lane).passages <= BUDGETS[lane] // _LEAST_TERMS:
            return frozenset()
        counts = sorted((self._count(lane, term), term) for term in self._terms)
        left, dropped = BUDGETS[lane], set()
        for rank, (count, term) in enumerate(counts):
            left -= count
            if left < 0 and rank >= _LEAST_TERMS:
                dropped.add(term)
        return frozenset(dropped)

    def _fits(self, tool: str, at_ms: int) -> bool:
        query = self._query
        is_in_time = at_ms >= query.since_ms and (query.until_ms is None or at_ms < query.until_ms)
        return is_in_time and (not query.tools or tool in query.tools)

    def _select_nodes(self, entries: Sequence[int]) -> list[int]:
        """Leave out what is not within the scope, and what is in view.

        A message that came again under another node stands for that, too.
        """
        turns: dict[int, set[int]] = {}
        for entry in entries:
            turns.setdefault(get_session(entry), set()).add(get_turn(entry))
        kept: set[tuple[int, int]] = set()
        for session, wanted in turns.items():
            nodes = self._load_nodes(session, wanted)
            within, visible = self._query.within, self._query.visible
            kept |= {
                (session, turn)
                for turn, names in nodes.items()
                if visible.isdisjoint(names) and (within is None or not within.isdisjoint(names))
            }
        return [entry for entry in entries if (get_session(entry), get_turn(entry)) in kept]

    def _load_nodes(self, session: int, turns: Collection[int]) -> dict[int, set[bytes]]:
        """Return the nodes at which the messages of these turns stand."""
        firsts = {turn: turn for turn in turns}
        firsts |= {turn: first for first, turn in self._connection.execute(_ALIASES, (session, _encode(turns)))}
        nodes: dict[int, set[bytes]] = {turn: set() for turn in turns}
        for turn, node in self._connection.execute(_NODES, (session, _encode(firsts))):
            nodes[firsts[turn]].add(node)
        return nodes


def _quote(term: str) -> str:
    return '"{}"'.format(term.replace('"', '""'))


def _list_words(words: str, gram: str) -> Iterable[str]:
    at = words.find(gram) if "\n" not in gram else -1
    while at >= 0:
        stop = words.index("\n", at)
        yield words[words.rindex("\n", 0, at) + 1 : stop]
        at = words.find(gram, stop)


def _encode(numbers: Iterable[int]) -> str:
    return orjson.dumps(list(numbers)).decode()
