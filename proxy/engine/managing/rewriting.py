"""A request's body with an epoch in it, guarded.

Rule: what is not as valid as the client's own request raises Invalid; it is never sent (PROTOCOL §3).
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from proxy.engine.managing.guard import find_problem, list_splices
from proxy.engine.managing.paths import Path
from proxy.engine.managing.subject import Subject
from proxy.engine.policy import Provider
from proxy.model.epoch import Epoch
from proxy.model.plan import Edit
from proxy.wire.frame import read_rules
from proxy.wire.rendering import apply, place_marker
from proxy.wire.validity import Splice

_MOST_REMEMBERED = 1024
_ANY = Provider()
_edits = msgspec.json.Decoder(tuple[Edit, ...])


class Invalid(ValueError):
    """What would be sent has a fault that the client's request has not."""


class Rewriter:
    """Rewrites bodies. What an epoch replaces is worked out once."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._splices: dict[tuple[str, int], tuple[Splice, ...]] = {}

    def rewrite(self, subject: Subject, path: Path, epoch: Epoch, pinned: Collection[int] = ()) -> bytes:
        """The body under an epoch, in which the pinned messages must stand as they are.

        Raises Invalid, and ValueError where the epoch is none of this request.
        """
        provider = self._providers.get(subject.session.upstream, _ANY)
        rules = read_rules(subject.wire, subject.split, is_alternating=provider.strict_alternation)
        rendered = place_marker(subject.wire, epoch.rendered, path.list_markers(epoch.depth))
        is_marked = rendered is not epoch.rendered
        if problem := find_problem(path, self._list_splices(subject, path, epoch), rules, pinned, is_marked=is_marked):
            raise Invalid(problem)
        return apply(subject.split, subject.chain.preamble.count, epoch.depth, rendered)

    def _list_splices(self, subject: Subject, path: Path, epoch: Epoch) -> Sequence[Splice]:
        key = epoch.id, hash(epoch.edits)  # a plan that does not bear leaves its epoch's id to a minimal one
        splices = self._splices.get(key)
        if splices is None:
            edits = _edits.decode(epoch.edits)
            splices = self._splices[key] = list_splices(subject.wire, edits, epoch.rendered, path.shapes, epoch.depth)
            if len(self._splices) > _MOST_REMEMBERED:
                del self._splices[next(iter(self._splices))]
        return splices
