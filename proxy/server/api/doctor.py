"""The findings of `palimpsest doctor` that the running server makes itself, below `/-/api`, for its page."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.routing import Route

from proxy.read.findings import Diagnosis
from proxy.server.endpoints import Endpoint


class DoctorApi:
    """The endpoint of findings. `diagnose` makes them anew for each request."""

    def __init__(self, diagnose: Callable[[], Awaitable[Diagnosis]]) -> None:
        self._diagnose = diagnose

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        return [Route("/api/doctor", Endpoint(self._show))]

    async def _show(self) -> Diagnosis:
        """Check the server and what is around it, and show what was found."""
        return await self._diagnose()
