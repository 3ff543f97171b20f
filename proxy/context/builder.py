"""What is sent in place of a conversation that has become too long: a ledger, what must stay, and the newest of it.

Rule: pure and deterministic; the same view gives the same plan. Steps stay whole or go whole; what the user said last,
what is pinned and what no model has seen yet stays word for word, unless it cannot (BEHAVIOUR B9 to B16).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import msgspec

from proxy.context.archive import Archive, Bounds, make_archive
from proxy.context.eviction import Marked, bury, cut_words, order_outputs, outline_output
from proxy.context.findings import Study, study
from proxy.context.generations import NOTHING, Heritage, inherit, leave_room
from proxy.context.outline import Parse
from proxy.context.policy import REAL_GROUPS, BuilderPolicy
from proxy.context.pruning import measure_gain, prune
from proxy.context.survey import Survey, find_fresh, find_tail, survey
from proxy.context.user_words import Older, Shown, show_older
from proxy.context.view import View
from proxy.model.plan import ContextPlan, Edit, Kept, Reference, Rung, Written

_ARCHIVE_SHARE, _ARCHIVE_MOST = 0.28, 16_000
_USERS_SHARE = 0.25
# Of what older words leave free, for ledgers tell of those that have gone.
_SPARE_SHARE = 0.25
_INLINE_SHARE = 0.25
# The part of what is usable that summaries may have together, and what one has room for at least: the shortest that is
# asked for has 300 tokens.
_REPORTS_SHARE, _REPORTS_LEAST = 0.04, 350
_FULL = 0.85
_FRAME = 4


_Way = Callable[[View, Survey, int], Marked]


class _Rank(msgspec.Struct, frozen=True, gc=False):
    """How much is given up: groups that stay, the archive's part of its size, old users, more groups, summaries."""

    groups: int
    archive: float
    has_users: bool = False
    has_more: bool = True
    has_reports: bool = False


_RANKS = (
    _Rank(REAL_GROUPS, 1.0, True, has_reports=True),
    _Rank(REAL_GROUPS, 1.0),
    _Rank(REAL_GROUPS, 0.5),
    _Rank(1, 0.5),
    _Rank(0, 0.5),
    _Rank(0, 0.15),
)
_LEAST, _NOTHING = _Rank(0, 0.15, has_more=False), _Rank(-1, 0.15, has_more=False)


class _Draft(msgspec.Struct, frozen=True, gc=False):
    """A plan in the making: the step where the tail begins, older steps that stay, messages that give way."""

    tail: int
    staying: frozenset[int]
    archive: Archive
    marked: Mapping[int, Marked]
    heritage: Heritage = NOTHING
    reports: tuple[Written, ...] = ()
    tokens: int = 0
    protected: int = 0


