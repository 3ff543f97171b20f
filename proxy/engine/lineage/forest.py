"""The sessions in memory, found by their nodes, their marks and their ids; the least recently used are dropped.

Rule: a node leads to a session only if a recorded answer of that session stands at it or before it. Beginnings that
many conversations share (equal first messages, canned examples) prove nothing and are not in the index. What one tenant
sends never hides what another has.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from proxy.engine.lineage.known import SessionNodes
from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession

# Of sessions that have gone the same way so far (workers that begin alike), the newest this many are told apart.
_NAMESAKES = 64

K = TypeVar("K", bound=Hashable)

# Nearly always one session has a key, so it stands there itself; a list, the newest last, where there are several.
_Index = dict[K, SessionNodes | list[SessionNodes]]


class _Estate:
    """What leads to the sessions of one tenant."""

    __slots__ = ("by_mark", "by_node")

    def __init__(self) -> None:
        self.by_node: _Index[bytes] = {}
        self.by_mark: _Index[str] = {}


class Forest:
    """What is known of sessions. `is_complete`: the log has no session that is not here, with all its nodes.

    `losses` counts how often something was dropped: what was found out by asking before may no longer hold. `resets`
    counts how often everything was.
    """

    def __init__(self, most_bytes: int, *, is_complete: bool) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, SessionNodes] = OrderedDict()
        self._by_node: _Index[bytes] = {}
        self._estates: dict[bytes, _Estate] = {}
        self.weight = 0
        self.losses = self.resets = 0
        self.is_complete = is_complete

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: str) -> SessionNodes | None:
        """The session with this id."""
        return self._sessions.get(session)

    def find_own(self, tenant: bytes, node: bytes) -> Sequence[SessionNodes]:
        """The tenant's sessions in which this node proves something, the newest last."""
        estate = self._estates.get(tenant)
        return _find(estate.by_node, node) if estate is not None else ()

    def find_any(self, node: bytes) -> Sequence[SessionNodes]:
        """Whoever's sessions in which this node proves something, the newest last."""
        return _find(self._by_node, node)

    def find_by_mark(self, tenant: bytes, upstream: str, name: str) -> Sequence[SessionNodes]:
        """The tenant's sessions at an upstream that have a mark of this name; none where they are too many to tell."""
        estate = self._estates.get(tenant)
        bearers = _find(estate.by_mark, name) if estate is not None else ()
        return [known for known in bearers if known.key.upstream == upstream] if len(bearers) < _NAMESAKES else ()

    def open(self, key: SessionKey) -> SessionNodes:
        """The session, made if it is not here; now the most recently used."""
        known = self._sessions.get(key.id)
        if known is None:
            known = self._sessions[key.id] = SessionNodes(key)
            self.weight += known.weight
        else:
            self._sessions.move_to_end(key.id)
        return known

    def add(self, session: str, nodes: Iterable[NodeRow], marks: Sequence[CallFingerprint]) -> None:
        """Take what a session has gained; nodes parents first. Of one that was dropped meanwhile the log has it all."""
        known = self._sessions.get(session)
        if known is None:
            self._lose()
            return
        before = known.weight
        proving = [row.node for row in nodes if known.add_node(row)]
        for mark in marks:
            known.add_mark(mark)
        if proving or marks:
            self._lead_to(known, proving, marks)
        self.weight += known.weight - before

    def absorb(self, stored: StoredSession) -> SessionNodes:
        """Take a session as the log has it.

        While the log could not be asked, a call that the client brought may have taken the place of the recorded one.
        """
        known = self.open(stored.key)
        known.tips.update(stored.tips)
        self.add(stored.key.id, stored.nodes, stored.marks)
        known.marks.update({mark.name: mark for mark in reversed(stored.marks)})
        return known

    def clear(self) -> None:
        """Forget everything: the log has lost a record, so that what is here may not be there."""
        self._sessions.clear()
        self._by_node.clear()
        self._estates.clear()
        self.weight = 0
        self.resets += 1
        self._lose()

    def shrink(self) -> None:
        """Drop what was used least recently, as far as it is too much; the last one used stays."""
        while self.weight > self._most_bytes and len(self._sessions) > 1:
            _, known = self._sessions.popitem(last=False)
            self.weight -= known.weight
            self._lose()
            self._forget_ways_to(known)

    def _lead_to(self, known: SessionNodes, proving: Iterable[bytes], marks: Iterable[CallFingerprint]) -> None:
        estate = self._estates.get(known.key.tenant)
        if estate is None:
            estate = self._estates[known.key.tenant] = _Estate()
        for node in proving:
            _enter(self._by_node, node, known)
            _enter(estate.by_node, node, known)
        for mark in marks:
            _enter(estate.by_mark, mark.name, known)

    def _forget_ways_to(self, known: SessionNodes) -> None:
        estate = self._estates.get(known.key.tenant)
        if estate is None:
            return
        for node in known.nodes:
            _leave(self._by_node, node, known)
            _leave(estate.by_node, node, known)
        for name in known.marks:
            _leave(estate.by_mark, name, known)
        if not estate.by_node and not estate.by_mark:
            del self._estates[known.key.tenant]

    def _lose(self) -> None:
        self.losses += 1
        self.is_complete = False


def _find(index: _Index[K], key: K) -> Sequence[SessionNodes]:
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _enter(index: _Index[K], key: K, known: SessionNodes) -> None:
    found = index.setdefault(key, known)
    if found is known:
        return
    if not isinstance(found, list):
        index[key] = [found, known]
    elif known not in found:
        found.append(known)
        if len(found) > _NAMESAKES:
            del found[0]


def _leave(index: _Index[K], key: K, known: SessionNodes) -> None:
    found = index.get(key)
    if found is known:
        del index[key]
    elif isinstance(found, list) and known in found:
        found.remove(known)
        if len(found) == 1:
            index[key] = found[0]
