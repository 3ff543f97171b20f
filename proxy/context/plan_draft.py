"""A draft of a plan: its tokens, what may still be replaced in it, and its edits in the order they are sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from proxy.context.budget import MESSAGE_FRAME, Count, take_fitting
from proxy.context.conversation import ConversationIndex, PlanRequest, find_last_turn, find_spoken
from proxy.context.ledger import NO_LEDGERS, CarriedLedgers
from proxy.context.ledger_builder import Ledger
from proxy.context.tool_outputs import ReplacedMessage, count_saved_tokens
from proxy.model import Value
from proxy.model.epoch import Compacted, ContextPlan, Edit, Kept, Reference, Rung, Written

# The share of the usable tokens that all summaries may have together, and the least in tokens: the shortest requested
# summary has 300. It is a quarter of the ledger's share: replaying `swe_day` at 32K, half of it costs half a point more
# and pushes 20 % of the far references out of the ledger, and no less of the work is told with a quarter.
_REPORTS_SHARE, _REPORTS_LEAST = 0.07, 350
# The share that a provider's own compaction may have: as much as a ledger. Nobody can ask for a shorter one.
_COMPACTED_SHARE = 0.2
Replacement = Callable[[PlanRequest, ConversationIndex, int], ReplacedMessage]


class PlanDraft(Value):
    """A draft of a plan."""

    tail: int  # the step at which the tail begins
    staying: frozenset[int]  # older steps that stay
    ledger: Ledger
    replaced: Mapping[int, ReplacedMessage]  # replaced messages, by place
    carried: CarriedLedgers = NO_LEDGERS
    reports: tuple[Written, ...] = ()
    tokens: int = 0
    protected: int = 0


def shrink_draft(
    request: PlanRequest,
    index: ConversationIndex,
    draft: PlanDraft,
    ways: Iterable[tuple[int, Replacement]],
    *,
    most: float,
    count: Count,
) -> PlanDraft:
    """Return the draft with messages replaced in the order of `ways`, until it has at most `most` tokens."""
    tokens = draft.tokens
    replaced = dict(draft.replaced)
    for place, make in ways:
        if request.head + tokens <= most:
            break
        made = make(request, index, place)
        before = {place: replaced[place]} if place in replaced else {}
        gained = count_saved_tokens(index, {place: made}, count) - count_saved_tokens(index, before, count)
        if gained > 0:
            tokens -= gained
            replaced[place] = made
    return replace(draft, replaced=replaced, tokens=tokens)


def list_replaceable(index: ConversationIndex, draft: PlanDraft) -> list[int]:
    """Return the places of sent messages that may still be replaced, which excludes the user's newest turn.

    Trimmed messages of the assistant are among them: they may be trimmed further.
    """
    kept = [i for i in range(len(index.steps)) if i >= draft.tail or i in draft.staying]
    replaced = {place for place in draft.replaced if index.messages[place].structure.role != "assistant"}
    done = index.bound | replaced | set(_list_own(index))
    return [place for i in kept for place in index.steps[i].places if place not in done]


def _list_own(index: ConversationIndex) -> Iterator[int]:
    """Yield the places of the user's newest turn, unless its words stand beside outputs, which may be replaced."""
    for i in find_last_turn(index):
        yield from () if find_spoken(index, i) else index.steps[i].places


def count_draft(index: ConversationIndex, draft: PlanDraft, count: Count) -> int:
    """Return the tokens of a draft, without the preamble."""
    tokens = sum(step.tokens for i, step in enumerate(index.steps) if i >= draft.tail or i in draft.staying)
    tokens -= count_saved_tokens(index, draft.replaced, count)
    tokens += sum(count_report(each, count) for each in draft.reports)
    return tokens + draft.carried.tokens + draft.ledger.tokens


def count_report(report: Written, count: Count) -> int:
    """Return the tokens of a summary as it is sent."""
    return report.tokens if isinstance(report, Compacted) else count(report.text) + MESSAGE_FRAME


