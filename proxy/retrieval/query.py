"""A query as clues: which terms are looked for, how much each counts, and which of them cover the query's words."""

import msgspec

from proxy.retrieval.dates import convert_to_day, cut_dates, list_span_terms, list_spans
from proxy.retrieval.phrases import find_quoted
from proxy.retrieval.terms import Token, list_tokens, name_speaker, parse_token

_MOST_CLUES, _MOST_CONTEXT = 64, 40
_LONGEST = 8_000
_SHORT_NUMBER = 2


class QueryWeights(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much clues count, in multiples of a word of the query.

    `whole`: the exact form of an identifier, `conjunction`: all its pieces in one passage, `piece`: each of them.
    `phrase`: all words of a phrase in quotes in one passage.
    `short_number`: a number of one or two digits, which stands everywhere.
    `dated`: the words that write out a date, whose day counts as `time`. `speaker`: that somebody named is the one who
    speaks.
    `context_piece` and `context_word`: pieces of paths and words of the requester's last steps. `time`: the days that
    the query names.
    """

    whole: float = 1.0
    conjunction: float = 0.5
    phrase: float = 3.0
    piece: float = 0.5
    context_piece: float = 0.5
    context_word: float = 0.25
    time: float = 1.0
    short_number: float = 0.3
    dated: float = 0.3
    speaker: float = 1.0


class Clue(msgspec.Struct, frozen=True, gc=False):
    """What a passage is given points for: one of the `terms`, or all of them.

    `bit` is the number of the query's word that it covers, or -1.
    """

    terms: tuple[str, ...]
    weight: float
    bit: int = -1
    needs_all: bool = False


class Question(msgspec.Struct, frozen=True, gc=False):
    """A query, ready to be looked for. `words` are its terms that are words, for terms that look alike."""

    clues: tuple[Clue, ...]
    context: tuple[Clue, ...]
    words: tuple[tuple[int, str], ...]
    wholes: tuple[str, ...]
    bits: int


def make_question(text: str, *, context: str = "", now_ms: int = 0, weights: QueryWeights | None = None) -> Question:
    """Return the question that any text asks. `context` has the requester's last steps, the newest last."""
    weigh = weights or QueryWeights()
    clues: dict[tuple[str, ...], Clue] = {}
    bits: dict[str, int] = {}
    wholes: dict[str, None] = {}
    words: dict[str, int] = {}
    names: set[str] = set()
    for clue in _list_quoted(text, weigh):
        _add(clues, clue)
    dated = set(list_tokens(cut_dates(text[:_LONGEST])))
    for each in list_tokens(text[:_LONGEST]):
        token = parse_token(each)
        for piece in token.pieces:
            bit = bits.setdefault(piece, len(bits))
            weight = weigh.piece if token.is_identifier else 1.0
            if piece.isdigit() and len(piece) <= _SHORT_NUMBER:
                weight *= weigh.short_number
            if each in dated:
                weight *= weigh.dated
            _add(clues, Clue((piece,), weight, bit))
            if not token.is_identifier:
                words[piece] = bit
                if each[:1].isupper():
                    names.add(piece)
        wholes.update(dict.fromkeys(token.wholes))
        for clue in _list_exact(token, weigh):
            _add(clues, clue)
    for piece, bit in words.items():
        if piece in names:
            _add(clues, Clue((name_speaker(piece),), weigh.speaker, bit))
    for span in list_spans(text[:_LONGEST], convert_to_day(now_ms)):
        _add(clues, Clue(list_span_terms(span), weigh.time))
    beside = _list_context(context, set(bits), weigh)
    return Question(
        tuple(clues.values())[:_MOST_CLUES], beside, tuple((b, w) for w, b in words.items()), tuple(wholes), len(bits)
    )


def _list_quoted(text: str, weigh: QueryWeights) -> list[Clue]:
    found = [
        tuple({piece: None for each in list_tokens(quoted) for piece in parse_token(each).pieces})
        for quoted in find_quoted(text)
    ]
    return [Clue(terms, weigh.phrase, needs_all=True) for terms in found if len(terms) > 1]


def _add(clues: dict[tuple[str, ...], Clue], clue: Clue) -> None:
    """Add a clue, or let the better one of two with the same terms stand."""
    known = clues.get(clue.terms)
    if known is None or known.weight < clue.weight:
        clues[clue.terms] = clue


def _list_exact(token: Token, weigh: QueryWeights) -> list[Clue]:
    if not token.is_identifier:
        return []
    exact = [Clue((whole,), weigh.whole) for whole in token.wholes]
    if len(token.pieces) > 1:
        exact.append(Clue(token.pieces, weigh.conjunction, needs_all=True))
    return exact


def _list_context(context: str, asked: set[str], weigh: QueryWeights) -> tuple[Clue, ...]:
    """Return clues of the requester's last steps, the newest first, without what the query itself asks for."""
    found: dict[str, Clue] = {}
    for each in reversed(list(list_tokens(context[-_LONGEST:]))):
        token = parse_token(each)
        weight = weigh.context_piece if token.is_identifier else weigh.context_word
        for piece in token.pieces:
            if piece not in asked and (piece not in found or found[piece].weight < weight):
                found[piece] = Clue((piece,), weight)
    return tuple(found.values())[:_MOST_CONTEXT]
