"""A request's body with an epoch in it, guarded.

Rule: what is not as valid as the client's own request raises Invalid; it is never sent (PROTOCOL §3).
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from proxy.engine.context.guard import find_problem, list_splices
from proxy.engine.context.paths import Path
from proxy.engine.context.subject import Subject
from proxy.engine.policy import Provider
from proxy.model.epoch import Epoch
from proxy.model.plan import Edit
from proxy.model.shapes import Shape
from proxy.wire.body import split_body
from proxy.wire.frame import read_rules
from proxy.wire.lasting import Verdict, extend_verdict, list_replaced, make_verdict
from proxy.wire.rendering import apply, place_marker, strip_reasoning
from proxy.wire.validity import Splice

_MOST_REMEMBERED = 1024
_ANY = Provider()
_edits = msgspec.json.Decoder(tuple[Edit, ...])


class Invalid(ValueError):
    """What would be sent has a fault that the client's request has not."""


class _Judged:
    """What an epoch replaces, and what was said of the last request in which it did."""

    __slots__ = ("ids", "splices", "verdict")

    def __init__(self, splices: tuple[Splice, ...], shapes: Sequence[Shape]) -> None:
        self.splices = splices
        self.ids = list_replaced(shapes, splices)
        self.verdict: Verdict | None = None


class Rewriter:
    """Rewrites bodies. What an epoch replaces is worked out once, and what was judged is not judged again."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._judged: dict[tuple[str, int], _Judged] = {}

    def rewrite(
        self, subject: Subject, path: Path, epoch: Epoch, pinned: Collection[int] = (), *, is_unsigned: bool = False
    ) -> bytes:
        """The body under an epoch, in which the pinned messages must stand as they are; `is_unsigned`: without
        signed reasoning.

        Raises Invalid, and ValueError where the epoch is none of this request.
        """
        provider = self._providers.get(subject.session.upstream, _ANY)
        leading = subject.chain.preamble.count
        rules = read_rules(subject.wire, subject.split, leading, is_alternating=provider.strict_alternation)
        rendered = place_marker(subject.wire, epoch.rendered, path.list_markers(epoch.depth))
        judged = self._find_judged(subject, path, epoch)
        lasting = extend_verdict(judged.verdict, path.history, rules) if judged.verdict and not pinned else None
        if lasting is None:
            is_marked = rendered is not epoch.rendered
            if problem := find_problem(path, judged.splices, rules, pinned, is_marked=is_marked):
                raise Invalid(problem)
            lasting = make_verdict(path.history, judged.splices, rules, judged.ids)
        judged.verdict = lasting
        body = apply(subject.split, leading, epoch.depth, rendered)
        if not is_unsigned:
            return body
        split = split_body(body, subject.items_key)
        if split is None:
            raise Invalid("signed reasoning cannot be taken out")
        return strip_reasoning(split)

    def _find_judged(self, subject: Subject, path: Path, epoch: Epoch) -> _Judged:
        key = epoch.id, hash(epoch.edits)  # a plan that does not bear leaves its epoch's id to a minimal one
        judged = self._judged.get(key)
        if judged is None:
            edits = _edits.decode(epoch.edits)
            splices = list_splices(subject.wire, edits, epoch.rendered, path.shapes, epoch.depth)
            judged = self._judged[key] = _Judged(splices, path.shapes)
            if len(self._judged) > _MOST_REMEMBERED:
                del self._judged[next(iter(self._judged))]
        return judged
