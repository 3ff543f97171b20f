"""Which entries answer a question best: sums of BM25 over passages, what stands beside them, and coverage."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, islice
from math import log
from typing import get_args

import msgspec

from proxy.model.search import SAID
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
    read_place,
)
from proxy.retrieval.query import Clue, Question
from proxy.retrieval.terms import list_grams

_K1, _B = 1.2, 0.75
_SCALE = 1024  # of weights as integers, which share a number with the bits of words
_SHORT_QUERY = 5
_ENOUGH, _MOST_CANDIDATES, _MOST_RANKED = 2_000, 800, 300
_MOST_FURTHER = 3
_LONG_REPLIES = 3  # passages for one of the user, from which on the other side writes at length
_MOST_LOOKED_AROUND = 100
_CHUNK = 64
_CLEARLY = 0.5


class RankingWeights(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much each ranker counts beside the text, and what stands beside an entry beside the entry itself.

    `similar`: words that look like one of a short query, in multiples of it. `further`: the share that the second best
    passage of an entry adds; the next ones add half of that each. `neighbour`: the share of its score that a message
    gives the ones beside it, `far` the ones two turns away, among short ones; `pair`: that which a question and its
    reply give each other; `long_reply`: that which a question gives a reply of several passages, `long_question` that
    which such a text gives the message before it. In the sessions of agents, outputs stand for their steps: `step` is
    the factor of what the assistant says with a call, `task` that of what the user says. `coverage`: the bonus of an
    entry around which, within `reach` turns, all words of the query stand. `likeness`: the share of the best score that
    the passage most similar by its vector adds.
    """

    similar: float = 0.5
    further: float = 1.5
    card: float = 0.3
    rule: float = 0.5
    user: float = 1.0
    neighbour: float = 0.4
    far: float = 0.4
    pair: float = 0.6
    long_reply: float = 0.6
    long_question: float = 1.0
    step: float = 0.25
    task: float = 0.4
    coverage: float = 0.5
    reach: int = 2
    likeness: float = 0.6


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
    *,
    alike: Mapping[int, float] | None = None,
) -> Ranking:
    """Return the entries that answer the question, at most `limit` of them.

    `alike` are the passages that are similar to it by their vectors, from 0 to 1 (`vectors.find_similar`).
    """
    return _Search(question, postings, is_over, weights or RankingWeights()).run(limit, alike or {})


