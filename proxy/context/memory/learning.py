"""The facts that a report teaches: what the user laid down, and what a model stated beside the report.

Words count as the user's only where a message of the user contains them: then they are quoted from there. Everything
else that a model states is a claim, of the output of a tool or of the model itself.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from proxy.context.compaction.citations import UserWords, list_citations
from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.summary_text import CONSTRAINTS, parse_sections, strip_frame
from proxy.context.conversation import ConversationIndex
from proxy.context.references import sanitize_text
from proxy.context.user_rules import PREFERRING, list_rules
from proxy.model import Value
from proxy.model.memory import CLAIMED, MAX_FACTS, UNKNOWN, FactKind, LearnedFact

MAX_RULES = 200
"""The most rules of the user, the newest, that one report adds to memory."""

_LONGEST, _LONGEST_TAG, _MOST_TAGS = 600, 40, 5
_CONFIRMED = 1.0
_SALIENCE: dict[FactKind, float] = {"constraint": 0.9, "preference": 0.8, "decision": 0.6, "fact": UNKNOWN}
# A claim never comes before what the user said, however important a model, or an output that it read, calls it.
_MOST_CLAIMED = 0.75
_LINE = re.compile(
    r"[\s\-*+\u2022]{0,6}(?:\d{1,2}[.)]\s*+)?[\[(*_`]{0,4}\s*+(?P<kind>preference|decision|constraint|fact)s?\b"
    r"[\s,:=]{0,4}(?P<salience>-?\d{1,3}(?:\.\d{1,6})?%?|)[^\w\"'\u201c#]{0,6}(?P<text>.*)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^[\s\-*+\u2022]{0,6}(?:\d{1,2}[.)]\s*)?")
_REPLACES = re.compile(r"\(\s*replaces\s*:?\s*(?P<old>[^()]{1,400})\)?", re.IGNORECASE)
_CITED = re.compile(r"[\[(]\s*m(\d{1,9})\s*[\])]")
_TAG = re.compile(r"(?<!\S)#([A-Za-z][\w.-]{0,60})(?=[\s,;.]|$)")
_OWN_LINE = re.compile(r"- m(\d{1,9}): \"(.*)\"")
_NOTHING = re.compile(r"(?i)\W*(?:none|nothing|n/?a|no (?:new )?facts?)\b.{0,20}")
_WORD = re.compile(r"\w{4,}")
_ORIGIN_SHARE = 0.6


class _Stated(Value):
    """A fact as a model stated it; `place` is the message that it names, None for none."""

    kind: FactKind
    text: str
    salience: float
    tags: tuple[str, ...]
    place: int | None
    replaces: str


def learn_facts(
    index: ConversationIndex,
    span: MessageRange,
    nodes: Sequence[bytes],
    *,
    stated: Collection[str] = (),
    report: str = "",
    foreign: Collection[int] = (),
) -> tuple[LearnedFact, ...]:
    """Return the facts of a span: the user's rules and preferences, those the report quotes, and what a model stated.

    `nodes` are those of the conversation, `stated` the lines of the model's facts. `foreign` are the places of messages
    in the user's role that are not the user's words.
    """
    own = [*list_own_facts(index, span, nodes, foreign)]
    said = "\n".join(_normalize(fact.text) for fact in own)
    for place, text in _list_quoted(report):
        if place < span.stop and _normalize(text.rstrip("…")) not in said:
            own.append(_make_own(text, nodes[place]))
            said = f"{said}\n{_normalize(text)}"
    users = UserWords(index, span.stop, foreign)
    origins = _OriginFinder(index, span)
    facts = [_check(each, users, origins, nodes) for each in _list_stated(stated)]
    new = [fact for fact in facts if CLAIMED in fact.tags or fact.replaces or _normalize(fact.text) not in said]
    return (*own[-MAX_RULES:], *new[:MAX_FACTS])


def list_own_facts(
    index: ConversationIndex, span: MessageRange, nodes: Sequence[bytes], foreign: Collection[int] = ()
) -> Iterator[LearnedFact]:
    """Yield the rules and the preferences that the user stated in a span, in order, each with its message."""
    for rule in list_rules(index, {*range(span.start, span.stop)} - {*foreign}):
        yield _make_own(rule.text, nodes[rule.place])


def _make_own(text: str, node: bytes) -> LearnedFact:
    kind: FactKind = "preference" if PREFERRING.search(text) else "constraint"
    return LearnedFact(kind, sanitize_text(text, _LONGEST), (), (node,), _CONFIRMED, _SALIENCE[kind])


def _list_quoted(report: str) -> Iterator[tuple[int, str]]:
    """Yield the places and texts of the quotations of the user in an accepted report."""
    for line in list_citations(parse_sections(strip_frame(report)).get(CONSTRAINTS, ())):
        found = _OWN_LINE.fullmatch(line)
        if found is not None and int(found[1]):
            yield int(found[1]) - 1, found[2]


def _list_stated(lines: Iterable[str]) -> Iterator[_Stated]:
    """Yield what a model stated, whatever form it gave it: unknown kinds are facts, odd numbers are left out."""
    seen: set[str] = set()
    for line in lines:
        found = _LINE.fullmatch(line)
        rest = found["text"] if found is not None else _BULLET.sub("", line)
        replaced, cited = _REPLACES.search(rest), _CITED.search(rest)
        rest = _CITED.sub(" ", _REPLACES.sub(" ", rest))
        tags = tuple(dict.fromkeys(tag.casefold()[:_LONGEST_TAG] for tag in _TAG.findall(rest)))
        text = " ".join(_TAG.sub(" ", rest).split()).strip(" -*`")
        key = _normalize(text)
        if not key or key in seen or _NOTHING.fullmatch(text):
            continue
        seen.add(key)
        kind = _read_kind(found["kind"] if found is not None else "fact")
        yield _Stated(
            kind,
            sanitize_text(_unquote(text), _LONGEST),
            _read_salience(found["salience"] if found is not None else "", kind),
            tuple(tag for tag in tags if tag != CLAIMED)[:_MOST_TAGS],
            int(cited[1]) - 1 if cited is not None else None,
            sanitize_text(_unquote(replaced["old"].strip()), _LONGEST) if replaced is not None else "",
        )


def _read_kind(name: str) -> FactKind:
    kinds: tuple[FactKind, ...] = ("preference", "decision", "constraint")
    return next((kind for kind in kinds if kind == name.casefold()), "fact")


def _read_salience(text: str, kind: FactKind) -> float:
    if not text:
        return _SALIENCE[kind]
    value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    return value if 0 <= value <= 1 else _SALIENCE[kind]


def _unquote(text: str) -> str:
    pairs = (('"', '"'), ("\u201c", "\u201d"), ("\u00ab", "\u00bb"), ("\u201e", "\u201c"))
    inner = next((text[1:-1] for start, end in pairs if len(text) > 2 and text[0] == start and text[-1] == end), text)
    return inner.strip()


def _check(each: _Stated, users: UserWords, origins: "_OriginFinder", nodes: Sequence[bytes]) -> LearnedFact:
    """Return a stated fact as the user's own words if a message of the user has them, else as a claim."""
    if (quote := users.find(each.text, each.place)) is not None:
        salience = (
            max(each.salience, _SALIENCE[each.kind]) if each.kind in ("constraint", "preference") else each.salience
        )
        text = sanitize_text(quote.said, _LONGEST)
        return LearnedFact(each.kind, text, each.tags, (nodes[quote.place],), _CONFIRMED, salience, each.replaces)
    # What no message of the user says is neither a rule nor a wish of the user's.
    kind: FactKind = each.kind if each.kind == "decision" else "fact"
    place = origins.find(each.text, each.place)
    cited = (nodes[place],) if place is not None else ()
    return LearnedFact(
        kind, each.text, (*each.tags, CLAIMED), cited, UNKNOWN, min(each.salience, _MOST_CLAIMED), each.replaces
    )


class _OriginFinder:
    """Finds the message of a span that a claim most likely comes from: the first that has most of its long words."""

    def __init__(self, index: ConversationIndex, span: MessageRange) -> None:
        self._index = index
        self._span = span
        self._words: list[frozenset[str]] | None = None

    def find(self, text: str, named: int | None) -> int | None:
        """Return the place of the message; None if there is none.

        A named message is believed if it has any of the words: a model may not have been shown numbers.
        """
        wanted, start = frozenset(_WORD.findall(text.casefold())), self._span.start
        if self._words is None:
            messages = self._index.messages[start : self._span.stop]
            self._words = [frozenset(_WORD.findall(seen.message.text.casefold())) for seen in messages]
        if named is not None and start <= named < self._span.stop and wanted & self._words[named - start]:
            return named
        shares = [len(wanted & words) for words in self._words]
        best = max(shares, default=0)
        if not wanted or best < _ORIGIN_SHARE * len(wanted):
            return None
        return start + shares.index(best)


def _normalize(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
