"""The trees of sessions in memory, built from the records of lineage. Rule: as `ports.Ancestry` says, and no faster."""

from collections.abc import Iterable, Sequence

from proxy.model.exchange import Opening, SessionKey
from proxy.model.lineage import Adoption, CallFingerprint, Lineage, NodeRow, Reply, StoredSession
from proxy.model.log import Record


class Tree:
    """One session: its nodes (parents first, one seen before it was an answer twice), fingerprints and tips."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.nodes: dict[tuple[bytes, bool], NodeRow] = {}
        self.fingerprints: dict[str, CallFingerprint] = {}
        self.tips: dict[bytes, None] = {}
        self.volatile = b""

    def grow(self, nodes: Iterable[NodeRow], fingerprints: Iterable[CallFingerprint]) -> None:
        """Take what is new."""
        for row in nodes:
            if (row.node, True) not in self.nodes:
                self.nodes.setdefault((row.node, row.is_answer), row)
        for fingerprint in fingerprints:
            self.fingerprints.setdefault(fingerprint.name, fingerprint)

    def has_answer(self, node: bytes) -> bool:
        """Whether an answer is recorded at the node."""
        return (node, True) in self.nodes

    def list_path(self, tip: bytes) -> list[bytes]:
        """The nodes from the first known to the tip."""
        parents = {row.node: row.parent for row in self.nodes.values()}
        path = []
        while tip in parents:
            path.append(tip)
            tip = parents[tip]
        return path[::-1]

    def store(self) -> StoredSession:
        """As it is recalled."""
        nodes, fingerprints = tuple(self.nodes.values()), tuple(self.fingerprints.values())
        return StoredSession(self.key, tuple(self.tips), nodes, fingerprints, self.volatile)


class Trees:
    """The trees of a log."""

    def __init__(self) -> None:
        self.by_id: dict[str, Tree] = {}
        self.adoptions: list[Adoption] = []
        self._of_exchange: dict[str, Tree] = {}

    def take(self, record: Record) -> None:
        """Take a record, of any kind."""
        if isinstance(record, Opening):
            tree = self.by_id.setdefault(record.session.id, Tree(record.session))
            self._of_exchange[record.exchange] = tree
        elif isinstance(record, Lineage):
            tree = self._of_exchange[record.exchange]
            tree.grow(record.nodes, record.fingerprints)
            tree.tips[record.tip] = None
            if not record.is_side:
                tree.volatile = record.tip if record.relation == "volatile" else b""
        elif isinstance(record, Reply):
            self._of_exchange[record.exchange].grow(record.nodes, record.fingerprints)
        elif isinstance(record, Adoption):
            self.adoptions.append(record)

    def recall(self, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey) -> list[StoredSession]:
        """As the port says, but that none is too many."""
        trees, names = list(self.by_id.values()), set(fingerprints)
        own = [tree for tree in trees if tree.key.tenant == session.tenant]
        answered = _find_answered(own, nodes)
        found = [tree for tree in own if tree.key.id == session.id]
        found += answered or [tree for tree in own if not names.isdisjoint(tree.fingerprints)]
        found += answered or _find_answered(trees, nodes)
        return [tree.store() for tree in trees if tree in found]


def _find_answered(trees: Sequence[Tree], nodes: Sequence[bytes]) -> list[Tree]:
    for node in reversed(nodes):
        if found := [tree for tree in trees if tree.has_answer(node)]:
            return found
    return []
