"""`palimpsest serve`, and the commands that ask a running server: `open` and `compact`."""

import webbrowser
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import typer

from proxy.cli.formatting import make_plain
from proxy.cli.services import (
    ConfigOption,
    DataOption,
    Doors,
    HostOption,
    JsonOption,
    PortOption,
    SessionArgument,
    TokenOption,
    load_server_settings,
)
from proxy.config import load_settings
from proxy.model.errors import ProxyError
from proxy.model.exchange import Mode


def serve(
    context: typer.Context,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The only upstream, as an SDK takes it. [default: https://api.openai.com/v1]"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any. [default: 8484]")] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    ceiling: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Most tokens of a request; auto: 200,000. [default: auto]")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="How calls are treated. [default: manage]")] = None,
    admin_token: Annotated[str | None, typer.Option(metavar="T", help="Secret for the pages below /-/.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.001, help="Seconds an upstream may be silent. [default: 600]")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds for calls under way after a stop signal. [default: 30]")
    ] = None,
    durability: Annotated[
        Literal["full", "normal"] | None,
        typer.Option(help="full: records survive a power loss, too. [default: normal]"),
    ] = None,
) -> None:
    """Run the proxy in the foreground until SIGINT or SIGTERM."""
    flags = {
        "upstreams": None if upstream is None else [{"name": _name_after(upstream), "base_url": upstream}],
        "server.host": host,
        "server.port": port,
        "server.admin_token": admin_token,
        "server.drain_seconds": drain,
        "store.durability": durability,
        "budget.ceiling_tokens": ceiling,
        "data": data,
        "mode": mode,
    }
    settings = load_settings(config, flags)
    if idle_timeout is not None:
        settings = settings.with_idle_timeout(idle_timeout)
    doors: Doors = context.obj
    raise typer.Exit(doors.serve(settings))


def open_page(
    context: typer.Context,
    is_printed: Annotated[
        bool, typer.Option("--print", help="Write the link, which holds the admin token; open nothing.")
    ] = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Open the server's page in a browser."""
    doors: Doors = context.obj
    link = doors.find_link(load_server_settings(config, data, host, port, admin_token))
    if is_printed:
        typer.echo(link)
    elif webbrowser.open(link):
        typer.echo(f"opened {link.partition('?')[0]}")
    else:
        typer.echo("there is no browser here that can be opened; this is the link:", err=True)
        typer.echo(link)
        raise typer.Exit(1)


def _name_after(url: str) -> str:
    """The upstream's name: its host. A URL without one is refused by the settings, with a reason."""
    try:
        return urlsplit(url).hostname or "upstream"
    except ValueError:
        return "upstream"


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
