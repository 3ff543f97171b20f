"""`palimpsest export`. Rule: all the log holds of a session, in files or on standard output; nothing is overwritten."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from proxy.cli.conversation import continue_conversation, find_newest
from proxy.cli.documents import Document, describe_body, describe_exchange, write_json
from proxy.cli.doors import Doors, find_session
from proxy.cli.options import ConfigOption, DataOption, SessionArgument
from proxy.engine.ports import LogReader
from proxy.model.log import ExchangeRow

Form = Literal["json", "jsonl", "openai"]

_FILES: dict[Form, str] = {"json": "session.json", "jsonl": "exchanges.jsonl", "openai": "messages.json"}


def export(  # noqa: PLR0913 - each parameter is an option of the command line
    context: typer.Context,
    session: SessionArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One document with all exchanges. [default]")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="One exchange per line.")] = False,
    as_openai: Annotated[
        bool, typer.Option("--openai", help="The newest conversation: an array of messages as its client writes them.")
    ] = False,
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

    async def ask(log: LogReader) -> bytes:
        name = await find_session(log, session)
        rows = await log.list_exchanges(name)
        content = await _render(log, name, rows, form)
        if output is not None:
            await _write_files(log, rows, output, _FILES[form], content)
        return content

    content = doors.read(data, config, ask)
    if output is None:
        typer.echo(content, nl=False)
    else:
        typer.echo(f"wrote {output}")


def _choose(*, as_json: bool, as_jsonl: bool, as_openai: bool) -> Form:
    if as_json + as_jsonl + as_openai > 1:
        raise typer.BadParameter("choose one of --json, --jsonl and --openai")
    return "jsonl" if as_jsonl else "openai" if as_openai else "json"


async def _render(log: LogReader, session: str, rows: Sequence[ExchangeRow], form: Form) -> bytes:
    if form == "openai":
        newest = find_newest(rows)
        items = continue_conversation(newest, await log.load_request(newest.id))
        return write_json([msgspec.Raw(item) for item in items])
    documents = [await _describe(log, row) for row in rows]
    if form == "jsonl":
        return b"".join(map(write_json, documents))
    return write_json({"session": session, "exchanges": documents})


async def _describe(log: LogReader, row: ExchangeRow) -> Document:
    return describe_exchange(row) | describe_body(await log.load_request(row.id))


async def _write_files(log: LogReader, rows: Sequence[ExchangeRow], into: Path, name: str, content: bytes) -> None:
    _write(into / name, content)
    for row in rows:
        _write(into / f"{row.n:04}-request", await log.load_request(row.id))
        for round_ in row.rounds:
            _write(into / f"{row.n:04}-{round_.k}-sent", await log.load_sent(row.id, round_.k))
            if round_.completeness:
                _write(into / f"{row.n:04}-{round_.k}-received", await log.load_received(row.id, round_.k))


def _write(path: Path, content: bytes) -> None:
    """A new file that, like the log, only its owner can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)
