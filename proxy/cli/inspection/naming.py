"""Which session is meant: by its id or a prefix of it, by its name, or by its client, whose newest session that is."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from proxy.cli.formatting import format_count
from proxy.cli.services import Invocation
from proxy.cli.terminal import make_plain
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.recorded.lookup import find_session, list_matching
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.log import SessionRow
from proxy.read.session_summary import name_client, name_sender

if TYPE_CHECKING:
    from proxy.cli.logs import Log

T = TypeVar("T")

_MOST_LOOKED_AT = 200  # sessions, the newest
_ID_DIGITS = 12


async def find_named(log: LogReader, text: str) -> str:
    """Return the id of the session that is meant; on standard error it says which, where that is a choice.

    Raises NotFound, naming candidates.
    """
    try:
        return await find_session(log, text)
    except NotFound:
        found = await _list_of_client(log, text)
        if not found:
            raise
    session = next((row.id for row in found if not row.parent), found[0].id)  # not one that another one started
    if len(found) > 1:
        many = f"the newest of {format_count(len(found), 'session')} of {text}"
        typer.echo(make_plain(f"palimpsest: this is {session[:_ID_DIGITS]}, {many}"), err=True)
    return session


async def _list_of_client(log: LogReader, text: str) -> Sequence[SessionRow]:
    """Return the newest sessions of the client with this name, with or without its version."""
    rows = await list_matching(log, _MOST_LOOKED_AT)
    clients = {head.session: name_client(head.headers) for head in await log.load_heads([row.id for row in rows])}
    wanted = text.strip().lower()
    found = []
    for row in rows:
        client = clients.get(row.id) or name_sender(row.family)
        if wanted and wanted in (client, client.partition(" ")[0]):
            found.append(row)
    return found


def read_session(called: Invocation, session: str, query: "Callable[[Log, Settings, str], Awaitable[T]]") -> T:
    """Return what `query` finds in the log of the session that is meant, which it is given by its id."""

    async def find(log: "Log", settings: Settings) -> T:
        return await query(log, settings, await find_named(log, session))

    return called.read(find)


def find_for_server(called: Invocation, session: str) -> str:
    """Return the id of the session that is meant, for the server that runs on the data directory.

    Another server's log cannot be read here: it is asked by what the user has written, which may be an id or a name.
    """
    if called.host is not None:
        return session
    try:
        return read_session(called, session, _return_id)
    except (NotFound, StoreUnavailable):
        return session


async def _return_id(log: "Log", settings: Settings, session: str) -> str:
    return session
