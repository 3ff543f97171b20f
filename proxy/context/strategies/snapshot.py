"""The strategy `snapshot`: memory in place of whole turns, then the newest turns word for word.

A context grows until a prompt has filled most of its budget. Then it begins anew: with a message of ours that shows
what memory has of the turns that leave, and the user's rules in them, the newest turns before the current one
(`SnapshotPolicy.raw_tail_turns`), and the current turn. The user's words of the two newest turns always stay. A turn
leaves only if memory has been made of it. Of the turns before the current one fewer stay where they do not fit. What
whole turns cannot free is freed within the current turn and the one before it, as in `epochs`.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from proxy.context.budget import MESSAGE_FRAME, Count
from proxy.context.conversation import (
    ConversationIndex,
    CountedMessage,
    PlanRequest,
    SnapshotPolicy,
    add_paired,
    list_turn_starts,
)
from proxy.context.memory.bundle import render_turns
from proxy.context.memory.traces import MessageOrigin, list_traces, list_turns
from proxy.context.references import NOTE_ACCESS, NOTE_RECALL
from proxy.context.tool_outputs import ReplacedMessage, count_saved_tokens
from proxy.context.user_messages import MessageForms, list_shortened, list_user_forms
from proxy.context.user_rules import format_rules, list_unsent_rules
from proxy.model import Value
from proxy.model.epoch import ContextPlan, Edit, Kept, Reference, Written
from proxy.model.messages import LEDGER_HEAD

MEMORY_HEADER = f"[{LEDGER_HEAD}: earlier turns, told from memory by a proxy; not the words of the user."
# The shares of the soft mark, at which memory is made, up to which messages stay word for word: with turns before the
# current one among them, and the current one alone.
_TAIL_SHARE, _CURRENT_SHARE = 0.5, 0.6
# The last places at which what stays may begin, as turns before the current one, where not even that one fits.
_CUT_TURNS = 1

Build = Callable[[PlanRequest], ContextPlan]
"""Plans an epoch of the strategy `epochs`."""
Prune = Callable[[PlanRequest, ConversationIndex, Iterable[int]], Mapping[int, ReplacedMessage]]
"""Returns tombstones for the outputs of steps that stay for what is beside these outputs, by place."""


class Tail(Value):
    """The place from which on messages stay, and whether they all fit word for word."""

    start: int
    is_whole: bool


def choose_tail(
    starts: Sequence[int], count: Callable[[int], int], soft: int, turns: int, covered: int | None = None
) -> Tail:
    """Choose the place at which what stays of a conversation begins, which is the start of a turn.

    `starts` are those of all turns, `count` returns the tokens of what is sent if messages stay from a place on, `soft`
    is the mark at which memory is made, `turns` the wished turns before the current one. Memory has been made of the
    first `covered` messages; None: of all.
    """
    known = [place for place in starts if covered is None or place <= covered]
    wished = starts[max(0, len(starts) - 1 - turns) :]
    for place in [place for place in wished if place in known] or known[-1:]:
        share = _CURRENT_SHARE if place == starts[-1] else _TAIL_SHARE
        if count(place) <= share * soft:
            return Tail(place, is_whole=True)
    last = starts[max(0, len(starts) - 1 - min(turns, _CUT_TURNS))] if starts else 0
    return Tail(max((place for place in known if place <= last), default=0), is_whole=False)


class _Beginning(Value):
    """What is sent in place of the messages before step `step`: our message, and `earlier` steps that stay.

    `replaced` are replaced outputs among these, by place.
    """

    step: int
    earlier: tuple[int, ...]
    replaced: Mapping[int, ReplacedMessage]
    text: str
    tokens: int


def plan_snapshot(
    request: PlanRequest,
    index: ConversationIndex,
    policy: SnapshotPolicy,
    count: Count,
    build: Build,
    *,
    prune: Prune,
) -> ContextPlan | None:
    """Return the plan of an epoch, or None where there is no turn that may leave: then only `build` frees anything."""
    starts = list_turn_starts(request.messages)
    if request.memory is None or not starts:
        return None

    second = list_user_forms(request, index, count).second

    def begin(place: int) -> _Beginning:
        start = starts[-1] if policy.tail == "text" else place
        return _begin(request, index, place, start, count, prune=prune, second=second)

    def weigh(place: int) -> int:
        made = begin(place)
        return request.head + made.tokens + sum(each.tokens for each in index.steps[made.step :])

    covered = request.memory.covered
    tail = choose_tail(starts, weigh, request.budget.soft, policy.raw_tail_turns, covered)
    ours = _find_memory(request.frozen)
    if not tail.is_whole and ours is not None and tail.start < ours.stop <= covered and ours.stop in starts:
        tail = Tail(ours.stop, is_whole=False)  # a turn that has left does not come back in part
    made = begin(tail.start)
    start = index.find_start(made.step)
    if not start:
        return None
    if tail.is_whole:
        return _make_plan(request, index, made)
    if any(call < made.step <= output for call, output in index.pairs):
        return None  # a call and its late output stay or go together
    return _make_zones(request, index, made, build)


def _begin(
    request: PlanRequest,
    index: ConversationIndex,
    place: int,
    start: int,
    count: Count,
    *,
    prune: Prune,
    second: MessageForms,
) -> _Beginning:
    """Return what stands before the message `start` at which a turn begins. From `place` on, turns are sent as text."""
    assert request.memory is not None, "a plan without memory begins with no message of it"
    step = bisect_right(index.steps, start, key=lambda each: each.stop)
    newest = {i for i in index.newest if i < step and index.steps[i].start < place}
    earlier = tuple(sorted(add_paired(index, step, frozenset(i for i in index.fixed if i < step) | newest)))
    replaced = {**prune(request, index, earlier), **_shorten_newest(request, second, newest)}
    left = min(place, index.find_start(step)) - sum(len(index.steps[i].places) for i in earlier)
    access = NOTE_RECALL if request.has_tool else NOTE_ACCESS
    note = f"{MEMORY_HEADER} {left} messages that stood here are stored.{access}]"
    recent = _render_recent(request.messages, place, start)
    shown, gone = "\n\n".join(filter(None, (note, request.memory.text, recent))), set(range(step)) - {*earlier}
    shortened = {at: made.edit.text for at, made in replaced.items() if index.messages[at].structure.role == "user"}
    rules = format_rules(list_unsent_rules(index, gone, shortened, (shown,)), request.budget.usable, count)
    text = f"{shown}\n\n{rules}" if rules else shown
    tokens = count(text) + MESSAGE_FRAME + sum(index.steps[i].tokens for i in earlier)
    tokens -= count_saved_tokens(index, replaced, count)
    return _Beginning(step, earlier, replaced, text, tokens)


def _shorten_newest(request: PlanRequest, second: MessageForms, steps: Collection[int]) -> dict[int, ReplacedMessage]:
    """Return what replaces those of the user's newest turns that would leave too little room, by place."""
    room, replaced = _CURRENT_SHARE * _TAIL_SHARE * request.budget.soft, dict[int, ReplacedMessage]()
    for i, forms in second.items():
        if i in steps:
            chosen = next((form for form in forms if form.tokens <= room), forms[-1])
            replaced |= list_shortened([chosen])
    return replaced


