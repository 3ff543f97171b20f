"""`palimpsest search` and `index`: find what was said, and make the index that is searched."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec
import typer

from proxy.cli.formatting import format_count, make_plain
from proxy.cli.inspection.naming import find_named
from proxy.cli.logs import CommandIndex, Log
from proxy.cli.services import READS, Invocation, Services, offers
from proxy.cli.terminal import format_local
from proxy.config import Settings, load_settings
from proxy.engine.recorded.documents import write_json
from proxy.model.errors import StoreUnavailable
from proxy.model.search import IndexHealth, Visibility
from proxy.read.search import (
    DEFAULT_LIMIT,
    KINDS,
    MOST_HITS,
    MOST_TOKENS,
    ROLES,
    AnswerDocument,
    HitDocument,
    LogSearch,
    SearchRequest,
)

_ID_DIGITS = 12
_OK = 200
_SEEN: Mapping[Visibility, str] = {"sent": "sent", "in_short": "in short", "not_sent": "not sent"}


@offers("as_json", *READS)
def search(
    called: Invocation,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for: any text.")],
    session: Annotated[
        str,
        typer.Option(
            metavar="SESSION", help="Only in this session: its id or a prefix of it, its name, or its client's."
        ),
    ] = "",
    kind: Annotated[str, typer.Option(metavar="KIND", help=f"Only {', '.join(KINDS)}; several with commas.")] = "",
    role: Annotated[str, typer.Option(metavar="ROLE", help=f"Only {', '.join(ROLES)}; several with commas.")] = "",
    tool: Annotated[str, typer.Option(metavar="NAME", help="Only calls of this tool and what they returned.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only from then on: 2026-11-26, 2026-11-26T08:00, or 3d, 2h, 30m ago.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only up to then.")] = "",
    branch: Annotated[
        str, typer.Option(metavar="BRANCH", help="With --session: only what this branch has, named by its id.")
    ] = "",
    sender: Annotated[
        str, typer.Option(metavar="NAME", help="Only what these names have said; several with commas.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=MOST_HITS, help="How many at most.")] = DEFAULT_LIMIT,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST_TOKENS, help="Fill the answer with lines up to so many tokens.")
    ] = None,
) -> None:
    """Find what was said and done, in all sessions."""

    async def find(log: Log, index: CommandIndex) -> AnswerDocument:
        await log.list_sessions(1)  # raises where there is no log: an index alone finds nothing
        id = await find_named(log, session) if session else ""
        request = SearchRequest(query, id, branch, kind, role, sender, tool, since, until, limit, tokens)
        return await LogSearch(log, index).search(request, time.time_ns() // 1_000_000)

    with suppress(StoreUnavailable):  # a running server indexes by itself
        called.services.update_index(load_settings(called.config, {"data": called.data}), _show_progress)
    found = called.search(find)
    typer.echo(write_json(found) if called.as_json else make_plain(_format_answer(found)), nl=False)


@offers("as_json", "admin_token", *READS)
def index(
    called: Invocation,
    is_rebuilt: Annotated[bool, typer.Option("--rebuild", help="Make it anew from the log.")] = False,
) -> None:
    """Bring the index for search up to date, or make it anew."""
    settings = called.load_server_settings()
    if not called.services.find_server(settings):
        health = called.services.update_index(settings, _show_progress, is_rebuilt=is_rebuilt)
    elif is_rebuilt:
        health = _ask_server(called.services, settings)
    else:
        health = called.search(lambda log, found: found.look())
    typer.echo(write_json(health) if called.as_json else make_plain(_format_index(health)), nl=False)


def _ask_server(services: Services, settings: Settings) -> IndexHealth:
    status, content = services.ask_server(settings, "/index/rebuild", b"")
    if status != _OK:
        raise StoreUnavailable(f"the server did not make the index anew: {content.decode(errors='replace')}")
    return msgspec.json.decode(content, type=IndexHealth)


def _show_progress(health: IndexHealth) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{format_count(health.behind, 'record')} to index … ", nl=False, err=True)


def _format_index(health: IndexHealth) -> str:
    if health.fault:
        return f"the index cannot be used: {health.fault}\n"
    state = f"{format_count(health.behind, 'record')} behind the log" if health.behind else "up to date"
    return f"the index is {state} ({health.size} bytes)\n"


def _format_answer(answer: AnswerDocument) -> str:
    lines = [line for hit in answer.hits for line in _format_hit(hit)]
    if not answer.hits:
        lines.append("nothing was found")
    if answer.behind:
        lines.append(f"{format_count(answer.behind, 'newer record')} of the log could not be searched yet")
    if not answer.is_complete:
        lines.append("the search was ended by its time limit, or there is no index; there may be more")
    return "\n".join([*lines, ""])


def _format_hit(hit: HitDocument) -> list[str]:
    who = " ".join(filter(None, (hit.role, hit.sender, hit.kind, hit.tool)))
    head = f"ref:{hit.reference}  {format_local(hit.at_ms)}  {hit.session[:_ID_DIGITS]} call {hit.n}  {who}"
    if hit.visibility is not None:
        head += f"  {_SEEN[hit.visibility]}"
    return [head, *(f"    {line}" for line in hit.snippet.splitlines()), ""]
