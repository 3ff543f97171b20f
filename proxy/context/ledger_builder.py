"""Selection of what a ledger of a given number of tokens contains: phrases for steps, quotations and identifiers.

The selection is greedy: identifiers are taken in the order of the odds that they are needed again, relative to their
length; newer ones score higher. No model is called.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log, log2

import msgspec

from proxy.context.budget import take_fitting
from proxy.context.conversation import (
    ConversationIndex,
    PlanRequest,
    find_namespace,
    is_name,
    is_opaque,
    list_identifiers,
)
from proxy.context.ledger import (
    CarriedLedgers,
    LedgerEntry,
    Page,
    cut_pages,
    format_step,
    format_user_turns,
    group_words,
    merge_oldest,
    order_quotes,
    render_ledger,
)
from proxy.context.references import PAGE, render_original
from proxy.context.user_rules import compute_rules_budget, format_rules, list_unsent_rules

_NEAR = 32_000
_YOUNG = 8_000

# Weights of the features of a word in the logarithm of the odds that it is needed again.
_USED, _USED_TWICE, _USED_LATELY = 0.5, 0.3, 0.5
_WRITTEN, _SAME_TURN, _NAME, _OPAQUE, _IMPORTED = 1.2, 1.0, 0.5, -0.8, 0.3
_UNSEEN = -1.5
_IN_USED_FAMILY, _SEEN_AGAIN, _AGE = 0.5, 0.3, -0.25
_LENGTH = 1.0


class IdentifierIndex(msgspec.Struct, frozen=True, gc=False):
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
    imported: frozenset[str]
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
    imported: set[str] = set()
    for place, (seen, found) in enumerate(zip(index.messages, index.found, strict=True)):
        spot = dict.fromkeys(found.words, place)
        newest.update(spot)
        if seen.structure.role == "assistant":
            uses.update(found.words)
            used.update(spot)
            written.update(found.written)
        else:
            shown.update(found.words)
            imported.update(found.imported)
    families = Counter({family: 0 for family in map(find_namespace, uses) if family})
    for word, times in uses.items():
        if family := find_namespace(word):
            families[family] += times
    return IdentifierIndex(
        newest, uses, used, shown, frozenset(written), frozenset(imported), families,
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
    z += _IMPORTED if word in identifiers.imported else 0.0
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


_LINES_SHARE, _USERS_SHARE = 0.08, 0.3
_QUOTED_SHARE = 0.22
_REFERENCES_SHARE = 0.5
_REFERENCE_TOKENS = 8.0
_FRAME_TOKENS, _NEXT_FRAME_TOKENS = 160.0, 40.0
_ASKED = 60
# Characters of a user's turn on a line of the ledger, as far as the budget allows.
_HEAD, _LONG_HEAD = 120, 400
_MOST_TRIED = 6000
# Characters that are searched for the user's rules where `has_words` is false, to save time.
MAX_RULES_SEARCHED = 40_000
_FULL = 0.97
_MOST_STRETCHED = 1.3


class LedgerScope(msgspec.Struct, frozen=True, gc=False):
    """The steps that a ledger has to cover.

    `tail` is the step at which the tail begins, `staying` are the steps before it that are sent in any case, and
    `carried` has the ledgers that are kept, with the steps that they cover. `has_words`: lines of outputs are quoted,
    too, which takes most of the time. `shortened` has the texts that are sent in place of the user's own, by the index
    of the message.
    """

    tail: int
    staying: frozenset[int]
    carried: CarriedLedgers
    has_words: bool = True
    shortened: Mapping[int, str] = {}


class LedgerText(msgspec.Struct, frozen=True, gc=False):
    """The text of a ledger, its entries and its tokens; empty where nothing is archived."""

    entries: tuple[LedgerEntry, ...]
    text: str
    tokens: int


def build_ledger(
    view: PlanRequest, index: ConversationIndex, scope: LedgerScope, count: Callable[[str], int]
) -> LedgerText:
    """Build the ledger of all steps before the tail that are not sent otherwise, with the rules that would be lost."""
    gone = frozenset(range(scope.tail)) - scope.staying - scope.carried.told
    # Rules have a budget of their own: the user's words must not be displaced by other content.
    inherited = [each.text for each in scope.carried.ledgers]
    unshown = list_unsent_rules(
        index, gone, scope.shortened, inherited, None if scope.has_words else MAX_RULES_SEARCHED
    )
    rules = format_rules(unshown, compute_rules_budget(view.budget.usable), count) if unshown else ""
    if not gone and not rules:
        return LedgerText((), "", 0)
    identifiers = index_identifiers(index)
    is_first = not scope.carried.ledgers
    ruled = count(rules) if rules else 0
    left = scope.carried.room
    most = int(_REFERENCES_SHARE * left / _REFERENCE_TOKENS)
    pages = merge_oldest(cut_pages(index.steps, gone.__contains__, scope.tail), most)
    material = _collect_material(index, identifiers, pages, gone, scope.carried)
    names = [view.name(page.start, page.stop, page.offset) for page in pages]
    # The first selection estimates tokens by length; where its real tokens differ too much, a second one corrects that.
    ordered = order_quotes(index, gone, identifiers.ages) if scope.has_words else ()
    quotes = take_fitting(ordered, _QUOTED_SHARE * left, lambda quote: estimate_tokens_of_word(quote.line) + 3)
    frame = _FRAME_TOKENS if is_first else _NEXT_FRAME_TOKENS
    entries = _choose_entries(material, names, (1 - _QUOTED_SHARE) * left - frame)
    text = render_ledger(entries, quotes, rules, is_first=is_first)
    tokens = count(text) - ruled
    if tokens > left or tokens < _FULL * left:
        entries = _choose_entries(
            material, names, left * min(_MOST_STRETCHED, left / tokens) * (1 - _QUOTED_SHARE) - frame
        )
        text = render_ledger(entries, quotes, rules, is_first=is_first)
        tokens = count(text) - ruled
    return LedgerText(tuple(entries), text, tokens + ruled)


class _Material(msgspec.Struct, frozen=True, gc=False):
    """The candidates for a ledger: pages, words by usefulness, steps from the newest on, and the page of each."""

    index: ConversationIndex
    pages: Sequence[Page]
    words: Sequence[str]
    steps: Sequence[int]
    page_of_word: Mapping[str, int]
    page_of_step: Mapping[int, int]


def _collect_material(
    index: ConversationIndex,
    identifiers: IdentifierIndex,
    pages: Sequence[Page],
    gone: frozenset[int],
    carried: CarriedLedgers,
) -> _Material:
    step_of_place = [i for i, step in enumerate(index.steps) for _ in step.places]
    page_of_step = {i: n for n in reversed(range(len(pages))) for i in range(pages[n].first, pages[n].last + 1)}
    live = {word for each in carried.ledgers for word in list_identifiers(each.text)}
    for place, found in enumerate(index.found):
        if step_of_place[place] not in gone and step_of_place[place] not in carried.told:
            live.update(found.words)
    words = [word for word, place in identifiers.newest.items() if step_of_place[place] in gone and word not in live]
    ordered = order_identifiers(identifiers, words)[:_MOST_TRIED]
    cut = _read_split_pages(index, pages)
    page_of_word = {
        word: _find_page(word, page_of_step[step_of_place[identifiers.newest[word]]], pages, cut) for word in ordered
    }
    return _Material(index, pages, ordered, sorted(gone, reverse=True), page_of_word, page_of_step)


def _read_split_pages(index: ConversationIndex, pages: Sequence[Page]) -> dict[int, str]:
    """Return the text of each page that shares its steps with other pages, by the number of the page."""
    several = {page.start for page in pages if page.offset}
    texts = {
        page.start: render_original([seen.message for seen in index.messages[page.start : page.stop]])
        for page in pages
        if page.start in several and not page.offset
    }
    return {
        n: texts[page.start][page.offset : page.offset + PAGE] for n, page in enumerate(pages) if page.start in texts
    }


def _find_page(word: str, first: int, pages: Sequence[Page], cut: Mapping[int, str]) -> int:
    """Return the number of the page that contains a word, among page `first` and those of the same steps."""
    number = first
    while number in cut and pages[number].start == pages[first].start:
        if word in cut[number]:
            return number
        number += 1
    return first


def _choose_entries(material: _Material, names: Sequence[str], room: float) -> list[LedgerEntry]:
    """Choose the content of each entry within `room` tokens.

    The user's turns come first and are always mentioned; then phrases for the newest steps and, with what is left,
    words.
    """
    room -= _REFERENCE_TOKENS * len(names)
    turns = _choose_turn_lines(material, _USERS_SHARE * room)
    steps = ((i, material.index.steps[i]) for i in material.steps)  # from the newest on
    described = ((i, format_step(material.index, step, _ASKED)) for i, step in steps if step.kind != "user")
    lines = dict(take_fitting(described, _LINES_SHARE * room, lambda each: estimate_tokens_of_word(each[1]) + 1))
    room -= sum(estimate_tokens_of_word(line) + 1 for line in (*turns.values(), *lines.values()))
    said = {word for line in (*turns.values(), *lines.values()) for word in list_identifiers(line)}
    chosen = list(_choose_fitting_words((word for word in material.words if word not in said), room))
    words = group_words(chosen, material.page_of_word)
    phrases = {n: [line] for n, line in turns.items()}
    for i in sorted(lines):
        phrases.setdefault(material.page_of_step[i], []).append(lines[i])
    return [
        LedgerEntry(page, names[n], tuple(phrases.get(n, ())), tuple(words.get(n, ())))
        for n, page in enumerate(material.pages)
    ]


def _choose_turn_lines(material: _Material, room: float) -> dict[int, str]:
    """Return a phrase for the user's turns of each page (BEHAVIOUR B13), which quotes them as far as `room` allows."""
    turns: dict[int, list[int]] = {}
    for i in sorted(material.steps):
        if material.index.steps[i].kind == "user":
            turns.setdefault(material.page_of_step[i], []).append(i)
    phrases = {n: format_user_turns(material.index, steps, 0) for n, steps in turns.items()}
    room -= sum(estimate_tokens_of_word(line) + 1 for line in phrases.values())
    for most in (_HEAD, _LONG_HEAD):
        for n in sorted(turns, reverse=True):
            line = format_user_turns(material.index, turns[n], most)
            cost = estimate_tokens_of_word(line) - estimate_tokens_of_word(phrases[n])
            if cost <= room:
                room -= cost
                phrases[n] = line
    return phrases


def _choose_fitting_words(words: Iterable[str], room: float) -> Iterator[str]:
    for word in words:
        cost = estimate_tokens_of_word(word)
        if cost <= room:
            room -= cost
            yield word
        elif room < 2:
            return
