"""What is sent in place of a conversation that has become too long: a ledger, what must stay, and the newest of it.

Pure and deterministic: the same view gives the same plan. Steps stay whole or go whole; what the user said last,
what is pinned and what no model has seen yet stays word for word, unless it cannot (BEHAVIOUR B9 to B16).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import takewhile

import msgspec

from proxy.context.budget import MESSAGE_FRAME, take_fitting
from proxy.context.conversation import (
    BuilderPolicy,
    ConversationIndex,
    FeatureExtractor,
    PlanRequest,
    extract_features,
    extract_features_without_identifiers,
    find_tail_step,
    index_conversation,
    with_unsent,
)
from proxy.context.ledger import NO_LEDGERS, CarriedLedgers, carry_ledgers, reduce_room
from proxy.context.ledger_builder import LedgerScope, LedgerText, build_ledger
from proxy.context.outline import OutlineParser
from proxy.context.tool_outputs import (
    ReplacedMessage,
    count_saved_tokens,
    order_outputs,
    outline_output,
    prune_output,
    prune_superseded,
    shorten_message,
    trim_message,
)
from proxy.context.user_messages import (
    MessageForms,
    UserMessageForm,
    choose_older_forms,
    list_newest_forms,
    list_older_forms,
)
from proxy.context.verbatim import MIN_GROUPS, RECENT_GROUPS
from proxy.model.epoch import ContextPlan, Edit, Kept, Reference, Rung, Written

_LEDGER_SHARE, _LEDGER_MOST = 0.28, 16_000
# Of what older words leave free, for ledgers tell of those that have gone.
_SPARE_SHARE = 0.25
_INLINE_SHARE = 0.25
# The part of what is usable that summaries may have together, and what one has room for at least: the shortest that is
# asked for has 300 tokens.
_REPORTS_SHARE, _REPORTS_LEAST = 0.04, 350
# The most an epoch leaves: the highest low mark (B12), and what it leaves where protection has to give way for that, by
# how often epochs of late left too little room to go on.
_FULL = 0.85
_TARGETS = (0.7, 0.5, 0.3)
# What the ledger has at least, and what it should have where protection gives way for it.
_LEDGER_LEAST, _LEDGER_NEXT = 0.04, 0.1
# From so many tokens on words and values are long: they are trimmed when protection gives way.
_LONG_SHARE, _LONG_LEAST, _LONG_LAST = 0.03, 120, 30


_Replacement = Callable[[PlanRequest, ConversationIndex, int], ReplacedMessage]


class _ProtectionLevel(msgspec.Struct, frozen=True, gc=False):
    """A level of protection: groups that stay, the share of their room for older user turns, summaries, more groups.

    `second` is what becomes of the second newest turn of the user: 0 whole, 1 without pasted blocks, 2 its beginning.
    """

    groups: int
    users: float = 1.0
    second: int = 0
    has_more: bool = True
    has_reports: bool = False


# In the order of BEHAVIOUR B12: from the second on protection gives way.
_LEVELS = (
    _ProtectionLevel(RECENT_GROUPS, has_reports=True),
    _ProtectionLevel(MIN_GROUPS),
    _ProtectionLevel(MIN_GROUPS, second=1),
    _ProtectionLevel(MIN_GROUPS, second=2),
    _ProtectionLevel(MIN_GROUPS, 0.5, second=2),
    _ProtectionLevel(MIN_GROUPS, 0.25, second=2, has_more=False),
)
_NO_GROUPS = _ProtectionLevel(0, 0.0, second=2, has_more=False)


class _UserForms(msgspec.Struct, frozen=True, gc=False):
    """The forms of older turns of the user, and of the second newest."""

    older: MessageForms
    second: MessageForms


class _KeptMessages(msgspec.Struct, frozen=True, gc=False):
    """What stays at a level: the first step of the tail, older steps that stay, messages that give way among these."""

    least: int
    staying: frozenset[int]
    marked: Mapping[int, ReplacedMessage]
    spare: float
    tokens: int


class _PlanDraft(msgspec.Struct, frozen=True, gc=False):
    """A plan in the making: the step where the tail begins, older steps that stay, messages that give way."""

    tail: int
    staying: frozenset[int]
    ledger: LedgerText
    marked: Mapping[int, ReplacedMessage]
    carried: CarriedLedgers = NO_LEDGERS
    reports: tuple[Written, ...] = ()
    tokens: int = 0
    protected: int = 0


class ContextBuilder:
    """Builds plans; `count` gives the tokens of a text, `find` what there is to know of a message,
    `parse` the structure of a text that `context/outline` cannot tell itself.
    """

    def __init__(
        self,
        policy: BuilderPolicy,
        count: Callable[[str], int],
        find: FeatureExtractor = extract_features,
        parse: OutlineParser | None = None,
    ) -> None:
        self._policy = policy
        self._count = count
        self._find = find
        self._outline = partial(outline_output, has_outline=policy.has_outlines, parse=parse)

    def build(self, view: PlanRequest) -> ContextPlan:
        """Plan an epoch that begins with this request."""
        index = index_conversation(view, self._policy, self._find)
        words = _UserForms(list_older_forms(view, index, self._count), list_newest_forms(view, index, self._count))
        return self._show_all_new(view, index, words) or self._fit(view, index, words, "plan")

    def minimal(self, view: PlanRequest) -> ContextPlan:
        """Plan the same in time linear in the messages' text: the ledger says what was done, but no words of it."""
        index = index_conversation(view, self._policy, extract_features_without_identifiers)
        words = _UserForms(
            list_older_forms(view, index, self._count, has_blocks=False),
            list_newest_forms(view, index, self._count, has_blocks=False),
        )
        return self._fit(view, index, words, "minimal")

    def _show_all_new(self, view: PlanRequest, index: ConversationIndex, words: _UserForms) -> ContextPlan | None:
        """Return the plan in which all that was never sent stays (B9), if that is more than what no model has answered.

        None where it leaves too little room to go on.
        """
        shown = with_unsent(index, view.sent)
        if shown is index:
            return None
        kept = self._keep(view, shown, words, _LEVELS[0])
        if view.budget.is_ceiling_unreachable(view.head + kept.tokens):
            return None
        draft = self._draft(view, shown, _LEVELS[0], kept, "plan", most=_FULL * view.budget.usable)
        return _make_plan(view, shown, draft, "plan")

    def _fit(self, view: PlanRequest, index: ConversationIndex, words: _UserForms, rung: Rung) -> ContextPlan:
        """Return the plan of the first level that leaves enough room to go on, and for a ledger."""
        usable = view.budget.usable
        freed = _TARGETS[min(view.depth, len(_TARGETS) - 1)] * usable
        wished = 0
        for number, level in enumerate(_LEVELS):
            kept = self._keep(view, index, words, level)
            wished = wished or view.head + kept.tokens
            is_whole = not number and not view.depth
            if view.head + kept.tokens > (freed if is_whole else freed - _LEDGER_NEXT * usable):
                continue
            draft = self._draft(view, index, level, kept, rung, most=_FULL * usable if is_whole else freed)
            return _make_plan(view, index, draft, rung, wished)
        return _make_plan(view, index, self._give_up(view, index, words, freed, rung), rung, wished)

    def _give_up(
        self, view: PlanRequest, index: ConversationIndex, words: _UserForms, most: float, rung: Rung
    ) -> _PlanDraft:
        """Return the draft in which, beside all that levels give up, messages give way until `most` tokens are left."""
        long = max(_LONG_LEAST, int(_LONG_SHARE * view.budget.usable))
        for level, kept_whole in ((_LEVELS[-1], long), (_NO_GROUPS, _LONG_LAST)):
            draft = self._draft(view, index, level, self._keep(view, index, words, level), rung, most=most)
            draft = shrink_draft(
                view, index, draft, self._list_ways(index, draft, kept_whole), most=most, count=self._count
            )
            if view.head + draft.tokens <= view.budget.high:
                return draft
        # What no model has seen yet goes only where it would be refused: who asked again would get it no sooner.
        fitting = view.budget.high if view.must_fit else view.budget.find_room()
        if fitting is None:
            return draft
        return shrink_draft(view, index, draft, self._list_last_ways(index, draft), most=fitting, count=self._count)

    def _keep(
        self, view: PlanRequest, index: ConversationIndex, words: _UserForms, level: _ProtectionLevel
    ) -> _KeptMessages:
        """Return what stays at a level, whatever else there is room for."""
        least = find_tail_step(index, level.groups)
        older = choose_older_forms(view, index, words.older, least, level.users)
        second = [forms[min(level.second, len(forms)) - 1] for forms in words.second.values()] if level.second else ()
        staying = index.newest | index.fixed | {each.step for each in older.shown}
        marked = self._outline_large(view, index, least) | _list_shortened((*older.shown, *second))
        tokens = _count_draft(index, _PlanDraft(least, staying, LedgerText((), "", 0), marked), self._count)
        return _KeptMessages(least, staying, marked, older.spare, tokens)

    def _draft(
        self,
        view: PlanRequest,
        index: ConversationIndex,
        level: _ProtectionLevel,
        kept: _KeptMessages,
        rung: Rung,
        *,
        most: float,
    ) -> _PlanDraft:
        """Draft a plan: what stays at a level, a ledger of the rest, and more steps while `most` tokens have room."""
        least, staying, marked = kept.least, kept.staying, dict(kept.marked)
        goal = view.goal or view.budget
        low = min(goal.compute_low_mark(view.head + kept.tokens), most)
        room = min(_LEDGER_SHARE * goal.usable + _SPARE_SHARE * kept.spare, _LEDGER_MOST)
        room = max(_LEDGER_LEAST * goal.usable, min(room, most - view.head - kept.tokens))
        carried = carry_ledgers(index, view.frozen, least, room, self._count)
        reports = choose_summaries(view, carried) if level.has_reports else ()
        told = sum(self._count(each.text) + MESSAGE_FRAME for each in reports)
        carried = reduce_room(carried, told)
        free = low - view.head - kept.tokens - room - carried.reported - told
        tail = extend_tail(index, least, staying, carried.told, free) if level.has_more else least
        pruned = prune_superseded(view, index, self._policy, range(tail, least), self._count)
        if pruned:
            free += count_saved_tokens(index, pruned, self._count)
            tail = extend_tail(index, least, staying, carried.told, free)
            pruned = prune_superseded(view, index, self._policy, range(tail, least), self._count)
            marked |= pruned
        shortened = {place: made.edit.text for place, made in marked.items() if made.edit.kind == "shortened"}
        scope = LedgerScope(tail, staying, carried, rung == "plan", shortened)
        ledger = build_ledger(view, index, scope, self._count)
        draft = _PlanDraft(tail, staying, ledger, marked, carried, reports if ledger.text else (), 0, kept.tokens)
        return msgspec.structs.replace(draft, tokens=_count_draft(index, draft, self._count))

    def _outline_large(self, view: PlanRequest, index: ConversationIndex, least: int) -> dict[int, ReplacedMessage]:
        """Large outputs of the newest groups that a model has seen whole, as blocks (M12)."""
        most = min(self._policy.inline_tokens, _INLINE_SHARE * view.budget.usable)
        return {
            place: self._outline(view, index, place)
            for i in range(least, index.fresh)
            if i not in index.fixed
            for place in index.steps[i].places
            if index.messages[place].structure.role == "tool" and index.messages[place].tokens > most
        }

    def _list_ways(self, index: ConversationIndex, draft: _PlanDraft, most: int) -> Iterator[tuple[int, _Replacement]]:
        """List what gives way where that is not enough: long words and values, then outputs that were seen.

        `most` are the tokens from which on words are long.
        """
        loose = _list_replaceable(index, draft)
        fresh = index.find_start(index.fresh)
        by_size = sorted(loose, key=lambda place: (-index.messages[place].tokens, place))
        said = [place for place in by_size if index.messages[place].structure.role == "assistant"]
        yield from ((place, partial(trim_message, most=most)) for place in said if index.messages[place].tokens > most)
        yield from (
            (place, prune_output) for place in order_outputs(index, (place for place in loose if place < fresh))
        )

    def _list_last_ways(self, index: ConversationIndex, draft: _PlanDraft) -> Iterator[tuple[int, _Replacement]]:
        """List what gives way where the rest may not be sent: outputs that nobody has seen, then other words."""
        loose = _list_replaceable(index, draft)
        by_size = sorted(loose, key=lambda place: (-index.messages[place].tokens, place))
        yield from ((place, self._outline) for place in by_size if index.messages[place].structure.role == "tool")
        yield from ((place, shorten_message) for place in by_size if _is_text_only(index, place))


