"""Validity of a rewritten history: finding the faults that the client's own history does not have.

The client's history is judged once, run by run, and kept (`judge_history`, `extend_history`). A rewritten history
shares its runs, so that only new messages, and the runs that they cut into, are judged again. A fault that the client
sent itself is never reported: the upstream decides about it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Literal

import msgspec

from proxy.model.messages import MessageStructure, joins_run, list_led, list_run_starts

MOST_MARKERS = 4

Kind = Literal[
    "flaw",  # a message of ours that is wrong by itself, as the subject says
    "missing",  # a call without its result directly after it
    "misplaced",  # a result that is not directly after its call
    "unanswered",  # a call without a result
    "orphan",  # a result without a call
    "duplicate",  # an id of more than one call
    "reasoning",  # reasoning of a kept message that is lost, changed or separated from its call
    "instructions",  # a system message that we wrote, or one of the client's that is gone and does not stand later
    "protected",  # a message that is lost, or changed though it is pinned: the newest of the user may become shorter
    "userless",  # no user message at all
    "beginning",  # the first message is the assistant's or a result
    "position",  # a message behind which only the assistant's may stand, and another one does
    "turn",  # the turn under way does not begin with thinking, which its request demands
    "prefill",  # the last message is the assistant's, which a model would continue
    "alternation",  # two of a role in a row, if the upstream's template refuses that
    "markers",  # too many cache markers, a longer retention after a shorter one, or all markers lost
    "json",  # the word "json", which the output format requires, is gone
]
NOWHERE = -1


class RequestFault(msgspec.Struct, frozen=True, gc=False, order=True):
    """A fault of a rewritten history."""

    kind: Kind
    subject: str = ""  # an id, or a word that describes what is wrong
    place: int = NOWHERE  # in the client's messages; NOWHERE: in the whole history


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The demands that a format, an upstream and the rest of the request make on the messages.

    `is_itemised`: calls, texts and reasoning are items of their own, so the results come after all calls of a run.
    """

    is_itemised: bool = False
    is_alternating: bool = False  # whether the upstream's template refuses two messages of a role in a row
    needs_thinking: bool = False  # whether a turn under way has to begin with thinking
    needs_json: bool = False  # whether the output format requires the word "json"
    markers: tuple[str, ...] = ()  # retentions of the cache markers before the messages, in order


class Splice(msgspec.Struct, frozen=True, gc=False):
    """A replacement of the client's messages from `start` up to `stop`.

    `whole` are the places of those among them that are contained verbatim in one of ours, `shortened` of those that are
    contained in a shorter form; from `marked` on, their cache markers are sent with ours, if it is set.
    """

    start: int
    stop: int
    structures: tuple[MessageStructure, ...] = ()
    whole: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()
    marked: int = NOWHERE

    def find_place(self, index: int) -> int:
        """Return the place of the client's message that one of ours replaces; the first unless they map one to one."""
        is_one_for_one = len(self.structures) == self.stop - self.start
        return self.start + index if is_one_for_one else self.start


class Run(msgspec.Struct, frozen=True, gc=False):
    """A run of messages (see `joins_run`) with its faults."""

    structures: tuple[MessageStructure, ...]
    places: Sequence[int]
    calls: tuple[str, ...]
    results: tuple[str, ...]
    markers: tuple[tuple[int, str], ...]  # with their places
    faults: tuple[RequestFault, ...]
    has_user: bool
    has_reasoning: bool
    says_json: bool
    is_leading: bool = False  # only a run of the assistant may follow


class MessageRuns(msgspec.Struct, frozen=True, gc=False):
    """A client's messages in runs.

    The last two fields are needed on every request, and kept so that the messages need not be searched.
    """

    count: int
    runs: list[Run]
    starts: list[int]  # the places where the runs begin
    is_itemised: bool
    odd: tuple[int, ...] = ()  # places of system messages, of messages with flaws, and of items that always stay
    newest_user: int = NOWHERE  # place of the newest user message

    def find_run(self, place: int) -> int:
        """Return the index of the run that contains the message at `place`."""
        return bisect_right(self.starts, place) - 1

    def structure_at(self, place: int) -> MessageStructure:
        """Return the structure of the message at `place`."""
        index = self.find_run(place)
        return self.runs[index].structures[place - self.starts[index]]


def judge_history(structures: Sequence[MessageStructure], *, is_itemised: bool = False) -> MessageRuns:
    """Judge a client's history from its beginning."""
    return extend_history(MessageRuns(0, [], [], is_itemised), 0, structures)


