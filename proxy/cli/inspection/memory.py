"""`palimpsest memory`: what is remembered of a session. It reads the log, also beside a running server.

What changes memory goes through the server that runs on the data directory.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, cast, get_args

import msgspec
import typer

from proxy.cli.formatting import WIDTH, format_count, make_plain, shorten
from proxy.cli.inspection.naming import find_for_server, read_session
from proxy.cli.services import READS, BranchOption, Invocation, SessionArgument, find_reason, offers, parse_object
from proxy.cli.terminal import format_local
from proxy.config import Settings
from proxy.context.conversation import SnapshotPolicy
from proxy.context.memory.bundle import render_turns
from proxy.engine.memory.path import MemoryReader
from proxy.engine.recorded.documents import write_json
from proxy.model.errors import ProxyError
from proxy.model.memory import CLAIMED, ItemType, MemoryBundle, ToolInteraction
from proxy.read.export import render_messages
from proxy.read.memory import (
    DEFAULT_LIMIT,
    MemoryReport,
    SnapshotDocument,
    build_snapshot,
    load_bundle,
    load_report,
    load_tools,
)
from proxy.wire import FORMATS
from proxy.wire.json_values import list_elements

_MOST_LISTED = 10_000
_KINDS: tuple[ItemType, ...] = get_args(ItemType)
_TYPES = (*_KINDS, "tools", "bundle", "snapshot")
_WHEN = ("now", "later", "never")


class MemoryRefused(ProxyError):
    """The server did not change the memory of a session."""


@offers("as_json", *READS, "host", "port", "admin_token")
def memory(
    called: Invocation,
    session: SessionArgument,
    item_type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help=f"Only this: {', '.join(_TYPES)}."),
    ] = None,
    turn: Annotated[str, typer.Option(metavar="TURN", help="Only this turn: 12, or turn_0012.")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=_MOST_LISTED, help="How many at most of each kind, the newest.")
    ] = DEFAULT_LIMIT,
    branch: BranchOption = "",
    compact: Annotated[bool, typer.Option("--compact", help="Make reports and facts of whole turns now.")] = False,
    when: Annotated[
        str, typer.Option(metavar="|".join(_WHEN), help="When --compact is done: later is behind the next response.")
    ] = _WHEN[0],
    pin: Annotated[str, typer.Option(metavar="ITEM", help="Have an item come first: ep_0001 or sem_0001.")] = "",
    unpin: Annotated[str, typer.Option(metavar="ITEM", help="Have it come first no longer.")] = "",
    retract: Annotated[str, typer.Option(metavar="ITEM", help="Have an item shown never again.")] = "",
    reset: Annotated[bool, typer.Option("--reset", help="Forget all items so far; the log keeps everything.")] = False,
) -> None:
    """Show what is remembered of a session, or change that."""
    if item_type is not None and item_type not in _TYPES:
        raise typer.BadParameter(f"is one of {', '.join(_TYPES)}", param_hint="--type")
    if when not in _WHEN:
        raise typer.BadParameter(f"is one of {', '.join(_WHEN)}", param_hint="--when")
    wanted = {"branch": branch, "when": when} if compact else None
    asked = _list_changes({"pin": pin, "unpin": unpin, "retract": retract}, wanted, reset=reset)
    if len(asked) > 1:
        raise typer.BadParameter("choose one of --compact, --pin, --unpin, --retract and --reset")
    for path, body in asked:
        settings, id = called.load_server_settings(), find_for_server(called, session)
        status, content = called.services.ask_server(
            settings, f"/sessions/{id}/memory{path}", msgspec.json.encode(body)
        )
        response = parse_object(content)
        if "session" not in response:
            raise MemoryRefused(find_reason(status, response))
        typer.echo(content if called.as_json else make_plain(format_change(response)), nl=not called.as_json)
    if not asked:

        async def query(log: MemoryReader, settings: Settings, session: str) -> bytes:
            chosen = _Chosen(session, item_type or "", turn, limit, branch)
            return await _render(log, chosen, settings.snapshot, as_json=called.as_json)

        typer.echo(read_session(called, session, query), nl=False)


class _Chosen(NamedTuple):
    """What of a session's memory is to be shown."""

    session: str
    item_type: str
    turn: str
    limit: int
    branch: str


