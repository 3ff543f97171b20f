"""Terms of a text: words, folded and stemmed; identifiers and paths whole and in pieces; pairs of characters.

A *token* is what stands in the text; it becomes one or more terms. Scripts that are written without spaces, and Korean,
whose particles are written to the word, become pairs of adjacent characters.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
import snowballstemmer

# Characters of words. `\w` lacks the marks that are vowels in the scripts of India and South East Asia.
_MARKS = (
    "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff\u0e00-\u0e4e\u0e80-\u0ece"
    "\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
)
_TOKEN = re.compile(rf"[\w$@{_MARKS}]+(?:[-./\\:~+#&=]{{1,3}}[\w$@{_MARKS}]+)*")
_JOINERS = re.compile(r"[-./\\:~+#&=_$@]+")
_COMPONENT = re.compile(r"[/\\:&=#]+|\.{2,}")
_PIECE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
_LINE_NUMBER, _NAMED = re.compile(r"(?::\d+){1,4}$"), re.compile(r"[./\\_]")
_MIXED_CASE = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(
    f"([{_HAN}]+|[\u3040-\u309f]+|[\u30a0-\u30ff\u31f0-\u31ff]+|[\uac00-\ud7af\u1100-\u11ff]+|"
    "[\u0e00-\u0e7f]+|[\u0e80-\u0eff]+|[\u1000-\u109f]+|[\u1780-\u17ff]+|[\u0f00-\u0fff]+)"
)
_ACCENTED, _ACCENTS = re.compile("[\x80-\u03ff\u1e00-\u1fff]"), re.compile("[\u0300-\u036f]+")
_OTHERS = re.compile("[^\x00-\x7f]+")
_LONGEST_TOKEN, _MOST_PIECES, _LONGEST_PIECE = 160, 48, 40
_GRAM = 3

# By the first letter of a word: where its script begins and ends, and the stemmer of the language that is most often
# written in it. Words of other Latin languages lose English endings only, the same in the text and in the query.
_STEMMERS = (
    ("a", "z", "english"),
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u04ff", "russian"),
    ("\u0531", "\u0587", "armenian"),
    ("\u0620", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)

# Words that say nothing of a text. The name of the month "may" and negations are not among them.
_STOP_WORDS = """
    a about after again all also am an and any are aren as at be because been before being both but by can could
    couldn d did didn do does doesn doing don down during each else etc few for from further get got had hadn
    has hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself
    just let ll m me might more most must mustn my myself of off oh ok on once only or other our ours out over
    own re really s same shall she should shouldn so some such t than that the their theirs them themselves then
    there these they this those through to too under until up us ve very was wasn we were weren what when where
    which while who whom whose why will with won would wouldn yes you your yours yourself
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


class Token(msgspec.Struct, frozen=True, gc=False):
    """The terms of a token: of a word one piece; of an identifier or a path the whole, its components and pieces."""

    pieces: tuple[str, ...]
    wholes: tuple[str, ...] = ()

    @property
    def is_identifier(self) -> bool:
        """Whether it is more than a word: it has several parts, digits or mixed case."""
        return bool(self.wholes)


