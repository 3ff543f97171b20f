"""How the server logs, and where it sends traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """What is written to standard error, and in which form."""

    level: Level = "info"
    format: Literal["text", "json"] = "text"
    access: bool = False  # one line for each request


@dataclass(frozen=True, slots=True)
class TelemetryPolicy:
    """Where spans go, by OpenTelemetry's protocol over HTTP. Without an endpoint none are made."""

    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    service_name: str = "palimpsest"
    capture_content: bool = False
