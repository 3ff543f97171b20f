"""The builder of plans: what is sent in place of a conversation that has become too long (BEHAVIOUR B9 to B16).

A plan has a ledger, the messages that must stay, and the newest steps. Building is pure and deterministic. A step stays
or goes as a whole. The user's last message, pinned messages and those that no model has seen stay verbatim if possible.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from proxy.context.ledger_builder import Ledger, LedgerScope, build_ledger
from proxy.context.outline import OutlineParser
from proxy.context.tool_outputs import (
    MIN_PRUNED_TOKENS,
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

# The tokens of a ledger: a number that tells the newest steps at any size, and a share of the usable tokens; at most
# another share, and a number beyond which no more is found in it.
_LEDGER_TOKENS, _LEDGER_SHARE, _LEDGER_MOST_SHARE, _LEDGER_MOST = 3000, 0.2, 0.45, 32_000
# The share of the tokens left by older user turns that ledgers get, because they describe the removed turns.
_SPARE_SHARE = 0.25
# Shares of the usable tokens: for steps that need not stay, at the least; of these for steps whose outputs tombstones
# replace; and what a ledger has to leave of its room for more of them, up to the low mark.
_STEPS_SHARE, _TOMBSTONES_SHARE, _LEFT_SHARE = 0.08, 0.06, 0.03
_INLINE_SHARE = 0.25
# The share of the usable tokens that all summaries may have together, and the least in tokens: the shortest requested
# summary has 300. It is a quarter of the ledger's share: replaying `swe_day` at 32K, half of it costs half a point more
# and pushes 20 % of the far references out of the ledger, and no less of the work is told with a quarter.
_REPORTS_SHARE, _REPORTS_LEAST = 0.07, 350
# Shares of the usable tokens that an epoch may leave: at most the highest low mark (B12). If protection has to give way
# it is one of the targets, by how often recent epochs left too little room (`PlanRequest.depth`).
_FULL = 0.85
_TARGETS = (0.7, 0.5, 0.3)
# The least share for the ledger, and its share if protection gives way for it.
_LEDGER_LEAST, _LEDGER_NEXT = 0.04, 0.1
# Texts and values above this size are trimmed when protection gives way: a share of the usable tokens, at least so many
# tokens, and the tokens at the last level.
_LONG_SHARE, _LONG_LEAST, _LONG_LAST = 0.03, 120, 30


_Replacement = Callable[[PlanRequest, ConversationIndex, int], ReplacedMessage]


class _ProtectionLevel(msgspec.Struct, frozen=True, gc=False):
    """A level of protection: how much of a conversation stays."""

    groups: int  # newest groups with calls
    users: float = 1.0  # the share of their budget that older user turns may use
    second: int = 0  # the user's second newest turn is sent: 0 whole, 1 without pasted blocks, 2 as its beginning
    has_more: bool = True  # whether more steps are added if there is room
    has_reports: bool = False  # whether summaries are sent


# In the order of BEHAVIOUR B12. From the second level on protection gives way.
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
    """The forms of the user's older turns, and of the second newest."""

    older: MessageForms
    second: MessageForms


class _KeptMessages(msgspec.Struct, frozen=True, gc=False):
    """The messages that stay at a level of protection."""

    least: int  # the first step of the tail
    staying: frozenset[int]  # older steps that stay
    marked: Mapping[int, ReplacedMessage]  # replaced messages among all these, by place
    spare: float  # tokens that older user turns leave of their budget
    tokens: int


class _ChosenSteps(msgspec.Struct, frozen=True, gc=False):
    """The steps that are sent though they need not stay: all from `tail` on.

    `marked` are replaced outputs among them, by place, `pruned` those whose tombstones name words of them.
    """

    tail: int
    marked: Mapping[int, ReplacedMessage] = {}
    pruned: frozenset[int] = frozenset()


class _PlanDraft(msgspec.Struct, frozen=True, gc=False):
    """A draft of a plan."""

    tail: int  # the step at which the tail begins
    staying: frozenset[int]  # older steps that stay
    ledger: Ledger
    marked: Mapping[int, ReplacedMessage]  # replaced messages, by place
    carried: CarriedLedgers = NO_LEDGERS
    reports: tuple[Written, ...] = ()
    tokens: int = 0
    protected: int = 0


