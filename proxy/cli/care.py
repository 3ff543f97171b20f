"""`palimpsest verify` and `backup`. Rule: both read only, beside a running server."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.doors import Doors
from proxy.cli.options import ConfigOption, DataOption, JsonOption
from proxy.cli.text import make_plain
from proxy.engine.reports.documents import write_json


def verify(
    context: typer.Context, as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None
) -> None:
    """Check every digest and link of the log."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: log.verify())
    if as_json:
        typer.echo(write_json(asdict(found)), nl=False)
    else:
        for fault in found.faults:
            typer.echo(make_plain(f"{fault.where}: {fault.what}"))
        counts = f"{found.exchanges} exchanges, {found.rounds} rounds, {found.blobs} blobs, {found.slices} slices"
        typer.echo(f"{counts}: {len(found.faults) or 'no'} faults")
    raise typer.Exit(1 if found.faults else 0)


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that does not exist yet.")],
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy the log to a file while the server runs."""
    doors: Doors = context.obj
    doors.read(data, config, lambda log: log.backup(file))
    typer.echo(f"wrote {file} ({file.stat().st_size} bytes)")
