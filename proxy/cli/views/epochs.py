"""`palimpsest epochs`: when what is sent of a session was rewritten, and why, also beside a running server."""

from collections.abc import Mapping, Sequence

import typer

from proxy.cli.formatting import format_count
from proxy.cli.services import ConfigOption, DataOption, JsonOption, Services, SessionArgument
from proxy.cli.terminal import (
    PLAIN,
    Column,
    Screen,
    find_screen,
    format_local,
    format_tokens,
    render_table,
    wrap,
    write,
)
from proxy.cli.views.naming import read_session
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.context import EpochDocument, list_epochs
from proxy.engine.reports.lookup import read_pages
from proxy.engine.reports.sessions import write_json
from proxy.model.epoch import EpochReason, read_view

_COLUMNS = (
    Column("EPOCH", is_number=True),
    Column("CALL", is_number=True),
    Column("TOKENS", is_number=True),
    Column("WHY", least=24),
    Column("OPENED", is_optional=True),
    Column("REFERENCES", is_number=True, is_optional=True),
    Column("MODEL", least=10, is_optional=True),
)
_WHY: Mapping[EpochReason, str] = {
    "soft": "it pays, above the soft mark",
    "hard": "the budget was full",
    "cold": "the cache had expired anyway",
    "client": "the client had changed what was cached",
    "turn": "a turn began",
    "memory": "memory stands for turns",
    "overflow": "the upstream refused the request as too long",
    "manual": "a person asked for it",
    "unsigned": "signed reasoning was taken out",
    "uncompacted": "the provider's own compaction was taken out",
    "untooled": "our tool was taken out",
    "revert": "a person went back",
    "refused": "the upstream refused the rewritten form",
}
_NONE = (
    "This session has no epoch: everything is sent as its client sends it. `palimpsest show SESSION` says from how many"
    " tokens on its calls are shortened."
)


def epochs(
    context: typer.Context,
    session: SessionArgument,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Tell when what is sent of a session was rewritten, and why."""
    services: Services = context.obj

    async def query(log: LogReader, settings: Settings, id: str) -> tuple[list[EpochDocument], Mapping[str, int]]:
        found = await list_epochs(log, id)
        return found, {row.id: row.n async for page in read_pages(log, id) for row in page}

    found, numbers = read_session(services, data, config, session, query)
    screen = find_screen()
    if as_json:
        typer.echo(write_json(found), nl=False)
    else:
        write(format_epochs(found, numbers, screen), screen)


def format_epochs(found: Sequence[EpochDocument], numbers: Mapping[str, int], screen: Screen = PLAIN) -> str:
    """Format epochs: what the newest does, then a line for each. `numbers` are those of calls by their ids."""
    if not found:
        return wrap(_NONE, screen.width)
    newest = found[-1]
    sizes = f"{format_tokens(newest.tokens_after)} tokens in place of {format_tokens(newest.tokens_before)}"
    said = f"{format_count(len(found), 'epoch')}; with the newest a request had {sizes}."
    rows = [
        (
            each.n,
            numbers.get(each.exchange),
            f"{format_tokens(each.tokens_before)} → {format_tokens(each.tokens_after)}",
            _WHY.get(each.why, each.why),
            format_local(each.opened_ms),
            len(each.references),
            read_view(each.view)[0],
        )
        for each in found
    ]
    hint = "`palimpsest diff SESSION CALL` shows what went, `palimpsest revert SESSION` undoes the newest."
    return "\n\n".join([wrap(said, screen.width), render_table(_COLUMNS, rows, screen), wrap(hint, screen.width)])