class _Search:
    """One search."""

    def __init__(
        self, question: Question, postings: Postings, is_over: Callable[[], bool], weights: RankingWeights
    ) -> None:
        self._question, self._postings, self._is_over, self._w = question, postings, is_over, weights
        self._places: dict[int, Sequence[int]] = {}
        self._asking: dict[int, bool] = {}
        self._found: dict[tuple[Lane, str], Sequence[int]] = {}
        self._weights: dict[str, float] = {}
        self._bits = question.bits + 1
        self._shares = [1 / 2**i for i in range(_MOST_FURTHER)]
        self._complete = True
        self._narrow: set[int] = set()

    def run(self, limit: int, alike: Mapping[int, float]) -> Ranking:
        clues = self._expand()
        scores, numbers, masks = self._gather(self._score_lane("text", [*clues, *self._question.context]))
        measured = {lane: self._postings.measure(lane).passages for lane in get_args(Lane)}
        is_agent = measured["card"] > measured["user"]
        lanes: list[tuple[Lane, float]] = [("card", self._w.card), ("rule", self._w.rule)]
        if not is_agent and measured["text"] > _LONG_REPLIES * measured["user"]:
            lanes.append(("user", self._w.user))
        for lane, weight in lanes:
            self._add_lane(scores, masks, lane, clues, weight)
        self._add_alike(scores, numbers, alike)
        final = self._look_around(scores, masks, is_agent)
        ordered = sorted(final, key=lambda entry: (-final[entry], get_kind(entry) not in SAID, -entry))
        chosen: list[int] = []
        for start in range(0, len(ordered), _CHUNK):
            chosen += self._postings.select(ordered[start : start + _CHUNK])
            if len(chosen) >= limit or self._is_late():
                break
        found = tuple(
            Scored(entry, final[entry], numbers.get(entry, 0), entry in self._narrow) for entry in chosen[:limit]
        )
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
                clues += [Clue((each,), self._w.similar * share, bit) for each, share in similar]
        return clues

    def _find_similar(self, word: str) -> list[tuple[str, float]]:
        """Return words that share at least half of their groups of characters with this one."""
        grams = list_grams(word)
        if len(word) < 4:
            return []
        counts = Counter(chain.from_iterable([self._postings.find_words(gram) for gram in grams]))
        found = []
        least = len(grams) / 4  # with fewer groups in common a word of any length is too different
        for other, shared in counts.items():
            if shared > least:
                share = 2 * shared / (len(grams) + max(len(other) - 2, 1))
                if share >= 0.5 and other != word:
                    found.append((other, share))
        return nlargest(6, found, key=lambda pair: pair[1])

    def _score_lane(self, lane: Lane, clues: Sequence[Clue]) -> dict[int, int]:
        """Return, by passage, the packed sum of weights and the bits of the words that it covers.

        The rarest clues come first. Once there are enough candidates, a frequent clue adds none: it weighs little.
        """
        measured = self._postings.measure(lane)
        packed: dict[int, int] = {}
        found: list[tuple[Sequence[int], int, int]] = []
        for clue in clues if measured.passages else ():
            if self._is_late():
                break
            if ids := self._find(lane, clue):
                idf = log(1 + (measured.passages - len(ids) + 0.5) / (len(ids) + 0.5))
                self._note_weight(lane, clue, idf)
                bit = 1 << clue.bit if clue.bit >= 0 else 0
                found.append((ids, int(idf * clue.weight * _SCALE) << self._bits, bit))
        for ids, value, bit in sorted(found, key=lambda each: len(each[0])):
            if len(packed) > _ENOUGH and len(ids) > len(packed):
                ids = [passage for passage in ids if passage in packed]
            _add_points(packed, ids, value, bit)
        return packed

    def _note_weight(self, lane: Lane, clue: Clue, idf: float) -> None:
        if lane == "text" and not clue.needs_all:
            for term in clue.terms:
                self._weights[term] = max(self._weights.get(term, 0.0), idf * clue.weight)

    def _find(self, lane: Lane, clue: Clue) -> Sequence[int]:
        if len(clue.terms) == 1:
            return self._read(lane, clue.terms[0])
        lists = sorted((self._read(lane, term) for term in clue.terms), key=len)
        if clue.needs_all:
            return sorted(set(lists[0]).intersection(*lists[1:]))
        return sorted(set(chain.from_iterable(lists)))

    def _read(self, lane: Lane, term: str) -> Sequence[int]:
        """Read the postings of a term once: it may be in several clues."""
        known = self._found.get((lane, term))
        if known is None:
            known = self._found[lane, term] = self._postings.find(lane, term)
        return known

    def _load_places(self, session: int) -> Sequence[int]:
        places = self._places.get(session)
        if places is None:
            places = self._places[session] = self._postings.load_places(session)
        return places

    def _list_scores(self, lane: Lane, packed: Mapping[int, int]) -> Iterable[tuple[int, int, float, int]]:
        """Yield entry, number, score and bits of the best passages."""
        mean = max(self._postings.measure(lane).mean_length, 1.0)
        norms = [(_K1 + 1) / (1 + _K1 * (1 - _B + _B * length / mean)) / _SCALE for length in LENGTHS]
        best: Iterable[int] = packed
        most = _MOST_CANDIDATES if lane == "text" else _MOST_RANKED
        if len(packed) > most:
            best = _list_largest(packed, most)
        bits, mask, within = self._bits, (1 << self._bits) - 1, (1 << PASSAGE_BITS) - 1
        session = -1
        places: Sequence[int] = ()
        for passage in best:
            value = packed[passage]
            if passage >> PASSAGE_BITS != session:
                session = passage >> PASSAGE_BITS
                places = self._load_places(session)
            place = places[passage & within]
            entry = session << SESSION_SHIFT | place >> PLACE_SHIFT
            number, _, length = read_place(place)
            yield entry, number, (value >> bits) * norms[length], value & mask

    def _gather(self, packed: Mapping[int, int]) -> tuple[dict[int, float], dict[int, int], dict[int, int]]:
        passages: dict[int, list[tuple[float, int]]] = {}
        masks: dict[int, int] = {}
        for entry, number, score, bits in self._list_scores("text", packed):
            passages.setdefault(entry, []).append((score, number))
            turn = entry >> TURN_SHIFT
            masks[turn] = masks.get(turn, 0) | bits
        scores: dict[int, float] = {}
        numbers: dict[int, int] = {}
        for entry, found in passages.items():
            scores[entry], numbers[entry] = found[0] if len(found) == 1 else max(found)
            if len(found) > 1:
                further = sorted((score for score, _ in found), reverse=True)[1:]
                weight = self._w.further
                scores[entry] += weight * sum(s * share for s, share in zip(further, self._shares, strict=False))
        return scores, numbers, masks

    def _get_share(self, giver: int, heir: int) -> float:
        """Return the share of its score that a turn gives the one beside it."""
        w = self._w
        if heir < giver and self._is_long(giver):
            return w.long_question
        if not self._asks(min(giver, heir)):
            return w.neighbour
        return w.long_reply if giver < heir and self._is_long(heir) else w.pair

    def _is_long(self, turn: int) -> bool:
        """Return whether a turn has several passages."""
        session, passages = self._list_passages(turn)
        return any(read_place(self._places[session][number])[0] for number in passages)

    def _sum_far(self, turns: Mapping[int, float], turn: int) -> float:
        """Return the scores of the turns two before and behind one, where this one and what is between are short."""
        far = [(turns.get(turn + 2 * step, 0.0), turn + step) for step in (-1, 1)]
        if not any(score for score, _ in far) or self._is_long(turn):
            return 0.0
        return sum(score for score, between in far if score and not self._is_long(between))

    def _asks(self, turn: int) -> bool:
        """Return whether something is asked in a turn."""
        if turn not in self._asking:
            session, passages = self._list_passages(turn)
            self._asking[turn] = any(read_place(self._places[session][number])[1] for number in passages)
        return self._asking[turn]

    def _list_passages(self, turn: int) -> tuple[int, range]:
        """Return the session and the numbers of the passages of a turn."""
        session = turn >> SESSION_SHIFT - TURN_SHIFT
        places = self._places.get(session, ())
        number = turn & (1 << SESSION_SHIFT - TURN_SHIFT) - 1
        start = bisect_left(places, number << TURN_SHIFT + PLACE_SHIFT)
        return session, range(start, bisect_left(places, number + 1 << TURN_SHIFT + PLACE_SHIFT, start))

    def _list_beside(self, turns: Mapping[int, float]) -> Iterator[int]:
        """Yield the messages up to two turns from the best ones: a reply need not repeat a word of the question."""
        for turn in nlargest(_MOST_LOOKED_AROUND, turns, key=turns.__getitem__):
            for near in (turn - 2, turn - 1, turn + 1, turn + 2):
                session, passages = self._list_passages(near)
                for number in passages:
                    entry = session << SESSION_SHIFT | self._places[session][number] >> PLACE_SHIFT
                    if get_kind(entry) in SAID:
                        yield entry

    def _leads_to_output(self, entry: int) -> bool:
        """Return whether the message made a call whose output stands behind it."""
        session, passages = self._list_passages((entry >> TURN_SHIFT) + 1)
        return bool(passages) and get_kind(self._places[session][passages.start] >> PLACE_SHIFT) == "output"

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

    def _add_alike(self, scores: dict[int, float], numbers: dict[int, int], alike: Mapping[int, float]) -> None:
        """Add to the scores what is similar by its vectors.

        Scores by words have no fixed scale, so that the best of them is the measure. Of an entry that is clearly
        similar its passage is the best one, whatever words stand in the others.
        """
        if not alike:
            return
        best: dict[int, tuple[float, int]] = {}
        for passage, share in alike.items():
            session = passage >> PASSAGE_BITS
            place = self._load_places(session)[passage & (1 << PASSAGE_BITS) - 1]
            entry = session << SESSION_SHIFT | place >> PLACE_SHIFT
            best[entry] = max(best.get(entry, (0.0, 0)), (share, read_place(place)[0]))
        top = max(scores.values(), default=1.0)
        for entry, (share, number) in best.items():
            scores[entry] = scores.get(entry, 0.0) + self._w.likeness * share * top
            if share > _CLEARLY:
                self._narrow.add(entry)
            if share > _CLEARLY or entry not in numbers:
                numbers[entry] = number

    def _look_around(self, scores: Mapping[int, float], masks: Mapping[int, int], is_agent: bool) -> dict[int, float]:
        """Return scores with what is inherited from neighbours and the bonus for the words that stand around."""
        turns: dict[int, float] = {}
        if len(scores) > _MOST_RANKED:
            scores = {entry: scores[entry] for entry in nlargest(_MOST_RANKED, scores, key=scores.__getitem__)}
        for entry, score in scores.items():
            turn = entry >> TURN_SHIFT
            if score > turns.get(turn, 0.0):
                turns[turn] = score
        beside: set[int] = set()
        if not is_agent:
            beside = set(self._list_beside(turns)) - scores.keys()
            scores = {**scores, **dict.fromkeys(beside, 0.0)}
        w, final = self._w, {}
        total = max(self._question.bits, 1)
        for entry, score in scores.items():
            turn = entry >> TURN_SHIFT
            before, behind = turns.get(turn - 1, 0.0), turns.get(turn + 1, 0.0)
            if is_agent:
                score *= w.task if get_role(entry) == "user" else 1.0
            else:
                score += before and before * self._get_share(turn - 1, turn)
                score += behind and behind * self._get_share(turn + 1, turn)
                score += w.far * self._sum_far(turns, turn)
                if not score and entry in beside:
                    continue
            covered = 0
            for near in range(turn - w.reach, turn + w.reach + 1):
                covered |= masks.get(near, 0)
            if get_role(entry) == "assistant" and self._leads_to_output(entry):
                score *= w.step
            final[entry] = score * (1 + w.coverage * covered.bit_count() / total)
        return final


def _list_largest(packed: Mapping[int, int], most: int) -> list[int]:
    """Return so many keys with the largest values, the largest first: the same as `nlargest`, in half of its time."""
    least = sorted(packed.values(), reverse=True)[most - 1]
    above = [key for key, value in packed.items() if value > least]
    above.sort(key=packed.__getitem__, reverse=True)
    equal = (key for key, value in packed.items() if value == least)
    return [*above, *islice(equal, most - len(above))]


def _add_points(packed: dict[int, int], ids: Iterable[int], value: int, bit: int) -> None:
    """Add a clue's weight to passages, and the bit of its word, which another clue may have added before."""
    get = packed.get
    for passage in ids:
        packed[passage] = (get(passage, 0) | bit) + value
