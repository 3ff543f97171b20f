"""`palimpsest sessions` and `show`. Rule: read the log beside a running server; `--json` says all the text does."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from proxy.cli.documents import describe_exchange, write_json
from proxy.cli.doors import Doors, find_session
from proxy.cli.listings import list_exchanges, list_sessions, tell_exchange
from proxy.cli.options import ConfigOption, DataOption, JsonOption, SessionArgument
from proxy.engine.ports import LogReader
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow

Part = Literal["request", "sent", "received"]


def sessions(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List sessions, the newest call first."""
    doors: Doors = context.obj
    rows = doors.read(data, config, lambda log: log.list_sessions(limit))
    if as_json:
        typer.echo(write_json([asdict(row) for row in rows]), nl=False)
    else:
        typer.echo(list_sessions(rows))


def show(  # noqa: PLR0913 - each parameter is an option of the command line
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[int | None, typer.Argument(metavar="N", help="One exchange of it, counted from 1.")] = None,
    raw: Annotated[Part | None, typer.Option(help="Write one body of exchange N, byte for byte.")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the exchanges of a session, or one of them."""
    doors: Doors = context.obj
    if n is None and raw is not None:
        raise typer.BadParameter("needs the number of an exchange: show SESSION N --raw ...", param_hint="--raw")

    async def ask(log: LogReader) -> bytes:
        name = await find_session(log, session)
        rows = await log.list_exchanges(name)
        if n is None:
            return _write_timeline(name, rows, as_json=as_json)
        row = _pick(rows, n)
        if raw is not None:
            return await load_part(log, row, raw)
        return write_json(describe_exchange(row)) if as_json else tell_exchange(row).encode()

    typer.echo(doors.read(data, config, ask), nl=False)


async def load_part(log: LogReader, row: ExchangeRow, part: Part) -> bytes:
    """One body of an exchange; of several rounds, the last one's. Raises NotFound."""
    if part == "request":
        return await log.load_request(row.id)
    load = log.load_sent if part == "sent" else log.load_received
    return await load(row.id, row.rounds[-1].k if row.rounds else 0)


def _pick(rows: Sequence[ExchangeRow], n: int) -> ExchangeRow:
    for row in rows:
        if row.n == n:
            return row
    raise NotFound(f"this session has no exchange {n}; it has {len(rows)}, counted from 1")


def _write_timeline(session: str, rows: Sequence[ExchangeRow], *, as_json: bool) -> bytes:
    if as_json:
        return write_json({"session": session, "exchanges": [describe_exchange(row) for row in rows]})
    return f"session {session}\n{list_exchanges(rows)}\n".encode()
