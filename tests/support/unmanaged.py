"""A log of which no session was ever managed. Rule: fakes of the log inherit it, and answer what a test needs."""

from collections.abc import Sequence

from proxy.model.epoch import Epoch, EpochUse, StoredContext, StoredOriginal, Summary
from proxy.model.errors import NotFound
from proxy.model.exchange import SessionKey
from proxy.model.lineage import NodeRow
from proxy.model.log import AuxiliaryUsage, ShadowRow
from proxy.model.manifest import Manifest
from tests.support.figures import DerivedFigures


class UnmanagedLog(DerivedFigures):
    """What the port says of epochs, plans, pins and summaries where there are none."""

    async def find_key(self, session: str) -> SessionKey:
        raise NotFound(f"there is no session {session}")

    async def load_context(self, session: str) -> StoredContext:
        return StoredContext()

    async def list_uses(self, session: str) -> Sequence[EpochUse]:
        return ()

    async def load_original(self, reference: str) -> StoredOriginal:
        raise NotFound(f"there is no reference {reference}")

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        return ()

    async def load_epoch(self, session: str, n: int) -> Epoch:
        raise NotFound(f"there is no epoch {n} of session {session}")

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        return ()

    async def list_nodes(self, session: str) -> Sequence[NodeRow]:
        return ()

    async def load_manifest(self, exchange: str) -> Manifest:
        raise NotFound(f"there is no exchange {exchange}")

    async def list_shadows(self, since_ms: int, limit: int = 0) -> Sequence[ShadowRow]:
        return ()

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        return ()
