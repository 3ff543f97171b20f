"""`palimpsest expand`, `diff` and `handoff`. Rule: read the log beside a running server; texts are the API's."""

from typing import Annotated

import typer

from proxy.cli.differing import tell_difference
from proxy.cli.doors import Doors
from proxy.cli.options import MOST, ConfigOption, DataOption, JsonOption, SessionArgument
from proxy.cli.text import make_plain
from proxy.engine.reports.differences import describe_difference, load_difference
from proxy.engine.reports.documents import write_json
from proxy.engine.reports.handoff import load_handoff, write_handoff
from proxy.engine.reports.originals import load_page


def expand(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="REF", help="A reference, with or without `ref:`.")],
    page: Annotated[int, typer.Option(min=1, help="Which page, of 12,000 characters each.")] = 1,
    is_whole: Annotated[bool, typer.Option("--all", help="All pages as one.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the original of what a reference stands for."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_page(log, reference, None if is_whole else page))
    typer.echo(make_plain(found.content.decode()), nl=False)


def diff(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[int, typer.Argument(metavar="N", min=1, max=MOST, help="An exchange of it, counted from 1.")],
    k: Annotated[int | None, typer.Option("--round", metavar="K", help="Which round. [default: the last]")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what was sent upstream in place of what the client sent."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_difference(log, session, n, doors.tally, k))
    if as_json:
        typer.echo(write_json(describe_difference(found)), nl=False)
    else:
        typer.echo(tell_difference(found), nl=False)


def handoff(
    context: typer.Context,
    session: SessionArgument,
    branch: Annotated[
        str, typer.Option(metavar="TIP", help="Only this branch: its tip, as show writes it, or how that begins.")
    ] = "",
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a conversation for another client to go on from."""
    doors: Doors = context.obj
    found = doors.read(data, config, lambda log: load_handoff(log, session, branch))
    typer.echo(make_plain(write_handoff(found)).encode("utf-8", "replace"), nl=False)
