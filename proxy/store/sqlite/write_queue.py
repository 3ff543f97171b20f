"""The queue of records for the writer thread. It runs on the event loop, never blocks, and is bounded.

With a journal, records survive a kill as soon as they are in it. Their future is done at once, and they wait for a
common commit before they wake the thread. Records for which the journal has no room wait for their commit. So do all
later ones until that commit, so that a durable record never refers to one that may be lost. If the queue is far ahead
of the writer, journaled records wait, too: this bounds memory, and keeps commits large while the writer catches up.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.model.log import Record, drop_derived, weigh_records
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.journal import Journal

_log = logging.getLogger("palimpsest.store")

# The most pending records before responses wait; they wait until half of these are left. Measured with 64 clients that
# never pause, for 128 / 512 / 1,024: 2,480 / 2,590 / 3,050 calls a second, 99th percentile 57 / 40 / 40 ms (2,800 and
# 33 without a journal). With several thousand the writer starves, without more calls a second. If each waits for its
# own commit instead, a commit has 5 calls in place of 26, and there are a seventh fewer calls a second.
_MOST_AHEAD = 1024
_RELIEVED = _MOST_AHEAD // 2


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """The records of one append. They are stored together, or without the derived ones, or not at all.

    `stored` is the future of the caller. `place` is the end of the journal after this entry (0: empty); `is_journaled`
    tells whether the journal has the entry itself. `refused` is the number of derived records that were left out.
    """

    records: tuple[Record, ...]
    weight: int
    stored: "asyncio.Future[bool] | None"
    place: int = 0
    is_journaled: bool = False
    refused: int = 0


class WriteQueue:
    """Queues and counts pending records, and resolves the future of each append."""

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
        self._waiting: list[QueuedWrite] = []
        self._last: QueuedWrite | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_due_soon = False
        self._is_closed = False
        self._unjournaled = 0  # pending entries that are not in the journal
        self.exposed = 0  # the number of their records
        self._safe: asyncio.Future[bool] = loop.create_future()
        self._safe.set_result(True)
        self._relief = self._safe
        self.pending = 0
        self.pending_bytes = 0
        self.dropped = 0
        self.generation = 0

    def append(self, records: tuple[Record, ...], is_urgent: bool) -> "asyncio.Future[bool]":
        """Queue records. The future is False at once if there is no room for them.

        If there is room for all but the derived records, only these are lost.
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
                self._waiting.append(self._last)
                self._schedule(is_urgent)
                return self._safe if self.pending <= _MOST_AHEAD else self._wait_for_relief()
        stored = self._make_future()
        self._unjournaled += 1
        self.exposed += len(records)
        self._last = QueuedWrite(records, weight, stored, journal.end if journal is not None else 0)
        self._waiting.append(self._last)
        # with a journal this is an entry that it has no room for: nothing is journaled until this is written
        self._schedule(is_urgent or journal is not None)
        return stored

    def queue_recovered(self, entries: list[QueuedWrite]) -> None:
        """Queue the entries that the journal had at the start, before all others. They stay in the journal."""
        for entry in entries:
            self.pending += len(entry.records) + entry.refused
            self.pending_bytes += entry.weight
        self._waiting += entries
        self._last = entries[-1]
        self._hand_over()

    def _leave_derived(self, records: tuple[Record, ...]) -> tuple[tuple[Record, ...], int]:
        """Return the records that are not derived, and their weight, if there is room. Count the rest as lost."""
        kept = drop_derived(records)
        weight = weigh_records(kept)
        if self.pending_bytes + weight > self._most_bytes:
            kept = ()
        self._drop(len(records) - len(kept))
        return kept, weight

    def flush(self) -> None:
        """Stop waiting for urgent records. Journaled entries still wait `journal_batch_ms`."""
        if self._unjournaled or self._journal is None or self._journal.is_filling:
            self._hand_over()
        elif self._waiting and not self._is_due_soon:
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._policy.journal_batch_ms / 1000, self._hand_over)
            self._is_due_soon = True

    def drain(self) -> "asyncio.Future[bool] | None":
        """Hand everything over. Return a future that is done once that is in the log or lost, or None if all is."""
        self._hand_over()
        if self._last is None or self._is_closed:
            return None
        if self._last.stored is None:
            self._last.stored = self._make_future()
        return self._last.stored

    def note_erased(self) -> None:
        """Change the generation, since the log has less than it had, and overwrite what the journal had of it."""
        self.generation += 1
        if self._journal is not None and not self._is_closed:
            self._journal.wipe()

    def close(self) -> None:
        """Hand over what is held, and refuse further records."""
        self._hand_over()
        self._is_closed = True
        self._most_bytes = -1  # no append has room: each is refused, and counted as lost

    def settle_soon(self, entries: Sequence[QueuedWrite], is_stored: bool) -> None:
        """Settle on the event loop; called by the writer thread, once per commit."""
        try:
            self._loop.call_soon_threadsafe(self.settle, entries, is_stored)
        except RuntimeError:  # the loop is closed, so nothing waits for the entries
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
            # A refused entry is freed with the next stored one: until then the log's position is before it.
            self._journal.free(place)
        if not self.pending:
            self._last = None
        if not self._relief.done():
            self._hand_over()
            if self.pending <= _RELIEVED:
                self._relief.set_result(True)

    def _wait_for_relief(self) -> "asyncio.Future[bool]":
        """Return the future for which journaled records wait while the writer catches up."""
        if self._relief.done():
            self._relief = self._make_future()
            self._hand_over()
        return self._relief

    def _schedule(self, is_urgent: bool) -> None:
        """Hand over urgent records soon. Batch others for `batch_ms`, so that they do not wake the thread alone."""
        if is_urgent or (self._journal is not None and self._journal.is_filling):
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._policy.batch_ms / 1000, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
            self._is_due_soon = False
        if self._waiting:
            self._put(self._waiting)
            self._waiting = []

    def _make_future(self, *result: bool) -> "asyncio.Future[bool]":
        future: asyncio.Future[bool] = self._loop.create_future()
        for each in result:
            future.set_result(each)
        return future

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.generation += 1
        if self.generation & (self.generation - 1) == 0:  # at 1, 2, 4, 8 ..., to limit the number of log lines
            _log.error(
                "%d records are lost so far: the log cannot be written fast enough, or not at all (see /-/ready)",
                self.dropped,
            )
