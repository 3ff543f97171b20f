"""Rewriting a request's body with an epoch, and checking the result.

A rewritten request with a fault that the client's own request does not have is never sent.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from proxy.engine.context.tool_offers import NO_OFFERS, NO_RECALLED, RestoredAnswer, ToolOffers
from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.policy import UNKNOWN_PROVIDER, Provider
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Edit, Epoch, Kept, Recalled, Replaced, Written, decode_edits
from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.format import CACHE_MEMBER, DEFAULT_LIFETIME
from proxy.wire.rendering import NO_CHANGES, RenderedRequest, add_markers, apply, drop_markers, find_hop, place_marker
from proxy.wire.validity import (
    MOST_MARKERS,
    NOWHERE,
    RequestFault,
    Rules,
    Splice,
    Verdict,
    extend_verdict,
    find_faults,
    find_marker_faults,
    list_replaced,
    make_verdict,
)

_MOST_REMEMBERED = 1024

_MARKERS_LOST = RequestFault("markers", "lost")


class Invalid(ValueError):
    """Raised where a rewritten request has a fault that the client's request does not have."""


class _CheckedSplices:
    """The splices of an epoch, and the verdict on the last request that was rewritten with them."""

    __slots__ = ("ids", "restored", "splices", "verdict")

    def __init__(
        self,
        splices: tuple[Splice, ...],
        structures: Sequence[MessageStructure],
        restored: tuple[Splice, ...] = (),
    ) -> None:
        splices = (*splices, *restored)
        self.splices = splices
        self.restored = restored  # those of answers that are sent with their hidden rounds
        self.ids = list_replaced(structures, splices)
        self.verdict: Verdict | None = None


class Rewriter:
    """Rewrites bodies. The splices of an epoch are computed once, and checked messages are not checked again."""

    def __init__(self, providers: Mapping[str, Provider], offers: ToolOffers = NO_OFFERS) -> None:
        self._providers = providers
        self._offers = offers
        self._judged: dict[tuple[str, int, tuple[str, ...]], _CheckedSplices] = {}

    def rewrite(
        self,
        request: ManagedRequest,
        history: MeasuredHistory,
        epoch: Epoch,
        pinned: Collection[int] = (),
        *,
        changed: Mapping[int, bytes] = NO_CHANGES,
        recalled: Mapping[int, Recalled] = NO_RECALLED,
    ) -> bytes:
        """Return the body under an epoch, with the pinned messages unchanged.

        `changed` has later messages without their signed reasoning, `recalled` what a model recalled within answers, by
        their last message. Faults are mended where they can be: those of cache markers by sending ours without any, and
        all of answers with hidden rounds by sending them as the client has them. Raises Invalid where a fault remains,
        and ValueError if the epoch does not belong to this request.
        """
        tool = self._offers.find(request, epoch)
        restored = self._offers.list_restored(request, recalled, epoch.depth) if tool else ()
        write = partial(self._write, request, history, epoch, pinned=pinned, tool=tool)
        if restored:
            try:
                return _mend_markers(partial(write, changed=changed, restored=restored))
            except Invalid as error:
                problem = error
        if recalled and (restored or not tool):
            changed = _strip_behind(request, history, min(recalled), changed)
        try:
            return _mend_markers(partial(write, changed=changed, restored=()))
        except Invalid as error:
            raise problem if restored else error from None

    def _write(
        self,
        request: ManagedRequest,
        history: MeasuredHistory,
        epoch: Epoch,
        *,
        pinned: Collection[int],
        tool: bytes,
        changed: Mapping[int, bytes],
        restored: Sequence[RestoredAnswer],
        has_no_markers: bool,
    ) -> bytes:
        """Return the body with these answers restored. If it `has_no_markers`, what is ours has none."""
        provider = self._providers.get(request.session.upstream, UNKNOWN_PROVIDER)
        leading = request.chain.preamble.count
        form = FORMATS[request.wire]
        rules = form.read_rules(request.split, leading, is_alternating=provider.strict_alternation)
        lost = history.list_markers(epoch.depth)
        judged = self._find_judged(request, history, epoch, restored)
        splices, rendered = judged.splices, place_marker(form, epoch.rendered, lost)
        if has_no_markers:
            splices = tuple(map(_drop_markers_of, splices))
            gone = [place for place in history.marked if _is_replaced(place, epoch.depth, restored)]
            lifetimes = [lifetime for place in gone for lifetime in history.structures[place].markers]
            rendered = place_marker(form, tuple(map(drop_markers, epoch.rendered)), lifetimes)
        lasting = extend_verdict(judged.verdict, history.runs, rules) if judged.verdict and not pinned else None
        shown = {"is_marked": rendered is not epoch.rendered, "is_judged": lasting is not None}
        if problem := find_problem(history, splices, rules, pinned, restored=judged.restored, **shown):
            raise Invalid(problem)
        if lasting is None:
            lasting = make_verdict(history.runs, judged.splices, rules, judged.ids)
        judged.verdict = lasting
        sent = RenderedRequest(rendered, request.add_notes(epoch.depth, changed))
        if form.takes_markers and not has_no_markers:
            kept = history.list_markers()[len(lost) :]
            has_room = len(rules.markers) + len(kept) + bool(lost) < MOST_MARKERS
            if has_room and (provider.takes_markers or kept or CACHE_MEMBER in request.split.members):
                sent = self._mark(request, history, epoch, sent, is_ours=provider.takes_markers)
        members = {**sent.members, "tools": self._offers.write(request, tool)} if tool else sent.members
        shape = drop_markers if has_no_markers else bytes
        spans = [(range(each.start, each.stop), tuple(map(shape, each.messages))) for each in restored]
        return apply(request.split, leading, epoch.depth, sent.rendered, sent.changed, members=members, spans=spans)

    def _mark(
        self, request: ManagedRequest, history: MeasuredHistory, epoch: Epoch, sent: RenderedRequest, *, is_ours: bool
    ) -> RenderedRequest:
        """Return what is sent with cache markers of ours, up to the most that a request may have."""
        form, body, first = FORMATS[request.wire], request.split, request.chain.preamble.count
        later = [place for place in history.marked if place >= epoch.depth]
        is_at_end = CACHE_MEMBER in body.members or not later  # then ours is there
        newest = len(history.structures) - 1 if is_at_end else later[-1]
        place = find_hop(body, first, history.structures, newest, sent.changed)
        if place < 0 and not is_ours:
            return sent
        lost = history.list_markers(epoch.depth)
        kept = form.read_cache_terms(body, first, history.list_markers()[len(lost) :])
        if not (kept.messages or is_ours):
            return sent
        behind = (marker for at in later if at > place for marker in history.structures[at].markers)
        hop = (place, next(behind, kept.messages[-1] if kept.messages else DEFAULT_LIFETIME)) if place >= 0 else None
        marks = {"preamble": first, "through": epoch.depth}
        return add_markers(form, body, sent, **marks, kept=kept, lost=lost, hop=hop, is_ours=is_ours)

    def _find_judged(
        self,
        request: ManagedRequest,
        history: MeasuredHistory,
        epoch: Epoch,
        restored: Sequence[RestoredAnswer],
    ) -> _CheckedSplices:
        # after a failed plan, a minimal one has the same epoch id
        key = epoch.id, hash(epoch.edits), tuple([each.exchange for each in restored])
        judged = self._judged.get(key)
        if judged is None:
            splices = list_splices(
                request.wire, decode_edits(epoch.edits), epoch.rendered, history.structures, epoch.depth
            )
            answers = tuple([_make_splice(request.wire, each) for each in restored])
            judged = self._judged[key] = _CheckedSplices(splices, history.structures, answers)
            if len(self._judged) > _MOST_REMEMBERED:
                del self._judged[next(iter(self._judged))]
        return judged


