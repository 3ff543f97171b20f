"""Records on their way to the writer thread: on the event loop, never waiting, always bounded.

With a journal, records are safe from a kill as soon as they are in it: their future is done at once, and they wait for
others to be committed with before they wake the thread. What the journal does not take waits for its commit. So does
all that comes behind, until that commit: a record that is said to be durable never refers to one that may be lost. Who
runs far ahead of the writer waits for it, too, though safe: memory is bounded, and commits stay large while the writer
catches up.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.model.log import Record, drop_derived, weigh_records
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.journal import Journal

_log = logging.getLogger(__name__)

# Records by which answers may run ahead of the writer; beyond, they wait until half of these are left. 64 clients that
# never pause with 128 / 512 / 1,024: 2,480 / 2,590 / 3,050 calls a second, 99th percentile 57 / 40 / 40 ms (2,800 and
# 33 without a journal). With several thousand the writer starves, for no more calls a second. When each waited for its
# own commit instead, most of those clients did, a commit held 5 calls in place of 26, and there were a seventh fewer.
_MOST_AHEAD = 1024
_RELIEVED = _MOST_AHEAD // 2


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """The records of one append: stored together, at worst without those that are derived, or not at all.

    `stored` is the future of whoever waits. `place` is where the journal ended behind this entry, 0 where that was
    empty; `is_journaled` tells whether the entry itself is there. `refused` derived records were left out.
    """

    records: tuple[Record, ...]
    weight: int
    stored: "asyncio.Future[bool] | None"
    place: int = 0
    is_journaled: bool = False
    refused: int = 0


class WriteQueue:
    """Counts what is under way, and tells each append how it ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        put: Callable[[list[QueuedWrite]], None],
        policy: StorePolicy,
        journal: Journal | None = None,
    ) -> None:
        self._loop = loop
        self._put = put
        self._policy = policy
        self._most_bytes = policy.spool_bytes
        self._journal = journal
        self._held: list[QueuedWrite] = []
        self._last: QueuedWrite | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_due_soon = False
        self._is_closed = False
        self._unjournaled = 0  # entries under way that are not in the journal
        self.exposed = 0  # their records
        self._safe: asyncio.Future[bool] = loop.create_future()
        self._safe.set_result(True)
        self._relief = self._safe
        self.pending = 0
        self.pending_bytes = 0
        self.dropped = 0
        self.generation = 0

    def append(self, records: tuple[Record, ...], is_urgent: bool) -> "asyncio.Future[bool]":
        """Queue records; the future turns False at once where there is no room for them.

        Where there is room but for those that are derived, these alone are lost.
        """
        weight = weigh_records(records)
        if self.pending_bytes + weight > self._most_bytes:
            records, weight = self._leave_derived(records)
            if not records:
                return self._make_future(False)
        self.pending += len(records)
        self.pending_bytes += weight
        journal = self._journal
        if journal is not None and not self._unjournaled:
            place = journal.add(records)
            if place:
                self._last = QueuedWrite(records, weight, None, place, True)
                self._held.append(self._last)
                self._schedule(is_urgent)
                return self._safe if self.pending <= _MOST_AHEAD else self._wait_for_relief()
        stored = self._make_future()
        self._unjournaled += 1
        self.exposed += len(records)
        self._last = QueuedWrite(records, weight, stored, journal.end if journal is not None else 0)
        self._held.append(self._last)
        # beside a journal this is what it could not take: nothing is journaled until it is written
        self._schedule(is_urgent or journal is not None)
        return stored

    def queue_recovered(self, entries: list[QueuedWrite]) -> None:
        """Queue, before all others, what a journal held at the start: it is there still, and nobody waits for it."""
        for entry in entries:
            self.pending += len(entry.records) + entry.refused
            self.pending_bytes += entry.weight
        self._held += entries
        self._last = entries[-1]
        self._hand_over()

    def _leave_derived(self, records: tuple[Record, ...]) -> tuple[tuple[Record, ...], int]:
        """Return what is not derived, with its weight, where there is room for that; count the rest as lost."""
        kept = drop_derived(records)
        weight = weigh_records(kept)
        if self.pending_bytes + weight > self._most_bytes:
            kept = ()
        self._drop(len(records) - len(kept))
        return kept, weight

    def flush(self) -> None:
        """Let nothing wait for urgent records any more; what is in the journal still waits `journal_hold_ms`."""
        if self._unjournaled or self._journal is None or self._journal.is_filling:
            self._hand_over()
        elif self._held and not self._is_due_soon:
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._policy.journal_hold_ms / 1000, self._hand_over)
            self._is_due_soon = True

    def drain(self) -> "asyncio.Future[bool] | None":
        """Hand everything over; return a future that is done when that is in the log, or lost. None: nothing waits."""
        self._hand_over()
        if self._last is None or self._is_closed:
            return None
        if self._last.stored is None:
            self._last.stored = self._make_future()
        return self._last.stored

    def close(self) -> None:
        """Hand over what is held and take nothing more."""
        self._hand_over()
        self._is_closed = True
        self._most_bytes = -1  # there is room for nothing: each append is refused, and counted as lost

    def settle_soon(self, entries: Sequence[QueuedWrite], is_stored: bool) -> None:
        """Settle on the event loop; called by the writer thread, once per commit."""
        try:
            self._loop.call_soon_threadsafe(self.settle, entries, is_stored)
        except RuntimeError:  # the loop is closed: nobody waits any more
            _log.debug("the event loop ended before the log did")

    def settle(self, entries: Sequence[QueuedWrite], is_stored: bool) -> None:
        """Note that entries were stored, or lost for good, and resolve their futures."""
        place = 0
        for entry in entries:
            place = max(place, entry.place)
            self.pending -= len(entry.records) + entry.refused
            self.pending_bytes -= entry.weight
            if not entry.is_journaled:
                self._unjournaled -= 1
                self.exposed -= len(entry.records) + entry.refused
            lost = entry.refused if is_stored else len(entry.records) + entry.refused
            if lost:
                self._drop(lost)
            if entry.stored is not None and not entry.stored.done():
                entry.stored.set_result(is_stored)
        if is_stored and self._journal is not None:
            # What was refused is freed with the next that is stored: until then the log's position is before it.
            self._journal.free(place)
        if not self.pending:
            self._last = None
        if not self._relief.done():
            self._hand_over()
            if self.pending <= _RELIEVED:
                self._relief.set_result(True)

    def _wait_for_relief(self) -> "asyncio.Future[bool]":
        """Return what those wait for who ran too far ahead: safe as they are, they let the writer catch up."""
        if self._relief.done():
            self._relief = self._make_future()
            self._hand_over()
        return self._relief

    def _schedule(self, is_urgent: bool) -> None:
        """Hand over what is urgent soon; what is not is held here, so that it never wakes the thread alone."""
        if is_urgent or (self._journal is not None and self._journal.is_filling):
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._policy.hold_ms / 1000, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
            self._is_due_soon = False
        if self._held:
            self._put(self._held)
            self._held = []

    def _make_future(self, *result: bool) -> "asyncio.Future[bool]":
        future: asyncio.Future[bool] = self._loop.create_future()
        for each in result:
            future.set_result(each)
        return future

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.generation += 1
        if self.generation & (self.generation - 1) == 0:  # at 1, 2, 4, 8 ...: loud, but never a flood
            _log.error("the log has lost records, %d so far", self.dropped)
