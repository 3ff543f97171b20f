"""The API that erases a session: DELETE `/-/api/sessions/{id}`."""

from starlette.requests import Request

from proxy.engine.erasing.service import SessionErasing
from proxy.model.erasing import SessionErasure
from proxy.server.endpoints import Endpoint, read_switch


class EraseApi:
    """Erases sessions. `dry_run=true` only says what would go."""

    def __init__(self, erasing: SessionErasing) -> None:
        self._erasing = erasing

    def add_to(self, session: Endpoint) -> Endpoint:
        """Add the method to the path of a session."""
        return session.on("DELETE", self._erase, "dry_run")

    async def _erase(self, request: Request) -> SessionErasure:
        prefix = request.path_params["id"]
        is_done = not read_switch(request, "dry_run")
        return await (self._erasing.erase(prefix) if is_done else self._erasing.measure(prefix))
