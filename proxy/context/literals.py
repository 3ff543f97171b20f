"""The words of an output that a later step may need to the letter: paths, numbers, names, lines of errors.

Rule: the same text gives the same words; time is linear in what is looked at, which is bounded.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_LOOKED_AT = 64_000
_LONGEST_ERROR = 200
MOST = {"errors": 4, "paths": 8, "names": 12, "numbers": 8}

_ERROR = re.compile(r"(?i)\b(?:error|exception|traceback|failed|failure|fatal|panic|denied|not found|no such)\b|Error:")
_PATH = re.compile(r"(?<![\w./~@:-])(?:[\w.~@-]{0,64}/){1,16}[\w.@-]{1,80}(?::\d{1,7})?")
_NAME = re.compile(r"(?<![\w./-])[A-Za-z_][\w.]{3,60}(?![\w/-])")
_COMPOUND = re.compile(r"[A-Za-z0-9][_.][A-Za-z0-9]|[a-z0-9][A-Z]")
_NUMBER = re.compile(r"(?<![\w.])\d{3,20}(?:\.\d{1,12})?(?![\w.])|(?<![\w.])\d{1,20}\.\d{1,12}(?![\w.])")


def find_literals(text: str) -> dict[str, tuple[str, ...]]:
    """The words by kind, each kind's best first; kinds that have none are left out."""
    part = text if len(text) <= 2 * _LOOKED_AT else f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    paths = _choose(_strip(_PATH.findall(part)), MOST["paths"])
    found = {
        "errors": _find_errors(part),
        "paths": paths,
        "names": _choose(filter(_COMPOUND.search, _strip(_NAME.findall(part))), MOST["names"]),
        "numbers": _choose(_NUMBER.findall(part), MOST["numbers"]),
    }
    return {kind: words for kind, words in found.items() if words}


def _strip(words: Iterable[str]) -> Iterator[str]:
    return (stripped for word in words if (stripped := word.rstrip(".")))


def _choose(words: Iterable[str], most: int) -> tuple[str, ...]:
    """The most frequent words, of equal ones the earlier."""
    return tuple(word for word, _ in Counter(words).most_common(most))


def _find_errors(text: str) -> tuple[str, ...]:
    """The first lines that speak of an error, and the last one, which often says what it was."""
    lines = [line.strip()[:_LONGEST_ERROR] for line in text.splitlines() if _ERROR.search(line[:2000])]
    unlike = list(dict.fromkeys(lines))
    return tuple(unlike if len(unlike) <= MOST["errors"] else [*unlike[: MOST["errors"] - 1], unlike[-1]])
