"""The sessions in memory, found by their nodes, their marks and their ids; the least recently used are dropped.

Rule: a node leads to a session only if a recorded answer of that session stands at it or before it. Beginnings that
many conversations share (equal first messages, canned examples) prove nothing and are not in the index.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from proxy.engine.lineage.known import Known
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Mark, NodeRow, StoredSession

# Of sessions that have gone the same way so far (workers that begin alike), the newest this many are told apart.
_NAMESAKES = 64

K = TypeVar("K", str, bytes)


class Forest:
    """What is known of sessions. `is_complete`: the log has no session that is not here, with all its nodes."""

    def __init__(self, most_bytes: int, *, is_complete: bool) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, Known] = OrderedDict()
        self._by_node: dict[bytes, list[Known]] = {}
        self._by_mark: dict[str, list[Known]] = {}
        self._weight = 0
        self.is_complete = is_complete

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: str) -> Known | None:
        """The session with this id."""
        return self._sessions.get(session)

    def find_by_node(self, node: bytes) -> Sequence[Known]:
        """The sessions in which this node proves something, the newest last."""
        return self._by_node.get(node, ())

    def find_by_mark(self, call: str) -> Sequence[Known]:
        """The sessions that have a tool call of this id."""
        return self._by_mark.get(call, ())

    def open(self, key: SessionKey) -> Known:
        """The session, made if it is not here; now the most recently used."""
        known = self._sessions.get(key.id)
        if known is None:
            known = self._sessions[key.id] = Known(key)
            self._weight += known.weight
        else:
            self._sessions.move_to_end(key.id)
        return known

    def add(self, known: Known, nodes: Iterable[NodeRow], marks: Iterable[Mark]) -> None:
        """Take what a session has gained; nodes parents first."""
        before = known.weight
        for row in nodes:
            if known.add_node(row):
                _enter(self._by_node, row.node, known)
        for mark in marks:
            known.add_mark(mark)
            _enter(self._by_mark, mark.name, known)
        if known.key.id in self._sessions:
            self._weight += known.weight - before
            self._shrink()

    def absorb(self, stored: StoredSession) -> Known:
        """Take a session as the log has it."""
        known = self.open(stored.key)
        known.tips.update(stored.tips)
        self.add(known, stored.nodes, stored.marks)
        return known

    def clear(self) -> None:
        """Forget everything: the log has lost a record, so that what is here may not be there."""
        self._sessions.clear()
        self._by_node.clear()
        self._by_mark.clear()
        self._weight = 0
        self.is_complete = False

    def _shrink(self) -> None:
        while self._weight > self._most_bytes and len(self._sessions) > 1:
            _, known = self._sessions.popitem(last=False)
            self._weight -= known.weight
            self.is_complete = False
            for node in known.nodes:
                _leave(self._by_node, node, known)
            for name in known.marks:
                _leave(self._by_mark, name, known)


def _enter(index: dict[K, list[Known]], key: K, known: Known) -> None:
    sessions = index.setdefault(key, [])
    if known not in sessions:
        sessions.append(known)
        if len(sessions) > _NAMESAKES:
            del sessions[0]


def _leave(index: dict[K, list[Known]], key: K, known: Known) -> None:
    sessions = index.get(key, [])
    if known in sessions:
        sessions.remove(known)
        if not sessions:
            del index[key]
