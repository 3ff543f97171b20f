"""`palimpsest config check`, `schema` and `init`. Rule: all three speak of the one settings tree."""

import json
from pathlib import Path
from typing import Annotated

import typer

from proxy.config import ConfigError, Settings, load_settings
from proxy.config.example import render_example


def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings in YAML.")] = None,
) -> None:
    """Check a settings file together with the environment; exit code 1 and a list of everything wrong."""
    try:
        settings = load_settings(file)
        settings.check_network(settings.server.host.lower())
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(str(problem), err=True)
        raise typer.Exit(1) from None
    typer.echo("the settings are right")


def schema() -> None:
    """Write the JSON Schema of the settings, for editors."""
    typer.echo(json.dumps(Settings.model_json_schema(), indent=2))


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("palimpsest.yaml"),
) -> None:
    """Write a settings file with every key, its meaning and its default; overwrites nothing."""
    with file.open("x", encoding="utf-8") as target:
        target.write(render_example())
    typer.echo(f"wrote {file}; use it with: palimpsest serve --config {file}")
