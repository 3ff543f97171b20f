"""Pumped strings for regular expressions, and whether a function takes time linear in its text.

A pattern that takes quadratic time shows it on strings of the form prefix + pump * n + end: a prefix that leads to one
of its repetitions, what this repeats, and an end that does or does not match. All are derived from the parsed pattern.
"""

import gc
import importlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

# The parts of the standard library that parse patterns; the public names of both modules are deprecated.
ops: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

GENERIC = (*" \t\n\r<[(\"'`a1A#>-/.:=_{|*\\\u6587\u0e01\u00e9", "\r\n", "#\n", "ab ", "> a.", "a/", "a.b", '["', "a, ")
"""Pumps that every pattern meets, whatever it names."""
BLANKS, RUNS = (" ", "\n"), "a \u6587-"
LONG_RUN, SHORT_RUN = 2000, 100
"""Characters of long runs, which end before the bound of a repetition, and of those that they are compared with."""
ENDS = ("", "\x01!")
SCREENED, SHORT, LONG = 4_000, 5_000, 20_000
MOST_RATIO = 6.0
"""How much longer the long string may take than the short one, which is a fourth of it."""
SCREEN_SECONDS = 0.0005
"""Strings of `SCREENED` characters that take less are not measured any further."""
FLOOR_SECONDS = 0.002
"""Long strings that take less are linear enough: clocks and caches decide such times."""
MOST_SECONDS = 0.08
"""Processor time that a long string may take: 4 us for each of its characters."""
REFERENCE_SECONDS = 0.0025
"""Processor time that `measure_reference` takes on the machine for which these limits hold; a slower one has more."""
OBVIOUS = 10
"""What takes so many times too long is not measured again."""
_CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a", "CATEGORY_NOT_DIGIT": "a",
               "CATEGORY_NOT_SPACE": "a", "CATEGORY_NOT_WORD": "-"}  # fmt: skip
_REFERENCE = re.compile(r"\w+(?=x)|\s+")
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_LONG_REPEAT = 20
_MOST_ENDS = 4


class Pumps:
    """What a parsed pattern names: its characters, and the strings that lead to its repetitions."""

    def __init__(self, pattern: "re.Pattern[Any]") -> None:
        self.characters: dict[str, None] = {}
        self.repeated: dict[tuple[str, str], None] = {}
        self.ends: dict[str, None] = dict.fromkeys(ENDS)
        self._walk(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), "")

    def _walk(self, nodes: Sequence[Any], prefix: str) -> str:
        """Note what a sequence names. Return the prefix and a string that the sequence matches."""
        for op, argument in nodes:
            prefix = self._visit(op, argument, prefix)
        return prefix

    def _visit(self, op: Any, argument: Any, prefix: str) -> str:
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.IN, ops.ANY):
            named = _sample(op, argument)
            if op is not ops.LITERAL or not named.isalnum():  # the letters of words are pumped as parts of prefixes
                self.characters.update(dict.fromkeys(named))
            return prefix + named[0]
        if op in _REPEATS:
            return self._repeat(argument, prefix)
        if op is ops.BRANCH:
            return [self._walk(each, prefix) for each in argument[1]][0]  # noqa: RUF015 - all are walked
        if op is ops.SUBPATTERN:
            return self._walk(argument[3], prefix)
        if op is ops.ATOMIC_GROUP:
            return self._walk(argument, prefix)
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            behind = self._walk(argument[1], prefix)
            if op is ops.ASSERT_NOT and argument[0] > 0:  # only what it forbids makes the pattern fail there
                self.ends[behind[len(prefix) :]] = None
        return prefix

    def _repeat(self, argument: Any, prefix: str) -> str:
        least, most, body = argument
        behind = self._walk(body, prefix)
        once = behind[len(prefix) :]
        if once and (most is ops.MAXREPEAT or most >= _LONG_REPEAT):
            self.repeated[prefix, once] = None
        return prefix + once * min(int(least), 50)

    def list_strings(self) -> Iterator[tuple[str, str, str]]:
        """Yield prefixes, pumps and ends."""
        ends = list(self.ends)[:_MOST_ENDS]
        for pump in dict.fromkeys((*self.characters, *GENERIC)):
            yield from (("", pump, end) for end in ends)
        for prefix, once in self.repeated:
            for pump in dict.fromkeys((once, *once, *BLANKS)):
                yield from ((prefix, pump, end) for end in ends)
            for pump in dict.fromkeys((prefix, prefix + once, prefix + once * 3)):
                yield from (("", pump, end) for end in ENDS if pump)


def _sample(op: Any, argument: Any) -> str:
    """Return characters that a node for one character matches."""
    if op is ops.LITERAL:
        return chr(argument)
    if op is not ops.IN:  # any character, or any but one
        return "a" if op is ops.ANY or argument != ord("a") else "b"
    if argument[0][0] is ops.NEGATE:
        return (
            "".join(each for each in "a -1\n" if not any(_contains(each_in, each) for each_in in argument[1:])) or "~"
        )
    return "".join(map(_sample_of_class, argument))