def _list_changes(
    actions: dict[str, str], compaction: dict[str, str] | None, *, reset: bool
) -> list[tuple[str, dict[str, str]]]:
    """Return the API's paths and bodies for what is asked for. `compaction`: how memory is to be made, not if None."""
    asked = [(f"/{item}", {"action": action}) for action, item in actions.items() if item]
    asked += [("/reset", {})] if reset else []
    return [*asked, ("/compact", compaction)] if compaction is not None else asked


async def _render(log: MemoryReader, chosen: _Chosen, policy: SnapshotPolicy, *, as_json: bool) -> bytes:
    session, item_type, turn, limit, branch = chosen
    if item_type == "tools":
        found = (await load_tools(log, session, turn, branch))[-limit:]
        return write_json(found) if as_json else _join(_format_tools(found))
    if item_type == "bundle":
        bundle = await load_bundle(log, session, policy.max_episodic_items, policy.max_semantic_items, branch)
        items = MemoryBundle(bundle.episodic, bundle.semantic)
        return write_json(items) if as_json else f"{make_plain(bundle.text)}\n".encode()
    if item_type == "snapshot":
        made = await build_snapshot(
            log,
            session,
            max_episodic=policy.max_episodic_items,
            max_semantic=policy.max_semantic_items,
            raw_tail_turns=policy.raw_tail_turns,
            is_text=policy.tail == "text",
            branch=branch,
        )
        return write_json(made) if as_json else _join(_format_snapshot(made))
    kind = next((each for each in _KINDS if each == item_type), None)
    report = await load_report(log, session, kind=kind, turn=turn, limit=limit, branch=branch)
    return write_json(report) if as_json else _join(_format_report(report, kind))


def format_change(document: dict[str, Any]) -> str:
    """Format what the server's API says of a change."""
    if document.get("is_reset"):
        return "all items of this session are forgotten; the log keeps what was said"
    if "is_requested" in document:
        return f"{'memory' if document['is_requested'] else 'no memory'} will be made behind the next response"
    if "items" not in document:
        return f"{document['action']}: {document['item']}"
    items, turns = document["items"], document["turn_ids"]
    made = format_count(len(items["episodic"]), "report"), format_count(len(items["semantic"]), "fact")
    told = f"{made[0]} and {made[1]} were made of {format_count(len(turns), 'turn')}"
    return f"{told}\n{document['reason']}" if document["reason"] else told


def _join(lines: Iterator[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _format_report(report: MemoryReport, kind: ItemType | None) -> Iterator[str]:
    counts = report.counts
    made = format_count(counts["episodic"], "report"), format_count(counts["semantic"], "fact")
    yield f"{format_count(report.turns, 'turn')}, {format_count(counts['raw'], 'trace')}, {made[0]}, {made[1]}"
    if report.is_requested:
        yield "memory will be made of its turns behind the next response"
    for item in report.episodic:
        yield ""
        turns = f"{item.turn_ids[0]} to {item.turn_ids[-1]}" if len(item.turn_ids) > 1 else "".join(item.turn_ids)
        yield make_plain(
            f"{item.id}  {format_local(int(item.ts * 1000))[:16]}  {turns}  {' '.join(item.tags)}".rstrip()
        )
        yield from (make_plain(f"  {line}") for line in item.summary.split("\n"))
    for place, fact in enumerate(report.semantic):
        if not place:
            yield ""
        label = " (claimed)" if CLAIMED in fact.tags else ""
        said = shorten(make_plain(f"{fact.kind}{label}: {fact.fact}"), 2 * WIDTH)
        yield f"{fact.id}  {fact.salience:.2f}  {said}"
    if kind == "raw":
        yield ""
        yield make_plain(render_turns(report.raw))


def _format_snapshot(made: SnapshotDocument) -> Iterator[str]:
    form = FORMATS[made.wire]
    items = cast(msgspec.Raw, getattr(made, form.items_key))
    messages = [form.parse_message(raw) for raw in list_elements(bytes(items))]
    yield from map(make_plain, render_messages(messages))


def _format_tools(found: Sequence[ToolInteraction]) -> Iterator[str]:
    for each in found:
        given = bytes(each.arguments).decode(errors="replace")
        yield f"{each.turn_id}  {each.status:7}  {shorten(make_plain(f'{each.tool_name} {given}'), 2 * WIDTH)}"
