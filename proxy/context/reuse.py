"""Which words a later step is likely to need to the letter, and where each stood last.

Rule: no learning and no model: what the agent used, wrote or saw lately it uses again. The same conversation gives the
same order; equal words are told apart by themselves.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log, log2

import msgspec

from proxy.context.survey import Survey
from proxy.context.words import find_family, is_name, is_opaque

_NEAR = 32_000
_YOUNG = 8_000

# What speaks for a word being needed again, in units of the logarithm of its chance.
_USED, _USED_TWICE, _USED_LATELY = 0.5, 0.3, 0.5
_WRITTEN, _SAME_TURN, _NAME, _OPAQUE, _IMPORTED = 1.2, 1.0, 0.5, -0.8, 0.3
_UNSEEN = -1.5
_IN_USED_FAMILY, _SEEN_AGAIN, _AGE = 0.5, 0.3, -0.25
_LENGTH = 1.0


class Index(msgspec.Struct, frozen=True, gc=False):
    """Words with the place of their newest mention, and what the agent did with them.

    `uses` counts the agent's messages that hold a word, `used` is the place of the newest of these, `shown` counts the
    others. `families` counts uses by folder, or by the first part of a dotted name. `ages` are the tokens from each
    place to the end.
    """

    newest: dict[str, int]
    uses: Counter[str]
    used: dict[str, int]
    shown: Counter[str]
    written: frozenset[str]
    imported: frozenset[str]
    families: Counter[str]
    ages: Sequence[int]
    turns: Sequence[int]


def make_index(survey: Survey) -> Index:
    """The words of a conversation."""
    newest: dict[str, int] = {}
    used: dict[str, int] = {}
    uses: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    written: set[str] = set()
    imported: set[str] = set()
    for place, (seen, found) in enumerate(zip(survey.messages, survey.found, strict=True)):
        spot = dict.fromkeys(found.words, place)
        newest.update(spot)
        if seen.shape.role == "assistant":
            uses.update(found.words)
            used.update(spot)
            written.update(found.written)
        else:
            shown.update(found.words)
            imported.update(found.imported)
    families = Counter({family: 0 for family in map(find_family, uses) if family})
    for word, times in uses.items():
        if family := find_family(word):
            families[family] += times
    return Index(
        newest, uses, used, shown, frozenset(written), frozenset(imported), families,
        _measure_ages(survey), _list_turns(survey),
    )  # fmt: skip


def _measure_ages(survey: Survey) -> list[int]:
    ages, age = [], 0
    for seen in reversed(survey.messages):
        ages.append(age)
        age += seen.tokens
    return ages[::-1]


def _list_turns(survey: Survey) -> list[int]:
    return [step.turn for step in survey.steps for _ in range(step.start, step.stop)]


def predict(index: Index, word: str) -> float:
    """How likely a word is needed again: the logarithm of its odds, up to a constant."""
    place = index.newest[word]
    z = _AGE * log2(max(index.ages[place], 1) / _YOUNG) + _judge_form(word)
    uses = index.uses[word]
    if uses:
        z += _USED + (_USED_TWICE if uses > 1 else 0.0)
        z += _USED_LATELY if index.ages[index.used[word]] < _NEAR else 0.0
    z += _WRITTEN if word in index.written else 0.0
    z += _SAME_TURN if index.turns[place] == index.turns[-1] else 0.0
    z += _IMPORTED if word in index.imported else 0.0
    times = index.shown[word]
    z += _SEEN_AGAIN * log(times) if times else _UNSEEN
    family = find_family(word)
    return z + _IN_USED_FAMILY * log(1 + index.families[family]) if family else z


def _judge_form(word: str) -> float:
    if is_opaque(word):
        return _OPAQUE
    return _NAME if is_name(word) else 0.0


def guess_tokens(text: str) -> float:
    """Tokens of a word, roughly, with the space before it."""
    return 1.0 + len(text) / 4.0


def order_words(index: Index, words: Iterable[str]) -> list[str]:
    """Words, the most useful for their length first."""
    return sorted(words, key=lambda word: (_LENGTH * log(guess_tokens(word)) - predict(index, word), word))
