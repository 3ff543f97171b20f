"""The findings of `palimpsest doctor` that the running server makes itself, below `/-/api`, for its page."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from proxy.engine.doctor.findings import Diagnosis
from proxy.server.endpoints import Endpoint


class DoctorApi:
    """The endpoint of findings. `diagnose` makes them anew for each request."""

    def __init__(self, diagnose: Callable[[], Awaitable[Diagnosis]]) -> None:
        self._diagnose = diagnose

    def list_routes(self) -> Sequence[BaseRoute]:
        """Return the routes, below `/-`."""
        return [Route("/api/doctor", Endpoint(self._show))]

    async def _show(self, request: Request) -> Diagnosis:
        return await self._diagnose()
