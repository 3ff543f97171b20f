"""Builds what erases sessions: of the log that a server writes, or of one that no server writes."""

import asyncio
from functools import partial
from pathlib import Path

from proxy.engine.erasing.live import LiveSessions
from proxy.engine.erasing.service import SessionErasing
from proxy.engine.runtime import EngineBus, SystemClock
from proxy.model.erasing import SessionErasure
from proxy.store.erasing.eraser import SqliteEraser
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.recovery import list_aside


def build_erasing(
    log: Path, archive: SqliteArchive, mirror: str, bus: EngineBus | None = None, live: LiveSessions | None = None
) -> SessionErasing:
    """Return what erases sessions. `mirror` is the directory of files of memory; `live` knows a running server."""
    build = partial(
        SessionErasing,
        log=archive,
        eraser=SqliteEraser(archive, SystemClock(), mirror=mirror),
        list_left=partial(list_aside, log),
        bus=bus,
    )
    return build() if live is None else build(settle=live.settle, forget=live.forget)


async def erase_offline(policy: StorePolicy, mirror: str, session: str, *, is_done: bool) -> SessionErasure:
    """Erase a session, or say what that would do, under the lock of the log. Raises what `SessionErasing` does.

    Raises StoreUnavailable if a server writes the log.
    """
    archive = open_sqlite(policy, asyncio.get_running_loop())
    erasing = build_erasing(policy.path, archive, mirror)
    try:
        return await (erasing.erase(session) if is_done else erasing.measure(session))
    finally:
        await archive.close()
        erasing.eraser.close()
