"""What a process that was killed left unread: answers whose meaning was still to be derived.

Rule: bounded in number, bytes and time, and no failure here stops a start. They wait as answers of this process do, so
that a request which shows one has it read first, whether or not the time was enough for all.
"""

import asyncio
import logging
from collections.abc import Mapping

from proxy.engine.bus import EventBus
from proxy.engine.lineage.tracking import Lineage
from proxy.engine.ports import Archive
from proxy.engine.readings import Readings, UnreadAnswer
from proxy.engine.tasks import TaskRunner
from proxy.model.errors import StoreUnavailable
from proxy.model.events import ReadingFailed
from proxy.wire.format import Format

_MOST_SECONDS = 0.5

_log = logging.getLogger("palimpsest.leftovers")


class Leftovers:
    """Takes up, at the start, what an earlier process left."""

    def __init__(
        self,
        archive: Archive,
        bus: EventBus,
        tasks: TaskRunner,
        lineage: Lineage,
        readings: Readings,
        formats: Mapping[str, Format],
    ) -> None:
        self._archive = archive
        self._bus = bus
        self._tasks = tasks
        self._lineage = lineage
        self._readings = readings
        self._formats = formats

    async def read(self, most_seconds: float = _MOST_SECONDS) -> None:
        """Read what was left; what takes longer is read while calls are taken."""
        await asyncio.wait((self._tasks.spawn(self._read()),), timeout=most_seconds)

    async def take_up(self) -> set[str]:
        """Let them wait to be read, as what this process records does; the newest first. The exchanges they are of."""
        taken: set[str] = set()
        for row in await self._archive.list_unread():
            form = self._formats.get(row.wire)
            if form is None or row.exchange in taken:  # of several rounds the last is what the client saw
                continue
            if row.tip and not await self._lineage.reopen(row.exchange, row.session, row.tip):
                continue
            self._readings.submit(UnreadAnswer(row.exchange, row.k, form, row.headers, row.received))
            taken.add(row.exchange)
        return taken

    async def _read(self) -> None:
        failures: list[ReadingFailed] = []
        self._bus.subscribe(ReadingFailed, failures.append)
        try:
            taken = await self.take_up()
            await self._readings.finish()
        except StoreUnavailable as error:
            _log.warning("what was left unread before the start stays so: %s", error)
            return
        finally:
            self._bus.unsubscribe(failures.append)
        if failed := [failure for failure in failures if failure.exchange in taken]:
            told = (len(failed), failed[0].error)
            _log.info("%d answers from before the start cannot be read, and stay as they are; the first: %s", *told)
