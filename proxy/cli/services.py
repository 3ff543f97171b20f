"""What several commands share: the functions they call, and their options."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import typer

from proxy.config import Settings, load_settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.diff import Tally
from proxy.engine.reports.savings import SavingsInputs

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
    measure: Callable[[Settings], Awaitable[SavingsInputs]]
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


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in YAML. [default: $PALIMPSEST_CONFIG, or none]"),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log. [default: ~/.palimpsest]")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address of the server. [default: 127.0.0.1]")]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Its port. [default: the one the server on that data directory listens on]")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--admin-token", metavar="T", help="Its secret. [default: the one in the data directory]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
# What SQLite can count up to.
MOST = 2**63 - 1

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, or how it begins.")]


def load_server_settings(
    config: Path | None, data: Path | None, host: str | None, port: int | None, admin_token: str | None
) -> Settings:
    """Return the settings of a command for the running server.

    Who names a host means the port of the settings there, not the one that a server on this machine listens on.
    """
    flags = {"data": data, "server.host": host, "server.port": port, "server.admin_token": admin_token}
    settings = load_settings(config, flags)
    if host is not None and port is None:
        settings = load_settings(config, {**flags, "server.port": settings.server.port})
    return settings