def _render_recent(messages: Sequence[CountedMessage], place: int, stop: int) -> str:
    """Render the turns from one place up to another as text. They have the numbers that they have in memory."""
    if place >= stop:
        return ""
    ids = {turn.id for turn in list_turns(messages) if place <= turn.start < stop}
    traces = list_traces(messages[:stop], [MessageOrigin(0.0, "", b"")] * stop)
    return render_turns([each for each in traces if each.turn_id in ids])


def _make_plan(request: PlanRequest, index: ConversationIndex, made: _Beginning) -> ContextPlan:
    """Return the plan in which all from a step on stays."""
    start = index.find_start(made.step)
    tokens = made.tokens + sum(each.tokens for each in index.steps[made.step :])
    least = made.tokens + sum(each.tokens for each in index.steps[max(made.step, index.fresh) :])
    return ContextPlan(start, tuple(_list_edits(index, made)), tuple(_list_references(made)), tokens, least)


def _list_edits(index: ConversationIndex, made: _Beginning) -> Iterator[Edit]:
    yield Written(made.text, 0, index.find_start(made.step))
    for place in (place for i in made.earlier for place in index.steps[i].places):
        yield made.replaced[place].edit if place in made.replaced else Kept(place)


def _list_references(made: _Beginning) -> Iterator[Reference]:
    yield from (reference for each in made.replaced.values() for reference in each.references)


