"""The API of the server's own state under `/-/api/health`, which the page of the same name shows."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from starlette.routing import Route

from proxy import __version__
from proxy.model.log import ArchiveHealth
from proxy.model.search import IndexHealth
from proxy.server.endpoints import Endpoint
from proxy.server.health import Health
from proxy.server.pages import Facts


class CircuitDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether an upstream fails now: its failures in a row, and what the last one was."""

    circuit: Literal["closed", "open"]
    failures: int = 0
    last: str = ""


class FactDocument(msgspec.Struct, frozen=True):
    """A setting as it applies, for people."""

    label: str
    text: str


class HealthDocument(msgspec.Struct, frozen=True):
    """The state of the server. `reasons` say why it is not simply ready; `log` is that of the record."""

    version: str
    status: Literal["ready", "degraded", "starting", "draining"]
    reasons: list[str]
    upstreams: dict[str, CircuitDocument]
    index: IndexHealth
    log: ArchiveHealth
    settings: list[FactDocument]


class HealthApi:
    """The endpoint that shows the server's state."""

    def __init__(self, health: Health, find_log_health: Callable[[], ArchiveHealth], facts: Facts) -> None:
        self._health = health
        self._find_log_health = find_log_health
        self._settings = [FactDocument(label, text) for label, text in facts]

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        return [Route("/api/health", Endpoint(self._show))]

    async def _show(self) -> HealthDocument:
        """Show the state of the server: its log, its index, its upstreams and its settings."""
        _, shown = self._health.describe()
        found = {**shown, "version": __version__, "log": self._find_log_health(), "settings": self._settings}
        return msgspec.convert(found, HealthDocument, from_attributes=True)
