"""What was found out of messages, so that an epoch costs what is new since the one before.

Rule: memory only and bounded; findings hang on the message alone. Asked by several threads at once.
"""

import threading
from collections import OrderedDict

from proxy.context.findings import Findings, study
from proxy.model.told import Told

_MESSAGE_WEIGHT = 600
_WORD_WEIGHT = 60


class Studies:
    """The findings of the messages that were looked at last, of `most_bytes` together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._known: OrderedDict[Told, Findings] = OrderedDict()
        self._changing = threading.Lock()
        self.weight = 0

    def find(self, told: Told) -> Findings:
        """What there is to know of a message."""
        with self._changing:
            known = self._known.get(told)
            if known is not None:
                self._known.move_to_end(told)
                return known
        found = study(told)
        with self._changing:
            if told not in self._known:
                self._known[told] = found
                self.weight += _weigh(told, found)
                self._shrink()
        return found

    def _shrink(self) -> None:
        while self.weight > self._most and self._known:
            self.weight -= _weigh(*self._known.popitem(last=False))


def _weigh(told: Told, findings: Findings) -> int:
    """Bytes, roughly: the message as it was told, and the words that were found in it."""
    said = len(told.text) + sum(len(call.arguments) for call in told.calls)
    words = sum(len(word) + _WORD_WEIGHT for word in findings.words)
    return _MESSAGE_WEIGHT + said + words
