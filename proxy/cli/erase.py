"""`palimpsest erase`: through the running server if there is one, else in the log itself, under its lock."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer

from proxy.cli.services import (
    ASKS,
    Invocation,
    Services,
    SessionArgument,
    find_reason,
    offers,
    parse_object,
)
from proxy.cli.terminal import make_plain
from proxy.config import Settings
from proxy.engine.recorded.documents import write_json
from proxy.model.erasing import SessionErasure
from proxy.model.errors import BadRequest, ProxyError

_OK = 200
_MOST_NAMED = 5


class ErasingRefused(ProxyError):
    """The server did not erase a session."""


@offers("as_json", *ASKS)
def erase(
    called: Invocation,
    session: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Needed where nobody can answer.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be erased.")] = False,
) -> None:
    """Delete the content of a session for good.

    Export it before, if it may be needed: `palimpsest export`.
    """
    settings, services = called.load_server_settings(), called.services
    is_served = called.host is not None or called.port is not None or bool(services.find_server(settings))
    found = _ask(services, settings, session, is_served=is_served, is_done=False)
    if not dry_run:
        if not yes:
            _confirm(found)
        found = _ask(services, settings, found.session, is_served=is_served, is_done=True)
    typer.echo(write_json(found) if called.as_json else make_plain(describe(found)), nl=not called.as_json)


def _ask(services: Services, settings: Settings, session: str, *, is_served: bool, is_done: bool) -> SessionErasure:
    if not is_served:
        return asyncio.run(services.erase_session(settings, session, is_done=is_done))
    query = {} if is_done else {"dry_run": "true"}
    status, content = services.ask_server(settings, f"/sessions/{session}", method="DELETE", query=query)
    if status != _OK:
        raise ErasingRefused(find_reason(status, parse_object(content)))
    return msgspec.json.decode(content, type=SessionErasure)


def _confirm(found: SessionErasure) -> None:
    """Ask a person. Raises BadRequest where there is none, and Abort if the answer is no."""
    if not sys.stdin.isatty():
        raise BadRequest("nobody can be asked here whether to erase it; say --yes, or --dry-run to see what would go")
    typer.echo(make_plain(describe(found)))
    typer.confirm("Erase it for good?", abort=True)


def describe(found: SessionErasure) -> str:
    """Describe what was erased, or would be."""
    verb = "erased" if found.is_done else "would erase"
    lines = [
        f"{verb} the content of session {found.session}: {found.calls} calls, {found.contents} contents,"
        f" {found.bytes:,} bytes in the log"
    ]
    if found.kept_bytes:
        lines.append(f"kept      {found.kept_bytes:,} bytes that other sessions have, too{_name(found.shared_with)}")
    if found.children:
        lines.append(f"apart     sessions that its agent started are not erased with it{_name(found.children)}")
    if found.continued_by:
        lines.append(f"apart     sessions that continue it are not erased with it{_name(found.continued_by)}")
    if not found.is_done:
        lines.append(f"first     palimpsest export {found.session} -o DIR keeps a copy")
        return "\n".join(lines)
    if not found.is_overwritten:
        lines.append("left      somebody reads the log now: bytes of it stay in its files until the server wipes them")
    lines += [
        f"left      {path} may have calls of any session; delete it if you need none" for path in found.left_files
    ]
    if found.left_memory is not None:
        lines.append(f"left      files of its memory in {found.left_memory} could not be removed; erase it again")
    lines.append("stays     its hashes, sizes, times, token counts, model names and ids")
    return "\n".join(lines)


def _name(sessions: tuple[str, ...]) -> str:
    named = ", ".join(sessions[:_MOST_NAMED]) + (", ..." if len(sessions) > _MOST_NAMED else "")
    return f": {named}" if named else ""