def _mend_markers(write: Callable[..., bytes]) -> bytes:
    """Return a body, without cache markers of ours if it has a fault of markers with them."""
    try:
        return write(has_no_markers=False)
    except Invalid as error:
        if not str(error).startswith("markers"):
            raise
        return write(has_no_markers=True)


def _make_splice(wire: str, restored: RestoredAnswer) -> Splice:
    structures = tuple(map(FORMATS[wire].parse_structure, restored.messages))
    marked = restored.answered if restored.answered < restored.stop else NOWHERE
    return _drop_markers_of(Splice(restored.start, restored.stop, structures), marked)


def _drop_markers_of(splice: Splice, marked: int = NOWHERE) -> Splice:
    """Return a splice without cache markers in what replaces messages; those of the client from `marked` on count."""
    structures = tuple([replace(each, markers=()) if each.markers else each for each in splice.structures])
    return replace(splice, structures=structures, marked=marked)


def _is_replaced(place: int, depth: int, restored: Iterable[RestoredAnswer]) -> bool:
    return place < depth or any(each.start <= place < each.stop for each in restored)


def _strip_behind(
    request: ManagedRequest, history: MeasuredHistory, first: int, changed: Mapping[int, bytes]
) -> Mapping[int, bytes]:
    """Return the changed messages, and those without their signed reasoning that were made behind hidden rounds.

    Where the tool is not sent, nor are these.
    """
    signed = [place for place in history.signed if place > first and place not in changed]
    if not signed:
        return changed
    strip, raws = FORMATS[request.wire].strip_reasoning, request.list_raws()
    return {**changed, **{place: strip(raws[place]) for place in signed}}


