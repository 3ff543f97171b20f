"""`palimpsest export`. Rule: all the log holds of a session, in files or on standard output; nothing is overwritten."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.doors import Doors
from proxy.cli.options import ConfigOption, DataOption, SessionArgument
from proxy.engine.ports import LogReader
from proxy.engine.reports.exports import Form, open_export
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow

_FILES: dict[Form, str] = {"json": "session.json", "jsonl": "exchanges.jsonl", "openai": "messages.json"}


def export(
    context: typer.Context,
    session: SessionArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One document with all exchanges. [default]")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="One exchange per line.")] = False,
    as_openai: Annotated[
        bool, typer.Option("--openai", help="The newest conversation: an array of messages as its client writes them.")
    ] = False,
    branch: Annotated[
        str, typer.Option(metavar="TIP", help="Only this branch: its tip, as show writes it, or how that begins.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write files there, all raw bodies among them."),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a session out, requests and answers included."""
    doors: Doors = context.obj
    form = _choose(as_json=as_json, as_jsonl=as_jsonl, as_openai=as_openai)

    async def ask(log: LogReader) -> None:
        opened = await open_export(log, session, form, branch)
        if output is None:
            async for piece in opened.pieces:
                typer.echo(piece, nl=False)
            return
        await _write_pieces(output / _FILES[form], opened.pieces)
        await _write_bodies(log, opened.read(), output)

    doors.read(data, config, ask)
    if output is not None:
        typer.echo(f"wrote {output}")


def _choose(*, as_json: bool, as_jsonl: bool, as_openai: bool) -> Form:
    if as_json + as_jsonl + as_openai > 1:
        raise typer.BadParameter("choose one of --json, --jsonl and --openai")
    return "jsonl" if as_jsonl else "openai" if as_openai else "json"


async def _write_pieces(path: Path, pieces: AsyncIterator[bytes]) -> None:
    _create(path)
    with path.open("ab") as target:
        async for piece in pieces:
            target.write(piece)


async def _write_bodies(log: LogReader, rows: AsyncIterator[ExchangeRow], into: Path) -> None:
    async for row in rows:
        await _write_body(into / f"{row.n:04}-request", log.load_request(row.id))
        for round_ in row.rounds:
            await _write_body(into / f"{row.n:04}-{round_.k}-sent", log.load_sent(row.id, round_.k))
            if round_.completeness:
                await _write_body(into / f"{row.n:04}-{round_.k}-received", log.load_received(row.id, round_.k))


async def _write_body(path: Path, loading: Awaitable[bytes]) -> None:
    with suppress(NotFound):  # what was erased has no file
        content = await loading
        _create(path, content)


def _create(path: Path, content: bytes = b"") -> None:
    """A new file that, like the log, only its owner can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)
