"""What the commands ask of the rooms below. Rule: they come in as values, so that a test can stand in for them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from proxy.config import Settings, load_settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.differences import Tally
from proxy.engine.reports.savings import Yardstick

T = TypeVar("T")


class Log(LogReader, Protocol):
    """The log as the commands read it, beside a running server."""

    async def backup(self, path: Path) -> None:
        """Write a consistent copy of the log to a file that does not exist yet."""
        ...


@dataclass(frozen=True, slots=True)
class Doors:
    """`serve` runs the proxy until told to stop and returns the exit code; `open_log` opens the log for reading.

    `tally` counts messages; `measure` gives what sessions are compared with. `ask` has the running server do something:
    given the settings, a path of its API and what is asked, the status and the body of the answer; it raises ProxyError
    where there is no server to be asked. `find_link` gives the link to the server's page, with the admin token.
    """

    serve: Callable[[Settings], int]
    open_log: Callable[[Settings], Log]
    tally: Tally
    measure: Callable[[Settings], Awaitable[Yardstick]]
    ask: Callable[[Settings, str, bytes], tuple[int, bytes]]
    find_link: Callable[[Settings], str]

    def read(self, data: Path | None, config: Path | None, ask: Callable[[Log], Awaitable[T]]) -> T:
        """What `ask` finds in the log that the options and settings name."""
        return self.read_by(data, config, lambda log, _: ask(log))

    def read_by(self, data: Path | None, config: Path | None, ask: Callable[[Log, Settings], Awaitable[T]]) -> T:
        """The same, where what is found hangs on the settings too."""
        settings = load_settings(config, {"data": data})

        async def run() -> T:
            log = self.open_log(settings)
            try:
                return await ask(log, settings)
            finally:
                await log.close()

        return asyncio.run(run())
