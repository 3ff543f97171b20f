"""The sessions in memory, and the indexes by which they are found: by id, by node, and by fingerprint.

A node is indexed for a session only if a recorded answer of that session is at the node or before it. Beginnings that
many conversations share (equal first messages, canned examples) prove nothing and are not indexed.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import TypeVar

import msgspec

from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow, StoredSession

# Bytes that an entry takes, with its share of the indexes.
_SESSION_WEIGHT = 1000
_NODE_WEIGHT = 600
_MARK_WEIGHT = 500

# The standings of a node in its session: sent by a client; sent by a client after a recorded answer; a recorded answer.
PLAIN, PROVEN, ANSWER = 0, 1, 2

# So many requests in a row have other messages in place of the last ones of the request before: their client always
# rewrites the end. aider does: files, images, the current task with failed attempts at it, a reminder.
REWRITES = 3

# How many sessions with the same beginning (such as parallel workers) are distinguished: the newest.
_NAMESAKES = 64

K = TypeVar("K", bound=Hashable)


class Traits(msgspec.Struct, frozen=True, gc=False):
    """What the calls of one conversation have in common. A call that differs may be a side call."""

    model: str
    has_tools: bool
    system: bytes
    is_stream: bool


class SessionNodes:
    """The nodes of a session, which of them prove that a request belongs to it, and which have successors.

    `standings` maps each node to PLAIN, PROVEN or ANSWER. `tips` are the nodes at which requests ended; `depth` is the
    number of messages of the newest request. `newest` are the nodes of that request, as far as memory has them;
    `rewrites` is how many requests in a row, up to that one, rewrote the end of the one before. `adopted` are the
    sessions of other credentials that this one extends. `is_partial`: the log may have more of the session, but could
    not be asked.
    """

    __slots__ = (
        *("_parents", "adopted", "depth", "is_partial", "key", "tip_traits"),
        *("standings", "fingerprints", "newest", "rewrites", "tips", "traits", "weight"),
    )

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.standings: dict[bytes, int] = {}
        self.fingerprints: dict[str, CallFingerprint] = {}
        self.tips: set[bytes] = set()
        self.adopted: set[str] = set()
        self.traits: Traits | None = None
        self.depth = 0
        self.newest: Sequence[bytes] = ()
        self.rewrites = 0
        self.is_partial = False
        self.weight = _SESSION_WEIGHT
        self._parents: set[bytes] = set()
        self.tip_traits: dict[bytes, Traits] = {}  # of the requests in memory, by their last node

    def record_traits(self, tip: bytes, traits: Traits, *, is_side: bool) -> None:
        """Record the traits of a request that ended at this node. A side call never replaces those of the conversation.

        Equal traits are kept as one object.
        """
        if not is_side or tip not in self.tip_traits:
            self.tip_traits[tip] = self.traits if self.traits is not None and self.traits == traits else traits

    def add_node(self, row: NodeRow) -> bool:
        """Add a node. Return whether it is newly a proof that a request belongs to this session."""
        standings, node = self.standings, row.node
        before = standings.get(node, -1)
        standing = ANSWER if row.is_answer else min(PROVEN, standings.get(row.parent, PLAIN))
        if before >= standing:
            return False
        if before < 0:
            self.weight += _NODE_WEIGHT
            self._parents.add(row.parent)
        standings[node] = standing
        return before < PROVEN <= standing

    def add_fingerprint(self, fingerprint: CallFingerprint) -> None:
        """Add a fingerprint, unless there is one with its name."""
        if fingerprint.name not in self.fingerprints:
            self.weight += _MARK_WEIGHT
            self.fingerprints[fingerprint.name] = fingerprint

    def is_answer(self, node: bytes) -> bool:
        """Return whether a recorded answer of this session ends at the node."""
        return self.standings.get(node) == ANSWER

    def is_leaf(self, node: bytes) -> bool:
        """Return whether the node has no known successor."""
        return node not in self._parents

    def measure(self, nodes: Sequence[bytes]) -> int:
        """Return how many nodes of a chain, from its beginning, this session has."""
        standings = self.standings
        count = len(nodes)
        for node in reversed(nodes):
            if node in standings:
                return count
            count -= 1
        return 0


# Nearly always a key has one session, which is then stored without a list. Several are a list, the newest last.
_Index = dict[K, SessionNodes | list[SessionNodes]]


class _TenantIndex:
    """The indexes of one tenant's sessions. They are separate so that one tenant never hides sessions of another."""

    __slots__ = ("by_fingerprint", "by_node")

    def __init__(self) -> None:
        self.by_node: _Index[bytes] = {}
        self.by_fingerprint: _Index[str] = {}


