"""Whether what is to be sent is as valid as what the client sent (PROTOCOL §3).

Rule: whatever is found is a reason not to send it; which rung of the ladder comes next is decided in `ladder`.
"""

from collections.abc import Collection, Iterator, Sequence

from proxy.engine.context.paths import Path
from proxy.model.plan import Edit, Kept, Replaced, Written
from proxy.model.shapes import Shape
from proxy.wire.shaping import read_shape
from proxy.wire.validity import RequestFault, Rules, Splice, find_faults

_MARKERS_LOST = RequestFault("markers", "lost")


def list_splices(
    wire: str, edits: Sequence[Edit], rendered: Sequence[bytes], shapes: Sequence[Shape], through: int
) -> tuple[Splice, ...]:
    """The runs of messages that edits replace, each with the shapes of what stands in its place.

    `shapes` are the client's. Where there are fewer messages than edits, ours were joined with the user's beside them,
    whose words they have whole. Raises ValueError where the messages that stay are not in the client's order.
    """
    splicing = _Splicing()
    for group, raw in _pair(edits, rendered, shapes):
        splicing.take(group, read_shape(wire, raw))
    return splicing.finish(through)


def find_problem(
    path: Path, splices: Sequence[Splice], rules: Rules, protected: Collection[int] = (), *, is_marked: bool = False
) -> str:
    """What is wrong with a rewritten history and was not with the client's, in a few words; empty for nothing.

    `is_marked`: a cache marker stands in for those that went with the messages. The members beside the messages are the
    client's own, so they need no look.
    """
    for fault in find_faults(path.history, splices, rules, protected):
        if not (is_marked and fault == _MARKERS_LOST):
            return f"{fault.kind} {fault.subject}".strip()
    return ""


class _Splicing:
    """Splices in the making. `_at` is the first message not accounted for, `_reached` the end of those within ours."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._ours: list[Shape] = []
        self._whole: list[int] = []
        self._at = self._reached = 0

    def take(self, group: Sequence[Edit], shape: Shape) -> None:
        """The next message, and the edits that it stands for."""
        only = group[0] if len(group) == 1 else None
        if isinstance(only, Kept | Replaced):
            self._close(only.place)
            if isinstance(only, Replaced):
                self._splices.append(Splice(only.place, only.place + 1, (shape,)))
            self._at = self._reached = only.place + 1
            return
        self._ours.append(shape)
        for edit in group:
            if not isinstance(edit, Written):
                self._reach(edit.place)
                self._reached = edit.place + 1
            if isinstance(edit, Kept):
                self._whole.append(edit.place)

    def finish(self, through: int) -> tuple[Splice, ...]:
        """All, where they stand for the first `through` messages."""
        self._close(through)
        return tuple(self._splices)

    def _close(self, stop: int) -> None:
        """What is ours stands for all messages before this one."""
        self._reach(stop)
        if stop > self._at or self._ours:
            self._splices.append(Splice(self._at, stop, tuple(self._ours), tuple(self._whole)))
        self._ours, self._whole = [], []

    def _reach(self, place: int) -> None:
        if place < self._reached:
            raise ValueError(f"message {place} is to be sent behind a later one")


def _pair(
    edits: Sequence[Edit], rendered: Sequence[bytes], shapes: Sequence[Shape]
) -> Iterator[tuple[Sequence[Edit], bytes]]:
    """Each raw message with the edits that it stands for (`wire/rendering` joins what may not stand apart)."""
    is_joined = len(rendered) < len(edits)
    groups = _join(edits, shapes) if is_joined else ([edit] for edit in edits)
    return zip(groups, rendered, strict=True)


def _join(edits: Sequence[Edit], shapes: Sequence[Shape]) -> Iterator[list[Edit]]:
    group: list[Edit] = []
    for edit in edits:
        are_users = bool(group) and _is_user(group[-1], shapes) and _is_user(edit, shapes)
        if are_users and any(isinstance(each, Written) for each in (*group, edit)):
            group.append(edit)
            continue
        if group:
            yield group
        group = [edit]
    yield group


def _is_user(edit: Edit, shapes: Sequence[Shape]) -> bool:
    return isinstance(edit, Written) or shapes[edit.place].role == "user"