def extend_history(known: MessageRuns, count: int, structures: Sequence[MessageStructure]) -> MessageRuns:
    """Judge a history that shares its first `count` messages with a known one and continues with these.

    The run at the seam is judged again if it is cut or continued. The runs before it are shared.
    """
    kept = known.find_run(count - 1) if count else 0
    start = known.starts[kept] if count else 0
    seam = known.runs[kept].structures[: count - start] if count else ()
    if (
        seam
        and len(seam) == len(known.runs[kept].structures)
        and not (structures and joins_run(seam[-1], structures[0]))
    ):
        kept, start, seam = kept + 1, count, ()
    runs = list(_judge_runs((*seam, *structures), range(start, count + len(structures)), known.is_itemised))
    starts = known.starts[:kept] + [run.places[0] for run in runs]
    before = known.runs[:kept]
    users = [run.places[0] for run in runs if run.has_user]  # each of the user's messages begins a run
    if not users:
        older = (run.places[0] for run in reversed(before) if run.has_user)
        users = [known.newest_user if known.newest_user < start else next(older, NOWHERE)]
    return MessageRuns(
        count + len(structures),
        before + runs,
        starts,
        known.is_itemised,
        known.odd[: bisect_left(known.odd, start)] + _list_odd(runs),
        users[-1],
    )


def _list_odd(runs: Iterable[Run]) -> tuple[int, ...]:
    placed = [pair for run in runs for pair in zip(run.places, run.structures, strict=True)]
    return tuple([place for place, structure in placed if structure.flaws or _must_stay(structure)])


def _must_stay(structure: MessageStructure) -> bool:
    return structure.role == "system" or structure.stays == "always"


def find_faults(
    history: MessageRuns, splices: Sequence[Splice], rules: Rules, protected: Iterable[int] = ()
) -> tuple[RequestFault, ...]:
    """Return the faults of a rewritten history that the client's own does not have.

    The splices are in order and do not overlap. `protected` are the places of messages that must be sent unchanged, in
    addition to the newest user message, which at most a shorter one may replace.
    """
    if not splices:
        return ()
    rewritten = _Rewriting(history)
    rewritten.write(splices)
    found = _judge_whole(rewritten.runs, rules)
    found.update(fault for run in rewritten.fresh for fault in run.faults)
    if found:
        found -= _judge_whole(history.runs, rules).union(*(run.faults for run in history.runs if run.faults))
    found.update(_judge_reasoning(history, rewritten.fresh))
    found.update(_judge_ids(history, splices) if history.is_itemised else ())
    found.update(_judge_splices(history, splices, protected), find_marker_faults(history, splices, rules))
    return tuple(sorted(found))


def find_marker_faults(history: MessageRuns, splices: Sequence[Splice], rules: Rules) -> set[RequestFault]:
    """Return the faults of the cache markers of a rewritten history that the client's own does not have."""
    placed = [pair for run in history.runs if run.markers for pair in run.markers]
    starts = [splice.start for splice in splices]
    kept = [
        (at, mark)
        for at, mark in placed
        if not (n := bisect_right(starts, at)) or at >= splices[n - 1].stop or at >= splices[n - 1].marked > NOWHERE
    ]
    ours = [(each.start, marker) for each in splices for structure in each.structures for marker in structure.markers]
    own, sent = ([marker for _, marker in each] for each in (placed, sorted([*ours, *kept], key=itemgetter(0))))
    found = set(_judge_markers([*rules.markers, *sent])).difference(_judge_markers([*rules.markers, *own]))
    return found | {RequestFault("markers", "lost")} if own and not sent else found