class ContextBuilder:
    """A builder of plans.

    `count` returns the tokens of a text, `find` the features of a message, and `parse` the structure of a text of a
    kind for which `context/outline` has no parser.
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
        """Plan a minimal epoch in time linear in the messages' text. Its ledger describes steps but quotes no lines."""
        index = index_conversation(view, self._policy, extract_features_without_identifiers)
        words = _UserForms(
            list_older_forms(view, index, self._count, has_blocks=False),
            list_newest_forms(view, index, self._count, has_blocks=False),
        )
        return self._fit(view, index, words, "minimal")

    def _show_all_new(self, view: PlanRequest, index: ConversationIndex, words: _UserForms) -> ContextPlan | None:
        """Return the plan in which all messages that were never sent stay (B9).

        Return None if these are no more than the unanswered ones, or if the plan leaves too little room to go on.
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
        """Return the plan of the first level of protection that leaves enough room to go on and for a ledger."""
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
        """Return a draft at the last levels in which further messages are replaced until `most` tokens are left."""
        long = max(_LONG_LEAST, int(_LONG_SHARE * view.budget.usable))
        for level, kept_whole in ((_LEVELS[-1], long), (_NO_GROUPS, _LONG_LAST)):
            draft = self._draft(view, index, level, self._keep(view, index, words, level), rung, most=most)
            draft = shrink_draft(
                view, index, draft, self._list_ways(index, draft, kept_whole), most=most, count=self._count
            )
            if view.head + draft.tokens <= view.budget.high:
                return draft
        if view.frozen is not None:  # a new ledger in place of the carried ones may be the tokens that are missing
            return self._give_up(msgspec.structs.replace(view, frozen=None), index, words, most, rung)
        # Messages that no model has seen are only replaced if the request would be refused otherwise.
        fitting = view.budget.high if view.must_fit else view.budget.find_room()
        if fitting is None:
            return draft
        return shrink_draft(view, index, draft, self._list_last_ways(index, draft), most=fitting, count=self._count)

    def _keep(
        self, view: PlanRequest, index: ConversationIndex, words: _UserForms, level: _ProtectionLevel
    ) -> _KeptMessages:
        """Return the messages that stay at a level in any case."""
        least = find_tail_step(index, level.groups)
        older = choose_older_forms(view, index, words.older, least, level.users)
        second = [forms[min(level.second, len(forms)) - 1] for forms in words.second.values()] if level.second else ()
        staying = index.newest | index.fixed | {each.step for each in older.shown}
        marked = self._outline_large(view, index, least) | _list_shortened((*older.shown, *second))
        tokens = _count_draft(index, _PlanDraft(least, staying, Ledger(), marked), self._count)
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
        """Draft a plan of at most `most` tokens: what stays at a level, a ledger of the rest, and more steps."""
        goal = view.goal or view.budget
        low = min(goal.compute_low_mark(view.head + kept.tokens), most)
        room = _LEDGER_TOKENS + _LEDGER_SHARE * goal.usable + _SPARE_SHARE * kept.spare
        room = min(room, _LEDGER_MOST_SHARE * goal.usable, _LEDGER_MOST)
        room = max(_LEDGER_LEAST * goal.usable, min(room, most - view.head - kept.tokens))
        carried = carry_ledgers(index, view.frozen, kept.least, room, self._count)
        reports = choose_summaries(view, carried) if level.has_reports else ()
        told = sum(self._count(each.text) + MESSAGE_FRAME for each in reports)
        carried = reduce_room(carried, told)
        others = view.head + kept.tokens + room + carried.reported + told
        free = min(most - others, max(low - others, _STEPS_SHARE * goal.usable))
        steps = self._choose_steps(view, index, kept, carried.told, free if level.has_more else None)
        ledger = self._write_ledger(view, index, kept, carried, steps, rung=rung)
        unused = carried.room - ledger.tokens
        if level.has_more and steps.tail and low - (others - unused) > free + _LEFT_SHARE * goal.usable:
            steps = self._choose_steps(view, index, kept, carried.told, low - (others - unused))
            ledger = self._write_ledger(view, index, kept, carried, steps, rung=rung)
        gone = set(range(steps.tail)) - kept.staying - carried.told
        if not carried.ledgers and sum(index.steps[i].tokens for i in gone) <= ledger.tokens:
            steps = msgspec.structs.replace(steps, tail=0)
            ledger = self._write_ledger(view, index, kept, carried, steps, rung=rung)
        marked = {**kept.marked, **steps.marked}
        marked |= {place: prune_output(view, index, place, words) for place, words in ledger.words.items()}
        reports = reports if ledger.sections else ()
        draft = _PlanDraft(steps.tail, kept.staying, ledger, marked, carried, reports, 0, kept.tokens)
        return msgspec.structs.replace(draft, tokens=_count_draft(index, draft, self._count))

    def _choose_steps(
        self, view: PlanRequest, index: ConversationIndex, kept: _KeptMessages, told: frozenset[int], room: float | None
    ) -> _ChosenSteps:
        """Choose the steps before those that stay that are sent, too, in `room` tokens; for None there are none.

        The newest are sent whole, but for superseded outputs. Those before them are sent with tombstones in place of
        their outputs.
        """
        if room is None:
            return _ChosenSteps(kept.least)
        for_pruned = min(max(room, 0.0), _TOMBSTONES_SHARE * (view.goal or view.budget).usable)
        tail = extend_tail(index, kept.least, kept.staying, told, room - for_pruned)
        superseded = prune_superseded(view, index, self._policy, range(tail, kept.least), self._count)
        if superseded:
            room += count_saved_tokens(index, superseded, self._count)
            tail = extend_tail(index, kept.least, kept.staying, told, room - for_pruned)
            superseded = prune_superseded(view, index, self._policy, range(tail, kept.least), self._count)
        tail, pruned = self._prune_before(view, index, tail, kept.staying | told, for_pruned)
        return _ChosenSteps(tail, superseded | pruned, frozenset(pruned))

    def _write_ledger(
        self,
        view: PlanRequest,
        index: ConversationIndex,
        kept: _KeptMessages,
        carried: CarriedLedgers,
        steps: _ChosenSteps,
        *,
        rung: Rung,
    ) -> Ledger:
        shortened = {place: made.edit.text for place, made in kept.marked.items() if made.edit.kind == "shortened"}
        scope = LedgerScope(steps.tail, kept.staying, carried, rung == "plan", shortened, steps.pruned)
        return build_ledger(view, index, scope, self._count)

    def _prune_before(
        self, view: PlanRequest, index: ConversationIndex, tail: int, closed: frozenset[int], room: float
    ) -> tuple[int, dict[int, ReplacedMessage]]:
        """Return the step from which on steps are sent with tombstones in place of outputs, and these tombstones.

        Such steps, before `tail`, may have `room` tokens. Steps that are `closed` are not among them.
        """
        marked: dict[int, ReplacedMessage] = {}
        while tail and tail - 1 not in closed:
            step = index.steps[tail - 1]
            made = {
                place: prune_output(view, index, place)
                for place in step.places
                if index.messages[place].structure.role == "tool" and index.messages[place].tokens > MIN_PRUNED_TOKENS
            }
            room -= step.tokens - count_saved_tokens(index, made, self._count)
            if room < 0:
                break
            marked |= made
            tail -= 1
        return tail, marked

    def _outline_large(self, view: PlanRequest, index: ConversationIndex, least: int) -> dict[int, ReplacedMessage]:
        """Return file blocks for large outputs of the newest groups that a model has already seen whole (M12)."""
        most = min(self._policy.inline_tokens, _INLINE_SHARE * view.budget.usable)
        return {
            place: self._outline(view, index, place)
            for i in range(least, index.fresh)
            if i not in index.fixed
            for place in index.steps[i].places
            if index.messages[place].structure.role == "tool" and index.messages[place].tokens > most
        }

    def _list_ways(self, index: ConversationIndex, draft: _PlanDraft, most: int) -> Iterator[tuple[int, _Replacement]]:
        """Yield further replacements: trimmed texts and values of the assistant, then pruned outputs that were seen.

        Messages of the assistant above `most` tokens are trimmed.
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
        """Yield the last replacements: outputs that no model has seen, then other texts."""
        loose = _list_replaceable(index, draft)
        by_size = sorted(loose, key=lambda place: (-index.messages[place].tokens, place))
        yield from ((place, self._outline) for place in by_size if index.messages[place].structure.role == "tool")
        yield from ((place, shorten_message) for place in by_size if _is_text_only(index, place))


