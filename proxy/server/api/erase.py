"""The API that erases a session: DELETE `/-/api/sessions/{id}`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from proxy.engine.erasing.service import SessionErasing
from proxy.model.erasing import SessionErasure
from proxy.server.api.parameters import SessionPath
from proxy.server.endpoints import Endpoint


class ErasureQuery(msgspec.Struct, frozen=True):
    """How to erase."""

    dry_run: Annotated[bool, Meta(description="only say what would go")] = False


class EraseApi:
    """Erases sessions, or only says what would go."""

    def __init__(self, erasing: SessionErasing) -> None:
        self._erasing = erasing

    def add_to(self, session: Endpoint) -> Endpoint:
        """Add the method to the path of a session."""
        return session.on("DELETE", self._erase)

    async def _erase(self, path: SessionPath, query: ErasureQuery) -> SessionErasure:
        """Delete the content of a session for good; hashes, sizes and counts stay."""
        return await (self._erasing.measure(path.id) if query.dry_run else self._erasing.erase(path.id))
