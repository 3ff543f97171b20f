"""Check of what a summary attributes to the user.

Words count as the user's only where a message of the user contains them. Then whole sentences of that message replace
those of the model, so that a partial quotation cannot reverse their meaning. Everything else is marked as a claim.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence

from proxy.context.compaction.summary_text import CLAIM_LABEL
from proxy.context.conversation import ConversationIndex
from proxy.context.references import sanitize_text
from proxy.context.user_rules import Sentence, format_message_number, list_sentences, list_user_places
from proxy.model import Value

MAX_CITATION = 300
_SHARE_IN_TENTHS = 7
_OVERLAP = 0.6
_LEAST_WORDS, _MOST_WORDS = 3, 80
_MOST_LINES, _MOST_QUOTES = 60, 4
_LOOKED_AT = 400_000

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])\w)+")
_BULLET = re.compile(r"^[ \t]*(?:[-*+\u2022]|\d{1,3}[.)])?[ \t]*")
_CITED = re.compile(r"[\[(]?\bm(\d{1,9})\b[\])]?:?")
_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201c\u201d]+)\u201d|\u201e([^\u201e\u201c]+)\u201c|«([^«»]+)»')
_OWN_LINE = re.compile(r"- m\d{1,9}: \".*\"")
_USER = re.compile(
    r"(?i)\b(?:users?|user's|operator|owner|admin(?:istrator)?|customer|human"
    r"|(?:be)?nutzer\w{0,4}|utilisateur\w{0,4}|usuari\w{1,4})\b"
)
_RULING = re.compile(
    r"(?i)\b(?:rules?|instruct\w*|requir\w*|demand\w*|insist\w*|must|always|never|polic(?:y|ies)|authori[sz]\w*"
    r"|said|says|told|stat(?:es|ed)|permi(?:t|ss)\w*|allow\w*|approv\w*|orders?|ordered|commands?|commanded|confirm\w*"
    r"|shall|mandat\w*"
    r"|immer|niemals?|nie|muss|toujours|jamais|siempre|nunca|debe\w?)\b"
)
_WISHING = re.compile(r"(?i)\b(?:wants?|wanted|asks?|asked|wish\w*|request\w*|should|needs?|expects?)\b")
_ADDRESSING = re.compile(
    r"(?i)(?:you\s+(?:must|should|shall|need|have\s+to|are\s+(?:now|to))|ignore\s+(?:all|any|previous|the|every)"
    r"|disregard|forget\s+(?:all|everything|the|any)|from\s+now\s+on|always|never|do\s+not|don't)\b"
)


class Citation(Value):
    """Whole sentences of a message of the user, and the place of that message."""

    place: int
    said: str

    @property
    def line(self) -> str:
        """Return the line of a summary that quotes them, with at most 300 of their characters."""
        return f'- {format_message_number(self.place)}: "{sanitize_text(self.said, MAX_CITATION)}"'


class _UserMessage(Value):
    """A message of the user, prepared for search.

    `words` are all its words, in lower case, each between spaces; `starts` are the offsets in it at which the sentences
    begin.
    """

    place: int
    sentences: Sequence[Sentence]
    words: str
    starts: Sequence[int]


class UserWords:
    """The searchable messages of the user before a given message."""

    def __init__(self, index: ConversationIndex, stop: int, foreign: Collection[int] = ()) -> None:
        """Index the user's messages before place `stop`, from the newest on, up to 400,000 characters.

        `foreign` are the places of messages in the user's role that are known to be by somebody else.
        """
        self._messages: list[_UserMessage] = []
        left = _LOOKED_AT
        for place in reversed(list_user_places(index)):
            text = index.messages[place].message.text
            if place < stop and place not in foreign and left > 0:
                self._messages.append(_index_message(place, text[:left]))
                left -= len(text)
        self._known = {word for message in self._messages for word in message.words.split()}

    def find(self, passage: str, near: int | None = None) -> Citation | None:
        """Return the sentences that contain a passage, or at least 70 % of its words in a row; None for no such ones.

        Message `near` is searched first, then the newest. Fewer than three words must be a whole sentence.
        """
        words = _list_words(passage)[:_MOST_WORDS]
        least = -(-len(words) * _SHARE_IN_TENTHS // 10)
        if not words or sum(word in self._known for word in words) < least:
            return None
        runs = [words, *(words[i : i + least] for i in range(len(words) - least + 1))]
        for message in sorted(self._messages, key=lambda each: each.place != near):
            for run in runs:
                if quote := _find_sentences(message, run, is_whole=len(run) < _LEAST_WORDS):
                    return quote
        return None

    def resemble(self, line: str) -> bool:
        """Return whether the user used at least 60 % of the words of a line."""
        said = _list_words(_WISHING.sub(" ", _USER.sub(" ", line)))
        words = [word for word in said if len(word) > 3] or said
        return sum(word in self._known for word in words) >= _OVERLAP * len(words)


def _index_message(place: int, text: str) -> _UserMessage:
    sentences = list(list_sentences(text))
    starts: list[int] = []
    parts: list[str] = []
    at = 0
    for sentence in sentences:
        starts.append(at)
        part = "".join(f" {word}" for word in _list_words(sentence.text))
        parts.append(part)
        at += len(part)
    return _UserMessage(place, sentences, f"{''.join(parts)} ", starts)


def _list_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _find_sentences(message: _UserMessage, run: Sequence[str], *, is_whole: bool) -> Citation | None:
    wanted = f" {' '.join(run)} "
    at = message.words.find(wanted)
    if at < 0:
        return None
    first = bisect_right(message.starts, at) - 1
    last = bisect_right(message.starts, at + len(wanted) - 2) - 1
    if is_whole and _list_words(message.sentences[first].text) != list(run):
        return None
    return Citation(message.place, " ".join(sentence.said for sentence in message.sentences[first : last + 1]))


def cite_constraints(lines: Iterable[str], users: UserWords) -> tuple[list[str], list[str]]:
    """Return the user's quotations for lines of constraints, and the lines that are not the user's, as claims."""
    cited: dict[str, None] = {}
    claims: dict[str, None] = {}
    for i, line in enumerate(lines):
        passages = list(_list_passages(line))
        quotes = [users.find(passage, near) for passage, near in passages] if i < _MOST_LINES else []
        cited.update((quote.line, None) for quote in quotes if quote)
        if not all(quotes) or (len(quotes) < len(passages)):
            claims[label_claim(line)] = None
    return list(cited), list(claims)


def _list_passages(line: str) -> Iterator[tuple[str, int | None]]:
    """Yield the passages that a line quotes, or else the line itself, with the place of the message that it names."""
    bare = _BULLET.sub("", line)
    named = _CITED.search(bare)
    near = int(named[1]) - 1 if named else None
    quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(bare)]
    said = quoted[:_MOST_QUOTES] or [_CITED.sub(" ", bare)]
    return ((passage, near) for passage in said if _WORD.search(passage))


def label_claim(line: str) -> str:
    """Mark a line as a claim, unless it is marked already."""
    return line if CLAIM_LABEL in line else f"- {CLAIM_LABEL} {_BULLET.sub('', line)}"


def label_claims(lines: Iterable[str], users: UserWords) -> list[str]:
    """Mark those lines of other sections as claims that attribute words to the user wrongly, or that give orders."""
    return [label_claim(line) if _is_doubtful(line, users) else line for line in lines]


def _is_doubtful(line: str, users: UserWords) -> bool:
    """Return whether a line gives orders, or says of the user what no message of the user confirms."""
    bare = _BULLET.sub("", line)
    if _OWN_LINE.fullmatch(line):
        return users.find(bare.partition('"')[2].rpartition('"')[0]) is None
    if _ADDRESSING.match(bare):
        return users.find(bare) is None
    if not _USER.search(bare):
        return False
    if _RULING.search(bare):
        return not any(users.find(passage, near) for passage, near in _list_passages(bare))
    return bool(_WISHING.search(bare)) and not users.resemble(bare)


def list_citations(lines: Iterable[str]) -> list[str]:
    """Return those lines of an accepted summary that quote the user."""
    return [line for line in lines if _OWN_LINE.fullmatch(line)]
