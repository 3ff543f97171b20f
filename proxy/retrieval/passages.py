"""Passages of a text: parts of about 150 tokens, each with the terms by which it is found, its date and its speaker."""

import re
from collections.abc import Iterator

from msgspec import structs

from proxy.model.search import SAID
from proxy.retrieval.dates import (
    DAY_TERMS,
    convert_to_day,
    find_stated_time,
    list_date_terms,
    list_span_terms,
    list_spans,
)
from proxy.retrieval.postings import MOST_PASSAGES, IndexedText, Lane, Passage, get_length_index
from proxy.retrieval.terms import list_terms, name_speaker

_CHARACTERS = 600
"""About 150 tokens of English or of code."""
_LONGEST_CARD = 2_000
# Characters that are a token or more each weigh as much as four letters.
_WIDE = re.compile("[\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u3040-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
_BREAK = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])|\s+")
_SPEAKER = re.compile(
    r"(?:[\[(][^\])\n]{4,40}[\])]\s*)?(?P<name>[^\W\d_][\w.'\u2019-]{0,24}(?: [^\W\d_][\w.'\u2019-]{0,24}){0,2})\s?: "
)
_QUESTION = re.compile("[?\u061f\uff1f]")
_YEAR = re.compile(r"\d{4}")
_DATED_LINE = re.compile(r"(?m)^[^\n]{0,48}\d{4}")


def cut_text(text: str) -> list[tuple[int, int]]:
    """Return start and stop of the passages of a text, in order and without gaps, at most MOST_PASSAGES of them.

    They end where lines end. A line that is too long ends behind a sentence or a word.
    """
    wide = len(_WIDE.findall(text)) if not text.isascii() else 0
    share = 1 + 3 * wide / len(text) if text else 1.0
    size = max(int(_CHARACTERS / share), len(text) // (MOST_PASSAGES // 2) + 1)
    found: list[tuple[int, int]] = []
    start = at = 0
    for stop in _list_breaks(text, size):
        if at > start and stop - start > size:
            found.append((start, at))
            start = at
        at = stop
    if text[start:].strip():
        found.append((start, len(text)))
    return found


def _list_breaks(text: str, size: int) -> Iterator[int]:
    """Yield the places at which a passage may end: of lines, and within lines that are longer than one passage."""
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        while end - at > size:
            breaks = [found.end() for found in _BREAK.finditer(text, at + size // 2, at + size)]
            at = breaks[-1] if breaks else at + size
            yield at
        yield end
        at = end


def cut_passages(indexed: IndexedText) -> list[Passage]:
    """Return the passages of a text, of all lanes. A text without a word has none."""
    found: list[Passage] = []
    stated = indexed.stated_ms
    speaker = _list_speaker_terms(indexed)
    for number, (start, stop) in enumerate(cut_text(indexed.text)):
        text = indexed.text[start:stop]
        terms = list_terms(text)
        if not terms:
            continue
        is_said = indexed.kind in SAID and indexed.role != "tool"
        if is_said:
            stated = _find_last_stated(text, stated)
        size = len(terms)
        at_ms = indexed.at_ms if stated is None else stated
        terms |= speaker
        terms.update(list_date_terms(at_ms))
        if is_said and (_YEAR.search(text) or not DAY_TERMS.isdisjoint(terms)):
            terms |= _list_event_terms(text, at_ms)
        passage = _make_passage("text", number, size, terms, is_said and bool(_QUESTION.search(text)))
        found.append(passage)
        if is_said and indexed.role == "user":
            found.append(structs.replace(passage, lane="user"))
    for rule in indexed.rules:
        terms = list_terms(rule)
        found.append(_make_passage("rule", 0, len(terms), terms))
    if card := list_terms(indexed.card[:_LONGEST_CARD]):
        found.append(_make_passage("card", 0, len(card), card))
    return found


def _make_passage(lane: Lane, number: int, size: int, terms: set[str], asks: bool = False) -> Passage:
    return Passage(lane, number, get_length_index(size), tuple(sorted(terms)), asks)


def _list_speaker_terms(indexed: IndexedText) -> set[str]:
    label = _SPEAKER.match(indexed.text)
    terms = list_terms(f"{indexed.sender} {label['name'] if label else ''}")
    return terms | {name_speaker(term) for term in terms}


def _find_last_stated(text: str, before: int | None) -> int | None:
    """Return the time that holds at the beginning of a passage, or the one that it states itself."""
    for line in _DATED_LINE.finditer(text) if _YEAR.search(text) else ():
        if (stated := find_stated_time(text[line.start() :])) is not None:
            return stated
    return before


def _list_event_terms(text: str, at_ms: int) -> set[str]:
    """Return the days that are meant by what is said: "yesterday" is the day before that of the passage."""
    spans = (span for span in list_spans(text, convert_to_day(at_ms)) if span[0] == span[1])
    return {term for span in spans for term in list_span_terms(span)}