def _sample_of_class(node: Any) -> str:
    op, argument = node
    if op is ops.LITERAL:
        return chr(argument)
    return chr(int(argument[0])) if op is ops.RANGE else _CATEGORIES[str(argument)]


def _contains(node: Any, character: str) -> bool:
    op, argument = node
    if op is ops.LITERAL:
        return chr(argument) == character
    if op is ops.RANGE:
        return int(argument[0]) <= ord(character) <= int(argument[1])
    name = str(argument)
    kinds = {
        "DIGIT": character.isdigit(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }
    return kinds[name.rpartition("_")[2]] is not name.startswith("CATEGORY_NOT")


def pump(prefix: str, unit: str, end: str, size: int) -> str:
    """Return a string of about `size` characters."""
    return prefix + unit * max(1, (size - len(prefix)) // len(unit)) + end


def find_slowness(run: Callable[[Any], object], make: Callable[[int], Any], most: float = MOST_SECONDS) -> str:
    """Return why a function is not linear in the texts that `make` makes of a size; empty if it is."""
    screened = 0.0
    for size in (20, 300, SCREENED // 4, SCREENED):  # one of exponential time must not get the longest at once
        before, screened = screened, _measure(run, make(size))
        if most < screened <= OBVIOUS * most:  # other programs can only make a measurement longer
            screened = min(screened, *(_measure(run, make(size)) for _ in range(2)))
        if screened > most:  # as it is: what takes exponential time does not end at the next size
            return f"{1000 * screened:.1f} ms of {size:,} characters"
    if screened < max(SCREEN_SECONDS, 0.2 * most if screened <= MOST_RATIO * before else 0.0):
        return ""
    problem = ""
    for repeated in (1, 3, 7):
        long = min(_measure(run, make(LONG)) for _ in range(repeated))
        if long < FLOOR_SECONDS:
            return ""
        if long > OBVIOUS * most:
            return f"{1000 * long:.1f} ms of {LONG:,} characters"
        short = min(_measure(run, make(SHORT)) for _ in range(repeated + 2))
        problem = f"{1000 * short:.1f} ms of {SHORT:,} characters, {1000 * long:.1f} ms of {LONG:,}"
        if long <= MOST_RATIO * short and (long <= most or long <= allow(most)):
            return ""
    return problem


def find_costly_runs(run: Callable[[Any], object], make: Callable[[int], Any]) -> str:
    """Return why a function takes long for long runs: longer than for as many characters in short ones.

    `make` makes a text of runs of a length. A function that reads each run again from each of its characters takes
    twenty times as long, on any machine.
    """
    if _measure(run, make(LONG_RUN)) <= FLOOR_SECONDS:
        return ""
    long, short = (min(_measure(run, make(size)) for _ in range(3)) for size in (LONG_RUN, SHORT_RUN))
    is_costly = long > FLOOR_SECONDS and long > MOST_RATIO * short and long > allow(FLOOR_SECONDS)
    return f"{1000 * short:.1f} ms of runs of {SHORT_RUN:,}, {1000 * long:.1f} of {LONG_RUN:,}" if is_costly else ""


def allow(seconds: float) -> float:
    """Return a limit of processor time for this machine as fast as it is now."""
    return seconds * max(1.0, measure_reference() / REFERENCE_SECONDS)


def measure_reference() -> float:
    """Return the processor time of a pattern that is known to be linear, the least of five."""
    return min(_measure(partial(_exhaust, _REFERENCE), "ab1 " * (LONG // 4)) for _ in range(5))


def _measure(run: Callable[[Any], object], text: Any) -> float:
    """Return the processor time of one call."""
    gc.disable()  # a collection takes longer than most patterns
    begin = time.thread_time()
    run(text)
    seconds = time.thread_time() - begin
    gc.enable()
    return seconds


def find_slow_string(pattern: "re.Pattern[Any]", methods: Sequence[str]) -> str:
    """Return the first pumped string on which a pattern is not linear, with the method and the times; empty if none."""
    is_bytes = isinstance(pattern.pattern, bytes)
    strings = dict.fromkeys(Pumps(pattern).list_strings())
    for method in methods:
        run = partial(_exhaust, pattern) if method == "finditer" else getattr(pattern, method)
        for prefix, unit, end in strings:
            if slow := find_slowness(run, partial(_make, prefix, unit, end, is_bytes)):
                return f"{method} of {prefix[:40]!r} + {unit[:40]!r} * n + {end!r}: {slow}"
        for character, stop in ((each, stop) for each in RUNS for stop in "\n-" if each != stop):
            if slow := find_costly_runs(run, partial(_make_runs, character, stop, is_bytes)):
                return f"{method} of runs of {character!r} that end in {stop!r}: {slow}"
    return ""


def _make_runs(character: str, stop: str, is_bytes: bool, size: int) -> str | bytes:
    return _make("", character * size + stop, "", is_bytes, LONG)


def _make(prefix: str, unit: str, end: str, is_bytes: bool, size: int) -> str | bytes:
    text = pump(prefix, unit, end, size)
    return text.encode("utf-8", "surrogatepass") if is_bytes else text


def _exhaust(pattern: "re.Pattern[Any]", text: Any) -> None:
    for _ in pattern.finditer(text):
        pass