class _Rewriting:
    """A builder of the runs of a rewritten history. It reuses the client's runs, and judges new ones."""

    def __init__(self, history: MessageRuns) -> None:
        self.runs: list[Run] = []
        self.fresh: list[Run] = []
        self._history = history
        self._shapes: list[MessageStructure] = []
        self._places: list[int] = []

    def write(self, splices: Sequence[Splice]) -> None:
        """Make all runs. Raises ValueError if the splices are not in order, or not within this history."""
        at = 0
        for splice in splices:
            if not at <= splice.start <= splice.stop <= self._history.count:
                raise ValueError(f"no place for a splice from {splice.start} to {splice.stop} behind {at}")
            self._keep(at, splice.start)
            self._add(splice.structures, [splice.find_place(i) for i in range(len(splice.structures))])
            at = splice.stop
        self._keep(at, self._history.count)
        self._settle()

    def _keep(self, start: int, stop: int) -> None:
        """Keep the client's messages from `start` up to `stop`, and of runs that are cut the part in this range."""
        history = self._history
        first = bisect_left(history.starts, start)
        self._keep_loose(start, min(stop, self._start_of(first)))
        last = history.find_run(stop) if stop < history.count else len(history.runs)
        while first < last and self._is_joined_by(history.runs[first].structures[0]):
            self._keep_loose(history.starts[first], self._start_of(first + 1))
            first += 1
        if first < last:
            self._settle()
            self.runs += history.runs[first:last]
        self._keep_loose(max(start, self._start_of(max(first, last))), stop)

    def _start_of(self, index: int) -> int:
        starts = self._history.starts
        return starts[index] if index < len(starts) else self._history.count

    def _keep_loose(self, start: int, stop: int) -> None:
        self._add([self._history.structure_at(place) for place in range(start, stop)], range(start, stop))

    def _is_joined_by(self, structure: MessageStructure) -> bool:
        if self._shapes:
            return joins_run(self._shapes[-1], structure)
        return bool(self.runs) and joins_run(self.runs[-1].structures[-1], structure)

    def _add(self, structures: Sequence[MessageStructure], places: Iterable[int]) -> None:
        if structures and not self._shapes and self._is_joined_by(structures[0]):
            self._reopen()
        self._shapes += structures
        self._places += places

    def _reopen(self) -> None:
        """Take the last run apart, because the next message continues it. It is always one of the client's."""
        run = self.runs.pop()
        self._shapes += run.structures
        self._places += run.places

    def _settle(self) -> None:
        runs = list(_judge_runs(self._shapes, self._places, self._history.is_itemised))
        self.runs += runs
        self.fresh += runs
        self._shapes, self._places = [], []


def _judge_runs(structures: Sequence[MessageStructure], places: Sequence[int], is_itemised: bool) -> Iterator[Run]:
    for start, stop in pairwise([*list_run_starts(structures), len(structures)]):
        yield _judge_run(tuple(structures[start:stop]), places[start:stop], is_itemised)


def _judge_run(structures: tuple[MessageStructure, ...], places: Sequence[int], is_itemised: bool) -> Run:
    calls = [call for structure in structures for call in structure.calls]
    results = [result for structure in structures for result in structure.results]
    return Run(
        structures,
        places,
        calls=tuple(calls),
        results=tuple(results),
        markers=tuple([(at, mark) for at, each in zip(places, structures, strict=True) for mark in each.markers]),
        faults=tuple(_judge_calls(structures, places, is_itemised)) if calls or results else (),
        has_user=structures[0].role == "user",
        has_reasoning=any([structure.reasoning for structure in structures]),
        says_json=any([structure.says_json for structure in structures]),
        is_leading=structures[-1].is_leading,
    )


def _judge_calls(
    structures: Sequence[MessageStructure], places: Sequence[int], is_itemised: bool
) -> Iterator[RequestFault]:
    """Yield the faults of calls and results in a run: each call must be directly followed by its result."""
    waiting: dict[str, list[int]] = {}
    for structure, place in zip(structures, places, strict=True):
        if structure.role != "tool" and not is_itemised:
            yield from _list_missing(waiting)
            waiting = {}
        for call in structure.calls:
            waiting.setdefault(call, []).append(place)
        for result in structure.results:
            if waiting.get(result):
                waiting[result].pop()
            else:
                yield RequestFault("misplaced", result, place)
    yield from _list_missing(waiting)


def _list_missing(waiting: Mapping[str, Sequence[int]]) -> Iterator[RequestFault]:
    return (RequestFault("missing", call, place) for call, places in waiting.items() for place in places)


def _judge_whole(runs: Sequence[Run], rules: Rules) -> set[RequestFault]:
    """Return the faults that only the whole list shows. Uses comprehensions for speed: it runs on every request."""
    found: set[RequestFault] = set()
    calls = [call for run in runs if run.calls for call in run.calls]
    called, answered = set(calls), {result for run in runs if run.results for result in run.results}
    if len(called) != len(calls):
        found.update(RequestFault("duplicate", call) for call, times in Counter(calls).items() if times > 1)
    found.update(RequestFault("unanswered", call) for call in called - answered)
    found.update(RequestFault("orphan", result) for result in answered - called)
    if not any(run.has_user for run in runs):
        found.add(RequestFault("userless"))
    if rules.needs_json and not any(run.says_json for run in runs):
        found.add(RequestFault("json"))
    found.update(_judge_ends(runs, rules))
    found.update(_judge_turns(runs) if rules.is_alternating else ())
    return found


