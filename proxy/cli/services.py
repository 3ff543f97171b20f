"""The functions that commands call, given as values so that a test can replace them, and the options they share.

A command names the options that it shares with others (`offers`), and gets their values in one value, its `Invocation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from proxy.config import Settings, load_report_settings, load_settings
from proxy.model.errors import ProxyError

if TYPE_CHECKING:  # what commands read with is imported by those that read
    from proxy.cli.logs import CommandIndex, Log
    from proxy.model.erasing import SessionErasure
    from proxy.model.search import IndexHealth
    from proxy.read.diff import Tally
    from proxy.read.findings import Diagnosis
    from proxy.read.savings import SavingsInputs

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in YAML. [default: $PALIMPSEST_CONFIG, or none]"),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log. [default: ~/.palimpsest]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="A session: its id or a prefix of it, its name, or its client's.")
]
BranchOption = Annotated[
    str, typer.Option(metavar="BRANCH", help="Only this branch: its id, as `show` writes it, or a prefix.")
]
MAX_NUMBER = 2**63 - 1  # SQLite's largest integer
_FAILED = 400


READS = ("data", "config")
"""The options of a command that reads the log."""
ASKS = ("host", "port", "admin_token", *READS)
"""The options of a command that asks the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The functions that commands call.

    `serve` runs the proxy until a signal stops it and returns the exit code; with `until_unused` also until no
    `palimpsest run` uses the data directory. `use_data` uses it for a `with` block, and waits so many seconds for a
    server on it that is ending. `find_server` returns the address of the server that runs on it and those of its
    upstreams, or nothing. `open_log` opens the log for reading, `open_index` its index. `update_index` indexes what is
    new, or all of it anew, and tells of its progress; it raises StoreUnavailable while a server does so.
    `build_tally` returns what counts the tokens of messages. `load_savings_inputs` returns the prices and policy for
    `savings`. `ask_server` sends a request, given an API path and a body, to the running server: a POST without
    parameters, unless `method` and `query` say otherwise. It returns the response's status and body, and raises
    ProxyError if no server runs. `erase_session` erases one while no server runs, or says what that would do.
    `follow_events` passes on the bytes of the server's stream of events, given parameters and the id of the last event
    that was seen, until it ends. `find_link` returns the link to the server's page, with the admin token. `serve_mcp`
    serves MCP on standard input and output until the input ends. `run_demo` runs the demonstration, and returns the
    exit code. `diagnose` returns the findings of `palimpsest doctor`. `run_trial` estimates the newest sessions of
    transcripts, given their paths, how many, and where to keep the logs; it tells of its progress.
    """

    serve: Callable[..., int]
    open_log: Callable[[Settings], Log]
    open_index: Callable[[Settings], CommandIndex]
    update_index: Callable[..., IndexHealth]
    build_tally: Callable[[Settings], Tally]
    load_savings_inputs: Callable[[Settings], Awaitable[SavingsInputs]]
    ask_server: Callable[..., tuple[int, bytes]]
    follow_events: Callable[[Settings, Sequence[tuple[str, str]], str, Callable[[bytes], object]], tuple[int, bytes]]
    erase_session: Callable[..., Coroutine[Any, Any, SessionErasure]]
    find_link: Callable[[Settings], str]
    find_server: Callable[[Settings], tuple[str, ...]]
    use_data: Callable[[Path, float], AbstractContextManager[None]]
    serve_mcp: Callable[[Settings], None]
    run_demo: Callable[..., int]
    diagnose: Callable[..., Diagnosis]
    run_trial: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that was called: the functions that it may call, and the values of options that it shares with others.

    Without the options `host` and `port` the server is the one on the data directory.
    """

    services: Services
    data: DataOption = None
    config: ConfigOption = None
    as_json: JsonOption = False
    host: Annotated[str | None, typer.Option("--host", help="Address of the server. [default: 127.0.0.1]")] = None
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port of the server. [default: that of the server on this data directory]"),
    ] = None
    admin_token: Annotated[
        str | None,
        typer.Option("--admin-token", metavar="T", help="Admin token of the server. [default: in the data directory]"),
    ] = None

    def read(self, query: Callable[[Log, Settings], Awaitable[T]]) -> T:
        """Return what `query` finds in the log that the options and settings name."""
        settings = load_report_settings(self.config, self.data)

        async def run() -> T:
            log = self.services.open_log(settings)
            try:
                return await query(log, settings)
            finally:
                await log.close()

        return asyncio.run(run())

    def search(self, query: Callable[[Log, CommandIndex], Awaitable[T]]) -> T:
        """Return what `query` finds in the log and its index."""
        settings = load_settings(self.config, {"data": self.data})

        async def run() -> T:
            log, index = self.services.open_log(settings), self.services.open_index(settings)
            try:
                return await query(log, index)
            finally:
                await index.close()
                await log.close()

        return asyncio.run(run())

    def load_server_settings(self) -> Settings:
        """Return the settings of a command that talks to the running server.

        With a host, the port is the one in the settings, not the one that a server on this machine listens on.
        """
        server = {"server.host": self.host, "server.port": self.port, "server.admin_token": self.admin_token}
        flags = {"data": self.data, **server}
        settings = load_settings(self.config, flags)
        if self.host is not None and self.port is None:
            settings = load_settings(self.config, {**flags, "server.port": settings.server.port})
        return settings


def offers(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of an `Invocation`, behind its own; it gets that as its first argument."""
    options = signature(Invocation, eval_str=True).parameters

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(context: typer.Context, **given: Any) -> None:
            shared = {name: given.pop(name) for name in names}
            command(Invocation(context.obj, **shared), **given)

        _, *own = signature(command, eval_str=True).parameters.values()
        context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        told = (each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *(options[name] for name in names)))
        vars(call).update(__signature__=Signature([context, *told]))
        return call

    return extend


class ServerRefused(ProxyError):
    """The server did not do it; the message says why."""


def ask(
    services: Services, settings: Settings, path: str, *, method: str = "GET", query: Mapping[str, str] | None = None
) -> tuple[bytes, Any]:
    """Return what the running server's API responds, as bytes and as a document. Raises ServerRefused."""
    status, content = services.ask_server(settings, path, b"", method=method, query=query or {})
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        document = None
    if status >= _FAILED or not isinstance(document, dict | list):
        raise ServerRefused(find_reason(status, document if isinstance(document, dict) else {}))
    return content, document


def list_items(document: Any) -> Sequence[dict[str, Any]]:
    """Return the items of a listing of the API."""
    items: Sequence[dict[str, Any]] = document["items"] if isinstance(document, dict) else document
    return items


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object that the server responded with, empty if it is none."""
    try:
        parsed = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def find_reason(status: int, response: dict[str, Any]) -> str:
    """Return why the server refused, or that it is probably another program."""
    error = response.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(message, str):
        return message.removeprefix("palimpsest: ")
    return (
        f"the server at this address responded with status {status} and is not a palimpsest of this version;"
        " choose --host and --port"
    )
