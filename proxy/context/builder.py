"""The builder of plans: what is sent in place of a conversation that has become too long.

A plan has a ledger, the messages that must stay, and the newest steps. Building is pure and deterministic. A step stays
or goes as a whole. The user's last message, pinned messages and those that no model has seen stay verbatim if possible.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from proxy.context.answered_turns import keep_pairs
from proxy.context.budget import MESSAGE_FRAME, Count, find_cap
from proxy.context.conversation import (
    BuilderPolicy,
    ConversationIndex,
    PlanRequest,
    add_paired,
    can_be_pruned,
    find_last_turn,
    find_spoken,
    find_tail_step,
    index_conversation,
    with_unsent,
)
from proxy.context.ledger import CarriedLedgers, carry_ledgers
from proxy.context.ledger_builder import Ledger, LedgerScope, build_ledger
from proxy.context.message_features import FeatureExtractor, extract_features, extract_features_without_identifiers
from proxy.context.outline import OutlineParser
from proxy.context.plan_draft import (
    PlanDraft,
    Replacement,
    choose_compaction,
    choose_summaries,
    compute_summaries_budget,
    count_draft,
    count_report,
    extend_tail,
    list_replaceable,
    make_plan,
    shrink_draft,
)
from proxy.context.strategies.snapshot import plan_snapshot, without_memory
from proxy.context.strategies.turns import plan_turns
from proxy.context.tool_outputs import (
    ReplacedMessage,
    can_be_cut,
    count_saved_tokens,
    count_values,
    find_sent_form,
    find_superseded,
    is_text_only,
    list_large_outputs,
    order_by_size,
    order_outputs,
    outline_output,
    prune_output,
    prune_superseded,
    replace_messages,
    select_sent,
    shorten_message,
    trim_giants,
    trim_message,
)
from proxy.context.user_messages import (
    HEADS_SHARE,
    WHOLE_SHARE,
    UserForms,
    choose_older_forms,
    find_bare,
    find_shortest,
    fit_message,
    list_shortened,
    list_user_forms,
    name_words,
    prune_led,
)
from proxy.context.verbatim import MIN_GROUPS, RECENT_GROUPS
from proxy.model import Value
from proxy.model.epoch import ContextPlan, Rung
from proxy.model.messages import BESIDE

# The tokens of a ledger: a number that tells the newest steps, below `_LEDGER_FULL` usable tokens less by their square
# (else 4,000 are full again two turns later), and a share of these; at most another, and what is still found in it.
# Below `_LEDGER_FULL` a ledger also leaves up to a share of them free, so that the next epoch is not due at once.
_LEDGER_TOKENS, _LEDGER_SHARE, _LEDGER_MOST_SHARE, _LEDGER_MOST, _LEDGER_FULL = 3000, 0.2, 0.45, 32_000, 12_000
# The share of the tokens left by older user turns that ledgers get: they describe these turns.
_LEDGER_SPARED, _SPARE_SHARE = 0.25, 0.25
# Shares of the usable tokens: for steps that need not stay, at the least; of these for steps whose outputs tombstones
# replace; and what a ledger has to leave of its room for more of them, up to the low mark.
_STEPS_SHARE, _TOMBSTONES_SHARE, _LEFT_SHARE = 0.08, 0.06, 0.03
_INLINE_SHARE = 0.25
# Shares of the usable tokens for new messages that do not fit: at most together with the others that have to stay, and
# at least without them.
_NEW_SHARE, _NEW_LEAST = 0.5, 0.25
# A plan below the first share of its low mark shows more of large messages, up to the second.
_FILLED, _WISHED = 0.85, 0.92
# Shares of the usable tokens that an epoch may leave: at most the highest low mark. If protection has to give way
# it is one of the targets, by how often recent epochs left too little room (`PlanRequest.depth`).
_FULL = 0.85
_TARGETS = (0.7, 0.5, 0.3)
# The least share for the ledger, and its share if protection gives way for it.
_LEDGER_LEAST, _LEDGER_NEXT = 0.04, 0.1
# Messages of the assistant above this share of the usable tokens are trimmed before all else.
_GIANT_SHARE = 0.2
# The user's second newest turn shows more than one of its forms, with notes, where it has so many tokens more.
_LEAST_MORE = 100
# Texts and values above this size are trimmed when protection gives way: a share of the usable tokens, at least so many
# tokens, and the tokens at the last of these.
_LONG_SHARE, _LONG_LEAST, _LONG_LAST = 0.03, 120, 30


class _Protection(Value):
    """How much of a conversation stays."""

    groups: int  # newest groups with calls
    users: float = 1.0  # the share of their budget that older user turns may use
    floor: float = WHOLE_SHARE  # the share of the usable tokens that all words of the user may use in any case
    has_giants: bool = False  # whether the assistant's largest texts are whole
    is_bare: bool = False  # whether the user's second newest turn is sent without pasted blocks
    gives_way: bool = False  # whether texts of the assistant and outputs are replaced until it fits, and then that turn
    has_reports: bool = False  # whether summaries are sent; a provider's own compaction is wherever it fits


# In the order in which protection gives way. From the second one on protection gives way.
_PROTECTIONS = (
    _Protection(RECENT_GROUPS, has_giants=True, has_reports=True),
    _Protection(RECENT_GROUPS, has_reports=True),
    _Protection(MIN_GROUPS),
    _Protection(MIN_GROUPS, gives_way=True),
    _Protection(MIN_GROUPS, 0.5, gives_way=True),
    _Protection(MIN_GROUPS, 0.25, gives_way=True),
    _Protection(MIN_GROUPS, 0.25, is_bare=True, gives_way=True),
)
# What is sent where all that is too much, and the tokens above which texts of the assistant are trimmed then (0: as
# many as before).
_LAST_PROTECTIONS = (
    (_PROTECTIONS[-1], 0),
    (_Protection(0, 0.0, is_bare=True), _LONG_LAST),
    (_Protection(0, 0.0, 0.0, is_bare=True), _LONG_LAST),
)


class _KeptMessages(Value):
    """The messages that stay under a protection."""

    least: int  # the first step of the tail
    staying: frozenset[int]  # older steps that stay
    closed: frozenset[int]  # older steps that do not: of late outputs whose calls do not stay, either
    replaced: Mapping[int, ReplacedMessage]  # replaced messages among all these, by place
    spare: float  # tokens that older user turns leave of their budget
    tokens: int
    missing: Mapping[int, int]  # tokens of prose that older steps of the user lack, by step; of all that stay


class _ChosenSteps(Value):
    """The steps that are sent though they need not stay: all from `tail` on.

    `replaced` are replaced outputs among them, by place, `pruned` those whose tombstones name words of them.
    """

    tail: int
    replaced: Mapping[int, ReplacedMessage] = {}
    pruned: frozenset[int] = frozenset()


class ContextBuilder:
    """A builder of plans.

    `count` returns the tokens of a text, `find` the features of a message, and `parse` the structure of a text of a
    kind for which `context/outline` has no parser.
    """

    def __init__(
        self,
        policy: BuilderPolicy,
        count: Count,
        find: FeatureExtractor = extract_features,
        parse: OutlineParser | None = None,
    ) -> None:
        self._policy = policy
        self._count = count
        self._find = find
        self._outline = partial(outline_output, has_outline=policy.files.outline, parse=parse, count=count)
        self._parse = parse if policy.files.outline else None
        self._fit_message = partial(fit_message, count=count, parse=self._parse)

    def build(self, request: PlanRequest) -> ContextPlan:
        """Plan an epoch that begins with this request."""
        index = index_conversation(request, self._policy, self._find)
        if request.strategy == "turns" and (plan := plan_turns(request, index, self._policy.turns, self._count)):
            return plan
        if request.strategy == "snapshot":
            if plan := plan_snapshot(
                request, index, self._policy.snapshot, self._count, self.build, prune=self._prune_led
            ):
                return plan
            request = without_memory(request)
        words = list_user_forms(request, index, self._count, parse=self._parse)
        shown = self._show_all_new(request, index, words)
        return shown or self._fit(request, *self._replace_large(request, index, words), "plan")

    def minimal(self, request: PlanRequest) -> ContextPlan:
        """Plan a minimal epoch in time linear in the messages' text. Its ledger describes steps but quotes no lines."""
        index = index_conversation(request, self._policy, extract_features_without_identifiers)
        words = list_user_forms(request, index, self._count, has_blocks=False)
        return self._fit(request, *self._replace_large(request, index, words), "minimal")

    def _show_all_new(self, request: PlanRequest, index: ConversationIndex, words: UserForms) -> ContextPlan | None:
        """Return the plan in which all messages that were never sent stay.

        Return None if these are no more than the unanswered ones, or if the plan leaves too little room to go on.
        """
        shown = index if request.growth else with_unsent(index, request.sent)
        if shown is index:
            return None
        shown, words = self._replace(shown, words, self._outline_large(request, shown))
        kept = self._keep(request, shown, words, _PROTECTIONS[0])
        if request.budget.is_ceiling_unreachable(request.head + kept.tokens):
            return None
        draft = self._draft(request, shown, _PROTECTIONS[0], kept, "plan", most=_FULL * request.budget.usable)
        return make_plan(request, shown, draft, "plan")

    def _fit(self, request: PlanRequest, index: ConversationIndex, words: UserForms, rung: Rung) -> ContextPlan:
        """Return the plan of the first protection that leaves enough room to go on and for a ledger."""
        usable = request.budget.usable
        freed = _TARGETS[min(request.depth, len(_TARGETS) - 1)] * usable
        giants = trim_giants(request, index, _GIANT_SHARE, self._count)
        start = index.find_start(find_tail_step(index, RECENT_GROUPS - bool(request.growth)))
        whole = self._replace(index, words, {place: made for place, made in giants.items() if place < start})
        index, words = self._replace(index, words, giants)
        wished = 0
        for number, protection in enumerate(_PROTECTIONS):
            shown, forms = whole if protection.has_giants else (index, words)
            is_whole = not number and not request.depth
            most = freed if is_whole else freed - _LEDGER_NEXT * usable
            if protection.gives_way:
                kept = self._give_way(request, shown, forms, protection, most=most)
            else:
                kept = self._keep(request, shown, forms, protection)
            wished = wished or request.head + kept.tokens
            if request.head + kept.tokens > most:
                continue
            most = _FULL * usable if is_whole else freed
            draft = self._draft(request, shown, protection, kept, rung, most=most, wished=0 if is_whole else wished)
            return make_plan(request, shown, draft, rung, wished)
        return make_plan(request, index, self._give_up(request, index, words, freed, rung), rung, wished)

    def _give_up(
        self, request: PlanRequest, index: ConversationIndex, words: UserForms, most: float, rung: Rung
    ) -> PlanDraft:
        """Return a draft under the last protections in which messages are replaced until `most` tokens are left."""
        usable = request.budget.usable
        for protection, kept_whole in _LAST_PROTECTIONS:
            left = most - _LEDGER_LEAST * usable
            kept = self._give_way(request, index, words, protection, most=left, kept_whole=kept_whole)
            draft = self._draft(request, index, protection, kept, rung, most=most)
            if request.head + draft.tokens <= request.budget.high:
                return draft
        # Messages that no model has seen are only replaced if the request would be refused otherwise.
        fitting = request.budget.high if request.must_fit else request.budget.find_room()
        if fitting is None:
            return draft
        return shrink_draft(request, index, draft, self._list_last_ways(index, draft), most=fitting, count=self._count)

    def _give_way(
        self,
        request: PlanRequest,
        index: ConversationIndex,
        words: UserForms,
        protection: _Protection,
        *,
        most: float,
        kept_whole: int = 0,
    ) -> _KeptMessages:
        """Return what stays under a protection, with messages replaced until the request has `most` tokens.

        These are texts of the assistant that are long, or above `kept_whole` tokens, and outputs that a model has seen,
        then, where the protection allows it, the prose of the user's second newest turn: of this as much stays as there
        is room for.
        """
        kept = self._keep(request, index, words, protection)
        kept_whole = kept_whole or max(_LONG_LEAST, int(_LONG_SHARE * request.budget.usable))
        draft = PlanDraft(kept.least, kept.staying, Ledger(), kept.replaced, tokens=kept.tokens)
        ways = self._list_ways(request, index, draft, kept_whole, request.head + kept.tokens - most)
        draft = shrink_draft(request, index, draft, ways, most=most, count=self._count)
        replaced, tokens = dict(draft.replaced), draft.tokens
        for i, forms in words.second.items() if protection.is_bare else ():
            spoken, shortest = find_spoken(index, i), find_shortest(forms, protection.floor * request.budget.usable)
            place = spoken[0] if spoken else index.steps[i].start
            before = count_saved_tokens(index, {place: replaced[place]} if place in replaced else {}, self._count)
            now = index.steps[i].tokens - before
            left = max(shortest.tokens, now - (request.head + tokens - most))
            if left >= now or not shortest.edits:
                continue
            form = next((each for each in forms if each.tokens <= left), shortest)
            if not spoken and can_be_cut(index, place) and left - form.tokens >= _LEAST_MORE:
                replaced[place] = self._fit_message(request, index, place, left)
            else:
                replaced |= list_shortened([form])
            tokens -= count_saved_tokens(index, {place: replaced[place]}, self._count) - before
        return replace(kept, replaced=replaced, tokens=tokens)

    def _keep(
        self, request: PlanRequest, index: ConversationIndex, words: UserForms, protection: _Protection
    ) -> _KeptMessages:
        """Return the messages that stay under a protection in any case."""
        least = find_tail_step(index, max(0, protection.groups - bool(request.growth)))  # the next request adds a group
        older = choose_older_forms(
            request, index, words.older, least, share=protection.users, floor=protection.floor, pasted=words.pasted
        )
        room = protection.users * (WHOLE_SHARE + HEADS_SHARE) * request.budget.usable
        older, answers = keep_pairs(index, older, least, room)
        second = [find_bare(forms) for forms in words.second.values()] if protection.is_bare else ()
        staying = add_paired(index, least, index.newest | index.fixed | answers | {each.step for each in older.shown})
        closed = frozenset(output for _, output in index.pairs if output < least) - staying
        pruned = self._prune_led(request, index, [i for i in staying if i < least])
        replaced = {**words.large, **pruned, **list_shortened((*older.shown, *second))}
        tokens = count_draft(index, PlanDraft(least, staying, Ledger(), replaced), self._count)
        cut = {each.step: index.steps[each.step].tokens - each.tokens for each in older.shown if each.is_cut}
        missing = dict.fromkeys(staying, 0) | cut
        return _KeptMessages(least, staying, closed, replaced, older.spare, tokens, missing)

    def _prune_led(
        self, request: PlanRequest, index: ConversationIndex, old: Iterable[int]
    ) -> dict[int, ReplacedMessage]:
        """Return tombstones for the outputs of steps that stay for what leads to, or is beside, these outputs."""
        led = [i for i in sorted(old) if _is_led(index, i)]
        outputs = [place for i in led for place in list_large_outputs(index, i) if can_be_pruned(index, place)]
        return {place: prune_led(request, index, place) for place in outputs}

    def _draft(
        self,
        request: PlanRequest,
        index: ConversationIndex,
        protection: _Protection,
        kept: _KeptMessages,
        rung: Rung,
        *,
        most: float,
        wished: int = 0,
    ) -> PlanDraft:
        """Draft a plan of at most `most` tokens: what stays under a protection, a ledger of the rest, and more steps.

        Where more was to stay, `wished` tokens with the preamble, what gave way leaves its room to more steps.
        """
        goal = request.goal or request.budget
        low = min(goal.compute_low_mark(max(wished, request.head + kept.tokens)), most) - request.growth
        scale = min(1, goal.usable / _LEDGER_FULL) ** 2
        room = _LEDGER_TOKENS * scale + _LEDGER_SHARE * goal.usable + _SPARE_SHARE * kept.spare
        room = min(room, _LEDGER_MOST_SHARE * goal.usable, _LEDGER_MOST)
        compacted = choose_compaction(request)
        beside = sum(each.tokens for each in compacted)
        usable = request.budget.usable
        if not protection.has_reports and request.head + kept.tokens + beside > most - _LEDGER_NEXT * usable:
            compacted, beside = (), 0
        beside += compute_summaries_budget(usable) if protection.has_reports and request.reports else 0
        top = min(most, max(low, (_FULL - _LEDGER_SPARED * (1 - scale)) * goal.usable))
        room = max(_LEDGER_LEAST * goal.usable, min(room, top - request.head - kept.tokens - beside))
        carried = carry_ledgers(index, request.frozen, kept.least, room, self._count)
        reports = (*compacted, *(choose_summaries(request, carried) if protection.has_reports else ()))
        told = sum(count_report(each, self._count) for each in reports)
        others = request.head + kept.tokens + room + carried.reported + told
        free = min(most - others, max(low - others, _STEPS_SHARE * goal.usable))
        if request.goal is None:
            # No ledger is needed where all steps fit.
            rest = extend_tail(index, kept.least, kept.missing, carried.told | kept.closed, low - others + room)
            free = free if rest else low - others + room
        steps = self._choose_steps(request, index, kept, carried.told, free)
        ledger = self._write_ledger(request, index, kept, carried, steps, rung=rung)
        unused = carried.room - ledger.tokens
        if steps.tail and low - (others - unused) > free + _LEFT_SHARE * goal.usable:
            steps = self._choose_steps(request, index, kept, carried.told, low - (others - unused))
            ledger = self._write_ledger(request, index, kept, carried, steps, rung=rung)
        gone = set(range(steps.tail)) - kept.staying - carried.told
        told_otherwise = sum(index.steps[i].tokens for i in gone) + sum(kept.missing.values())
        if not carried.ledgers and told_otherwise <= ledger.tokens:
            steps = replace(steps, tail=0)
            ledger = self._write_ledger(request, index, kept, carried, steps, rung=rung)
        replaced = {**_select_replaced(index, kept, steps), **steps.replaced}
        for place, words in ledger.words.items():
            replaced[place] = name_words(request, index, place, words, kept.replaced.get(place))
        reports = reports if ledger.sections else ()
        draft = PlanDraft(steps.tail, kept.staying, ledger, replaced, carried, reports, 0, kept.tokens)
        draft = replace(draft, tokens=count_draft(index, draft, self._count))
        return self._fill(request, index, draft, low - request.head)

    def _choose_steps(
        self, request: PlanRequest, index: ConversationIndex, kept: _KeptMessages, told: frozenset[int], room: float
    ) -> _ChosenSteps:
        """Choose the steps before those that stay that are sent, too, in `room` tokens.

        The newest are sent whole, but for superseded outputs. Those before them are sent with tombstones in place of
        their outputs.
        """
        told |= kept.closed
        for_pruned = min(max(room, 0.0), _TOMBSTONES_SHARE * (request.goal or request.budget).usable)
        tail = extend_tail(index, kept.least, kept.missing, told, room)
        if tail:
            tail = extend_tail(index, kept.least, kept.missing, told, room - for_pruned)
        superseded = prune_superseded(request, index, self._policy.pruning, range(tail, kept.least), self._count)
        if superseded and tail:
            room += count_saved_tokens(index, superseded, self._count)
            tail = extend_tail(index, kept.least, kept.missing, told, room - for_pruned)
            superseded = prune_superseded(request, index, self._policy.pruning, range(tail, kept.least), self._count)
        tail, pruned = self._prune_before(request, index, tail, kept.staying | told, for_pruned)
        return _ChosenSteps(tail, superseded | pruned, frozenset(pruned))

    def _write_ledger(
        self,
        request: PlanRequest,
        index: ConversationIndex,
        kept: _KeptMessages,
        carried: CarriedLedgers,
        steps: _ChosenSteps,
        *,
        rung: Rung,
    ) -> Ledger:
        replaced = _select_replaced(index, kept, steps)
        said = {at: dict(made.edit.arguments).get(BESIDE) for at, made in replaced.items() if at in index.spoken}
        others = {place for place in replaced if index.messages[place].structure.role != "tool"}
        shortened = {place: replaced[place].edit.text for place in others}
        shortened |= {place: text for place, text in said.items() if text is not None}
        tombstones = {place for place in replaced.keys() - others if replaced[place].edit.kind == "tombstone"}
        sent = {place: find_sent_form(request, place, is_tombstone=True) for place in tombstones}
        named = {place: form.edit.text for place, form in sent.items() if form is not None}
        pruned = steps.pruned | (tombstones - named.keys())
        scope = LedgerScope(steps.tail, kept.staying, carried, rung == "plan", shortened, pruned, named)
        return build_ledger(request, index, scope, self._count)

    def _prune_before(
        self, request: PlanRequest, index: ConversationIndex, tail: int, closed: frozenset[int], room: float
    ) -> tuple[int, dict[int, ReplacedMessage]]:
        """Return the step from which on steps are sent with tombstones in place of outputs, and these tombstones.

        Such steps, before `tail`, may have `room` tokens. Steps that are `closed` are not among them.
        """
        replaced: dict[int, ReplacedMessage] = {}
        while tail and tail - 1 not in closed:
            step = index.steps[tail - 1]
            made = {place: prune_output(request, index, place) for place in list_large_outputs(index, tail - 1)}
            room -= step.tokens - count_saved_tokens(index, made, self._count)
            if room < 0:
                break
            replaced |= made
            tail -= 1
        return tail, replaced

    def _replace_large(
        self, request: PlanRequest, index: ConversationIndex, words: UserForms
    ) -> tuple[ConversationIndex, UserForms]:
        """Return the index, and the forms, with what replaces messages that are too large to be sent whole."""
        index, words = self._replace(index, words, self._cut_new(request, index, words))
        return self._replace(index, words, self._outline_large(request, index))

    def _replace(
        self, index: ConversationIndex, words: UserForms, large: Mapping[int, ReplacedMessage]
    ) -> tuple[ConversationIndex, UserForms]:
        words = replace(words, large={**words.large, **large})
        return replace_messages(index, large, self._count), words

    def _cut_new(self, request: PlanRequest, index: ConversationIndex, words: UserForms) -> dict[int, ReplacedMessage]:
        """Return what replaces the largest of the new messages if they do not fit below the ceiling.

        These are the user's newest turn and what no model has seen. The others stay whole. Beside them there is room
        for what the user's words have in any case, and for the shortest form of the second newest turn.
        """
        usable, last = request.budget.usable, find_last_turn(index)
        must = {i for i in range(len(index.steps)) if i >= index.fresh or i in last or i in index.fixed}
        tokens = {place: index.messages[place].tokens for i in must for place in index.steps[i].places}
        loose = {place for place in tokens if place not in index.bound and can_be_cut(index, place)}
        # What the assistant said is cut before these are.
        trimmed = (
            tokens[place] if place in index.bound else min(_LONG_LEAST * count_values(index, place), tokens[place])
            for place in tokens.keys() - loose
        )
        others = request.head + sum(trimmed)
        least = others + sum(tokens[place] for place in loose)
        beside = self._count_words(request, index, words, must)
        if not usable or (least <= (1 - _LEDGER_NEXT) * usable and least + beside <= (1 - _LEDGER_LEAST) * usable):
            return {}
        sent = {place: made for place in loose if (made := find_sent_form(request, place))}
        recent = sum(step.tokens for step in index.steps[find_tail_step(index, RECENT_GROUPS) : index.fresh])
        cut = sum(tokens[place] for place in loose) - count_saved_tokens(index, sent, self._count)
        if sent and others + recent + cut + beside <= _TARGETS[0] * usable:
            return sent
        needed = others + beside + (_NEW_LEAST + _LEDGER_NEXT - 1) * usable
        room = max(_NEW_SHARE * usable - others - beside, _NEW_LEAST * usable - max(0, min(beside, needed)))
        most = find_cap((tokens[place] for place in loose), room)
        return {place: self._cut(request, index, place, most) for place in sorted(loose) if tokens[place] > most}

    def _count_words(
        self, request: PlanRequest, index: ConversationIndex, words: UserForms, must: Collection[int]
    ) -> float:
        """Count the tokens that the user's words need at the least, without those of the steps that `must` stay."""
        older = choose_older_forms(request, index, words.older, len(index.steps), share=0.0)
        needed = sum(each.tokens for each in older.shown if each.step not in must)
        room = WHOLE_SHARE * request.budget.usable - sum(index.steps[i].tokens for i in find_last_turn(index))
        second = {i: forms for i, forms in words.second.items() if i not in must}
        return needed + sum(forms[0 if forms[0].tokens <= room else -1].tokens for forms in second.values())

    def _cut(self, request: PlanRequest, index: ConversationIndex, place: int, most: float) -> ReplacedMessage:
        """Return what replaces a large message in about `most` tokens: as the active plan has it if that fits."""
        sent = find_sent_form(request, place)
        if sent is not None and self._count(sent.edit.text) + MESSAGE_FRAME <= most:
            return sent
        cut = self._outline if index.messages[place].structure.role == "tool" else self._fit_message
        return cut(request, index, place, most)

    def _outline_large(self, request: PlanRequest, index: ConversationIndex) -> dict[int, ReplacedMessage]:
        """Return file blocks for large outputs that a model has already seen whole (M12).

        Only so many of the newest steps are searched as could be sent.
        """
        most = min(self._policy.files.inline_tokens, _INLINE_SHARE * request.budget.usable)
        room = request.budget.usable
        large: dict[int, ReplacedMessage] = {}
        for i in reversed(range(index.fresh)):
            if i in index.fixed:
                continue
            outputs = [place for place in index.steps[i].places if index.messages[place].structure.role == "tool"]
            found = [place for place in outputs if index.messages[place].tokens > most]
            room -= index.steps[i].tokens - sum(index.messages[place].tokens for place in found)
            if room < 0:
                break
            large |= {place: self._outline(request, index, place) for place in found}
        return large

    def _fill(self, request: PlanRequest, index: ConversationIndex, draft: PlanDraft, low: float) -> PlanDraft:
        """Return a draft that shows more of its large messages, the newest first, while it is below the low mark."""
        replaced, tokens = dict(draft.replaced), draft.tokens
        last = {place for i in find_last_turn(index) for place in index.steps[i].places}
        for place in sorted(replaced, reverse=True):
            left = _WISHED * low - tokens
            if tokens >= _FILLED * low or not (replaced[place].edit.kind == "file" or place in last):
                continue
            made = self._cut(request, index, place, self._count(replaced[place].edit.text) + left)
            tokens += self._count(made.edit.text) - self._count(replaced[place].edit.text)
            replaced[place] = made
        return replace(draft, replaced=replaced, tokens=tokens)

    def _list_ways(
        self, request: PlanRequest, index: ConversationIndex, draft: PlanDraft, most: int, missing: float
    ) -> Iterator[tuple[int, Replacement]]:
        """Yield further replacements: trimmed texts and values of the assistant, then pruned outputs that were seen.

        Messages of the assistant above `most` tokens are trimmed, but for an end that its client rewrites. Outputs that
        give back all that is missing go before those that are older but smaller.
        """
        fresh = index.find_start(index.fresh)
        loose = [place for place in list_replaceable(index, draft) if place < fresh or not request.is_volatile]
        said = [place for place in loose if index.messages[place].structure.role == "assistant"]
        long = [place for place in said if index.messages[place].tokens > most]
        yield from ((place, partial(trim_message, most=most)) for place in order_by_size(index, long))
        outputs = order_outputs(index, (place for place in loose if place < fresh))
        superseded = find_superseded(index) if outputs else {}
        others = [place for place in outputs if place not in superseded]
        sizes = [index.messages[place].tokens for place in others]
        cap = find_cap(sizes, sum(sizes) - missing)
        large = order_by_size(index, (place for place in others if index.messages[place].tokens > cap))
        ordered = dict.fromkeys((*(place for place in outputs if place in superseded), *large, *others))
        yield from ((place, prune_output) for place in ordered)

    def _list_last_ways(self, index: ConversationIndex, draft: PlanDraft) -> Iterator[tuple[int, Replacement]]:
        """Yield the last replacements, the largest first: outputs that no model has seen, and other texts."""
        for place in order_by_size(index, list_replaceable(index, draft)):
            if index.messages[place].structure.role == "tool":
                yield place, self._outline
            elif is_text_only(index, place):
                yield place, shorten_message


def _select_replaced(index: ConversationIndex, kept: _KeptMessages, steps: _ChosenSteps) -> dict[int, ReplacedMessage]:
    """Return what replaces messages that stay and are sent: in the tail the user's prose is whole."""
    whole = {place for i, lacks in kept.missing.items() if lacks and i >= steps.tail for place in index.steps[i].places}
    replaced = {place: made for place, made in kept.replaced.items() if place not in whole}
    return select_sent(index, replaced, steps.tail, kept.staying)


def _is_led(index: ConversationIndex, step: int) -> bool:
    """Return whether a step stays for what leads to its outputs, or is beside them, and not for them."""
    places, start = index.steps[step].places, index.messages[index.steps[step].start]
    is_led = start.structure.is_leading or step in index.linked
    return is_led or bool(find_spoken(index, step)) or not index.begun.isdisjoint(places)