def _list_shortened(shown: Iterable[UserMessageForm]) -> dict[int, ReplacedMessage]:
    return {edit.place: ReplacedMessage(edit, each.references) for each in shown for edit in each.edits}


def extend_tail(
    index: ConversationIndex, least: int, staying: frozenset[int], told: frozenset[int], room: float
) -> int:
    """Return the step at which the tail begins if it may have so many more tokens."""
    tail = least
    while tail and tail - 1 not in told:
        room -= 0 if tail - 1 in staying else index.steps[tail - 1].tokens
        if room < 0:
            break
        tail -= 1
    return tail


def shrink_draft(
    view: PlanRequest,
    index: ConversationIndex,
    draft: _PlanDraft,
    ways: Iterable[tuple[int, _Replacement]],
    *,
    most: float,
    count: Callable[[str], int],
) -> _PlanDraft:
    """Return a draft with messages given way until it has `most` tokens, as far as that can be."""
    tokens = draft.tokens
    marked = dict(draft.marked)
    for place, mark in ways:
        if view.head + tokens <= most:
            break
        if place in marked:
            continue
        made = mark(view, index, place)
        gained = count_saved_tokens(index, {place: made}, count)
        if gained > 0:
            tokens -= gained
            marked[place] = made
    return msgspec.structs.replace(draft, marked=marked, tokens=tokens)