def _list_shortened(shown: Iterable[UserMessageForm]) -> dict[int, ReplacedMessage]:
    return {edit.place: ReplacedMessage(edit, each.references) for each in shown for edit in each.edits}


def extend_tail(
    index: ConversationIndex, least: int, staying: frozenset[int], told: frozenset[int], room: float
) -> int:
    """Return the step at which the tail begins if it may have `room` more tokens."""
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
    """Return the draft with messages replaced in the order of `ways`, until it has at most `most` tokens."""
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
    """Return the places of sent messages that may be replaced, which excludes the user's newest turn."""
    last = index.steps[index.users[-1]].turn if index.users else 0
    bound = {i for i in index.users if index.steps[i].turn == last}
    kept = [i for i in range(len(index.steps)) if (i >= draft.tail or i in draft.staying) and i not in bound]
    return [place for i in kept for place in index.steps[i].places if place not in index.bound]


def _is_text_only(index: ConversationIndex, place: int) -> bool:
    """Return whether a message has only text, which may be cut."""
    structure = index.messages[place].structure
    return structure.role in ("user", "assistant") and not (structure.calls or structure.results or structure.reasoning)


def _count_draft(index: ConversationIndex, draft: _PlanDraft, count: Callable[[str], int]) -> int:
    """Return the tokens of a draft, without the preamble."""
    tokens = sum(step.tokens for i, step in enumerate(index.steps) if i >= draft.tail or i in draft.staying)
    tokens -= count_saved_tokens(index, draft.marked, count)
    tokens += sum(count(each.text) + MESSAGE_FRAME for each in draft.reports)
    return tokens + draft.carried.tokens + draft.ledger.tokens


