"""Options that several commands share. Rule: one name, one meaning, one help text."""

from pathlib import Path
from typing import Annotated

import typer

from proxy.config import Settings, load_settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in YAML. [default: $PALIMPSEST_CONFIG, or none]"),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log. [default: ~/.palimpsest]")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address of the server. [default: 127.0.0.1]")]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Its port. [default: the one the server on that data directory listens on]")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--admin-token", metavar="T", help="Its secret. [default: the one in the data directory]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
# What SQLite can count up to.
MOST = 2**63 - 1

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, or how it begins.")]


def load_server_settings(
    config: Path | None, data: Path | None, host: str | None, port: int | None, admin_token: str | None
) -> Settings:
    """Return the settings of a command for the running server.

    Who names a host means the port of the settings there, not the one that a server on this machine listens on.
    """
    flags = {"data": data, "server.host": host, "server.port": port, "server.admin_token": admin_token}
    settings = load_settings(config, flags)
    if host is not None and port is None:
        settings = load_settings(config, {**flags, "server.port": settings.server.port})
    return settings
