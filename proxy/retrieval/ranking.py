"""Which entries answer a question best: sums of BM25 over passages, what stands beside them, and coverage."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from math import log
from typing import get_args

import msgspec

from proxy.retrieval.postings import (
    LENGTHS,
    PASSAGE_BITS,
    PLACE_SHIFT,
    SESSION_SHIFT,
    TURN_SHIFT,
    Lane,
    Postings,
    Scored,
    get_kind,
    get_role,
)
from proxy.retrieval.query import Clue, Question
from proxy.retrieval.terms import list_grams

_K1, _B = 1.2, 0.75
_SHORT_QUERY = 5
_MOST_CANDIDATES = 2_000
_CHUNK = 64


class RankingWeights(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much each ranker counts beside the text, and what stands beside an entry beside the entry itself.

    `neighbour` is the share of the score that a message inherits from the one before and the one behind it, `pair` that
    which a question and its reply give each other; `output_neighbour` that of tool outputs. `coverage`: the bonus of
    an entry around which all words of the query stand.
    """

    card: float = 0.3
    rule: float = 0.5
    user: float = 0.5
    neighbour: float = 0.5
    pair: float = 0.6
    output_neighbour: float = 0.0
    step: float = 0.4
    task: float = 1.0
    coverage: float = 1.0
    reach: int = 2


class Ranking(msgspec.Struct, frozen=True, gc=False):
    """Entries, the best first, and how much each term of the question weighs, for choosing lines.

    `is_complete` is False if the time was over before all was ranked.
    """

    entries: tuple[Scored, ...]
    weights: Mapping[str, float]
    is_complete: bool = True


def search(
    question: Question,
    postings: Postings,
    limit: int,
    is_over: Callable[[], bool],
    weights: RankingWeights | None = None,
) -> Ranking:
    """Return the entries that answer the question, at most `limit` of them."""
    return _Search(question, postings, is_over, weights or RankingWeights()).run(limit)


