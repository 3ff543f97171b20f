"""`palimpsest serve`, the commands that talk to the running server (`open` and `compact`), and `mcp`.

`compact` is done by the server because it alone writes the log. `mcp` reads the log itself, also beside a server.
"""

import webbrowser
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import typer

from proxy.cli.formatting import make_plain
from proxy.cli.services import (
    ConfigOption,
    DataOption,
    HostOption,
    JsonOption,
    PortOption,
    Services,
    SessionArgument,
    TokenOption,
    load_server_settings,
)
from proxy.config import load_settings
from proxy.context.budget import AUTO_CEILING
from proxy.model.errors import ProxyError
from proxy.model.exchange import Mode
from proxy.telemetry.policy import Level


class CompactionRefused(ProxyError):
    """The server did not compact the session; the message says why."""


UpstreamOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Base URL of the only upstream. [default: https://api.openai.com/v1]"),
]
ListenHostOption = Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")]
CeilingOption = Annotated[
    str | None,
    typer.Option(metavar="TOKENS", help=f"Most tokens of a request; auto: {AUTO_CEILING:,} at most. [default: auto]"),
]
ModeOption = Annotated[
    Mode | None, typer.Option(help="observe: record, never change; bypass: do not even read. [default: manage]")
]
AdminTokenOption = Annotated[str | None, typer.Option(metavar="T", help="Secret for the paths below /-/.")]
IdleTimeoutOption = Annotated[
    float | None, typer.Option(metavar="S", min=0.001, help="Seconds an upstream may be silent. [default: 600]")
]
DrainOption = Annotated[
    float | None, typer.Option(metavar="S", help="Seconds that open calls have after a stop signal. [default: 30]")
]
DurabilityOption = Annotated[
    Literal["full", "normal"] | None, typer.Option(help="full: records survive a power loss too. [default: normal]")
]
LogLevelOption = Annotated[Level | None, typer.Option(help="The least that is logged. [default: info]")]
LogFormatOption = Annotated[
    Literal["text", "json"] | None, typer.Option(help="json: one JSON object a line. [default: text]")
]
AccessLogOption = Annotated[bool | None, typer.Option("--access-log", help="Log each request, without its content.")]


def serve(
    context: typer.Context,
    upstream: UpstreamOption = None,
    host: ListenHostOption = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one. [default: 8484]")] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    ceiling: CeilingOption = None,
    mode: ModeOption = None,
    admin_token: AdminTokenOption = None,
    idle_timeout: IdleTimeoutOption = None,
    drain: DrainOption = None,
    durability: DurabilityOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    access_log: AccessLogOption = None,
    until_unused: Annotated[
        bool, typer.Option("--until-unused", help="End, too, when no `palimpsest run` uses the data directory.")
    ] = False,
) -> None:
    """Run the proxy in the foreground until SIGINT or SIGTERM."""
    flags = {
        "upstreams": None if upstream is None else name_upstream(upstream),
        "server.host": host,
        "server.port": port,
        "server.admin_token": admin_token,
        "server.drain_seconds": drain,
        "store.durability": durability,
        "log.level": log_level,
        "log.format": log_format,
        "log.access": access_log,
        "budget.ceiling_tokens": ceiling,
        "data": data,
        "mode": mode,
    }
    settings = load_settings(config, flags)
    if idle_timeout is not None:
        settings = settings.with_idle_timeout(idle_timeout)
    services: Services = context.obj
    raise typer.Exit(services.serve(settings, until_unused=until_unused))


def name_upstream(url: str) -> list[dict[str, str]]:
    """Return the setting `upstreams` with one upstream."""
    return [{"name": _find_host(url), "base_url": url}]


def _find_host(url: str) -> str:
    """Return the host of an upstream's URL, as its name. A URL without a host is refused by the settings."""
    try:
        return urlsplit(url).hostname or "upstream"
    except ValueError:
        return "upstream"


def open_page(
    context: typer.Context,
    is_printed: Annotated[
        bool, typer.Option("--print", help="Write the link, which holds the admin token, and open nothing.")
    ] = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Open the server's page in a browser."""
    services: Services = context.obj
    link = services.find_link(load_server_settings(config, data, host, port, admin_token))
    if is_printed:
        typer.echo(link)
    elif webbrowser.open(link):
        typer.echo(f"opened {link.partition('?')[0]}")
    else:
        typer.echo("no browser can be opened here; this is the link:", err=True)
        typer.echo(link)
        raise typer.Exit(1)


def compact(
    context: typer.Context,
    session: SessionArgument,
    model: Annotated[str, typer.Option(help="The model that writes the summary. [default: as in the settings]")] = "",
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="The instruction to it. [default: as in the settings]")
    ] = "",
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: a full report; 2: a short one; 3: one made without a model.")
    ] = 1,
    view: Annotated[
        str, typer.Option(metavar="MODEL", help="The conversation with this model. [default: the newest]")
    ] = "",
    branch: Annotated[
        str, typer.Option(metavar="TIP", help="The branch, by its tip or a prefix of it. [default: the newest]")
    ] = "",
    as_json: JsonOption = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Summarise a session now, by the running server."""
    settings = load_server_settings(config, data, host, port, admin_token)
    services: Services = context.obj
    options = {"model": model, "prompt": prompt, "level": level, "view": view, "branch": branch}
    status, content = services.ask_server(settings, f"/sessions/{session}/compact", msgspec.json.encode(options))
    response = parse_object(content)
    if "session" not in response:
        raise CompactionRefused(find_reason(status, response))
    if as_json:
        typer.echo(content, nl=False)
    else:
        typer.echo(make_plain(format_compaction(response)))


def format_compaction(found: dict[str, Any]) -> str:
    """Format the result of a compaction, as the server's API describes it."""
    if found["epoch"]:
        sizes = f"{found['tokens_before']:,} to {found['tokens_after']:,} tokens"
        lines = [f"compacted {sizes}, from the next call on (epoch {found['epoch']})"]
    else:
        lines = [f"kept      {found['tokens_before']:,} tokens: no epoch was opened"]
    if found["summary"]:
        covered = f"{found['messages_covered']} messages"
        lines.append(f"summary   {found['summary']} of {covered}: level {found['level']}, {found['kind']}")
    if found["calls"]:
        lines.append(f"calls     {len(found['calls'])}, for {found['cost_tokens']:,} tokens of uncached input")
    if found["reason"]:
        lines.append(f"note      {found['reason']}")
    return "\n".join([*lines, f"took      {found['ms'] / 1000:.1f} s"])


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object that the server responded with, empty if it is none."""
    try:
        parsed = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def find_reason(status: int, response: dict[str, Any]) -> str:
    """Return why the server refused, or that it is probably another program."""
    error = response.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(message, str):
        return message.removeprefix("palimpsest: ")
    return (
        f"the server at this address responded with status {status} and is not a palimpsest of this version;"
        " choose --host and --port"
    )


def mcp(context: typer.Context, data: DataOption = None, config: ConfigOption = None) -> None:
    """Serve MCP on stdin and stdout, from the log."""
    services: Services = context.obj
    services.serve_mcp(load_settings(config, {"data": data}))
