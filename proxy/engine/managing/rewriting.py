"""A request's body with an epoch in it, guarded.

Rule: what is not as valid as the client's own request raises Invalid; it is never sent (PROTOCOL §3).
"""

from collections.abc import Collection, Sequence

import msgspec

from proxy.engine.managing.guard import find_problem, list_splices
from proxy.engine.managing.paths import Path
from proxy.engine.managing.subject import Subject
from proxy.model.epoch import Epoch
from proxy.model.plan import Edit
from proxy.wire.rendering import apply, place_marker
from proxy.wire.validity import Splice

_MOST_REMEMBERED = 1024
_edits = msgspec.json.Decoder(tuple[Edit, ...])


class Invalid(ValueError):
    """What would be sent has a fault that the client's request has not."""


class Rewriter:
    """Rewrites bodies. What an epoch replaces is worked out once."""

    def __init__(self) -> None:
        self._splices: dict[str, tuple[Splice, ...]] = {}

    def rewrite(self, subject: Subject, path: Path, epoch: Epoch, pinned: Collection[int]) -> bytes:
        """The body under an epoch. Raises Invalid, and ValueError where the epoch is none of this request."""
        splices = self._list_splices(subject.wire, epoch)
        if problem := find_problem(subject.wire, path, splices, subject.split, pinned):
            raise Invalid(problem)
        rendered = place_marker(subject.wire, epoch.rendered, path.list_markers(epoch.depth))
        return apply(subject.split, subject.chain.preamble.count, epoch.depth, rendered)

    def _list_splices(self, wire: str, epoch: Epoch) -> Sequence[Splice]:
        splices = self._splices.get(epoch.id)
        if splices is None:
            splices = list_splices(wire, _edits.decode(epoch.edits), epoch.rendered, epoch.depth)
            self._splices[epoch.id] = splices
            if len(self._splices) > _MOST_REMEMBERED:
                del self._splices[next(iter(self._splices))]
        return splices
