"""`palimpsest compact`. Rule: the running server does it, for it alone writes the log; nothing is done without one."""

from typing import Annotated, Any

import msgspec
import typer

from proxy.cli.doors import Doors
from proxy.cli.options import (
    ConfigOption,
    DataOption,
    HostOption,
    JsonOption,
    PortOption,
    SessionArgument,
    TokenOption,
    load_server_settings,
)
from proxy.cli.text import make_plain
from proxy.model.errors import ProxyError


class CompactionRefused(ProxyError):
    """The server would not do it, and said why."""


def compact(
    context: typer.Context,
    session: SessionArgument,
    model: Annotated[str, typer.Option(help="Who is to write the summary. [default: as the settings say]")] = "",
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The instruction, in place of the settings'.")] = "",
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: a report; 2: a short form; 3: made without asking a model.")
    ] = 1,
    view: Annotated[
        str, typer.Option(metavar="MODEL", help="The conversation with this model. [default: the newest]")
    ] = "",
    branch: Annotated[
        str, typer.Option(metavar="TIP", help="The branch, by its tip or how that begins. [default: the newest]")
    ] = "",
    as_json: JsonOption = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Have a session summarised now by the running server."""
    settings = load_server_settings(config, data, host, port, admin_token)
    doors: Doors = context.obj
    asked = msgspec.json.encode({"model": model, "prompt": prompt, "level": level, "view": view, "branch": branch})
    status, content = doors.ask(settings, f"/sessions/{session}/compact", asked)
    answer = _read(content)
    if "session" not in answer:
        raise CompactionRefused(_find_reason(status, answer))
    if as_json:
        typer.echo(content, nl=False)
    else:
        typer.echo(make_plain(tell_compaction(answer)))


def tell_compaction(found: dict[str, Any]) -> str:
    """What came of it, in words."""
    lines = [_tell_epoch(found)]
    if found["summary"]:
        covered = f"{found['messages_covered']} messages"
        lines.append(f"summary   {found['summary']} of {covered}: level {found['level']}, {found['kind']}")
    if found["calls"]:
        lines.append(f"calls     {len(found['calls'])}, for {found['cost_tokens']:,} tokens of uncached input")
    if found["reason"]:
        lines.append(f"note      {found['reason']}")
    return "\n".join([*lines, f"took      {found['ms'] / 1000:.1f} s"])


def _tell_epoch(found: dict[str, Any]) -> str:
    before, after = (f"{found[name]:,}" for name in ("tokens_before", "tokens_after"))
    if not found["epoch"]:
        return f"kept      {before} tokens: no epoch was opened"
    return f"compacted {before} to {after} tokens, from the next call on (epoch {found['epoch']})"


def _read(content: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _find_reason(status: int, answer: dict[str, Any]) -> str:
    """Why a server of ours would not; else that it is probably none."""
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(message, str):
        return message.removeprefix("palimpsest: ")
    return f"what answered there with status {status} is no palimpsest of this version; choose --host and --port"
