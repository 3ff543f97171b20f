"""The functions that commands call, given as values so that a test can replace them, and the options they share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer

from proxy.config import Settings, load_settings
from proxy.engine.memory.path import MemoryReader
from proxy.engine.ports import Index
from proxy.engine.reports.diff import Tally
from proxy.engine.reports.savings import SavingsInputs
from proxy.engine.reports.search import SearchLog
from proxy.model.erasing import SessionErasure
from proxy.model.search import IndexHealth

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in YAML. [default: $PALIMPSEST_CONFIG, or none]"),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log. [default: ~/.palimpsest]")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address of the server. [default: 127.0.0.1]")]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Port of the server. [default: that of the server on this data directory]")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--admin-token", metavar="T", help="Admin token of the server. [default: in the data directory]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, or a prefix of it.")]
BranchOption = Annotated[
    str, typer.Option(metavar="TIP", help="Only this branch: its tip, as `show` writes it, or a prefix of it.")
]
MAX_NUMBER = 2**63 - 1  # SQLite's largest integer


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The functions that commands call.

    `serve` runs the proxy until a signal stops it and returns the exit code; with `until_unused` also until no
    `palimpsest run` uses the data directory. `use_data` uses it for a `with` block, and waits so many seconds for a
    server on it that is ending. `find_server` returns the address of the server that runs on it and those of its
    upstreams, or nothing. `open_log` opens the log for reading, `open_index` its index. `update_index` indexes what is
    new, or all of it anew, and tells of its progress; it raises StoreUnavailable while a server does so.
    `count_tokens` counts the tokens of messages. `load_savings_inputs` returns the prices and policy for `savings`.
    `ask_server` sends a request to the running server, given an API path and a body, and maybe a method and a query. It
    returns the response's status and body, and raises ProxyError if no server runs. `erase_session` erases one while no
    server runs, or says what that would do. `find_link` returns the link to the server's page, with
    the admin token. `serve_mcp` serves MCP on standard input and output until the input ends.
    """

    serve: Callable[..., int]
    open_log: Callable[[Settings], Log]
    open_index: Callable[[Settings], CommandIndex]
    update_index: Callable[..., IndexHealth]
    count_tokens: Tally
    load_savings_inputs: Callable[[Settings], Awaitable[SavingsInputs]]
    ask_server: Callable[..., tuple[int, bytes]]
    erase_session: Callable[..., Coroutine[Any, Any, SessionErasure]]
    find_link: Callable[[Settings], str]
    find_server: Callable[[Settings], tuple[str, ...]]
    use_data: Callable[[Path, float], AbstractContextManager[None]]
    serve_mcp: Callable[[Settings], None]

    def read(self, data: Path | None, config: Path | None, query: Callable[[Log], Awaitable[T]]) -> T:
        """Return what `query` finds in the log that the options and settings name."""
        return self.read_with_settings(data, config, lambda log, _: query(log))

    def search(self, data: Path | None, config: Path | None, query: Callable[[Log, CommandIndex], Awaitable[T]]) -> T:
        """Return what `query` finds in the log and its index."""
        settings = load_settings(config, {"data": data})

        async def run() -> T:
            log, index = self.open_log(settings), self.open_index(settings)
            try:
                return await query(log, index)
            finally:
                await index.close()
                await log.close()

        return asyncio.run(run())

    def read_with_settings(
        self, data: Path | None, config: Path | None, query: Callable[[Log, Settings], Awaitable[T]]
    ) -> T:
        """Return what `query` finds in the log, where it depends on the settings too."""
        settings = load_settings(config, {"data": data})

        async def run() -> T:
            log = self.open_log(settings)
            try:
                return await query(log, settings)
            finally:
                await log.close()

        return asyncio.run(run())


def load_server_settings(
    config: Path | None, data: Path | None, host: str | None, port: int | None, admin_token: str | None
) -> Settings:
    """Return the settings of a command that talks to the running server.

    With a host, the port is the one in the settings, not the one that a server on this machine listens on.
    """
    flags = {"data": data, "server.host": host, "server.port": port, "server.admin_token": admin_token}
    settings = load_settings(config, flags)
    if host is not None and port is None:
        settings = load_settings(config, {**flags, "server.port": settings.server.port})
    return settings