def list_tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text as they stand in it."""
    return (found[0] for found in _TOKEN.finditer(text))


def list_terms(text: str) -> set[str]:
    """Return the distinct terms of a text."""
    found: set[str] = set()
    for token in set(_TOKEN.findall(text)):
        found.update(_list_token_terms(token))
    return found


def list_matching_terms(text: str, parts: Sequence[str]) -> set[str]:
    """Return the distinct terms of the tokens in which one of the parts stands, in lower case."""
    found: set[str] = set()
    for token in set(_TOKEN.findall(text)) if parts else ():
        lower = token.lower()
        if any([part in lower for part in parts]):
            found.update(_list_token_terms(token))
    return found


@lru_cache(1 << 16)
def _list_token_terms(token: str) -> tuple[str, ...]:
    parsed = parse_token(token)
    return parsed.pieces + parsed.wholes


def parse_token(token: str) -> Token:
    """Return the terms of a token. A stop word has none."""
    if token.isascii() and token.isalpha() and not _MIXED_CASE.search(token):
        word = token.lower()
        return Token(()) if word in STOP_WORDS else Token((stem(word[:_LONGEST_PIECE]),))
    folded = token if token.isascii() else fold(token)
    if not folded.isascii() and _UNSPACED.search(folded):
        return _parse_unspaced(folded)
    return _parse_compound(folded)


def _parse_compound(token: str) -> Token:
    pieces: dict[str, None] = {}
    parts = [part for part in _JOINERS.split(token) if part][:_MOST_PIECES]
    mixed = False
    for part in parts:
        found, is_mixed = _parse_part(part)
        mixed = mixed or is_mixed
        if len(parts) > 1 or is_mixed or part.lower() not in STOP_WORDS:
            pieces.update(found)
    if (not mixed and len(parts) < 2) or len(token) > _LONGEST_TOKEN:
        return Token(tuple(pieces))
    return Token(tuple(pieces), _list_wholes(token))


@lru_cache(1 << 16)
def _parse_part(part: str) -> tuple[Mapping[str, None], bool]:
    """Return the pieces of a part of a token, and whether it has letters and digits, or mixed case."""
    lower = part.lower()[:_LONGEST_PIECE]
    if not part.isascii() or part.isdigit() or (part.isalpha() and not _MIXED_CASE.search(part)):
        return {stem(lower): None}, False
    pieces = {lower: None}
    pieces.update((stem(each.lower()), None) for each in _PIECE.findall(part[:_LONGEST_PIECE]) if len(each) > 1)
    return pieces, True


def _list_wholes(token: str) -> tuple[str, ...]:
    """Return the exact forms by which a path or a dotted name is found: all of it, and its compound components.

    The number of a line behind it is no part of it.
    """
    lower = token.lower().strip("-.:~+#&=")
    if (numbered := _LINE_NUMBER.search(lower)) and _NAMED.search(lower, 0, numbered.start()):
        lower = lower[: numbered.start()]
    wholes = {lower: None}
    components = [part for part in _COMPONENT.split(lower) if part]
    if len(components) > 1:
        wholes.update((part, None) for part in components if not part.isalnum())
    for name in (components[-1], *lower.split(".")[-1:]) if components else ():
        if "_" in name:
            wholes[name.rpartition(".")[0] or name] = None
    return tuple(wholes)


def _parse_unspaced(token: str) -> Token:
    pieces: dict[str, None] = {}
    for at, run in enumerate(_UNSPACED.split(token)):
        if at % 2 == 0:
            for part in _TOKEN.findall(run):
                parsed = _parse_compound(part)
                pieces.update(dict.fromkeys(parsed.pieces + parsed.wholes))
        elif len(run) == 1:
            pieces[run] = None
        else:
            pieces.update((run[i : i + 2], None) for i in range(len(run) - 1))
    return Token(tuple(pieces))


def fold(text: str) -> str:
    """Return a text in the form in which it is compared: compatibility forms, case and accents are the same.

    Accents are kept where they make another letter: outside the Latin and Greek scripts. Case stays in ASCII letters,
    where it divides names into pieces.
    """
    folded = unicodedata.normalize("NFKC", text)
    if _ACCENTED.search(folded):
        folded = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", folded)))
    return folded if folded.isascii() else _OTHERS.sub(lambda found: found[0].casefold(), folded)


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """Return the stem of a folded word. Numbers and unknown scripts stay as they are."""
    for start, stop, language in _STEMMERS:
        if start <= word[:1] <= stop:
            # A stemmer has state, so that each thread needs its own.
            return str(snowballstemmer.stemmer(language).stemWord(word))
    return word


def name_speaker(term: str) -> str:
    """Return the term by which a passage is found that someone of this name says."""
    return f"@{term}"


def list_grams(term: str) -> set[str]:
    """Return the groups of three characters of a term, or its characters where it has not more than two."""
    if len(term) < _GRAM:
        return set(term)
    return {term[i : i + _GRAM] for i in range(len(term) - _GRAM + 1)}
