"""Whether an epoch leaves a request enough to go on with.

Rule (BEHAVIOUR B13, B14): it was opened for a request with a tail, and holds for all that go on from that. A client
that goes back to where the tail began would have next to nothing but a ledger; there it holds only as far as the tail
is what a plan would leave. In doubt it holds: another beginning costs the provider's cache.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from proxy.context.policy import REAL_GROUPS, BuilderPolicy
from proxy.engine.context.opening import read_plan
from proxy.engine.context.subject import Subject
from proxy.model.epoch import Epoch
from proxy.model.plan import Kept
from proxy.wire.identity import Item

_USERS = BuilderPolicy().protect_turns
_LEAST_GROUPS = 1


class Reaches:
    """How many messages the requests had that the epochs of a session were opened for, as far as that is known."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def note(self, epoch: str, reach: int | None) -> None:
        """That of an epoch, given by its id; None where nobody knows."""
        if reach is not None:
            self._known[epoch] = reach

    def forget(self, epoch: str) -> None:
        """An epoch is forgotten."""
        self._known.pop(epoch, None)

    def choose(self, epochs: Sequence[Epoch], known: Sequence[Epoch], subject: Subject) -> Epoch | None:
        """The newest of the epochs on a request's path that holds for it; `known` are all of its session.

        One that leaves no more than a newer one that does not hold is none: that may have taken it back.
        """
        most = len(subject.nodes) + 1
        for epoch in reversed(epochs):
            if epoch.depth < most:
                if holds(epoch, self._find(epoch, known), subject):
                    return epoch
                most = epoch.depth
        return None

    def _find(self, epoch: Epoch, known: Sequence[Epoch]) -> int | None:
        """That of an epoch; a revert has that of the one which it goes back to."""
        if not epoch.is_reversion:
            return self._known.get(epoch.id)
        same = (each.id for each in known if (each.through, each.edits) == (epoch.through, epoch.edits))
        return next((self._known[id] for id in same if id in self._known), None)


def holds(epoch: Epoch, reach: int | None, subject: Subject) -> bool:
    """Whether an epoch may be sent for a request that has its messages.

    `reach` is how many messages the request had that it was opened for, None where nobody knows. A history that went
    out before it was as long went out under what stood before (B5).
    """
    items = subject.chain.items
    if not epoch.depth or (reach is not None and len(items) >= reach):
        return True
    if reach is None:
        return keeps_tail(epoch, items, _LEAST_GROUPS, 0)
    is_retry = subject.step is not None and subject.step.relation == "retry"
    return not is_retry and keeps_tail(epoch, items)


def keeps_tail(epoch: Epoch, items: Sequence[Item], groups: int = REAL_GROUPS, users: int = _USERS) -> bool:
    """Whether the newest message is sent as it is, and all from the newest groups with calls on, and the user's words.

    There may be fewer groups, or turns of the user, than that.
    """
    kept = {edit.place for edit in read_plan(epoch).edits if isinstance(edit, Kept)}
    places = reversed(range(len(items)))
    start = min(islice((place for place in places if items[place].calls), groups), default=len(items) - 1)
    needed = (*range(start, len(items)), *_find_turns(items, users))
    return all(place >= epoch.depth or place in kept for place in needed)


def _find_turns(items: Sequence[Item], turns: int) -> Iterator[int]:
    """The places of the user's messages in their newest turns."""
    later = ""
    for place in reversed(range(len(items))):
        role = items[place].role
        turns -= role == "user" and later != "user"
        if turns < 0:
            return
        if role == "user":
            yield place
        later = role
