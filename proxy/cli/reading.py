"""`palimpsest sessions` and `show`. Rule: read the log beside a running server; `--json` says all the text does."""

from typing import Annotated

import typer

from proxy.cli.doors import Doors
from proxy.cli.listings import list_sessions, tell_exchange, tell_session
from proxy.cli.options import MOST, ConfigOption, DataOption, JsonOption, SessionArgument
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.documents import describe_overview, describe_sessions, list_calls, write_json
from proxy.engine.reports.exports import describe_whole
from proxy.engine.reports.finding import Part, find_exchange, list_matching, load_part, read_pages
from proxy.engine.reports.overview import load_overview
from proxy.model.log import Selection


def sessions(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    family: Annotated[str, typer.Option(metavar="NAME", help="Only those whose client's name begins so.")] = "",
    parent: Annotated[
        str, typer.Option(metavar="SESSION", help="Only those started by the session whose id begins so.")
    ] = "",
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List sessions, the newest call first."""
    doors: Doors = context.obj
    selection = Selection(family, parent)
    rows = doors.read(data, config, lambda log: list_matching(log, limit, selection))
    if as_json:
        typer.echo(write_json(describe_sessions(rows)), nl=False)
    elif not rows and (family or parent):
        typer.echo("No session matches; without --family and --parent all are listed.")
    else:
        typer.echo(list_sessions(rows))


def show(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[
        int | None, typer.Argument(metavar="N", min=1, max=MOST, help="One exchange of it, counted from 1.")
    ] = None,
    raw: Annotated[Part | None, typer.Option(help="Write one body of exchange N, byte for byte.")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the branches and exchanges of a session, or one exchange."""
    doors: Doors = context.obj
    if n is None and raw is not None:
        raise typer.BadParameter("needs the number of an exchange: show SESSION N --raw ...", param_hint="--raw")

    async def ask(log: LogReader, settings: Settings) -> bytes:
        if n is None:
            return await _render_session(log, session, settings, as_json=as_json)
        row = await find_exchange(log, session, n)
        if raw is not None:
            return await load_part(log, row, raw)
        document = await describe_whole(log, row)
        if as_json:
            return write_json(document)
        return tell_exchange(row, document["bound"], settings.budget_policy()).encode()

    typer.echo(doors.read_by(data, config, ask), nl=False)


async def _render_session(log: LogReader, session: str, settings: Settings, *, as_json: bool) -> bytes:
    overview = await load_overview(log, session)
    exchanges = [row async for page in read_pages(log, overview.session.id) for row in page]
    if as_json:
        return write_json(describe_overview(overview) | {"exchanges": list_calls(exchanges)})
    return tell_session(overview, exchanges, settings.budget_policy()).encode()
