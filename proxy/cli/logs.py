"""The log and its index as commands read them, also beside a running server."""

from pathlib import Path
from typing import Protocol

from proxy.engine.memory.path import MemoryReader
from proxy.engine.ports import Index
from proxy.model.search import IndexHealth
from proxy.read.search import SearchLog


class Log(SearchLog, MemoryReader, Protocol):
    """The log as the commands read it, also beside a running server."""

    async def backup(self, path: Path) -> None:
        """Write a consistent copy of the log to a file that does not exist yet."""
        ...


class CommandIndex(Index, Protocol):
    """The index as the commands read it."""

    async def look(self) -> IndexHealth:
        """Return how current it is, from its files."""
        ...

    async def close(self) -> None:
        """Release it."""
        ...
