"""What the commands ask of the rooms below. Rule: they come in as values, so that a test can stand in for them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from proxy.config import Settings, load_settings
from proxy.engine.ports import LogReader
from proxy.model.errors import NotFound

T = TypeVar("T")

_ALL = 2**31
_NAMED_AT_MOST = 5


class Log(LogReader, Protocol):
    """The log as the commands read it, beside a running server."""

    async def backup(self, path: Path) -> None:
        """Write a consistent copy of the log to a file that does not exist yet."""
        ...


@dataclass(frozen=True, slots=True)
class Doors:
    """`serve` runs the proxy until told to stop and returns the exit code; `open_log` opens the log for reading."""

    serve: Callable[[Settings], int]
    open_log: Callable[[Settings], Log]

    def read(self, data: Path | None, config: Path | None, ask: Callable[[Log], Awaitable[T]]) -> T:
        """What `ask` finds in the log that the options and settings name."""
        settings = load_settings(config, {"data": data})

        async def run() -> T:
            log = self.open_log(settings)
            try:
                return await ask(log)
            finally:
                await log.close()

        return asyncio.run(run())


async def find_session(log: LogReader, prefix: str) -> str:
    """The id of the one session whose id begins so. Raises NotFound, naming candidates where there are several."""
    ids = [row.id for row in await log.list_sessions(_ALL) if row.id.startswith(prefix)]
    if prefix in ids or len(ids) == 1:
        return prefix if prefix in ids else ids[0]
    if not ids:
        raise NotFound(f"no session begins with {prefix!r}; `palimpsest sessions` lists them")
    some = ", ".join(ids[:_NAMED_AT_MOST])
    raise NotFound(f"{len(ids)} sessions begin with {prefix!r} ({some}{', …' if len(ids) > _NAMED_AT_MOST else ''})")
