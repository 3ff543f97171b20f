"""The memory of sessions: what is known of them is read from the log, and what is learned is written to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.context.memory.facts import choose_items, list_items
from proxy.engine.ports import Archive
from proxy.model.lru import LruCache
from proxy.model.memory import MemoryBundle, StoredMemory

MOST_EPISODIC, MOST_SEMANTIC = 3, 20
_MOST_SESSIONS = 256


class MemoryLog(Archive, Protocol):
    """The log as memory reads and writes it."""

    async def load_memory(self, session: str) -> StoredMemory:
        """Return the memory records of a session and of those that it continues. Empty if nothing is known."""
        ...


@dataclass(kw_only=True, eq=False)
class SessionMemory:
    """The memory of all sessions of one server."""

    archive: MemoryLog
    _cache: LruCache[str, StoredMemory] = field(default_factory=lambda: LruCache(_MOST_SESSIONS), init=False)

    async def retrieve(
        self,
        session: str,
        nodes: Sequence[bytes],
        *,
        max_episodic: int = MOST_EPISODIC,
        max_semantic: int = MOST_SEMANTIC,
    ) -> MemoryBundle:
        """Return the items that a path is shown: its newest reports, and its most important facts."""
        return choose_items(list_items(await self.load(session), nodes), max_episodic, max_semantic)

    async def load(self, session: str) -> StoredMemory:
        """Return the memory records of a session. A session of which nothing is known has none."""
        stored = self._cache.get(session)
        if stored is None:
            stored = await self.archive.load_memory(session)
            self._cache.put(session, stored)
        return stored