class ContextBuilder:
    """Builds plans; `count` gives the tokens of a text, `find` what there is to know of a message,
    `parse` the structure of a text that `context/outline` cannot tell itself.
    """

    def __init__(
        self, policy: BuilderPolicy, count: Callable[[str], int], find: Study = study, parse: Parse | None = None
    ) -> None:
        self._policy = policy
        self._count = count
        self._find = find
        self._outline = partial(outline_output, has_outline=policy.has_outlines, parse=parse)

    def build(self, view: View) -> ContextPlan:
        """The plan of an epoch that begins with this request."""
        seen = survey(view, self._policy, self._find)
        if plan := self._show_all_new(view, seen):
            return plan
        for rank in _RANKS:
            draft = self._draft(view, seen, rank)
            if view.head + draft.tokens <= view.budget.high:
                return _write_plan(view, seen, draft, "plan")
        return _write_plan(view, seen, shrink(view, seen, draft, self._count, self._outline), "plan")

    def _show_all_new(self, view: View, seen: Survey) -> ContextPlan | None:
        """The plan in which all that was never sent stays (B9), where that is more than what no model has answered.

        None where it leaves too little room to go on.
        """
        fresh = find_fresh(seen.messages, seen.steps, view.sent)
        if fresh == seen.fresh:
            return None
        seen = msgspec.structs.replace(seen, fresh=fresh)
        draft = self._draft(view, seen, _RANKS[0])
        is_much = view.budget.is_out_of_reach(view.head + draft.protected)
        if is_much or view.head + draft.tokens > _FULL * view.budget.high:
            return None
        return _write_plan(view, seen, draft, "plan")

    def minimal(self, view: View) -> ContextPlan:
        """The least that can be sent: a short ledger and the last turn."""
        policy = replace(self._policy, protect_turns=0, protected_tools=())
        view = msgspec.structs.replace(view, pinned=frozenset())
        seen = survey(view, policy, self._find)
        shrunk = shrink(view, seen, self._draft(view, seen, _LEAST), self._count, self._outline)
        if view.head + shrunk.tokens > view.budget.high:
            shrunk = self._draft(view, seen, _NOTHING)
        return _write_plan(view, seen, shrunk, "minimal")

    def _draft(self, view: View, seen: Survey, rank: _Rank) -> _Draft:
        least = find_tail(seen, rank.groups)
        usable = view.budget.usable
        older = show_older(view, seen, least, _USERS_SHARE * usable, self._count) if rank.has_users else Older()
        staying = seen.newest | seen.fixed | {each.step for each in older.shown}
        marked = self._outline_large(view, seen, least) | _mark_shortened(older.shown)
        draft = _Draft(least, staying, Archive((), "", 0), marked)
        protected = _measure(seen, draft, self._count)
        goal = view.goal or view.budget
        low = goal.find_low(view.head + protected)
        room = min(_ARCHIVE_SHARE * goal.usable + _SPARE_SHARE * older.spare, _ARCHIVE_MOST) * rank.archive
        heritage = inherit(seen, view.frozen, least, room, self._count)
        reports = choose_reports(view, heritage) if rank.has_reports else ()
        told = sum(self._count(each.text) + _FRAME for each in reports)
        heritage = leave_room(heritage, told)
        free = low - view.head - protected - room - heritage.reported - told
        tail = extend_tail(seen, least, staying, heritage.told, free) if rank.has_more else least
        pruned = prune(view, seen, self._policy, range(tail, least), self._count)
        if pruned:
            free += measure_gain(seen, pruned, self._count)
            tail = extend_tail(seen, least, staying, heritage.told, free)
            pruned = prune(view, seen, self._policy, range(tail, least), self._count)
            marked |= pruned
        archive = make_archive(view, seen, Bounds(tail, staying, heritage), self._count)
        draft = _Draft(tail, staying, archive, marked, heritage, reports if archive.text else (), 0, protected)
        return msgspec.structs.replace(draft, tokens=_measure(seen, draft, self._count))

    def _outline_large(self, view: View, seen: Survey, least: int) -> dict[int, Marked]:
        """Large outputs of the newest groups that a model has seen whole, as blocks (M12)."""
        most = min(self._policy.inline_tokens, _INLINE_SHARE * view.budget.usable)
        return {
            place: self._outline(view, seen, place)
            for i in range(least, seen.fresh)
            if i not in seen.fixed
            for place in range(seen.steps[i].start, seen.steps[i].stop)
            if seen.messages[place].shape.role == "tool" and seen.messages[place].tokens > most
        }


def _mark_shortened(shown: Iterable[Shown]) -> dict[int, Marked]:
    return {edit.place: Marked(edit, each.references) for each in shown for edit in each.edits}


def extend_tail(seen: Survey, least: int, staying: frozenset[int], told: frozenset[int], room: float) -> int:
    """The step at which the tail begins where so many more tokens may be in it."""
    tail = least
    while tail and tail - 1 not in told:
        room -= 0 if tail - 1 in staying else seen.steps[tail - 1].tokens
        if room < 0:
            break
        tail -= 1
    return tail


def shrink(view: View, seen: Survey, draft: _Draft, count: Callable[[str], int], outline: _Way) -> _Draft:
    """The same draft with so many messages given way that it fits, as far as that can be."""
    tokens = draft.tokens
    marked = dict(draft.marked)
    for place, mark in _list_ways(seen, draft, outline):
        if view.head + tokens <= _FULL * view.budget.high:
            break
        made = mark(view, seen, place)
        gained = measure_gain(seen, {place: made}, count)
        if gained > 0 and place not in marked:
            tokens -= gained
            marked[place] = made
    return msgspec.structs.replace(draft, marked=marked, tokens=tokens)


def _list_ways(seen: Survey, draft: _Draft, outline: _Way) -> Iterator[tuple[int, _Way]]:
    """What may give way, in order: outputs that were seen, those that were not, the largest words of others."""
    kept = [i for i in range(len(seen.steps)) if (i >= draft.tail or i in draft.staying) and i not in seen.users[-1:]]
    loose = [place for i in kept for place in _list_places(seen, i) if place not in seen.bound]
    fresh = seen.steps[seen.fresh].start if seen.fresh < len(seen.steps) else len(seen.messages)
    yield from ((place, bury) for place in order_outputs(seen, (place for place in loose if place < fresh)))
    by_size = sorted(loose, key=lambda place: (-seen.messages[place].tokens, place))
    yield from ((place, outline) for place in by_size if seen.messages[place].shape.role == "tool")
    yield from ((place, cut_words) for place in by_size if _is_plain(seen, place))


