"""The tree of one session in memory; what is there already is passed over."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.model.exchange import SessionKey
from proxy.model.lineage import Adoption, CallFingerprint, NodeRow, Step, StoredSession
from proxy.model.log import BranchRow
from proxy.store.sqlite.lineage_queries import ExchangePosition, find_branches


@dataclass(slots=True)
class Tree:
    """Nodes (each as seen, and as an answer), marks by name, and steps by the number of their exchange."""

    nodes: dict[tuple[bytes, bool], NodeRow] = field(default_factory=dict)
    parents: dict[bytes, bytes] = field(default_factory=dict)
    marks: dict[str, CallFingerprint] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    adoptions: dict[tuple[str, bytes], Adoption] = field(default_factory=dict)

    def lacks(self, row: NodeRow) -> bool:
        """Whether the row says something new."""
        return (row.node, True) not in self.nodes and (row.node, row.is_answer) not in self.nodes

    def has_answer(self, node: bytes) -> bool:
        """Whether the node is a recorded answer here."""
        return (node, True) in self.nodes

    @property
    def weight(self) -> int:
        """How much of it there is to recall: nodes, marks, and requests up to the last that has a place."""
        return len(self.nodes) + len(self.marks) + max(self.steps, default=0)

    def store(self, key: SessionKey) -> StoredSession:
        """The whole of it."""
        tips = dict.fromkeys(step.tip for _, step in sorted(self.steps.items()))
        *_, newest = (b"", *(step for _, step in sorted(self.steps.items()) if not step.is_side))
        volatile = newest.tip if isinstance(newest, Step) and newest.relation == "volatile" else b""
        return StoredSession(key, tuple(tips), tuple(self.nodes.values()), tuple(self.marks.values()), volatile)

    def list_branches(self, exchanges: Mapping[int, str]) -> list[BranchRow]:
        """Its branches; `exchanges` are ids by number."""
        stands = [
            ExchangePosition(n, exchanges[n], step.tip, step.depth, step.relation, step.is_side)
            for n, step in sorted(self.steps.items())
        ]
        return find_branches(self.parents, stands)