def _make_plan(
    view: PlanRequest, index: ConversationIndex, draft: _PlanDraft, rung: Rung, wished: int = 0
) -> ContextPlan:
    beyond = wished if view.budget.is_ceiling_unreachable(wished) else 0
    if not draft.ledger.sections and not draft.marked and not draft.carried.ledgers:
        return ContextPlan(0, (), (), sum(each.tokens for each in index.messages), draft.protected, rung, beyond)
    later = range(draft.tail, len(index.steps))
    tail = max([draft.tail, *(i + 1 for i in later if not draft.marked.keys().isdisjoint(index.steps[i].places))])
    through = index.find_start(tail)
    references = {each.id: each for each in _list_references(draft)}
    edits = tuple(_list_edits(index, draft, tail))
    return ContextPlan(through, edits, tuple(references.values()), draft.tokens, draft.protected, rung, beyond)


def compute_summaries_budget(usable: int) -> int:
    """Return the tokens that all summaries may have together, given the usable tokens."""
    return max(_REPORTS_LEAST, int(_REPORTS_SHARE * usable))


def choose_summaries(view: PlanRequest, carried: CarriedLedgers) -> tuple[Written, ...]:
    """Choose the summaries that this epoch adds: the newest that fit, of messages that no carried summary covers.

    A summary that was merged from carried ones has to wait until these are dropped together with their ledgers.
    """
    reached = max((each.stop for each in carried.written if each.report), default=0)
    start = max((each.stop for each in carried.ledgers), default=0)
    newest = takewhile(lambda each: each.start >= reached, reversed(view.reports))
    room = compute_summaries_budget(view.budget.usable) - carried.reported
    chosen = take_fitting(newest, room, lambda each: each.tokens + MESSAGE_FRAME)
    return tuple(Written(each.text, start, max(start, each.stop), each.id) for each in reversed(chosen))


def _list_edits(index: ConversationIndex, draft: _PlanDraft, tail: int) -> Iterator[Edit]:
    """Yield summaries, ledgers and kept messages: each ledger before all that follows its start, after its summaries.

    So the next epoch, which only adds a ledger, does not change what precedes it, user messages between ledgers
    included, and the provider's cache still has that.
    """
    written = [*draft.carried.written, *draft.reports, *draft.ledger.sections]
    sections = sorted((each.start, each.stop) for each in written if not each.report)
    ours = sorted(written, key=lambda each: (_find_start(each, sections), not each.report))
    for i in range(tail):
        if i >= draft.tail or i in draft.staying:
            while ours and _find_start(ours[0], sections) <= index.steps[i].start:
                yield ours.pop(0)
            for place in index.steps[i].places:
                yield draft.marked[place].edit if place in draft.marked else Kept(place)
    yield from ours


def _find_start(written: Written, sections: Sequence[tuple[int, int]]) -> int:
    """Return the place before which a ledger's section or a summary stands: with the section that it belongs to."""
    if not written.report:
        return written.start
    return next((start for start, stop in sections if stop > written.start), written.start)


def _list_references(draft: _PlanDraft) -> Iterator[Reference]:
    yield from draft.carried.references
    yield from draft.ledger.references
    for made in draft.marked.values():
        yield from made.references