def _is_plain(seen: Survey, place: int) -> bool:
    """Whether a message is words alone, which may be cut."""
    shape = seen.messages[place].shape
    return shape.role in ("user", "assistant") and not (shape.calls or shape.results or shape.reasoning)


def _list_places(seen: Survey, i: int) -> range:
    return range(seen.steps[i].start, seen.steps[i].stop)


def _measure(seen: Survey, draft: _Draft, count: Callable[[str], int]) -> int:
    """The tokens of a draft, behind the preamble."""
    tokens = sum(step.tokens for i, step in enumerate(seen.steps) if i >= draft.tail or i in draft.staying)
    tokens -= measure_gain(seen, draft.marked, count)
    tokens += sum(count(each.text) + _FRAME for each in draft.reports)
    return tokens + draft.heritage.tokens + (draft.archive.tokens + _FRAME if draft.archive.text else 0)


def _write_plan(view: View, seen: Survey, draft: _Draft, rung: Rung) -> ContextPlan:
    if not draft.archive.text and not draft.marked and not draft.heritage.ledgers:
        return ContextPlan(0, (), (), sum(each.tokens for each in seen.messages), draft.protected, rung)
    tail = max([draft.tail, *(i + 1 for i in range(draft.tail, len(seen.steps)) if _gives_way(seen, draft, i))])
    through = seen.steps[tail].start if tail < len(seen.steps) else len(seen.messages)
    references = {each.id: each for each in _list_references(draft)}
    edits = tuple(_list_edits(seen, draft, tail))
    return ContextPlan(through, edits, tuple(references.values()), draft.tokens, draft.protected, rung)


def find_reports_room(usable: int) -> int:
    """The tokens that summaries may have together, of so many that are usable."""
    return max(_REPORTS_LEAST, int(_REPORTS_SHARE * usable))


def choose_reports(view: View, heritage: Heritage) -> tuple[Written, ...]:
    """The summaries that come with this epoch: those of what no summary that stays tells of, the newest that fit.

    One that was merged of some that stay has to wait until these go with their ledgers.
    """
    reached = max((each.stop for each in heritage.written if each.report), default=0)
    start = max((each.stop for each in heritage.ledgers), default=0)
    room = find_reports_room(view.budget.usable) - heritage.reported
    chosen: list[Written] = []
    for each in reversed(view.reports):
        room -= each.tokens + _FRAME
        if each.start < reached or room < 0:
            break
        chosen.append(Written(each.text, start, max(start, each.stop), each.id))
    return tuple(reversed(chosen))


def _gives_way(seen: Survey, draft: _Draft, i: int) -> bool:
    return any(place in draft.marked for place in _list_places(seen, i))


def _list_edits(seen: Survey, draft: _Draft, tail: int) -> Iterator[Edit]:
    """Summaries, ledgers, and what stays: each ledger before what came after its beginning, summaries before it.

    So the next epoch, which only adds a ledger, leaves all before that as it was, words of the user between ledgers
    included, and the provider's cache holds them.
    """
    ours = [*draft.heritage.written, *draft.reports, *_write_ledger(seen, draft)]
    for i in range(tail):
        if i >= draft.tail or i in draft.staying:
            while ours and ours[0].start <= seen.steps[i].start:
                yield ours.pop(0)
            for place in _list_places(seen, i):
                yield draft.marked[place].edit if place in draft.marked else Kept(place)
    yield from ours


def _write_ledger(seen: Survey, draft: _Draft) -> Iterator[Written]:
    if draft.archive.text:
        start = draft.heritage.ledgers[-1].stop if draft.heritage.ledgers else 0
        stop = seen.steps[draft.tail].start if draft.tail < len(seen.steps) else len(seen.messages)
        yield Written(draft.archive.text, start, stop)


def _list_references(draft: _Draft) -> Iterator[Reference]:
    yield from draft.heritage.references
    for entry in draft.archive.entries:
        yield Reference(entry.reference, entry.page.start, entry.page.stop, entry.page.offset)
    for made in draft.marked.values():
        yield from made.references
