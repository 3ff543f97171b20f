"""Which words a later step is likely to need to the letter, and where each stood last.

Rule: no learning and no model: what the agent used, wrote or saw lately it uses again. The same conversation gives the
same order; equal words are told apart by themselves.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import exp, log, log2

import msgspec

from proxy.context.survey import Survey
from proxy.context.words import find_folder, is_name, is_opaque

_NEAR = 32_000
_YOUNG = 8_000

# What speaks for a word being needed again, in units of the logarithm of its chance.
_USED, _USED_TWICE, _USED_LATELY = 2.0, 0.6, 0.5
_WRITTEN, _SAME_TURN, _NAME, _OPAQUE, _IMPORTED = 1.2, 1.0, 0.5, -0.8, 0.3
_UNSEEN = -1.0
_IN_USED_FOLDER, _AGE = 0.5, -0.15
_LENGTH = 0.8


class Index(msgspec.Struct, frozen=True, gc=False):
    """Words with the place of their newest mention, and what the agent did with them.

    `uses` counts the agent's turns that hold a word, `used` is the place of the newest of these. `ages` are the tokens
    from each place to the end.
    """

    newest: dict[str, int]
    uses: Counter[str]
    used: dict[str, int]
    shown: frozenset[str]
    written: frozenset[str]
    imported: frozenset[str]
    folders: Counter[str]
    ages: Sequence[int]
    turns: Sequence[int]


def make_index(survey: Survey) -> Index:
    """The words of a conversation."""
    newest: dict[str, int] = {}
    used: dict[str, int] = {}
    uses: Counter[str] = Counter()
    shown: set[str] = set()
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
    folders = Counter({folder: 0 for folder in map(find_folder, uses) if folder})
    for word, times in uses.items():
        if folder := find_folder(word):
            folders[folder] += times
    return Index(
        newest, uses, used, frozenset(shown), frozenset(written), frozenset(imported), folders,
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
    z += 0.0 if word in index.shown else _UNSEEN
    folder = find_folder(word)
    return z + _IN_USED_FOLDER * log(1 + index.folders[folder]) if folder else z


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


def weigh_words(index: Index, words: Iterable[str]) -> float:
    """How much words are worth together."""
    return sum(exp(predict(index, word)) for word in words)
