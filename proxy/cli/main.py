"""The table of commands, and the error boundary: an expected error becomes one line on standard error.

Exit codes: 0 no error; 1 a fault was found, or the command failed; 2 a wrong option or setting. No output has colour,
so that NO_COLOR holds.
"""

from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from proxy import __version__
from proxy.cli import erase, maintenance, memory, reports, search, serve, sessions
from proxy.cli import run as client_run
from proxy.cli.formatting import make_plain
from proxy.cli.services import Services
from proxy.config import ConfigError
from proxy.model.errors import ProxyError

NAME = "palimpsest"

_EXIT_CODES = "Exit codes: 0 no error; 1 a fault was found, or the command failed; 2 a wrong option or setting."


def build() -> typer.Typer:
    """Return the command line. A command has the name of its function, unless Python has that name already."""
    config = typer.Typer(rich_markup_mode=None, help="Check, describe or create a settings file.")
    config.command()(maintenance.check)
    config.command()(maintenance.schema)
    config.command()(maintenance.init)
    application = typer.Typer(rich_markup_mode=None, add_completion=False, epilog=_EXIT_CODES)
    application.callback(invoke_without_command=True)(_run_without_command)
    application.command()(serve.serve)
    application.command(context_settings={"allow_interspersed_args": False})(client_run.run)
    application.command("open")(serve.open_page)
    application.command()(sessions.sessions)
    application.command()(sessions.show)
    application.command()(maintenance.export)
    application.command()(search.search)
    application.command()(reports.expand)
    application.command()(reports.diff)
    application.command()(reports.handoff)
    application.command()(reports.summaries)
    application.command()(memory.memory)
    application.command()(reports.cache)
    application.command()(reports.savings)
    application.command()(reports.statusline)
    application.command()(serve.compact)
    application.command()(serve.mcp)
    application.command()(maintenance.verify)
    application.command()(search.index)
    application.command()(maintenance.backup)
    application.command()(erase.erase)
    application.add_typer(config, name="config")
    return application


def run(services: Services, arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, those of the process by default. Always raises SystemExit."""
    try:
        get_command(build())(args=arguments, prog_name=NAME, obj=services)
    except ConfigError as error:
        _exit_with(str(error), 2)
    except ProxyError as error:
        _exit_with(str(error), 1)
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
