"""The lines of entries that answer a question, within a number of tokens.

Many short snippets tell more than few whole entries, and a line that was told once tells nothing again. To cut all
lines into terms takes too long. So each line has a bound at first, the weights of all terms whose beginnings stand in
it, and its score only once no line with a better score or bound is left.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from proxy.retrieval.postings import Scored
from proxy.retrieval.terms import fold, list_matching_terms, list_terms

_LONGEST_LINE = 240
_SHORT_ENOUGH = 2_000
"""Characters of a text up to which all lines are cut into terms that are not in ASCII."""
_MOST_MISSED = 5
"""Entries without a line for the room that is left at last, after which no more of them are read."""
_SHORTEST_START = 3
_LONGEST_PIECE_OF_TOKEN = 6  # letters
_BREAKS = (
    re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])"),
    re.compile(r"(?<=,)\s+|(?<=\u3001)"),
    re.compile(r"\s+"),
)
"""Where a line is divided: behind a sentence, else a part of one, else a word."""
_GAP = "\u2026"
_TOKENS = re.compile(r"[A-Za-z]{1,6}|\d{1,3}|[!-/:-@\[-`{-~]{1,2}|[^\x00-\x7f]")


class SnippetPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an answer is filled.

    An entry is given `each` tokens, or its best line; the first `best` entries are given up to `share` of all tokens,
    at most `most`. What is left once all entries were read is spent on more of their lines. `beside` is the share of
    its score that a line has from the lines beside it. Lines are compared by their score divided by their tokens to the
    power of `brevity`.
    """

    each: int = 80
    best: int = 5
    share: float = 0.1
    most: int = 600
    beside: float = 0.1
    brevity: float = 0.3


class Snippet(msgspec.Struct, frozen=True, gc=False):
    """The lines of an entry that were chosen, in their order; left out ones between them are told by a dot line."""

    entry: int
    text: str
    tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text, on average a twelfth more than tokenizers count in lines of code and prose."""
    return len(_TOKENS.findall(text))


def fill(
    found: Iterable[tuple[Scored, str]],
    weights: Mapping[str, float],
    *,
    tokens: int,
    seen: Collection[str] = (),
    policy: SnippetPolicy | None = None,
) -> list[Snippet]:
    """Return snippets of entries, the best first, until `tokens` are used up.

    `found` has the entries in order, each with its text; it is read no further than needed. `weights` are those of
    `Ranking`. `seen` are texts in the requester's view: their lines are left out.
    """
    rules = policy or SnippetPolicy()
    scorer = _LineScorer(weights)
    told = {_normalize(line) for text in seen for line in text.split("\n")}
    read: list[tuple[int, _Lines, list[int]]] = []
    left, missed = tokens, 0
    for rank, (scored, text) in enumerate(found):
        room = min(
            left, max(rules.each, min(rules.most, int(tokens * rules.share))) if rank < rules.best else rules.each
        )
        lines = _Lines(text, scorer, rules)
        chosen, used = lines.choose(room, left, told)
        left -= used
        read.append((scored.entry, lines, chosen))
        missed += not chosen and left < rules.each
        if left < rules.each // 4 or missed >= _MOST_MISSED:
            break
    before = tokens + 1
    while rules.each // 4 <= left < before:  # few entries: they have more of their lines
        before = left
        for _, lines, chosen in read:
            more, used = lines.choose(min(left, rules.most), left, told)
            left -= used
            chosen += more
            if left < rules.each // 4:
                break
    return [_make_snippet(entry, lines.lines, sorted(chosen)) for entry, lines, chosen in read if chosen]


def _make_snippet(entry: int, lines: Sequence[str], chosen: Sequence[int]) -> Snippet:
    return Snippet(entry, _join(lines, chosen), sum(estimate_tokens(lines[at]) + 1 for at in chosen))


def _normalize(line: str) -> str:
    return " ".join(line.split())


def split_lines(text: str) -> list[str]:
    """Return the lines of a text; what is too long to be one is divided behind sentences or words."""
    lines: list[str] = []
    for line in text.split("\n"):
        start = 0
        while len(line) - start > _LONGEST_LINE:
            part = start + _LONGEST_LINE // 3, start + _LONGEST_LINE
            breaks = [each.end() for pattern in _BREAKS for each in list(pattern.finditer(line, *part))[-1:]]
            stop = breaks[0] if breaks else part[1]
            lines.append(line[start:stop])
            start = stop
        lines.append(line[start:])
    return lines


class _LineScorer:
    """Scores lines by the terms of a question."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._starts: dict[str, float] = {}
        for term, weight in weights.items():
            start = _cut_start(term)
            self._starts[start] = self._starts.get(start, 0.0) + weight

    def bound(self, lines: Sequence[str], *, is_exact: bool) -> list[float]:
        """Return for each line the most that it can score. `is_exact`: also where it is not in ASCII.

        There, a stem need not be the beginning of its word.
        """
        whole = "\n".join(lines).lower()
        if not whole.isascii():
            whole = "\n".join([(line if line.isascii() else fold(line)).lower() for line in lines])
        folded = whole.split("\n")
        bounds = [0.0] * len(lines)
        for start, weight in self._starts.items():
            if start in whole:
                for at, line in enumerate(folded):
                    if start in line:
                        bounds[at] += weight
        if is_exact and not whole.isascii():
            return [bounds[at] if line.isascii() else self.score(line) for at, line in enumerate(lines)]
        return bounds

    def score(self, line: str) -> float:
        """Return the weights of the terms in a line."""
        if line.isascii():
            lower = line.lower()
            terms = list_matching_terms(line, [start for start in self._starts if start in lower])
        else:
            terms = list_terms(line)
        return sum([self._weights.get(term, 0.0) for term in terms])


