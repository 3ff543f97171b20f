"""Records on their way to the writer thread. Rule: on the event loop; never waits, never raises, always bounded."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.model.exchange import Record, weigh

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Entry:
    """The records of one append: stored together or not at all."""

    records: tuple[Record, ...]
    weight: int
    stored: "asyncio.Future[bool]"


class Spool:
    """Counts what is under way, and tells each append how it ended."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, put: Callable[[list[Entry]], None], max_bytes: int, hold_ms: int
    ) -> None:
        self._loop = loop
        self._put = put
        self._max_bytes = max_bytes
        self._hold_s = hold_ms / 1000
        self._held: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.pending = 0
        self.pending_bytes = 0
        self.dropped = 0
        self.generation = 0

    def append(self, records: tuple[Record, ...], is_urgent: bool) -> "asyncio.Future[bool]":
        """Queue records; the future turns False at once where there is no room for them."""
        stored: asyncio.Future[bool] = self._loop.create_future()
        weight = sum(map(weigh, records))
        if self._is_closed or self.pending_bytes + weight > self._max_bytes:
            stored.set_result(False)
            self._drop(len(records))
            return stored
        self.pending += len(records)
        self.pending_bytes += weight
        self._held.append(Entry(records, weight, stored))
        if is_urgent:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._hold_s, self.flush)
        return stored

    def flush(self) -> None:
        """Hand everything to the writer. What is not urgent is held here, so that it never wakes the thread alone."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._put(self._held)
            self._held = []

    def close(self) -> None:
        """Hand over what is held and take nothing more."""
        self.flush()
        self._is_closed = True

    def settle_soon(self, entries: Sequence[Entry], is_stored: bool) -> None:
        """Settle on the event loop; called by the writer thread, once per commit."""
        try:
            self._loop.call_soon_threadsafe(self.settle, entries, is_stored)
        except RuntimeError:  # the loop is closed: nobody waits any more
            _log.debug("the event loop ended before the log did")

    def settle(self, entries: Sequence[Entry], is_stored: bool) -> None:
        """Note that entries were stored, or lost for good, and tell who waits."""
        for entry in entries:
            self.pending -= len(entry.records)
            self.pending_bytes -= entry.weight
            if not is_stored:
                self._drop(len(entry.records))
            if not entry.stored.done():
                entry.stored.set_result(is_stored)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.generation += 1
        if self.generation & (self.generation - 1) == 0:  # at 1, 2, 4, 8 ...: loud, but never a flood
            _log.error("the log has lost records, %d so far", self.dropped)
