"""Epochs of conversations that nobody names, by the node that they go to.

Rule (BEHAVIOUR B3): state hangs on nodes. Where a client sends no id, and shows no answer as it was given, each call
is a session of its own; it begins as the one before did, and so does what is sent for it. Else each would open an epoch
of its own, which no provider has in its cache: dearer than to leave the history alone. Nothing crosses tenants or
upstreams. Memory only.
"""

from collections import OrderedDict

from proxy.engine.context.context import weigh_epoch
from proxy.engine.context.holding import holds
from proxy.engine.context.opening import read_plan
from proxy.engine.context.subject import Subject
from proxy.model.epoch import Epoch
from proxy.model.plan import Written

_Key = tuple[bytes, str, str, bytes]


class Twins:
    """The epochs that were opened last, the oldest dropped above `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._weight = 0
        self._known: OrderedDict[_Key, tuple[Epoch, int]] = OrderedDict()

    def note(self, subject: Subject, epoch: Epoch) -> None:
        """An epoch was opened for a request. One with a summary, which is its session's, is left alone."""
        edits = read_plan(epoch).edits
        if subject.session.family or any(isinstance(edit, Written) and edit.report for edit in edits):
            return
        key = _name(subject, epoch.through)
        known = self._known.pop(key, None)
        self._weight += weigh_epoch(epoch) - (weigh_epoch(known[0]) if known is not None else 0)
        self._known[key] = epoch, len(subject.nodes)
        while self._weight > self._most:
            _, dropped = self._known.popitem(last=False)
            self._weight -= weigh_epoch(dropped[0])

    def find(self, subject: Subject) -> Epoch | None:
        """The epoch that takes most of a request's history, and leaves enough of it, of another unnamed session."""
        if subject.session.family or not self._known:
            return None
        known = (self._known.get(_name(subject, node)) for node in reversed(subject.nodes))
        return next((each[0] for each in known if each is not None and holds(*each, subject)), None)

    def clear(self) -> None:
        """Forget everything: the log has lost a record."""
        self._known.clear()
        self._weight = 0


def _name(subject: Subject, node: bytes) -> _Key:
    return subject.session.tenant, subject.session.upstream, subject.model, node