class _Search:
    """One search."""

    def __init__(
        self, question: Question, postings: Postings, is_over: Callable[[], bool], weights: RankingWeights
    ) -> None:
        self._question, self._postings, self._is_over, self._w = question, postings, is_over, weights
        self._places: dict[int, Sequence[int]] = {}
        self._weights: dict[str, float] = {}
        self._bits = question.bits + 1
        self._complete = True

    def run(self, limit: int) -> Ranking:
        clues = self._expand()
        text = self._score_lane("text", clues, gather=True)
        scores, numbers, masks = self._gather(text)
        measured = {lane: self._postings.measure(lane).passages for lane in get_args(Lane)}
        is_agent = measured["card"] > measured["user"]
        lanes: list[tuple[Lane, float]] = [("card", self._w.card), ("rule", self._w.rule)]
        if not is_agent:
            lanes.append(("user", self._w.user))
        for lane, weight in lanes:
            self._add_lane(scores, masks, lane, clues, weight)
        final = self._look_around(scores, masks, is_agent)
        ordered = sorted(final, key=lambda entry: (-final[entry], -entry))
        chosen: list[int] = []
        for start in range(0, len(ordered), _CHUNK):
            chosen += self._postings.select(ordered[start : start + _CHUNK])
            if len(chosen) >= limit or self._is_late():
                break
        found = tuple(Scored(entry, final[entry], numbers.get(entry, 0)) for entry in chosen[:limit])
        return Ranking(found, self._weights, self._complete)

    def _is_late(self) -> bool:
        if self._is_over():
            self._complete = False
        return not self._complete

    def _expand(self) -> list[Clue]:
        clues = [*self._question.clues]
        if len(self._question.words) + len(self._question.wholes) <= _SHORT_QUERY:
            for bit, word in self._question.words:
                similar = self._find_similar(word)
                clues += [Clue((each,), 0.5 * share, bit) for each, share in similar]
        return clues

    def _find_similar(self, word: str) -> list[tuple[str, float]]:
        """Return words that share at least half of their groups of characters with this one."""
        grams = list_grams(word)
        if len(word) < 4:
            return []
        counts: dict[str, int] = {}
        for gram in grams:
            for other in self._postings.find_words(gram):
                counts[other] = counts.get(other, 0) + 1
        found = []
        for other, shared in counts.items():
            share = 2 * shared / (len(grams) + max(len(other) - 2, 1))
            if share >= 0.5 and other != word:
                found.append((other, share))
        return nlargest(6, found, key=lambda pair: pair[1])

    def _score_lane(self, lane: Lane, clues: Sequence[Clue], gather: bool = False) -> dict[int, int]:
        """Return, by passage, the packed sum of weights and the bits of the words that it covers."""
        measured = self._postings.measure(lane)
        packed: dict[int, int] = {}
        if not measured.passages:
            return packed
        get, bits = packed.get, self._bits
        context = self._question.context if lane == "text" else ()
        for clue, factor in [*((c, 1.0) for c in clues), *((c, self._context_factor) for c in context)]:
            ids = self._find(lane, clue)
            if not ids:
                continue
            idf = log(1 + (measured.passages - len(ids) + 0.5) / (len(ids) + 0.5))
            value = int(idf * clue.weight * factor * 1024)
            if (lane == "text" and clue.bit >= 0) or (lane == "text" and factor == 1.0 and not clue.needs_all):
                for term in clue.terms:
                    self._weights[term] = max(self._weights.get(term, 0.0), idf * clue.weight)
            value <<= bits
            seen = 1 << clue.bit if clue.bit >= 0 else 0
            if seen:
                # A bit is added once only, although several clues may have it.
                add = value | seen
                for i in ids:
                    old = get(i, 0)
                    packed[i] = old + (value if old & seen else add)
            else:
                for i in ids:
                    packed[i] = get(i, 0) + value
            if self._is_late():
                break
        return packed

    @property
    def _context_factor(self) -> float:
        return 1.0

    def _find(self, lane: Lane, clue: Clue) -> Sequence[int]:
        if len(clue.terms) == 1:
            return self._postings.find(lane, clue.terms[0])
        if clue.needs_all:
            lists = sorted((self._postings.find(lane, term) for term in clue.terms), key=len)
            found = set(lists[0])
            for each in lists[1:]:
                found.intersection_update(each)
            return list(found)
        return list(set(chain.from_iterable(self._postings.find(lane, term) for term in clue.terms)))

    def _get_place(self, passage: int) -> int:
        session = passage >> PASSAGE_BITS
        places = self._places.get(session)
        if places is None:
            places = self._places[session] = self._postings.load_places(session)
        return places[passage & (1 << PASSAGE_BITS) - 1]

    def _list_scores(self, lane: Lane, packed: Mapping[int, int]) -> Iterable[tuple[int, int, float, int]]:
        """Yield entry, number, score and bits of the best passages."""
        mean = max(self._postings.measure(lane).mean_length, 1.0)
        norms = [(_K1 + 1) / (1 + _K1 * (1 - _B + _B * length / mean)) / 1024 for length in LENGTHS]
        best: Iterable[int] = packed
        if len(packed) > _MOST_CANDIDATES:
            best = nlargest(_MOST_CANDIDATES, packed, key=packed.__getitem__)
        bits, mask = self._bits, (1 << self._bits) - 1
        for passage in best:
            value = packed[passage]
            place = self._get_place(passage)
            entry = passage >> PASSAGE_BITS << SESSION_SHIFT | place >> PLACE_SHIFT
            yield entry, place >> 4 & 4095, (value >> bits) * norms[place & 15], value & mask

    def _gather(self, packed: Mapping[int, int]) -> tuple[dict[int, float], dict[int, int], dict[int, int]]:
        scores: dict[int, float] = {}
        numbers: dict[int, int] = {}
        masks: dict[int, int] = {}
        for entry, number, score, bits in self._list_scores("text", packed):
            if score > scores.get(entry, 0.0):
                scores[entry] = score
                numbers[entry] = number
            turn = entry >> TURN_SHIFT
            masks[turn] = masks.get(turn, 0) | bits
        return scores, numbers, masks

    def _leads_to_output(self, entry: int) -> bool:
        """Return whether the message made a call whose output stands behind it."""
        places = self._places[entry >> SESSION_SHIFT]
        turn = entry >> TURN_SHIFT & (1 << SESSION_SHIFT - TURN_SHIFT) - 1
        at = bisect_left(places, (turn + 1) << TURN_SHIFT + PLACE_SHIFT)
        return at < len(places) and get_kind(places[at] >> PLACE_SHIFT) == "output"

    def _add_lane(
        self, scores: dict[int, float], masks: dict[int, int], lane: Lane, clues: Sequence[Clue], weight: float
    ) -> None:
        if not weight:
            return
        best: dict[int, float] = {}
        for entry, _, score, bits in self._list_scores(lane, self._score_lane(lane, clues)):
            best[entry] = max(best.get(entry, 0.0), score)
            turn = entry >> TURN_SHIFT
            masks[turn] = masks.get(turn, 0) | bits
        for entry, score in best.items():
            scores[entry] = scores.get(entry, 0.0) + weight * score

    def _look_around(self, scores: Mapping[int, float], masks: Mapping[int, int], is_agent: bool) -> dict[int, float]:
        """Return scores with what is inherited from neighbours and the bonus for the words that stand around."""
        turns: dict[int, float] = {}
        for entry, score in scores.items():
            turn = entry >> TURN_SHIFT
            if score > turns.get(turn, 0.0):
                turns[turn] = score
        w, final = self._w, {}
        total = max(self._question.bits, 1)
        for entry, score in scores.items():
            turn = entry >> TURN_SHIFT
            before, behind = turns.get(turn - 1, 0.0), turns.get(turn + 1, 0.0)
            if is_agent:
                score += w.output_neighbour * (before + behind)
                if get_role(entry) == "user":
                    score *= w.task
            elif get_role(entry) == "user":
                score += w.neighbour * before + w.pair * behind
            else:
                score += w.pair * before + w.neighbour * behind
            covered = 0
            for near in range(turn - w.reach, turn + w.reach + 1):
                covered |= masks.get(near, 0)
            if get_role(entry) == "assistant" and self._leads_to_output(entry):
                score *= w.step
            final[entry] = score * (1 + w.coverage * covered.bit_count() / total)
        return final