def list_splices(
    wire: str, edits: Sequence[Edit], rendered: Sequence[bytes], structures: Sequence[MessageStructure], through: int
) -> tuple[Splice, ...]:
    """Compute the runs of messages that edits replace, each with the structures of what replaces it.

    `structures` are the client's. If there are fewer messages than edits, messages of ours were joined with adjacent
    user messages, whose whole text they contain. Raises ValueError if kept messages are not in the client's order.
    """
    splicing = _Splicing()
    for group, raw in _pair(edits, rendered, structures):
        splicing.take(group, FORMATS[wire].parse_structure(raw))
    return splicing.finish(through)


def find_problem(
    history: MeasuredHistory,
    splices: Sequence[Splice],
    rules: Rules,
    protected: Collection[int] = (),
    *,
    restored: Collection[Splice] = (),
    is_marked: bool = False,
    is_judged: bool = False,
) -> str:
    """Describe in a few words a fault of a rewritten history that the client's does not have; empty if there is none.

    If `is_marked`, a cache marker stands for those that were removed with their messages. If it `is_judged`, only its
    markers are. Signed reasoning may be gone (`context/verbatim`). In `restored` an answer is sent with the rounds that
    the client does not have: more reasoning, calls with ids that the model may use again, and the client's own results
    with ours beside them. The members outside the messages are the client's own, so they are not checked.
    """
    faults = find_marker_faults if is_judged else partial(find_faults, protected=protected)
    for fault in faults(history.runs, splices, rules):
        is_removed = fault.kind == "reasoning" and history.structures[fault.place].signed
        is_more = any(_is_of_restored(fault, each) for each in restored)
        if not (is_removed or is_more or (is_marked and fault == _MARKERS_LOST)):
            return f"{fault.kind} {fault.subject}".strip()
    return ""


def _is_of_restored(fault: RequestFault, splice: Splice) -> bool:
    """Return whether a fault is none where an answer is sent with its hidden rounds."""
    if fault.kind == "duplicate":
        return any(fault.subject in structure.calls for structure in splice.structures)
    return fault.kind in ("reasoning", "protected") and splice.start <= fault.place < splice.stop


class _Splicing:
    """Builds splices. `_at` is the first message not yet in a splice, `_reached` the end of those in the open one."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._ours: list[MessageStructure] = []
        self._whole: list[int] = []
        self._shortened: list[int] = []
        self._at = self._reached = 0

    def take(self, group: Sequence[Edit], structure: MessageStructure) -> None:
        """Add the next message, given by its structure and the edits that it renders."""
        only = group[0] if len(group) == 1 else None
        if isinstance(only, Kept | Replaced):
            self._close(only.place)
            if isinstance(only, Replaced):
                self._splices.append(Splice(only.place, only.place + 1, (structure,)))
            self._at = self._reached = only.place + 1
            return
        self._ours.append(structure)
        for edit in group:
            if not isinstance(edit, Written):
                self._reach(edit.place)
                self._reached = edit.place + 1
            if isinstance(edit, Kept):
                self._whole.append(edit.place)
            if isinstance(edit, Replaced):
                self._shortened.append(edit.place)

    def finish(self, through: int) -> tuple[Splice, ...]:
        """Return all splices, which together replace the first `through` messages."""
        self._close(through)
        return tuple(self._splices)

    def _close(self, stop: int) -> None:
        """Close the open splice: it replaces all messages before `stop`."""
        self._reach(stop)
        if stop > self._at or self._ours:
            ours, whole, shortened = tuple(self._ours), tuple(self._whole), tuple(self._shortened)
            self._splices.append(Splice(self._at, stop, ours, whole, shortened))
        self._ours, self._whole, self._shortened = [], [], []

    def _reach(self, place: int) -> None:
        if place < self._reached:
            raise ValueError(f"message {place} is to be sent behind a later one")


def _pair(
    edits: Sequence[Edit], rendered: Sequence[bytes], structures: Sequence[MessageStructure]
) -> Iterator[tuple[Sequence[Edit], bytes]]:
    """Yield each raw message with the edits that it renders (`wire/rendering` joins what must not be separate)."""
    is_joined = len(rendered) < len(edits)
    groups = _join(edits, structures) if is_joined else ([edit] for edit in edits)
    return zip(groups, rendered, strict=True)


def _join(edits: Sequence[Edit], structures: Sequence[MessageStructure]) -> Iterator[list[Edit]]:
    group: list[Edit] = []
    for edit in edits:
        are_users = bool(group) and _is_user(group[-1], structures) and _is_user(edit, structures)
        if are_users and any(isinstance(each, Written) for each in (*group, edit)):
            group.append(edit)
            continue
        if group:
            yield group
        group = [edit]
    yield group


def _is_user(edit: Edit, structures: Sequence[MessageStructure]) -> bool:
    return isinstance(edit, Written) or structures[edit.place].role == "user"
