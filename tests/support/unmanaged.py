"""A log of which no session was ever managed. Rule: fakes of the log inherit it, and answer what a test needs."""

from collections.abc import Sequence

from proxy.model.epoch import Epoch, StoredContext, StoredOriginal
from proxy.model.errors import NotFound


class UnmanagedLog:
    """What the port says of epochs, plans and pins where there are none."""

    async def load_context(self, session: str) -> StoredContext:
        return StoredContext()

    async def load_original(self, reference: str) -> StoredOriginal:
        raise NotFound(f"there is no reference {reference}")

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        return ()

    async def load_epoch(self, session: str, n: int) -> Epoch:
        raise NotFound(f"there is no epoch {n} of session {session}")