def _list_replaceable(index: ConversationIndex, draft: _PlanDraft) -> list[int]:
    """List the places of messages that are sent and may give way; those of the user's newest turn may not."""
    last = index.steps[index.users[-1]].turn if index.users else 0
    bound = {i for i in index.users if index.steps[i].turn == last}
    kept = [i for i in range(len(index.steps)) if (i >= draft.tail or i in draft.staying) and i not in bound]
    return [place for i in kept for place in index.steps[i].places if place not in index.bound]


def _is_text_only(index: ConversationIndex, place: int) -> bool:
    """Return whether a message is words alone, which may be cut."""
    structure = index.messages[place].structure
    return structure.role in ("user", "assistant") and not (structure.calls or structure.results or structure.reasoning)


def _count_draft(index: ConversationIndex, draft: _PlanDraft, count: Callable[[str], int]) -> int:
    """Return the tokens of a draft, behind the preamble."""
    tokens = sum(step.tokens for i, step in enumerate(index.steps) if i >= draft.tail or i in draft.staying)
    tokens -= count_saved_tokens(index, draft.marked, count)
    tokens += sum(count(each.text) + MESSAGE_FRAME for each in draft.reports)
    return tokens + draft.carried.tokens + (draft.ledger.tokens + MESSAGE_FRAME if draft.ledger.text else 0)


