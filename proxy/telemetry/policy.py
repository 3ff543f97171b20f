"""How the server logs, and where it sends traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from proxy.model.settings import BaseUrl, HeaderName, Rule, Secret

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """What the server writes to standard error."""

    level: Level = "info"
    """debug, info, warning or error: the least that is written."""
    format: Literal["text", "json"] = "text"
    """text, or json: one object a line, with the field names of OpenTelemetry's logs."""
    access: bool = False
    """Write a line for each request: method, path, status, seconds, session, tokens; never its content."""


@dataclass(frozen=True, slots=True)
class TelemetryPolicy:
    """Traces by OpenTelemetry (docs/operations.md); needs the extra telemetry."""

    endpoint: BaseUrl | Literal[""] = ""
    """Base URL of a collector that takes OTLP over HTTP, such as http://localhost:4318. Without: none."""
    headers: Annotated[Mapping[HeaderName, Secret], Rule(show=lambda schema: schema | {"default": {}})] = field(
        default_factory=dict, repr=False
    )
    """Headers for it, such as its API key."""
    service_name: Annotated[str, Rule(min_length=1)] = "palimpsest"
    """The name under which it shows this server (service.name)."""
    capture_content: bool = False
    """Whether spans have the messages of requests and responses: these then leave this machine."""