def _judge_ends(runs: Sequence[Run], rules: Rules) -> Iterator[RequestFault]:
    first = (run.structures[0] for run in runs)
    spoken = next((each.role for each in first if each.role != "system" and not each.is_compaction), "")
    if spoken in ("assistant", "tool"):
        yield RequestFault("beginning", spoken)
    if runs and runs[-1].structures[-1].role == "assistant":
        yield RequestFault("prefill")
    if rules.needs_thinking:
        turn = runs[max([i + 1 for i, run in enumerate(runs) if run.has_user], default=0) :]
        if any(run.structures[0].role == "assistant" and not run.structures[0].reasoning for run in turn[:1]):
            yield RequestFault("turn")
    for i in [i for i, run in enumerate(runs) if run.is_leading and i + 1 < len(runs)]:
        if runs[i + 1].structures[0].role != "assistant":
            yield RequestFault("position", "", runs[i].places[-1])


def _judge_markers(markers: Sequence[str]) -> Iterator[RequestFault]:
    if len(markers) > MOST_MARKERS:
        yield RequestFault("markers", "many")
    if "1h" in markers and "5m" in markers and markers.index("5m") < len(markers) - 1 - markers[::-1].index("1h"):
        yield RequestFault("markers", "order")


def _judge_turns(runs: Iterable[Run]) -> Iterator[RequestFault]:
    """Yield faults of alternating roles as templates of the Mistral family count them: without calls and results."""
    previous = "assistant"
    for run in runs:
        for structure, place in zip(run.structures, run.places, strict=True):
            if structure.role in ("user", "assistant") and not structure.calls:
                if structure.role == previous:
                    yield RequestFault("alternation", structure.role, place)
                previous = structure.role


def _judge_reasoning(history: MessageRuns, fresh: Iterable[Run]) -> Iterator[RequestFault]:
    """Yield a fault for each kept message that lost reasoning of its run, or whose reasoning changed."""
    for run in fresh:
        for structure, place in zip(run.structures, run.places, strict=True):
            if (
                structure.role == "assistant"
                and place < history.count
                and not _is_bound_as_before(history, run, structure, place)
            ):
                yield RequestFault("reasoning", "", place)


def _is_bound_as_before(history: MessageRuns, run: Run, structure: MessageStructure, place: int) -> bool:
    if not history.is_itemised:
        return not structure.calls or structure.reasoning == history.structure_at(place).reasoning
    known = history.runs[history.find_run(place)]
    if not (run.has_reasoning or known.has_reasoning):
        return True
    # Runs that were separate may now be one; each must be complete in it.
    now, before = _list_said(run), _list_said(known)
    return any(now[i : i + len(before)] == before for i in range(len(now)))


def _judge_ids(history: MessageRuns, splices: Sequence[Splice]) -> Iterator[RequestFault]:
    """Yield a fault for each kept item that has an id though the reasoning to which the id leads is gone."""
    stop = splices[-1].stop
    before = [structure for run in history.runs for structure in run.structures if run.places[0] < stop][:stop]
    sent: list[MessageStructure | None] = list(before)
    for splice in splices:
        is_one = splice.stop == splice.start + 1 and len(splice.structures) == 1
        for place in range(splice.start, splice.stop):
            if place not in splice.whole:
                sent[place] = splice.structures[0] if is_one else None
    for place, reasoning in list_led(before):
        item, led_by = sent[place], sent[reasoning]
        if item is not None and item.item_id and not (led_by is not None and led_by.reasoning):
            yield RequestFault("reasoning", item.item_id, place)


def _list_said(run: Run) -> list[tuple[bytes, tuple[str, ...]]]:
    return [(structure.reasoning, structure.calls) for structure in run.structures if structure.role == "assistant"]