class _Lines:
    """The lines of a text, each with the most that it can score, and its score once it is wanted.

    The score of a line counts its terms, those of the lines beside it, and its length.
    """

    def __init__(self, text: str, scorer: _LineScorer, rules: SnippetPolicy) -> None:
        self.lines = split_lines(text)
        self._scorer, self._rules = scorer, rules
        own = [0.0, *scorer.bound(self.lines, is_exact=len(text) <= _SHORT_ENOUGH), 0.0]
        self._own: dict[int, float] = {at - 1: 0.0 for at, bound in enumerate(own) if not bound}
        self._bounds = [own[at] + rules.beside * (own[at - 1] + own[at + 1]) for at in range(1, len(own) - 1)]

    def choose(self, room: int, most: int, told: set[str]) -> tuple[list[int], int]:
        """Return the indexes of the best lines that fit and were not told yet, and their tokens; note them as told.

        The best line may take more than its `room`, up to `most`.
        """
        chosen: list[int] = []
        used = 0
        left = [(-self._shorten(at), at, False) for at in range(len(self.lines))]
        heapify(left)
        while left:
            score, at, is_known = heappop(left)
            key = _normalize(self.lines[at])
            if not key or key in told or self._least_cost(at) > most:
                continue
            cost = estimate_tokens(self.lines[at]) + 1
            if cost > most:
                continue
            if score and not is_known:
                heappush(left, (-self._score(at, cost), at, True))
                continue
            if chosen and used + cost > room:
                break
            told.add(key)
            chosen.append(at)
            used += cost
        return sorted(chosen), used

    def _shorten(self, at: int) -> float:
        """Return the bound of a line with regard to its length."""
        if not self._bounds[at]:
            return 0.0
        return float(self._bounds[at] / self._least_cost(at) ** self._rules.brevity)

    def _least_cost(self, at: int) -> float:
        """Return a number that `estimate_tokens` of the line plus one is not below."""
        line = self.lines[at]
        return 1 + (len(line) - line.count(" ")) / _LONGEST_PIECE_OF_TOKEN

    def _score(self, at: int, cost: int) -> float:
        score = self._find_own(at) + self._rules.beside * (self._find_own(at - 1) + self._find_own(at + 1))
        return float(score / cost**self._rules.brevity)

    def _find_own(self, at: int) -> float:
        if at not in self._own:
            self._own[at] = self._scorer.score(self.lines[at])
        return self._own[at]


def _cut_start(term: str) -> str:
    """Return what each word with this stem begins with.

    English endings change only these letters of it: "try" has the stem "tri", "using" "use", "possibility" "possibl".
    """
    if not term.isascii():
        return term[: max(_SHORTEST_START, len(term) - 2)]
    return term[:-1] if len(term) > 2 and term.endswith(("e", "i", "l")) else term


def _join(lines: Sequence[str], chosen: Sequence[int]) -> str:
    parts: list[str] = []
    last = -1
    for at in chosen:
        if parts and at != last + 1:
            parts.append(_GAP)
        parts.append(lines[at])
        last = at
    return "\n".join(parts)
