"""What the commands ask of the rooms below. Rule: they come in as values, so that a test can stand in for them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from proxy.config import Settings, load_settings
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow, SessionRow, Verification

T = TypeVar("T")

_ALL = 2**31
_NAMED_AT_MOST = 5


class LogReader(Protocol):
    """The log as it is read beside a running server; the methods are those of the engine's Archive."""

    async def list_sessions(self, limit: int = 100) -> Sequence[SessionRow]:
        """Newest activity first."""
        ...

    async def list_exchanges(self, session: str) -> Sequence[ExchangeRow]:
        """Oldest first. Raises NotFound for an unknown session."""
        ...

    async def load_request(self, exchange: str) -> bytes:
        """The client's body."""
        ...

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """The body sent upstream in round k."""
        ...

    async def load_received(self, exchange: str, k: int) -> bytes:
        """The body that came back in round k."""
        ...

    async def verify(self) -> Verification:
        """Re-derive all digests."""
        ...

    async def backup(self, target: Path) -> None:
        """Write a consistent copy of the log to a new file. Raises Conflict where it exists."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


@dataclass(frozen=True, slots=True)
class Doors:
    """`serve` runs the proxy until told to stop and returns the exit code; `open_log` opens the log for reading."""

    serve: Callable[[Settings], int]
    open_log: Callable[[Settings], LogReader]

    def read(self, data: Path | None, config: Path | None, ask: Callable[[LogReader], Awaitable[T]]) -> T:
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
