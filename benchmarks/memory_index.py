"""An index in memory behind the Protocol of `proxy/retrieval/postings`, for benchmarks and tests of the ranking."""

from array import array
from collections.abc import Callable, Sequence

from proxy.retrieval.passages import cut_passages
from proxy.retrieval.postings import (
    LENGTHS,
    PASSAGE_BITS,
    PLACE_SHIFT,
    SESSION_SHIFT,
    IndexedText,
    Lane,
    LaneStatistics,
    make_place,
)
from proxy.retrieval.terms import list_grams

Text = tuple[int, IndexedText]
"""The number of the turn, and what was said in it."""


class MemoryIndex:
    """The postings of some sessions. `accept` says which entries may be found, by their key."""

    def __init__(self) -> None:
        self._postings: dict[tuple[Lane, str], array[int]] = {}
        self._places: dict[int, array[int]] = {}
        self._lengths: dict[Lane, list[int]] = {}
        self._words: dict[str, list[str]] = {}
        self.texts: dict[int, str] = {}
        self.accept: Callable[[int], bool] = bool

    def add(self, session: int, turn: int, sources: Sequence[IndexedText]) -> list[int]:
        """Index the sources of one message, and return the keys of their entries."""
        places = self._places.setdefault(session, array("q"))
        entries = []
        for part, source in enumerate(sources):
            for passage in cut_passages(source):
                place = make_place(turn, part, source, passage)
                number = session << PASSAGE_BITS | len(places)
                places.append(place)
                entry = session << SESSION_SHIFT | place >> PLACE_SHIFT
                self.texts[entry] = source.text
                if entry not in entries:
                    entries.append(entry)
                self._lengths.setdefault(passage.lane, []).append(LENGTHS[passage.length])
                for term in passage.terms:
                    self._post(passage.lane, term, number)
        return entries

    def _post(self, lane: Lane, term: str, number: int) -> None:
        known = self._postings.get((lane, term))
        if known is None:
            known = self._postings[lane, term] = array("q")
            if lane == "text" and term.isalnum():
                for gram in list_grams(term):
                    self._words.setdefault(gram, []).append(term)
        known.append(number)

    def measure(self, lane: Lane) -> LaneStatistics:
        lengths = self._lengths.get(lane, [])
        return LaneStatistics(len(lengths), sum(lengths) / len(lengths) if lengths else 0.0)

    def find(self, lane: Lane, term: str) -> Sequence[int]:
        return self._postings.get((lane, term), ())

    def find_words(self, gram: str) -> Sequence[str]:
        return self._words.get(gram, ())

    def load_places(self, session: int) -> Sequence[int]:
        return self._places[session]

    def select(self, entries: Sequence[int]) -> Sequence[int]:
        return [entry for entry in entries if self.accept(entry)]
