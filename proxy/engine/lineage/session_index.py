"""The sessions in memory, and the indexes by which they are found: by id, by node, and by mark.

A node leads to a session only if a recorded answer of that session stands at it or before it. Beginnings that many
conversations share (equal first messages, canned examples) prove nothing and are not indexed.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import TypeVar

import msgspec

from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession

# Bytes that an entry takes, with its part of the indexes.
_SESSION_WEIGHT = 1000
_NODE_WEIGHT = 600
_MARK_WEIGHT = 500

# What a node is to its session: brought by a client; the same behind a recorded answer; a recorded answer.
PLAIN, PROVEN, ANSWER = 0, 1, 2

# Of sessions with the same beginning (workers that begin alike), the newest this many are told apart.
_NAMESAKES = 64

K = TypeVar("K", bound=Hashable)


class Traits(msgspec.Struct, frozen=True, gc=False):
    """What the calls of one conversation have in common; a call that differs may be a side call."""

    model: str
    has_tools: bool
    system: bytes
    is_stream: bool


class SessionNodes:
    """The nodes of a session, which of them prove that a request belongs to it, and which have something behind them.

    `levels` are by node: PLAIN, PROVEN or ANSWER. `tips` are the nodes at which requests ended, `depth` is the number
    of messages of the newest. `adopted` are the sessions of other credentials that this one extends. `is_partial`: the
    log may have more of the session, but could not be asked.
    """

    __slots__ = (
        *("_parents", "_tip_traits", "adopted", "depth", "is_partial", "key"),
        *("levels", "marks", "tips", "traits", "weight"),
    )

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.levels: dict[bytes, int] = {}
        self.marks: dict[str, CallFingerprint] = {}
        self.tips: set[bytes] = set()
        self.adopted: set[str] = set()
        self.traits: Traits | None = None
        self.depth = 0
        self.is_partial = False
        self.weight = _SESSION_WEIGHT
        self._parents: set[bytes] = set()
        self._tip_traits: dict[bytes, Traits] = {}

    def record_traits(self, tip: bytes, traits: Traits, *, is_side: bool) -> None:
        """Record what a request that ended at this node was like; at one node the conversation goes before a side call.

        Equal traits are kept as one object.
        """
        if not is_side or tip not in self._tip_traits:
            self._tip_traits[tip] = self.traits if self.traits is not None and self.traits == traits else traits

    def get_traits(self, tip: bytes) -> Traits | None:
        """Return what a request that ended at this node was like, as far as memory tells."""
        return self._tip_traits.get(tip)

    def add_node(self, row: NodeRow) -> bool:
        """Add a node; return whether it proves something, and did not before."""
        levels, node = self.levels, row.node
        before = levels.get(node, -1)
        level = ANSWER if row.is_answer else min(PROVEN, levels.get(row.parent, PLAIN))
        if before >= level:
            return False
        if before < 0:
            self.weight += _NODE_WEIGHT
            self._parents.add(row.parent)
        levels[node] = level
        return before < PROVEN <= level

    def add_mark(self, mark: CallFingerprint) -> None:
        """Add a mark, unless there is one of its name."""
        if mark.name not in self.marks:
            self.weight += _MARK_WEIGHT
            self.marks[mark.name] = mark

    def is_answer(self, node: bytes) -> bool:
        """Return whether an answer that was recorded here ends at the node."""
        return self.levels.get(node) == ANSWER

    def is_leaf(self, node: bytes) -> bool:
        """Return whether nothing is known behind the node."""
        return node not in self._parents

    def measure(self, nodes: Sequence[bytes]) -> int:
        """Return how many nodes of a chain, from its beginning, this session has had."""
        levels = self.levels
        count = len(nodes)
        for node in reversed(nodes):
            if node in levels:
                return count
            count -= 1
        return 0


# Nearly always one session has a key, so it stands there itself; a list, the newest last, where there are several.
_Index = dict[K, SessionNodes | list[SessionNodes]]


class _TenantIndex:
    """What leads to the sessions of one tenant: what one tenant sends never hides what another has."""

    __slots__ = ("by_mark", "by_node")

    def __init__(self) -> None:
        self.by_node: _Index[bytes] = {}
        self.by_mark: _Index[str] = {}


class SessionIndex:
    """The sessions in memory, of which the least recently used are dropped.

    `is_complete`: the log has no session that is not here, with all its nodes. `weight` is above `most_bytes` until
    `shrink` is called. `losses` counts how often something was dropped: what the log was asked before may no longer be
    here. `resets` counts how often everything was.
    """

    def __init__(self, most_bytes: int, *, is_complete: bool) -> None:
        self.most_bytes = most_bytes
        self.weight = 0
        self.losses = self.resets = 0
        self.is_complete = is_complete
        self.sessions: OrderedDict[str, SessionNodes] = OrderedDict()
        self.by_node: _Index[bytes] = {}
        self.by_tenant: dict[bytes, _TenantIndex] = {}

    def __len__(self) -> int:
        return len(self.sessions)

    def get(self, session: str) -> SessionNodes | None:
        """Return the session with this id."""
        return self.sessions.get(session)

    def find_answered(self, tenant: bytes, nodes: Sequence[bytes], root: bytes) -> tuple[Sequence[SessionNodes], int]:
        """Return the tenant's sessions with a recorded answer at the deepest node of a chain, and the node's depth.

        The newest stands last; depth 0 is the root. Of a chain that proves nothing there are no sessions.
        """
        own = self.by_tenant.get(tenant)
        if own is None:
            return (), 0
        by_node, depth = own.by_node, len(nodes)
        for node in chain(reversed(nodes), (root,)):
            found = by_node.get(node)
            if found is not None:
                if not isinstance(found, list):
                    if found.levels.get(node) == ANSWER:
                        return (found,), depth
                elif answered := [known for known in found if known.levels.get(node) == ANSWER]:
                    return answered, depth
            depth -= 1
        return (), 0

    def find_shared(self, nodes: Sequence[bytes], least_depth: int) -> tuple[SessionNodes, int] | None:
        """Return whoever's newest session in which the deepest possible node proves something, and the node's depth."""
        depth = len(nodes)
        for node in islice(reversed(nodes), max(0, depth - least_depth + 1)):
            if found := _find(self.by_node, node):
                return found[-1], depth
            depth -= 1
        return None

    def find_own(self, tenant: bytes, node: bytes) -> Sequence[SessionNodes]:
        """Return the tenant's sessions in which this node proves something, the newest last."""
        own = self.by_tenant.get(tenant)
        return _find(own.by_node, node) if own is not None else ()

    def find_by_mark(self, tenant: bytes, upstream: str, name: str) -> Sequence[SessionNodes]:
        """Return the tenant's sessions at an upstream that have a mark of this name; none where they are too many."""
        own = self.by_tenant.get(tenant)
        bearers = _find(own.by_mark, name) if own is not None else ()
        return [known for known in bearers if known.key.upstream == upstream] if len(bearers) < _NAMESAKES else ()

    def open(self, key: SessionKey) -> SessionNodes:
        """Return the session, made if it is not here; it is the most recently used one from now on."""
        known = self.sessions.get(key.id)
        if known is None:
            known = self.sessions[key.id] = SessionNodes(key)
            self.weight += known.weight
        else:
            self.sessions.move_to_end(key.id)
        return known

    def add(self, session: str, nodes: Iterable[NodeRow], marks: Sequence[CallFingerprint]) -> None:
        """Add what a session has gained, parents first. Of a session that was dropped meanwhile the log has it all."""
        known = self.sessions.get(session)
        if known is None:
            self._record_loss()
            return
        before = known.weight
        own = self.by_tenant.get(known.key.tenant)
        is_first = own is None
        own = own or _TenantIndex()
        for row in nodes:
            if known.add_node(row):
                for by_node in (self.by_node, own.by_node):
                    if by_node.setdefault(row.node, known) is not known:
                        _append(by_node, row.node, known)
        for mark in marks:
            known.add_mark(mark)
            if own.by_mark.setdefault(mark.name, known) is not known:
                _append(own.by_mark, mark.name, known)
        if is_first and (own.by_node or own.by_mark):
            self.by_tenant[known.key.tenant] = own
        self.weight += known.weight - before

    def absorb(self, stored: StoredSession) -> SessionNodes:
        """Add a session as the log has it.

        While the log could not be asked, a call that the client brought may have taken the place of the recorded one.
        """
        known = self.open(stored.key)
        known.tips.update(stored.tips)
        self.add(stored.key.id, stored.nodes, stored.marks)
        known.marks.update({mark.name: mark for mark in reversed(stored.marks)})
        return known

    def clear(self) -> None:
        """Forget everything: the log has lost a record, so that what is here may not be there."""
        self.sessions.clear()
        self.by_node.clear()
        self.by_tenant.clear()
        self.weight = 0
        self.resets += 1
        self._record_loss()

    def shrink(self) -> None:
        """Drop the least recently used sessions while they are too much; the last one used stays."""
        while self.weight > self.most_bytes and len(self.sessions) > 1:
            _, known = self.sessions.popitem(last=False)
            self.weight -= known.weight
            self._record_loss()
            self._remove_from_indexes(known)

    def _remove_from_indexes(self, known: SessionNodes) -> None:
        own = self.by_tenant.get(known.key.tenant)
        if own is None:
            return
        for node in known.levels:
            _remove(self.by_node, node, known)
            _remove(own.by_node, node, known)
        for name in known.marks:
            _remove(own.by_mark, name, known)
        if not own.by_node and not own.by_mark:
            del self.by_tenant[known.key.tenant]

    def _record_loss(self) -> None:
        self.losses += 1
        self.is_complete = False


def _find(index: _Index[K], key: K) -> Sequence[SessionNodes]:
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _append(index: _Index[K], key: K, known: SessionNodes) -> None:
    """Add a session to a key that another one has."""
    found = index[key]
    if not isinstance(found, list):
        index[key] = [found, known]
    elif known not in found:
        found.append(known)
        if len(found) > _NAMESAKES:
            del found[0]


def _remove(index: _Index[K], key: K, known: SessionNodes) -> None:
    found = index.get(key)
    if found is known:
        del index[key]
    elif isinstance(found, list) and known in found:
        found.remove(known)
        if len(found) == 1:
            index[key] = found[0]
