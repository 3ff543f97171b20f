"""The order in which identifiers and lines of removed steps are worth keeping, the most useful for their length first.

A score estimates the odds that a word is needed again, from where it stood, who used it and how long ago. Its weights
are those of an order made by hand, adjusted on replayed sessions. No model is called.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import log, log2

from proxy.context.conversation import ConversationIndex
from proxy.context.message_features import LINE_NUMBER, find_namespace, is_name, is_opaque, is_wrapper_line
from proxy.context.references import list_argument_lines
from proxy.model import Value
from proxy.model.messages import Message

_NEAR = 32_000
_YOUNG = 8_000

# Weights of the features of a word in the logarithm of the odds that it is needed again.
_USED, _USED_TWICE, _USED_LATELY = 0.5, 0.3, 0.5
_WRITTEN, _SAME_TURN, _NAME, _OPAQUE = 1.2, 1.0, 0.5, -0.8
_UNSEEN = -1.5
_IN_USED_FAMILY, _SEEN_AGAIN, _AGE = 0.5, 0.3, -0.25
_LENGTH = 1.0


class IdentifierIndex(Value):
    """The identifiers of a conversation, and how often and where they are used.

    `newest` is the index of the newest message that contains a word. `uses` counts the agent's messages that contain
    it, `used` is the index of the newest of these, and `shown` counts the other messages. `families` counts uses by
    folder, or by the first part of a dotted name. `ages` are the tokens behind each message up to the end, `turns` is
    the turn of each message.
    """

    newest: dict[str, int]
    uses: Counter[str]
    used: dict[str, int]
    shown: Counter[str]
    written: frozenset[str]
    families: Counter[str]
    ages: Sequence[int]
    turns: Sequence[int]


def index_identifiers(index: ConversationIndex) -> IdentifierIndex:
    """Index the identifiers of a conversation."""
    newest: dict[str, int] = {}
    used: dict[str, int] = {}
    uses: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    written: set[str] = set()
    for place, (seen, found) in enumerate(zip(index.messages, index.found, strict=True)):
        spot = dict.fromkeys(found.words, place)
        newest.update(spot)
        if seen.structure.role == "assistant":
            uses.update(found.words)
            used.update(spot)
            written.update(found.written)
        else:
            shown.update(found.words)
    families = Counter({family: 0 for family in map(find_namespace, uses) if family})
    for word, times in uses.items():
        if family := find_namespace(word):
            families[family] += times
    return IdentifierIndex(
        newest, uses, used, shown, frozenset(written), families,
        _compute_ages(index), [step.turn for step in index.steps for _ in step.places],
    )  # fmt: skip


def _compute_ages(index: ConversationIndex) -> list[int]:
    ages, age = [], 0
    for seen in reversed(index.messages):
        ages.append(age)
        age += seen.tokens
    return ages[::-1]


def score_identifier(identifiers: IdentifierIndex, word: str) -> float:
    """Return the logarithm of the odds that a word is needed again, up to a constant."""
    place = identifiers.newest[word]
    z = _AGE * log2(max(identifiers.ages[place], 1) / _YOUNG) + _score_form(word)
    uses = identifiers.uses[word]
    if uses:
        z += _USED + (_USED_TWICE if uses > 1 else 0.0)
        z += _USED_LATELY if identifiers.ages[identifiers.used[word]] < _NEAR else 0.0
    z += _WRITTEN if word in identifiers.written else 0.0
    z += _SAME_TURN if identifiers.turns[place] == identifiers.turns[-1] else 0.0
    times = identifiers.shown[word]
    z += _SEEN_AGAIN * log(times) if times else _UNSEEN
    family = find_namespace(word)
    return z + _IN_USED_FAMILY * log(1 + identifiers.families[family]) if family else z


def _score_form(word: str) -> float:
    if is_opaque(word):
        return _OPAQUE
    return _NAME if is_name(word) else 0.0


def estimate_tokens_of_word(text: str) -> float:
    """Estimate the tokens of a word and of the space before it: a token, and one for each four characters."""
    return 1.0 + len(text) / 4.0


def order_identifiers(identifiers: IdentifierIndex, words: Iterable[str]) -> list[str]:
    """Return words in the order of their usefulness for their length, the most useful first."""
    return sorted(
        words,
        key=lambda word: (_LENGTH * log(estimate_tokens_of_word(word)) - score_identifier(identifiers, word), word),
    )


_SHORTEST, _LONGEST = 20, 120
_LOOKED_AT = 64_000

_NUMBERED = re.compile(rf"{LINE_NUMBER}\s*")
_IMPORT = re.compile(r"(?:from|import|#include|use|require|using)\b")
_IN_LETTERS = re.compile(r"[A-Za-z]{3}")

_LINE_TYPED, _LINE_AGAIN, _LINE_IMPORTED, _LINE_SAME_TURN, _LINE_AGE, _LINE_LENGTH = 1.0, 0.8, 2.0, 1.0, -0.15, 0.8


class QuotedLine(Value):
    """A line and the newest step that contains it."""

    line: str
    step: int


def order_quotes(index: ConversationIndex, gone: Iterable[int], ages: Sequence[int]) -> list[QuotedLine]:
    """Return the lines of archived steps that are worth quoting, the most useful for their length first.

    `gone` are the archived steps. `ages` are the tokens after each message up to the end of the conversation.
    """
    newest: dict[str, int] = {}
    seen: Counter[str] = Counter()
    typed: set[str] = set()
    for i in sorted(gone):
        for place in index.steps[i].places:
            message = index.messages[place].message
            lines = list_lines(message.text) if index.messages[place].structure.role != "assistant" else {}
            own = list_lines("\n".join(_list_typed(message)))
            seen.update(lines.keys())
            seen.update(own.keys())
            typed.update(own)
            newest.update(dict.fromkeys((*lines, *own), i))
    current = index.steps[-1].turn
    worth: dict[str, float] = {}
    for line, i in newest.items():
        z = (_LINE_TYPED if line in typed else 0.0) + (_LINE_IMPORTED if _IMPORT.match(line) else 0.0)
        z += _LINE_AGAIN * log(seen[line]) + (_LINE_SAME_TURN if index.steps[i].turn == current else 0.0)
        if z and _IN_LETTERS.search(line):
            age = max(ages[index.steps[i].start], 1)
            worth[line] = z + _LINE_AGE * log2(age / _YOUNG) - _LINE_LENGTH * log(4 + len(line) / 4)
    return [QuotedLine(line, newest[line]) for line in sorted(worth, key=lambda line: (-worth[line], line))]


def _list_typed(message: Message) -> Iterator[str]:
    """Yield the lines of the arguments of calls, but for the first of each argument, which the ledger tells."""
    for call in message.calls:
        for argument in list_argument_lines(call.arguments):
            yield argument.partition("\n")[2]


def list_lines(text: str) -> dict[str, None]:
    """Return the lines of a text that are 20 to 120 characters long, without line numbers, each once, in order."""
    found: dict[str, None] = {}
    for line in text[:_LOOKED_AT].split("\n"):
        bare = line.strip()
        if (number := _NUMBERED.match(bare)) is not None:
            bare = bare[number.end() :]
        if _SHORTEST <= len(bare) <= _LONGEST and not is_wrapper_line(bare):
            found[bare] = None
    return found
