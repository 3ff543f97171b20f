"""A session as it is known in memory. Rule: facts only; what they mean for a request is decided in `placing`."""

from collections.abc import Sequence

import msgspec

from proxy.model.exchange import SessionKey
from proxy.model.lineage import CallFingerprint, NodeRow

_SESSION_WEIGHT = 1000
_NODE_WEIGHT = 600
_MARK_WEIGHT = 500

_PLAIN, _PROVEN, _ANSWER = 0, 1, 2


class Traits(msgspec.Struct, frozen=True, gc=False):
    """What the calls of one conversation have in common: where one differs it may stand beside it."""

    model: str
    has_tools: bool
    system: bytes
    is_stream: bool


class SessionNodes:
    """The nodes of a session: which of them prove that a request belongs here, and which have something behind them.

    `is_partial`: the log may have more of it, but could not be asked.
    """

    __slots__ = (
        "_inner",
        "_levels",
        "_ways",
        "adopted",
        "depth",
        "is_partial",
        "key",
        "marks",
        "tips",
        "traits",
        "weight",
    )

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.marks: dict[str, CallFingerprint] = {}
        self.tips: set[bytes] = set()
        self.adopted: set[str] = set()
        self.traits: Traits | None = None
        self.depth = 0
        self.is_partial = False
        self.weight = _SESSION_WEIGHT
        self._levels: dict[bytes, int] = {}
        self._inner: set[bytes] = set()
        self._ways: dict[bytes, Traits] = {}

    def note_way(self, tip: bytes, traits: Traits, *, is_side: bool) -> None:
        """A request of the conversation, or one beside it that shares its beginning, ended at this node.

        Of both at one node that of the conversation counts.
        """
        if not is_side or tip not in self._ways:
            self._ways[tip] = self.traits if self.traits is not None and self.traits == traits else traits

    def get_way(self, tip: bytes) -> Traits | None:
        """What a request that ended at this node was like, as far as memory tells."""
        return self._ways.get(tip)

    def add_node(self, row: NodeRow) -> bool:
        """Take a node; True if it can prove something and could not before."""
        before = self._levels.get(row.node, -1)
        level = _ANSWER if row.is_answer else min(_PROVEN, self._levels.get(row.parent, _PLAIN))
        if before >= level:
            return False
        if before < 0:
            self.weight += _NODE_WEIGHT
            self._inner.add(row.parent)
        self._levels[row.node] = level
        return before < _PROVEN <= level

    def add_mark(self, mark: CallFingerprint) -> None:
        """Take a mark; of one that is there the first stays."""
        if mark.name not in self.marks:
            self.weight += _MARK_WEIGHT
            self.marks[mark.name] = mark

    @property
    def nodes(self) -> Sequence[bytes]:
        """All nodes."""
        return tuple(self._levels)

    def has(self, node: bytes) -> bool:
        """Whether this session has had the node."""
        return node in self._levels

    def is_answer(self, node: bytes) -> bool:
        """Whether an answer that was recorded here ends at the node."""
        return self._levels.get(node) == _ANSWER

    def is_leaf(self, node: bytes) -> bool:
        """Whether nothing is known behind the node."""
        return node not in self._inner

    def measure(self, nodes: Sequence[bytes]) -> int:
        """How many nodes of a chain, from its beginning, this session has had."""
        levels = self._levels
        count = len(nodes)
        for node in reversed(nodes):
            if node in levels:
                return count
            count -= 1
        return 0