def _make_plan(
    view: PlanRequest, index: ConversationIndex, draft: _PlanDraft, rung: Rung, wished: int = 0
) -> ContextPlan:
    beyond = wished if view.budget.is_ceiling_unreachable(wished) else 0
    if not draft.ledger.text and not draft.marked and not draft.carried.ledgers:
        return ContextPlan(0, (), (), sum(each.tokens for each in index.messages), draft.protected, rung, beyond)
    later = range(draft.tail, len(index.steps))
    tail = max([draft.tail, *(i + 1 for i in later if not draft.marked.keys().isdisjoint(index.steps[i].places))])
    through = index.find_start(tail)
    references = {each.id: each for each in _list_references(draft)}
    edits = tuple(_list_edits(index, draft, tail))
    return ContextPlan(through, edits, tuple(references.values()), draft.tokens, draft.protected, rung, beyond)


def compute_summaries_budget(usable: int) -> int:
    """Return the tokens that summaries may have together, of so many that are usable."""
    return max(_REPORTS_LEAST, int(_REPORTS_SHARE * usable))


def choose_summaries(view: PlanRequest, carried: CarriedLedgers) -> tuple[Written, ...]:
    """Choose the summaries that come with this epoch: of what no summary that stays tells of, the newest that fit.

    One that was merged of some that stay has to wait until these go with their ledgers.
    """
    reached = max((each.stop for each in carried.written if each.report), default=0)
    start = max((each.stop for each in carried.ledgers), default=0)
    newest = takewhile(lambda each: each.start >= reached, reversed(view.reports))
    room = compute_summaries_budget(view.budget.usable) - carried.reported
    chosen = take_fitting(newest, room, lambda each: each.tokens + MESSAGE_FRAME)
    return tuple(Written(each.text, start, max(start, each.stop), each.id) for each in reversed(chosen))


def _list_edits(index: ConversationIndex, draft: _PlanDraft, tail: int) -> Iterator[Edit]:
    """Summaries, ledgers, and what stays: each ledger before what came after its beginning, summaries before it.

    So the next epoch, which only adds a ledger, leaves all before that as it was, words of the user between ledgers
    included, and the provider's cache holds them.
    """
    ours = [*draft.carried.written, *draft.reports, *_list_new_ledger(index, draft)]
    for i in range(tail):
        if i >= draft.tail or i in draft.staying:
            while ours and ours[0].start <= index.steps[i].start:
                yield ours.pop(0)
            for place in index.steps[i].places:
                yield draft.marked[place].edit if place in draft.marked else Kept(place)
    yield from ours


def _list_new_ledger(index: ConversationIndex, draft: _PlanDraft) -> Iterator[Written]:
    if draft.ledger.text:
        start = draft.carried.ledgers[-1].stop if draft.carried.ledgers else 0
        yield Written(draft.ledger.text, start, index.find_start(draft.tail))


def _list_references(draft: _PlanDraft) -> Iterator[Reference]:
    yield from draft.carried.references
    for entry in draft.ledger.entries:
        yield Reference(entry.reference, entry.page.start, entry.page.stop, entry.page.offset)
    for made in draft.marked.values():
        yield from made.references
