"""`palimpsest serve` and `open`. Rule: flags become settings; everything else is the application's."""

import webbrowser
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from proxy.cli.doors import Doors
from proxy.cli.options import ConfigOption, DataOption, HostOption, PortOption, TokenOption, load_server_settings
from proxy.config import load_settings
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
