"""What managing remembers. Rule: a cache of the log; when the log has lost a record nothing here is to be relied on."""

from proxy.engine.context.contexts import Contexts
from proxy.engine.context.paths import Paths
from proxy.engine.context.sent import SentBodies
from proxy.engine.context.twins import Twins
from proxy.engine.counting import Counting
from proxy.engine.policy import RECORD_CAP_BYTES
from proxy.engine.ports import Archive


class Memory:
    """Contexts, paths, sent bodies and twins; each takes its part of `most_bytes`."""

    def __init__(
        self, archive: Archive, counting: Counting, most_bytes: int, record_cap: int = RECORD_CAP_BYTES
    ) -> None:
        self._archive = archive
        self._generation = archive.health.generation
        self.contexts = Contexts(archive, most_bytes // 4)
        self.paths = Paths(counting, most_bytes // 4)
        self.sent = SentBodies(most_bytes // 2, record_cap)
        self.twins = Twins(most_bytes // 16)

    def forget_lost(self) -> None:
        """Forget what leans on records that the log has lost since this was called last."""
        generation = self._archive.health.generation
        if generation != self._generation:
            self._generation = generation
            self.contexts.clear()
            self.sent.clear()
            self.twins.clear()
