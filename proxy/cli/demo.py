"""`palimpsest demo`: a whole session with an agent and an upstream of ours: what the proxy does, without a key."""

from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.services import Services

_MOST_STEPS = 150


def demo(
    context: typer.Context,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MOST_STEPS, help="Only the first N calls.")
    ] = _MOST_STEPS,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="End by itself, instead of serving the page.")] = False,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [default: any free one]")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the log here. [default: a directory that is deleted at the end]"),
    ] = None,
) -> None:
    """Show it at work on a scripted session: no key, no network."""
    services: Services = context.obj
    raise typer.Exit(services.run_demo(steps=steps, port=port, data=data, is_served=not no_serve))