class SessionIndex:
    """The sessions in memory. The least recently used are dropped.

    `is_complete`: all sessions of the log are here, with all their nodes. `weight` may be above `most_bytes` until
    `shrink` is called. `losses` counts how often something was dropped, after which earlier results of the log may be
    missing here. `resets` counts how often everything was dropped.
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
        """Return the tenant's sessions with a recorded answer at the deepest possible node of a chain, and its depth.

        The newest session is last. Depth 0 is the root. There are no sessions for a chain that proves nothing.
        """
        own = self.by_tenant.get(tenant)
        if own is None:
            return (), 0
        by_node, depth = own.by_node, len(nodes)
        for node in chain(reversed(nodes), (root,)):
            found = by_node.get(node)
            if found is not None:
                if not isinstance(found, list):
                    if found.standings.get(node) == ANSWER:
                        return (found,), depth
                elif answered := [known for known in found if known.standings.get(node) == ANSWER]:
                    return answered, depth
            depth -= 1
        return (), 0

    def find_shared(self, nodes: Sequence[bytes], least_depth: int) -> tuple[SessionNodes, int] | None:
        """Return any tenant's newest session in which the deepest possible node is a proof, and the node's depth."""
        depth = len(nodes)
        for node in islice(reversed(nodes), max(0, depth - least_depth + 1)):
            if found := _find(self.by_node, node):
                return found[-1], depth
            depth -= 1
        return None

    def find_own(self, tenant: bytes, node: bytes) -> Sequence[SessionNodes]:
        """Return the tenant's sessions in which this node is a proof, the newest last."""
        own = self.by_tenant.get(tenant)
        return _find(own.by_node, node) if own is not None else ()

    def find_by_fingerprint(self, tenant: bytes, upstream: str, name: str) -> Sequence[SessionNodes]:
        """Return the tenant's sessions at an upstream with a fingerprint of this name, or none if they are too many."""
        own = self.by_tenant.get(tenant)
        bearers = _find(own.by_fingerprint, name) if own is not None else ()
        return [known for known in bearers if known.key.upstream == upstream] if len(bearers) < _NAMESAKES else ()

    def open(self, key: SessionKey) -> SessionNodes:
        """Return the session, creating it if missing, and make it the most recently used one."""
        known = self.sessions.get(key.id)
        if known is None:
            known = self.sessions[key.id] = SessionNodes(key)
            self.weight += known.weight
        else:
            self.sessions.move_to_end(key.id)
        return known

    def add(self, session: str, nodes: Iterable[NodeRow], fingerprints: Sequence[CallFingerprint]) -> None:
        """Add new nodes, parents first, and fingerprints to a session. If it was dropped, only the log has them."""
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
        for fingerprint in fingerprints:
            known.add_fingerprint(fingerprint)
            if own.by_fingerprint.setdefault(fingerprint.name, known) is not known:
                _append(own.by_fingerprint, fingerprint.name, known)
        if is_first and (own.by_node or own.by_fingerprint):
            self.by_tenant[known.key.tenant] = own
        self.weight += known.weight - before

    def absorb(self, stored: StoredSession) -> SessionNodes:
        """Add a session as the log has it.

        Its fingerprints replace those that a client brought while the log could not be asked.
        """
        known = self.open(stored.key)
        known.tips.update(stored.tips)
        self.add(stored.key.id, stored.nodes, stored.fingerprints)
        known.fingerprints.update({fingerprint.name: fingerprint for fingerprint in reversed(stored.fingerprints)})
        if stored.volatile and not known.newest:
            known.rewrites, known.newest = REWRITES, _trace(stored.nodes, stored.volatile)
        return known

    def clear(self) -> None:
        """Forget everything, because the log has lost a record and may lack what is here."""
        self.sessions.clear()
        self.by_node.clear()
        self.by_tenant.clear()
        self.weight = 0
        self.resets += 1
        self._record_loss()

    def shrink(self) -> None:
        """Drop the least recently used sessions until the rest fits. The last one used stays."""
        while self.weight > self.most_bytes and len(self.sessions) > 1:
            _, known = self.sessions.popitem(last=False)
            self.weight -= known.weight
            self._record_loss()
            self._remove_from_indexes(known)

    def _remove_from_indexes(self, known: SessionNodes) -> None:
        own = self.by_tenant.get(known.key.tenant)
        if own is None:
            return
        for node in known.standings:
            _remove(self.by_node, node, known)
            _remove(own.by_node, node, known)
        for name in known.fingerprints:
            _remove(own.by_fingerprint, name, known)
        if not own.by_node and not own.by_fingerprint:
            del self.by_tenant[known.key.tenant]

    def _record_loss(self) -> None:
        self.losses += 1
        self.is_complete = False


def _trace(nodes: Iterable[NodeRow], tip: bytes) -> list[bytes]:
    """Return the nodes of a chain from the first known one up to its tip."""
    parents = {row.node: row.parent for row in nodes}
    chain: list[bytes] = []
    while tip in parents:
        chain.append(tip)
        tip = parents[tip]
    return chain[::-1]


def _find(index: _Index[K], key: K) -> Sequence[SessionNodes]:
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _append(index: _Index[K], key: K, known: SessionNodes) -> None:
    """Add a session to a key that another one already has."""
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
