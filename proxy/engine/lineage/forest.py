"""The sessions in memory, found by their nodes, their marks and their ids; the least recently used are dropped.

Rule: a node leads to a session only if a recorded answer of that session stands at it or before it. Beginnings that
many conversations share (equal first messages, canned examples) prove nothing and are not in the index. What one tenant
sends never hides what another has.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from proxy.engine.lineage.known import Known
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Mark, NodeRow, StoredSession

# Of sessions that have gone the same way so far (workers that begin alike), the newest this many are told apart.
_NAMESAKES = 64

_Index = dict[bytes, list[Known]]


class Forest:
    """What is known of sessions. `is_complete`: the log has no session that is not here, with all its nodes.

    `losses` counts how often something was dropped: what was found out by asking before may no longer hold.
    """

    def __init__(self, most_bytes: int, *, is_complete: bool) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, Known] = OrderedDict()
        self._by_node: _Index = {}
        self._by_tenant_and_node: _Index = {}
        self._by_tenant_and_mark: _Index = {}
        self.weight = 0
        self.losses = 0
        self.is_complete = is_complete

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: str) -> Known | None:
        """The session with this id."""
        return self._sessions.get(session)

    def find_own(self, tenant: bytes, node: bytes) -> Sequence[Known]:
        """The tenant's sessions in which this node proves something, the newest last."""
        return self._by_tenant_and_node.get(tenant + node, ())

    def find_any(self, node: bytes) -> Sequence[Known]:
        """Whoever's sessions in which this node proves something, the newest last."""
        return self._by_node.get(node, ())

    def find_by_mark(self, tenant: bytes, upstream: str, name: str) -> Sequence[Known]:
        """The tenant's sessions at an upstream that have a mark of this name; none where they are too many to tell."""
        bearers = self._by_tenant_and_mark.get(tenant + name.encode(), ())
        return [known for known in bearers if known.key.upstream == upstream] if len(bearers) < _NAMESAKES else ()

    def open(self, key: SessionKey) -> Known:
        """The session, made if it is not here; now the most recently used."""
        known = self._sessions.get(key.id)
        if known is None:
            known = self._sessions[key.id] = Known(key)
            self.weight += known.weight
        else:
            self._sessions.move_to_end(key.id)
        return known

    def add(self, session: str, nodes: Iterable[NodeRow], marks: Iterable[Mark]) -> None:
        """Take what a session has gained; nodes parents first. Of one that was dropped meanwhile the log has it all."""
        known = self._sessions.get(session)
        if known is None:
            self._lose()
            return
        before, tenant = known.weight, known.key.tenant
        for row in nodes:
            if known.add_node(row):
                _enter(self._by_node, row.node, known)
                _enter(self._by_tenant_and_node, tenant + row.node, known)
        for mark in marks:
            known.add_mark(mark)
            _enter(self._by_tenant_and_mark, tenant + mark.name.encode(), known)
        self.weight += known.weight - before

    def absorb(self, stored: StoredSession) -> Known:
        """Take a session as the log has it."""
        known = self.open(stored.key)
        known.tips.update(stored.tips)
        self.add(stored.key.id, stored.nodes, stored.marks)
        return known

    def clear(self) -> None:
        """Forget everything: the log has lost a record, so that what is here may not be there."""
        self._sessions.clear()
        self._by_node.clear()
        self._by_tenant_and_node.clear()
        self._by_tenant_and_mark.clear()
        self.weight = 0
        self._lose()

    def shrink(self) -> None:
        """Drop what was used least recently, as far as it is too much; the last one used stays."""
        while self.weight > self._most_bytes and len(self._sessions) > 1:
            _, known = self._sessions.popitem(last=False)
            self.weight -= known.weight
            self._lose()
            for node in known.nodes:
                _leave(self._by_node, node, known)
                _leave(self._by_tenant_and_node, known.key.tenant + node, known)
            for name in known.marks:
                _leave(self._by_tenant_and_mark, known.key.tenant + name.encode(), known)

    def _lose(self) -> None:
        self.losses += 1
        self.is_complete = False


def _enter(index: _Index, key: bytes, known: Known) -> None:
    sessions = index.setdefault(key, [])
    if known not in sessions:
        sessions.append(known)
        if len(sessions) > _NAMESAKES:
            del sessions[0]


def _leave(index: _Index, key: bytes, known: Known) -> None:
    sessions = index.get(key, [])
    if known in sessions:
        sessions.remove(known)
        if not sessions:
            del index[key]
