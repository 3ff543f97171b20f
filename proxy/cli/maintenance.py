"""`palimpsest verify`, `backup`, `export` and `config`. Only files of memory are overwritten, each as a whole."""

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.formatting import make_plain
from proxy.cli.inspection.naming import read_session
from proxy.cli.services import READS, BranchOption, Invocation, SessionArgument, offers
from proxy.config import ConfigError, Settings, find_memory_folder, load_settings
from proxy.config.reference import make_schema, render_example
from proxy.engine.memory.files import load_files
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import write_json
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.read.export import Form, open_export, read_exported
from proxy.store.memory_files import write_memory
from proxy.wire.headers import read_encoding

config = typer.Typer(
    name="config", rich_markup_mode=None, add_completion=False, help="Check, describe or create a settings file."
)

_FILES: dict[Form, str] = {"json": "session.json", "jsonl": "exchanges.jsonl", "openai": "messages.json"}


@offers("as_json", *READS)
def verify(called: Invocation) -> None:
    """Check every digest and link of the log."""
    found = called.read(lambda log, _: log.verify())
    if called.as_json:
        typer.echo(write_json(asdict(found)), nl=False)
    else:
        for fault in found.faults:
            typer.echo(make_plain(f"{fault.where}: {fault.what}"))
        counts = f"{found.exchanges} exchanges, {found.rounds} rounds, {found.blobs} blobs, {found.slices} slices"
        typer.echo(f"{counts}: {len(found.faults) or 'no'} faults")
    raise typer.Exit(1 if found.faults else 0)


@offers(*READS)
def backup(
    called: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that does not exist yet.")],
) -> None:
    """Copy the log to a file, also while the server runs."""
    called.read(lambda log, _: log.backup(file))
    typer.echo(f"wrote {file} ({file.stat().st_size} bytes)")


@offers(*READS)
def export(
    called: Invocation,
    session: SessionArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One document with all exchanges. [default]")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="One exchange per line.")] = False,
    as_openai: Annotated[
        bool, typer.Option("--openai", help="The newest conversation: an array of messages in its client's format.")
    ] = False,
    as_memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="What is remembered, as JSONL files. [default directory: $PALIMPSEST_MEMORY_DIR, or memory]",
        ),
    ] = False,
    branch: BranchOption = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write files there, with every body as its raw bytes."),
    ] = None,
) -> None:
    """Write a session with its requests and responses."""
    if as_json + as_jsonl + as_openai + as_memory > 1:
        raise typer.BadParameter("choose one of --json, --jsonl, --openai and --memory")
    if as_memory:
        id, files = read_session(called, session, lambda log, _, id: load_files(log, id, branch))
        typer.echo(f"wrote {write_memory(output or find_memory_folder(), id, files)}")
        return
    form: Form = "jsonl" if as_jsonl else "openai" if as_openai else "json"

    async def query(log: LogReader, settings: Settings, session: str) -> None:
        pieces = await open_export(log, session, form, branch)
        if output is None:
            async for piece in pieces:
                typer.echo(piece, nl=False)
            return
        path = output / _FILES[form]
        _create(path)
        with path.open("ab") as target:
            async for piece in pieces:
                target.write(piece)
        await _write_bodies(log, read_exported(log, session, branch), output)

    read_session(called, session, query)
    if output is not None:
        typer.echo(f"wrote {output}")


async def _write_bodies(log: LogReader, rows: AsyncIterator[ExchangeRow], into: Path) -> None:
    async for row in rows:
        await _write_body(into / f"{row.n:04}-request", log.load_request(row.id))
        if read_encoding(row.headers):  # the request is there decoded
            await _write_body(into / f"{row.n:04}-held", log.load_held(row.id))
        for round_ in row.rounds:
            await _write_body(into / f"{row.n:04}-{round_.k}-sent", log.load_sent(row.id, round_.k))
            if round_.completeness:
                await _write_body(into / f"{row.n:04}-{round_.k}-received", log.load_received(row.id, round_.k))


async def _write_body(path: Path, loading: Awaitable[bytes]) -> None:
    with suppress(NotFound):  # an erased body has no file
        content = await loading
        _create(path, content)


def _create(path: Path, content: bytes = b"") -> None:
    """Create a file that, like the log, only its owner can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


@config.command()
def check(file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings in YAML.")] = None) -> None:
    """Check a settings file together with the environment; list everything that is wrong and exit with 1."""
    try:
        settings = load_settings(file)
        settings.check_network(settings.server.host.lower())
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(str(problem), err=True)
        raise typer.Exit(1) from None
    typer.echo("the settings are valid")


@config.command()
def schema() -> None:
    """Write the JSON Schema of the settings, for editors."""
    typer.echo(json.dumps(make_schema(), indent=2).replace("Policy", "Settings"))  # what sections are called there


@config.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("palimpsest.yaml"),
) -> None:
    """Write a settings file with every key, its meaning and its default."""
    file.touch(mode=0o600, exist_ok=False)  # keys of providers have their place in it
    file.write_text(render_example(), encoding="utf-8")
    typer.echo(f"wrote {file}; use it with: palimpsest serve --config {file}")
