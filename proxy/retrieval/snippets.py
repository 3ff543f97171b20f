"""The lines of entries that answer a question, within a number of tokens.

Many short snippets tell more than few whole entries, and a line that was told once tells nothing again.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from proxy.retrieval.postings import Scored
from proxy.retrieval.terms import list_terms

_LONGEST_LINE = 240
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
    told = {_normalize(line) for text in seen for line in text.split("\n")}
    read: list[tuple[int, Sequence[str], Sequence[float], list[int]]] = []
    left = tokens
    for rank, (scored, text) in enumerate(found):
        room = min(
            left, max(rules.each, min(rules.most, int(tokens * rules.share))) if rank < rules.best else rules.each
        )
        lines = split_lines(text)
        scores = score_lines(lines, weights, rules)
        chosen, used = _choose(lines, scores, room, left, told)
        left -= used
        read.append((scored.entry, lines, scores, chosen))
        if left < rules.each // 4:
            break
    before = tokens + 1
    while rules.each // 4 <= left < before:  # few entries: they have more of their lines
        before = left
        for _, parts, worth, taken in read:
            more, used = _choose(parts, worth, min(left, rules.most), left, told)
            left -= used
            taken += more
    return [_make_snippet(entry, lines, sorted(chosen)) for entry, lines, _, chosen in read if chosen]


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


def _choose(
    lines: Sequence[str], scores: Sequence[float], room: int, most: int, told: set[str]
) -> tuple[list[int], int]:
    """Return the indexes of the best lines that fit and were not told yet, and their tokens; note them as told.

    The best line may take more than its `room`, up to `most`.
    """
    chosen: list[int] = []
    used = 0
    for at in sorted(range(len(lines)), key=lambda i: (-scores[i], i)):
        key = _normalize(lines[at])
        if not key or key in told:
            continue
        cost = estimate_tokens(lines[at]) + 1
        if used + cost > (room if chosen else most):
            if chosen:
                break
            continue
        told.add(key)
        chosen.append(at)
        used += cost
    return sorted(chosen), used


def score_lines(lines: Sequence[str], weights: Mapping[str, float], rules: SnippetPolicy) -> list[float]:
    """Return how well each line answers: by its terms, those of the lines beside it, and its length."""
    own = [sum(weights.get(term, 0.0) for term in list_terms(line)) for line in lines]
    padded = [0.0, *own, 0.0]
    scores = []
    for at, line in enumerate(lines):
        score = own[at] + rules.beside * (padded[at] + padded[at + 2])
        scores.append(score / (estimate_tokens(line) + 1) ** rules.brevity if score else 0.0)
    return scores


def _join(lines: Sequence[str], chosen: Sequence[int]) -> str:
    parts: list[str] = []
    last = -1
    for at in chosen:
        if parts and at != last + 1:
            parts.append(_GAP)
        parts.append(lines[at])
        last = at
    return "\n".join(parts)
