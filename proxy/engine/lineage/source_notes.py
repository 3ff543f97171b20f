"""What the requests of a session told of the prompt sources of their newest messages, in memory."""

from collections import OrderedDict
from collections.abc import Iterable

from proxy.engine.ports import MOST_NOTED
from proxy.model.epoch import SourceNote


class SourceNotes:
    """The kinds of prompt sources by the nodes of their messages; the newest `MOST_NOTED`."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def note(self, note: SourceNote) -> None:
        """Add what a request told, in place of what an earlier one told of the same message."""
        self._kinds[note.node] = note.kind
        self._kinds.move_to_end(note.node)
        while len(self._kinds) > MOST_NOTED:
            self._kinds.popitem(last=False)

    def absorb(self, stored: Iterable[SourceNote]) -> None:
        """Add what the log has, which is older than what is here."""
        later, self._kinds = self._kinds, OrderedDict()
        for note in stored:
            self.note(note)
        self._kinds |= later
