"""Words that are typed to the letter or not at all: paths, names, ids.

Rule: what a word is depends on itself alone; the same text has the same words in the same order.
"""

import re
from functools import lru_cache

_SHORTEST, _LONGEST = 4, 120
_LOOKED_AT = 200_000

_WORD = re.compile(r"[A-Za-z0-9_#@][A-Za-z0-9_./@#-]{2,}")
_CASES = re.compile(r"[a-z][A-Z]")
_HEXES = re.compile(r"(?=[0-9a-f-]*\d)[0-9a-f]{7,}[0-9a-f-]*")
_STAMP = re.compile(r"[0-9TZ:./_-]+")


def list_words(text: str) -> tuple[str, ...]:
    """The words of a text, each once, in the order of their first places."""
    part = text if len(text) <= 2 * _LOOKED_AT else f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    named = dict.fromkeys(map(name_word, dict.fromkeys(_WORD.findall(part))))
    named.pop("", None)
    return tuple(named)


@lru_cache(maxsize=65_536)
def name_word(found: str) -> str:
    """The word in what was found, empty where it is none of those: plain language, a short number."""
    word = found.strip("./-@")
    if not _SHORTEST <= len(word) <= _LONGEST:
        return ""
    return word if _is_to_the_letter(word) else ""


def _is_to_the_letter(word: str) -> bool:
    if word.isdigit() or any(sign in word for sign in "_/#@"):
        return True
    has_letters = any(map(str.isalpha, word))
    has_digits = any(map(str.isdigit, word))
    return has_letters and (has_digits or "." in word or _CASES.search(word) is not None)


def is_opaque(word: str) -> bool:
    """Whether it says nothing by itself: a hash, a time, a number."""
    return _HEXES.fullmatch(word) is not None or _STAMP.fullmatch(word) is not None


def is_name(word: str) -> bool:
    """Whether it names something: a path, a dotted or a snake name."""
    return ("/" in word or "." in word or "_" in word) and not is_opaque(word)


def find_family(word: str) -> str:
    """The folder of a path, the first part of a dotted name; empty for what is neither."""
    if "/" in word:
        return word.rpartition("/")[0]
    first, dot, _ = word.partition(".")
    return first + dot if dot else ""
