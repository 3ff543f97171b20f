"""How commands search the log's index, and bring it up to date where no server does."""

import asyncio
from collections.abc import Callable

from proxy.config import Settings
from proxy.model.erasing import SessionErasure
from proxy.model.errors import StoreUnavailable
from proxy.model.search import IndexHealth
from proxy.store.erasing.building import erase_offline
from proxy.store.search.indexer import Indexer
from proxy.store.search.reader import SearchIndex
from proxy.store.search.schema import find_index
from proxy.store.sqlite.recovery import recover_log

_INDEX_SECONDS = 0.5


def open_index(settings: Settings) -> SearchIndex:
    """Open the index of the log for searching; a running server may write it at the same time."""
    return SearchIndex(settings.store_policy().path)


def update_index(settings: Settings, tell: Callable[[IndexHealth], None], *, is_rebuilt: bool = False) -> IndexHealth:
    """Index what is new in the log, or all of it anew, and return how current the index then is.

    `tell` is told of the progress. Raises StoreUnavailable if it cannot be written; a running server writes it itself.
    """
    policy = settings.store_policy()
    recover_log(policy)
    indexer = Indexer(policy.path)
    try:
        if is_rebuilt:
            indexer.rebuild()
        while indexer.run(_INDEX_SECONDS):
            tell(indexer.health)
        found = indexer.health
    finally:
        indexer.close()
    if found.fault:
        raise StoreUnavailable(found.fault)
    return found


async def erase_session(settings: Settings, session: str, *, is_done: bool) -> SessionErasure:
    """Erase a session, or say what that would do, while no server runs. Raises what `SessionErasing` does."""
    found = await erase_offline(settings.store_policy(), settings.memory.mirror, session, is_done=is_done)
    if is_done and find_index(settings.store_policy().path).exists():
        await asyncio.to_thread(update_index, settings, lambda _: None)
    return found
