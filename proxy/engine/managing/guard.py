"""Whether what is to be sent is as valid as what the client sent (PROTOCOL §3).

Rule: whatever is found is a reason not to send it; which rung of the ladder comes next is decided in `steward`.
"""

from collections.abc import Collection, Iterator, Sequence

from proxy.engine.managing.paths import Path
from proxy.model.plan import Edit, Kept, Replaced
from proxy.model.shapes import Shape
from proxy.wire.body import SplitBody
from proxy.wire.frame import find_frame_faults, read_rules
from proxy.wire.shaping import read_shape
from proxy.wire.validity import Splice, find_faults


def list_splices(wire: str, edits: Sequence[Edit], rendered: Sequence[bytes], through: int) -> tuple[Splice, ...]:
    """The runs of messages that edits replace, each with the shapes of what stands in its place.

    Raises ValueError where the messages that stay are not in the client's order.
    """
    return tuple(_splice(wire, edits, rendered, through))


def _splice(wire: str, edits: Sequence[Edit], rendered: Sequence[bytes], through: int) -> Iterator[Splice]:
    at = 0
    ours: list[Shape] = []
    for edit, raw in zip(edits, rendered, strict=True):
        if not isinstance(edit, Kept | Replaced):
            ours.append(read_shape(wire, raw))
            continue
        if edit.place < at:
            raise ValueError(f"message {edit.place} is to be sent behind a later one")
        if edit.place > at or ours:
            yield Splice(at, edit.place, tuple(ours))
            ours = []
        if isinstance(edit, Replaced):
            yield Splice(edit.place, edit.place + 1, (read_shape(wire, raw),))
        at = edit.place + 1
    if through > at or ours:
        yield Splice(at, through, tuple(ours))


def find_problem(
    wire: str,
    path: Path,
    splices: Sequence[Splice],
    bodies: tuple[SplitBody, SplitBody],
    protected: Collection[int] = (),
    *,
    is_alternating: bool = False,
) -> str:
    """What is wrong with a rewritten request and was not with the client's, the first of `bodies`; or empty."""
    before, after = bodies
    rules = read_rules(wire, before, is_alternating=is_alternating)
    faults = find_faults(path.history, splices, rules, protected)
    if faults:
        first = faults[0]
        return f"{first.kind} {first.subject}".strip()
    return next(iter(find_frame_faults(before, after)), "")
