"""`palimpsest serve`, `open`, which leads to the server's page, and `mcp`, which reads the log itself."""

import webbrowser
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from proxy.cli.services import ASKS, READS, ConfigOption, DataOption, Invocation, Services, offers
from proxy.config import load_settings
from proxy.context.budget import AUTO_CEILING
from proxy.model.exchange import Mode
from proxy.telemetry.policy import Level

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


@offers(*ASKS)
def open_page(
    called: Invocation,
    is_printed: Annotated[
        bool, typer.Option("--print", help="Write the link, which holds the admin token, and open nothing.")
    ] = False,
) -> None:
    """Open the server's page in a browser."""
    link = called.services.find_link(called.load_server_settings())
    if is_printed:
        typer.echo(link)
    elif webbrowser.open(link):
        typer.echo(f"opened {link.partition('?')[0]}")
    else:
        typer.echo("no browser can be opened here; this is the link:", err=True)
        typer.echo(link)
        raise typer.Exit(1)


@offers(*READS)
def mcp(called: Invocation) -> None:
    """Serve MCP on stdin and stdout, from the log."""
    called.services.serve_mcp(load_settings(called.config, {"data": called.data}))