def _judge_splices(history: MessageRuns, splices: Iterable[Splice], protected: Iterable[int]) -> Iterator[RequestFault]:
    """Yield the faults of the replacements by themselves, which the client's own history cannot excuse."""
    pinned = frozenset(protected)
    kept = sorted({*pinned, history.newest_user})
    for splice in splices:
        odd = history.odd[bisect_left(history.odd, splice.start) : bisect_left(history.odd, splice.stop)]
        replaced = [(place, history.structure_at(place)) for place in odd]
        flaws = {flaw for _, structure in replaced for flaw in structure.flaws}
        for index, structure in enumerate(splice.structures):
            place = splice.find_place(index)
            yield from (RequestFault("flaw", flaw, place) for flaw in structure.flaws if flaw not in flaws)
            if structure.role == "system":
                yield RequestFault("instructions", "ours", place)
        for place, structure in replaced:
            if structure.role == "system" and not _stands_again(history, place, structure.reminder):
                yield RequestFault("instructions", "gone", place)
            elif structure.stays == "always" and place not in splice.whole:
                yield RequestFault("protected", "", place)
        touched = kept[bisect_left(kept, splice.start) : bisect_left(kept, splice.stop)]
        is_shorter = splice.stop == splice.start + 1 and [each.role for each in splice.structures] == ["user"]
        touched = [place for place in touched if place in pinned or not (is_shorter or place in splice.shortened)]
        yield from (RequestFault("protected", "", place) for place in touched if place not in splice.whole)


def _stands_again(history: MessageRuns, place: int, reminder: bytes) -> bool:
    """Return whether a later message of the system is the same reminder."""
    later = history.odd[bisect_left(history.odd, place + 1) :]
    return bool(reminder) and any(history.structure_at(each).reminder == reminder for each in reversed(later))


class Verdict(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The verdict that a rewritten history has no fault that the client's own does not have.

    It stays valid for later requests while new messages share no call id with the replaced ones: then whatever is wrong
    with a new message is also wrong in the client's own history. Otherwise the whole history is judged again. It says
    nothing of cache markers, which clients move with each request (`find_marker_faults`).
    """

    rules: Rules
    ids: frozenset[str]  # the result of `list_replaced`
    stop: int  # the end of the splices
    first: int  # the index of `seam`
    seam: Run  # the first run that begins at or after `stop`; the verdict depends on the runs up to it
    last: int  # the index of `newest`
    newest: Run  # the last run that was checked for `ids`
    newest_user: int  # the place of the newest user message


def list_replaced(structures: Sequence[MessageStructure], splices: Iterable[Splice]) -> frozenset[str]:
    """Return the ids of all calls and results that are replaced or added. `structures` are the client's."""
    ids: set[str] = set()
    for splice in splices:
        for structure in (*splice.structures, *structures[splice.start : splice.stop]):
            ids.update(structure.calls, structure.results)
    return frozenset(ids)


def make_verdict(
    history: MessageRuns, splices: Sequence[Splice], rules: Rules, replaced: frozenset[str]
) -> Verdict | None:
    """Return the verdict on a history in which no fault was found, or None if it would not stay valid."""
    # if we wrote a message, the beginning of the history does not depend on later messages
    if not _may_last(rules) or all(structure.role == "system" for each in splices for structure in each.structures):
        return None
    stop = splices[-1].stop
    first = bisect_left(history.starts, stop)
    if first >= len(history.runs) or _has_any(history, first + 1, replaced):
        return None
    return _conclude(history, rules, replaced, stop, first)


def extend_verdict(verdict: Verdict, history: MessageRuns, rules: Rules) -> Verdict | None:
    """Return the verdict on another history with the same splices, or None if it is not certain to be the same."""
    first, stop, runs = verdict.first, verdict.stop, history.runs
    if rules != verdict.rules or not _may_last(rules):
        return None
    if len(runs) <= first + 1 or runs[first] is not verdict.seam:
        return None
    if history.newest_user < stop and history.newest_user != verdict.newest_user:
        return None
    # histories that share a run share all runs before it, because they only grow at their end
    is_known = verdict.last < len(runs) and runs[verdict.last] is verdict.newest
    if _has_any(history, 1 + (verdict.last if is_known else first), verdict.ids):
        return None
    return _conclude(history, rules, verdict.ids, stop, first)


def _conclude(history: MessageRuns, rules: Rules, ids: frozenset[str], stop: int, first: int) -> Verdict:
    runs = history.runs
    last = max(first, len(runs) - 2)  # results may still join the last one
    return Verdict(rules, ids, stop, first, runs[first], last, runs[last], history.newest_user)


def _may_last(rules: Rules) -> bool:
    """Return whether each run can be judged with only its neighbours."""
    return not (rules.needs_json or rules.is_alternating)


def _has_any(history: MessageRuns, start: int, ids: frozenset[str]) -> bool:
    """Return whether one of these ids is in the runs from index `start` on."""
    return not ids.isdisjoint([id for run in history.runs[start:] for id in (*run.calls, *run.results)])