def _make_zones(request: PlanRequest, index: ConversationIndex, made: _Beginning, build: Build) -> ContextPlan:
    """Return the plan in which what a step begins is cut as a conversation of its own."""
    start = index.find_start(made.step)
    plan = build(_cut_request(request, start, made.tokens))
    edits = (*_list_edits(index, made), *(_move(edit, start) for edit in plan.edits))
    references = (*_list_references(made), *(_move_reference(each, start) for each in plan.references))
    return ContextPlan(
        plan.through + start,
        edits,
        references,
        plan.tokens + made.tokens,
        plan.protected + made.tokens,
        plan.rung,
        plan.beyond,
    )


def without_memory(request: PlanRequest) -> PlanRequest:
    """Return a request for a plan that carries on no message of memory: its ledger tells everything."""
    return request if _find_memory(request.frozen) is None else replace(request, frozen=None)


def _find_memory(plan: ContextPlan | None) -> Written | None:
    """Return the message of memory in a plan."""
    ours = (edit for edit in (plan.edits if plan is not None else ()) if isinstance(edit, Written))
    return next((edit for edit in ours if edit.text.startswith(MEMORY_HEADER)), None)


def _cut_request(request: PlanRequest, start: int, tokens: int) -> PlanRequest:
    """Return a request for a plan of the messages from a place on, behind others of so many tokens."""

    def name(begin: int, stop: int, offset: int) -> str:
        return request.name(begin + start, stop + start, offset)

    return replace(
        request,
        messages=request.messages[start:],
        head=request.head + tokens,
        name=name,
        pinned=_shift(request.pinned, start),
        unkept=_shift(request.unkept, start),
        frozen=_cut_plan(request.frozen, start),
        reports=(),
        sent=None if request.sent is None else max(0, request.sent - start),
        strategy="epochs",
        memory=None,
    )


def _shift(places: frozenset[int], start: int) -> frozenset[int]:
    return frozenset(place - start for place in places if place >= start)


def _cut_plan(plan: ContextPlan | None, start: int) -> ContextPlan | None:
    """Return what the active plan makes of the messages from a place on, None if it begins at another one."""
    ours = _find_memory(plan)
    if plan is None or ours is None or ours.stop != start:
        return None
    later = [edit for edit in plan.edits if (edit.start if isinstance(edit, Written) else edit.place) >= start]
    references = [_move_reference(each, -start) for each in plan.references if each.start >= start]
    edits = tuple(_move(edit, -start) for edit in later)
    return ContextPlan(plan.through - start, edits, tuple(references), plan.tokens)


def _move_reference(reference: Reference, by: int) -> Reference:
    return replace(reference, start=reference.start + by, stop=reference.stop + by)


def _move(edit: Edit, by: int) -> Edit:
    """Return an edit whose messages are so many places further on."""
    if isinstance(edit, Written):
        return replace(edit, start=edit.start + by, stop=edit.stop + by)
    return replace(edit, place=edit.place + by)
