"""Whole lines that an agent is likely to type again: what it typed before, imports, what it saw more than once.

Rule: a line counts without its number and its indentation; the same conversation gives the same lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log, log2

import msgspec

from proxy.context.original import read_arguments
from proxy.context.survey import Survey

_SHORTEST, _LONGEST = 20, 120
_LOOKED_AT = 64_000
_YOUNG = 8_000

_NUMBERED = re.compile(r"\d+[:\-\t ]\s*")
_IMPORT = re.compile(r"(?:from|import|#include|use|require|using)\b")
_IN_LETTERS = re.compile(r"[A-Za-z]{3}")

_TYPED, _AGAIN, _IMPORTED, _SAME_TURN, _AGE, _LENGTH = 1.0, 0.8, 1.0, 1.0, -0.15, 0.8


class QuotedLine(msgspec.Struct, frozen=True, gc=False):
    """A line and the step in which it stood last."""

    line: str
    step: int


def order_quotes(survey: Survey, gone: Iterable[int], ages: Sequence[int]) -> list[QuotedLine]:
    """Lines of archived steps that are worth telling, the most useful for their length first."""
    newest: dict[str, int] = {}
    seen: Counter[str] = Counter()
    typed: set[str] = set()
    for i in sorted(gone):
        for place in range(survey.steps[i].start, survey.steps[i].stop):
            told = survey.messages[place].told
            lines = list_lines(told.text) if survey.messages[place].shape.role != "assistant" else {}
            own = list_lines("\n".join(line for call in told.calls for line in read_arguments(call.arguments)))
            seen.update(lines.keys())
            seen.update(own.keys())
            typed.update(own)
            newest.update(dict.fromkeys((*lines, *own), i))
    current = survey.steps[-1].turn
    worth: dict[str, float] = {}
    for line, i in newest.items():
        z = (_TYPED if line in typed else 0.0) + (_IMPORTED if _IMPORT.match(line) else 0.0)
        z += _AGAIN * log(seen[line]) + (_SAME_TURN if survey.steps[i].turn == current else 0.0)
        if z and _IN_LETTERS.search(line):
            age = max(ages[survey.steps[i].start], 1)
            worth[line] = z + _AGE * log2(age / _YOUNG) - _LENGTH * log(4 + len(line) / 4)
    return [QuotedLine(line, newest[line]) for line in sorted(worth, key=lambda line: (-worth[line], line))]


def list_lines(text: str) -> dict[str, None]:
    """The lines of a text that can be quoted, in order."""
    found: dict[str, None] = {}
    for line in text[:_LOOKED_AT].split("\n"):
        bare = line.strip()
        if bare[:1].isdigit():
            bare = _NUMBERED.sub("", bare, count=1)
        if _SHORTEST <= len(bare) <= _LONGEST:
            found[bare] = None
    return found
