"""Runs of words that stand in a text as the query has them: its phrases in quotes, or all of its words.

Case, accents and what stands between words are no difference.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from proxy.model.search import SAID
from proxy.retrieval.postings import Scored, get_kind
from proxy.retrieval.terms import fold

_QUOTED = re.compile('["\u201c\u201d\u201e\u00ab]([^"\u201c\u201d\u201e\u00ab\u00bb]+)["\u201c\u201d\u00bb]')
_BETWEEN = re.compile(r"[\W_]+")
_LONGEST = 8_000
_MOST_PHRASES = 8
_LEAST_LINES, _MOST_SHARED = 4, 0.7
"""An output of so many lines that has this share of them in common with another one is the same file, read again."""


class Phrases(msgspec.Struct, frozen=True, gc=False):
    """What is looked for as a run of words: `quoted` phrases, and the `whole` query if it has two words or more."""

    quoted: tuple[str, ...] = ()
    whole: str = ""

    def count(self, text: str) -> int:
        """Return how many of them stand in a text; the whole query counts as one more than its phrases."""
        lower = (text if text.isascii() else fold(text)).lower()
        words = ""
        found = 0
        for phrase, points in (*[(each, 1) for each in self.quoted], (self.whole, len(self.quoted) + 1)):
            if phrase and all(word in lower for word in phrase.split()):
                words = words or f" {_BETWEEN.sub(' ', lower)} "
                found += points * (_pad(phrase) in words)
        return found


def find_quoted(text: str) -> list[str]:
    """Return what stands in quotes in a query."""
    return [found[1] for found in _QUOTED.finditer(text[:_LONGEST])][:_MOST_PHRASES]


def find_phrases(text: str) -> Phrases:
    """Return the runs of words that a query asks for."""
    quoted = [words for each in find_quoted(text) if (words := _normalize(each))]
    whole = _normalize(text[:_LONGEST])
    return Phrases(tuple(dict.fromkeys(quoted)), whole if " " in whole and whole not in quoted else "")


def _normalize(text: str) -> str:
    return _BETWEEN.sub(" ", fold(text).lower()).strip()


def _pad(phrase: str) -> str:
    """Return a phrase with blanks where a word of it must begin or end: not in a script without them."""
    before, behind = (" " if each.isascii() else "" for each in (phrase[0], phrase[-1]))
    return f"{before}{phrase}{behind}"


def put_phrases_first(
    found: Iterator[tuple[Scored, str]], phrases: Phrases, is_over: Callable[[], bool]
) -> Iterator[tuple[Scored, str]]:
    """Yield the texts with the words of the query as they stand in it first; of these first what was said."""
    rated: list[tuple[int, bool, tuple[Scored, str]]] = []
    for each in found:
        count = phrases.count(each[1])
        rated.append((-count, count > 0 and get_kind(each[0].entry) not in SAID, each))
        if is_over():
            break
    yield from [each for *_, each in sorted(rated, key=lambda each: each[:2])]
    yield from found


def drop_copies(found: Iterator[tuple[Scored, str]]) -> Iterator[tuple[Scored, str]]:
    """Yield the texts without outputs that repeat one before, or a part of it."""
    outputs: list[frozenset[str]] = []
    for scored, text in found:
        if get_kind(scored.entry) == "output":
            lines = frozenset(line for line in text.split("\n") if line)
            if len(lines) >= _LEAST_LINES:
                if any(len(lines & other) >= _MOST_SHARED * min(len(lines), len(other)) for other in outputs):
                    continue
                outputs.append(lines)
        yield scored, text
