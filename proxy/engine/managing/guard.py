"""Whether what is to be sent is as valid as what the client sent (PROTOCOL §3).

Rule: whatever is found is a reason not to send it; which rung of the ladder comes next is decided in `steward`.
"""

from collections.abc import Collection, Iterator, Sequence

from proxy.engine.managing.paths import Path
from proxy.model.plan import Edit, Kept, Replaced
from proxy.model.shapes import Shape
from proxy.wire.body import SplitBody
from proxy.wire.frame import read_rules
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
    wire: str, path: Path, splices: Sequence[Splice], body: SplitBody, protected: Collection[int] = ()
) -> str:
    """What is wrong with a rewritten history and was not with the client's, in a few words; empty for nothing.

    `body` is the client's. The members beside the messages are the client's own, so they need no look.
    """
    faults = find_faults(path.history, splices, read_rules(wire, body), protected)
    return f"{faults[0].kind} {faults[0].subject}".strip() if faults else ""