def make_plan(
    request: PlanRequest, index: ConversationIndex, draft: PlanDraft, rung: Rung, wished: int = 0
) -> ContextPlan:
    """Return the plan of a draft; `wished` are the tokens, preamble included, of all that should have stayed."""
    beyond = wished if request.budget.is_ceiling_unreachable(wished) else 0
    if not draft.ledger.sections and not draft.replaced and not draft.carried.ledgers:
        return ContextPlan(0, (), (), sum(each.tokens for each in index.messages), draft.protected, rung, beyond)
    later = range(draft.tail, len(index.steps))
    tail = max([draft.tail, *(i + 1 for i in later if not draft.replaced.keys().isdisjoint(index.steps[i].places))])
    # a history without all that a summary covers must not be sent under it
    covered = max((each.stop for each in (*draft.reports, *draft.carried.written) if each.report), default=0)
    tail = max(tail, sum(step.start < covered for step in index.steps))
    through = index.find_start(tail)
    references = {each.id: each for each in _list_references(draft)}
    edits = tuple(list_edits(index, draft, tail))
    return ContextPlan(through, edits, tuple(references.values()), draft.tokens, draft.protected, rung, beyond)


def compute_summaries_budget(usable: int) -> int:
    """Return the tokens that all summaries may have together, given the usable tokens."""
    return max(_REPORTS_LEAST, int(_REPORTS_SHARE * usable))


def can_show_compaction(tokens: int, usable: int) -> bool:
    """Return whether a provider's own compaction of so many tokens is shown."""
    return tokens <= _COMPACTED_SHARE * usable


def choose_compaction(request: PlanRequest) -> tuple[Compacted, ...]:
    """Return the provider's own compaction if there is one that fits. It precedes everything, ledgers included."""
    newest = [
        each for each in request.reports if each.block and can_show_compaction(each.tokens, request.budget.usable)
    ]
    return tuple(Compacted(each.text, 0, each.stop, each.id, each.block, each.tokens) for each in newest[-1:])


def choose_summaries(request: PlanRequest, carried: CarriedLedgers) -> tuple[Written, ...]:
    """Choose the summaries that this epoch adds: the newest that fit, of messages that no carried summary covers.

    A summary that was merged from carried ones has to wait until these are dropped together with their ledgers.
    """
    reached = max((each.stop for each in carried.written if each.report), default=0)
    start = max((each.stop for each in carried.ledgers), default=0)
    ours = [each for each in request.reports if not each.block]
    newest = takewhile(lambda each: each.start >= reached, reversed(ours))
    room = compute_summaries_budget(request.budget.usable) - carried.reported
    chosen = take_fitting(newest, room, lambda each: each.tokens + MESSAGE_FRAME)
    return tuple(Written(each.text, start, max(start, each.stop), each.id) for each in reversed(chosen))


def list_edits(index: ConversationIndex, draft: PlanDraft, tail: int) -> Iterator[Edit]:
    """Yield summaries, ledgers and kept messages: each ledger before all that follows its start, after its summaries.

    So the next epoch, which only adds a ledger, does not change what precedes it, user messages between ledgers
    included, and the provider's cache still has that. A provider's own compaction comes first.
    """
    yield from (each for each in draft.reports if isinstance(each, Compacted))
    reports = (each for each in draft.reports if not isinstance(each, Compacted))
    written = [*draft.carried.written, *reports, *draft.ledger.sections]
    sections = sorted((each.start, each.stop) for each in written if not each.report)
    ours = sorted(written, key=lambda each: (_find_start(each, sections), not each.report))
    for i in range(tail):
        if i >= draft.tail or i in draft.staying:
            while ours and _find_start(ours[0], sections) <= index.steps[i].start:
                yield ours.pop(0)
            for place in index.steps[i].places:
                yield draft.replaced[place].edit if place in draft.replaced else Kept(place)
    yield from ours


def _find_start(written: Written, sections: Sequence[tuple[int, int]]) -> int:
    """Return the place before which a ledger's section or a summary stands: with the section that it belongs to."""
    if not written.report:
        return written.start
    return next((start for start, stop in sections if stop > written.start), written.start)


def _list_references(draft: PlanDraft) -> Iterator[Reference]:
    yield from draft.carried.references
    yield from draft.ledger.references
    for made in draft.replaced.values():
        yield from made.references


def extend_tail(
    index: ConversationIndex, least: int, staying: Mapping[int, int], told: frozenset[int], room: float
) -> int:
    """Return the step at which the tail begins if it may have `room` more tokens.

    `staying` are steps that are sent in any case, with the tokens of their prose that are not: the tail has all of it.
    """
    tail = least
    while tail and tail - 1 not in told:
        room -= staying.get(tail - 1, index.steps[tail - 1].tokens)
        if room < 0:
            break
        tail -= 1
    return tail
