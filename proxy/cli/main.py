"""The table of commands, and the error boundary: an expected error becomes one line on standard error.

A command is imported when it is called, so that each pays only for what it needs itself. Exit codes: 0 no error; 1 a
fault was found, or the command failed; 2 a wrong option or setting.
"""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from proxy import __version__
from proxy.cli.terminal import make_plain
from proxy.model.errors import ProxyError

if TYPE_CHECKING:
    from proxy.cli.services import Services

NAME = "palimpsest"

COMMANDS = {
    "demo": ("demo.demo", "Show it at work on a scripted session: no key, no network."),
    "serve": ("serve.serve", "Run the proxy in the foreground until SIGINT or SIGTERM."),
    "run": ("run.run", "Start a client whose calls go through a proxy."),
    "open": ("serve.open_page", "Open the server's page in a browser."),
    "sessions": ("inspection.sessions.sessions", "List sessions, the newest call first."),
    "show": ("inspection.show.show", "Show the calls of a session, or the request and answer of one."),
    "tail": ("tail.tail", "Follow calls and contexts live, until Ctrl-C."),
    "export": ("maintenance.export", "Write a session with its requests and responses."),
    "search": ("inspection.search.search", "Find what was said and done, in all sessions."),
    "expand": ("inspection.reports.expand", "Write what a reference names."),
    "diff": ("inspection.reports.diff", "Compare what was sent upstream with what the client sent."),
    "handoff": ("inspection.reports.handoff", "Write a conversation for another client to continue."),
    "summaries": ("inspection.reports.summaries", "List a session's summaries as a tree."),
    "memory": ("inspection.memory.memory", "Show what is remembered of a session, or change that."),
    "cache": ("inspection.costs.cache", "Tell why calls missed the provider's cache."),
    "savings": ("inspection.costs.savings", "Tell what managing saved or lost."),
    "statusline": ("inspection.costs.statusline", "Write one line for a client's status line."),
    "try": ("try_.try_", "Estimate what managing would have saved."),
    "context": ("inspection.window.show_window", "Show what fills the context window of a session."),
    "epochs": ("inspection.epochs.epochs", "Tell when what is sent of a session was rewritten, and why."),
    "revert": ("inspection.changes.revert", "Undo an epoch: send again what it replaced."),
    "pin": ("inspection.changes.pin", "Keep a message word for word, or list those that are kept."),
    "unpin": ("inspection.changes.unpin", "Keep a pinned message word for word no longer."),
    "compact": ("inspection.changes.compact", "Summarise a session now, by the running server."),
    "mcp": ("serve.mcp", "Serve MCP on stdin and stdout, from the log."),
    "doctor": ("doctor.doctor", "Examine whether traffic is managed, and what is wrong if not."),
    "verify": ("maintenance.verify", "Check every digest and link of the log."),
    "index": ("inspection.search.index", "Bring the index for search up to date, or make it anew."),
    "backup": ("maintenance.backup", "Copy the log to a file, also while the server runs."),
    "erase": ("erase.erase", "Delete the content of a session for good."),
    "config": ("maintenance.config", "Check, describe or create a settings file."),
}
"""For each command its module in this package, its function or group there, and the first line of its help."""

_CONTEXTS: dict[str, dict[str, Any]] = {"run": {"allow_interspersed_args": False}}
_EXIT_CODES = "Exit codes: 0 no error; 1 a fault was found, or the command failed; 2 a wrong option or setting."


class ListedCommand(TyperCommand):
    """A command of the table. It is listed without being imported."""

    def load(self) -> Any:
        """Return the command itself."""
        name = str(self.name)
        module, _, member = COMMANDS[name][0].rpartition(".")
        found = getattr(import_module(f"proxy.cli.{module}"), member)
        gc.enable()  # the entry point has turned it off
        gc.freeze()
        if isinstance(found, typer.Typer):
            return get_command(found)
        application = typer.Typer(rich_markup_mode=None, add_completion=False)
        application.command(name, context_settings=_CONTEXTS.get(name))(found)
        return get_command(application)


class CommandGroup(TyperGroup):
    """The commands of the table."""

    def __init__(self, **attributes: Any) -> None:
        listed = [ListedCommand(name, help=text, callback=None) for name, (_, text) in COMMANDS.items()]
        super().__init__(**attributes | {"commands": {str(each.name): each for each in listed}})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called, and its arguments."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, ListedCommand) else found, rest


def build() -> typer.Typer:
    """Return the command line."""
    application = typer.Typer(cls=CommandGroup, rich_markup_mode=None, epilog=_EXIT_CODES)
    application.callback(invoke_without_command=True)(_run_without_command)
    return application


def run(services: "Services", arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, those of the process by default. Always raises SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a code page without a character of a client's: it is replaced
            stream.reconfigure(errors="replace")
    try:
        get_command(build())(args=arguments, prog_name=NAME, obj=services)
    except ProxyError as error:
        _exit_with(str(error), error.exit_code)
    except OSError as error:
        _exit_with(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), 1)


def _run_without_command(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Write the version.")] = False
) -> None:
    """Run a transparent reverse proxy for LLM APIs, with an append-only log."""
    if version:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _exit_with(text: str, code: int) -> None:
    typer.echo(make_plain(f"{NAME}: {text}"), err=True)
    raise SystemExit(code)
