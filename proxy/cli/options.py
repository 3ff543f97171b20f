"""Options that several commands share. Rule: one name, one meaning, one help text."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in YAML. [default: $PALIMPSEST_CONFIG, or none]"),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log. [default: ~/.palimpsest]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
# What SQLite can count up to.
MOST = 2**63 - 1

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, or how it begins.")]
