"""A query as clues: which terms are looked for, how much each counts, and which of them cover the query's words."""

import msgspec

from proxy.retrieval.dates import convert_to_day, cut_dates, list_span_terms, list_spans
from proxy.retrieval.terms import Token, list_tokens, name_speaker, parse_token, stem

_MOST_CLUES, _MOST_CONTEXT = 64, 40
_LONGEST = 8_000
_SHORT_NUMBER = 2


# Forms that no stemmer knows: a question ("what did she buy?") seldom has the form of what was said ("I bought").
_IRREGULAR = """
    eat ate eaten; become became; begin began begun; bite bit bitten; blow blew blown; break broke broken; bring
    brought; build built; buy bought; catch caught; choose chose chosen; come came; deal dealt; draw drew drawn;
    drink drank drunk; drive drove driven; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flew
    flown; forget forgot forgotten; freeze froze frozen; give gave given; go went gone; grow grew grown; hang hung;
    hear heard; hide hid hidden; hold held; keep kept; know knew known; lead led; leave left; lend lent; lose lost;
    make made; mean meant; meet met; pay paid; ride rode ridden; ring rang rung; rise rose risen; run ran; say said;
    see saw seen; sell sold; send sent; shake shook shaken; shoot shot; sing sang sung; sit sat; sleep slept; speak
    spoke spoken; spend spent; stand stood; steal stole stolen; stick stuck; swim swam swum; take took taken; teach
    taught; tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn;
    win won; write wrote written; child children; man men; woman women; wife wives; foot feet; tooth teeth
"""
_FORMS = {stem(form): tuple(map(stem, forms)) for forms in map(str.split, _IRREGULAR.split(";")) for form in forms}


class QueryWeights(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much clues count, in multiples of a word of the query.

    `whole`: the exact form of an identifier, `conjunction`: all its pieces in one passage, `piece`: each of them.
    `short_number`: a number of one or two digits, which stands everywhere.
    `dated`: the words that write out a date, whose day counts as `time`. `speaker`: that somebody named is the one who
    speaks.
    `context_piece` and `context_word`: pieces of paths and words of the requester's last steps. `time`: the days that
    the query names.
    """

    whole: float = 1.0
    conjunction: float = 0.5
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
            _add(clues, Clue(_FORMS.get(piece, (piece,)), weight, bit))
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
