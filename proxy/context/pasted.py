"""Blocks that a user pasted between their own words: fenced files, wrapped files, stretches of a log (BEHAVIOUR B13).

Rule: in doubt a line is the user's. A fence that is never closed is none, a wrapper is one only under a name for what
a machine wrote, and a stretch without either has nothing but lines that no person types.
"""

import re
from collections.abc import Iterator

_OPENING = re.compile(
    r"(?m)^ {0,3}(?P<fence>`{3,8}(?!`)|~{3,8}(?!~))[^`\n]*$"
    r"|^[ \t]*<(?P<tag>files?|documents?|logs?|output|stdout|stderr|code|diff|patch|attachment|file_contents?)"
    r"\b[^>\n]*>"
)
_OF_MACHINE = re.compile(
    r"\W?\d{2,4}[-:/.]\d\d\b"  # a time or a date
    r"|\W{0,2}(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
    r"|[\w./-]+:\d+[: ]"  # a place in a file
    r"|\s*(?:at |File \"|Traceback )|(?:\+\+\+|---|@@) "
    r"|(?: {4,}|\t)\s*(?![-*+\d\s])"
)
_SYMBOLS = re.compile(r"[^\w\s.,;]|\d")
_MOST_SYMBOLS = 0.25


def find_pasted(text: str, shortest: int) -> list[tuple[int, int]]:
    """Where the blocks of at least so many characters begin and end, in order; none of them overlap."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, stop in [*_find_marked(text), (len(text), len(text))]:
        found += [*_find_stretches(text, at, start), (start, stop)]
        at = stop
    return [(start, stop) for start, stop in found if stop - start >= shortest]


def _find_marked(text: str) -> Iterator[tuple[int, int]]:
    """Fenced and wrapped blocks, one after the other."""
    # What is not closed once is not closed behind that either: a text of openings alone takes no longer than others.
    open_for_ever: set[str] = set()
    at = 0
    while opening := _OPENING.search(text, at):
        at = opening.end()
        mark = opening["fence"] or opening["tag"]
        if mark in open_for_ever:
            continue
        end = rf"^ {{0,3}}{mark}{mark[0]}*[ \t]*$" if opening["fence"] else rf"</{mark}>[ \t]*$"
        if closing := re.compile(end, re.MULTILINE).search(text, at):
            yield opening.start(), closing.end()
            at = closing.end()
        else:
            open_for_ever.add(mark)


def _find_stretches(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Runs of lines that a machine wrote; empty lines may stand between."""
    first = last = at = start
    for line in text[start:stop].splitlines(keepends=True):
        if _is_of_machine(line):
            last = at + len(line.rstrip("\n"))
        elif line.strip():
            yield first, last
            first = last = at + len(line)
        at += len(line)
    yield first, last


def _is_of_machine(line: str) -> bool:
    bare = line.strip()
    if not bare:
        return False
    return bool(_OF_MACHINE.match(line)) or len(_SYMBOLS.findall(bare)) > _MOST_SYMBOLS * len(bare)
