"""The only thread that writes. An entry leaves the queue once it is committed or known to be unstorable.

Group commit: entries queued during one transaction form the next. If the file fails, entries are kept in order and
retried until it works. If a record itself is at fault, its batch is written one append at a time to find it. Each
transaction also stores the journal's position up to the last of its entries there. Between two transactions the thread
runs tasks that need the connection for writing.
"""

import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from proxy.model.log import drop_derived
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import FileIdentity, describe_problem, is_store_failing
from proxy.store.sqlite.figures.bills import CHUNK
from proxy.store.sqlite.maintenance import Checkpoint, WriterTask
from proxy.store.sqlite.transaction import TransactionWriter
from proxy.store.sqlite.write_queue import QueuedWrite

_log = logging.getLogger("palimpsest.store")

_MAX_ENTRIES = 256
_MAX_BYTES = 8 * 1024 * 1024
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
_CLOSING_RETRY_S = 0.02
_OVERDUE = 8 * CHUNK


WriterInbox = queue.SimpleQueue[list[QueuedWrite] | WriterTask | None]
"""What the writer has to do, in order; None wakes it to stop."""


class Writer:
    """Takes entries from its inbox, commits them, and reports each batch through `settle`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        policy: StorePolicy,
        settle: Callable[[Sequence[QueuedWrite], bool], None],
        inbox: WriterInbox,
    ) -> None:
        self._connection = connection
        self._policy = policy
        self._settle = settle
        self._queue = inbox
        self._pending: deque[QueuedWrite] = deque()
        self._tasks: deque[WriterTask] = deque()
        self._one_by_one = 0
        self._retry_s = _FIRST_RETRY_S
        self._transactions = TransactionWriter(connection)
        self._checkpoint = Checkpoint(connection)
        self._identity = FileIdentity(policy.path, policy.look_ms)
        self._is_stopping = threading.Event()
        self._give_up_at = 0.0
        # A daemon thread, so that a disk that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.problem = ""

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put_task(self, task: WriterTask) -> bool:
        """Queue a task for the thread. It must not raise. Return False if the writer is stopping."""
        if self._is_stopping.is_set():
            return False
        self._queue.put(task)
        return True

    def note_erased(self, rows: int, content: int) -> None:
        """Look everything up in the log again, since a task has erased content. Only tasks may call this."""
        self._transactions.forget()
        self._checkpoint.count(rows, content)

    def write_now(self, entries: list[QueuedWrite]) -> str:
        """Write entries in the calling thread, instead of `start`. Return the problem if not all were written."""
        self._pending.extend(entries)
        while self._pending and not self.problem:
            self._write_some()
        return self.problem

    def stop(self, within_s: float) -> bool:
        """Write what is queued, then end, within about `within_s`. Return False if the thread hangs in the disk."""
        self._give_up_at = time.monotonic() + within_s
        self._is_stopping.set()
        self._queue.put(None)
        self._thread.join(within_s + 2 * self._policy.busy_ms / 1000 + 1)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._pending or not self._is_stopping.is_set() or not self._queue.empty():
            self._gather()
            if self._pending:
                self._write_some()
            while self._tasks:
                self._tasks.popleft()(self._connection)
            self._fill()
        try:
            self._checkpoint.finish()
        except sqlite3.Error as error:
            _log.warning("the write-ahead log was left beside the log; the next start reads it: %s", error)
        self._connection.close()

    def _gather(self) -> None:
        """Take queued entries and tasks. Wait if there is nothing to do."""
        try:
            if not self._pending:
                self._take(self._queue.get(timeout=self._checkpoint.due_s))
            while len(self._pending) < _MAX_ENTRIES and not self._queue.empty():
                self._take(self._queue.get_nowait())
        except queue.Empty:
            self._run_checkpoint()

    def _take(self, item: list[QueuedWrite] | WriterTask | None) -> None:
        if isinstance(item, list):
            self._pending.extend(item)
        elif item is not None:
            self._tasks.append(item)

    def _write_some(self) -> None:
        entries = self._choose()
        try:
            self._identity.check()
            place = max([entry.place for entry in entries])
            rows = self._transactions.commit([entry.records for entry in entries], place)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: a record must never end it
            if is_store_failing(error):
                self._wait_for_store(error)
            else:
                self._isolate(entries, error)
            return
        self._checkpoint.count(rows, sum([entry.weight for entry in entries]))
        self.problem = ""
        self._retry_s = _FIRST_RETRY_S
        self._finish(entries, True)
        if self._checkpoint.is_overdue:
            self._run_checkpoint()

    def _fill(self) -> None:
        """Derive what reports sum up, in idle moments; under load only where readers would have to derive too much."""
        while (unfilled := self._transactions.unfilled) >= CHUNK and not self._is_stopping.is_set():
            if unfilled < _OVERDUE and (self._pending or self._tasks or not self._queue.empty()):
                return
            try:
                self._transactions.fill()
            except sqlite3.Error as error:
                _log.warning("what reports sum up could not be stored; they derive it: %s", error)
                return
            if unfilled >= _OVERDUE:
                return

    def _choose(self) -> list[QueuedWrite]:
        """Return the longest prefix of the pending entries that fits into one transaction."""
        if self._one_by_one:
            return [self._pending[0]]
        entries: list[QueuedWrite] = []
        room = _MAX_BYTES
        for entry in islice(self._pending, _MAX_ENTRIES):
            room -= entry.weight
            if room < 0 and entries:
                break
            entries.append(entry)
        return entries

    def _finish(self, entries: Sequence[QueuedWrite], is_stored: bool) -> None:
        for _ in entries:
            self._pending.popleft()
        self._one_by_one = max(0, self._one_by_one - len(entries))
        self._settle(entries, is_stored)

    def _isolate(self, entries: Sequence[QueuedWrite], error: Exception) -> None:
        if len(entries) > 1:
            self._one_by_one = len(entries)
            return
        entry = entries[0]
        kept = drop_derived(entry.records)
        refused = len(entry.records) - len(kept) if kept else 0
        # without the error's text, which may quote the content
        names = ", ".join(type(record).__name__ for record in entry.records)
        code = getattr(error, "sqlite_errorname", "")
        _log.error(
            "records of the kinds %s could not be stored and are lost: %s %s. Please report this line",
            names,
            type(error).__name__,
            code,
        )
        if not refused:
            self._finish(entries, False)
            return
        entry.records, entry.refused = kept, refused
        self._one_by_one = max(self._one_by_one, 1)

    def _wait_for_store(self, error: Exception) -> None:
        problem = describe_problem(error, self._policy)
        before, self.problem = self.problem, problem
        if problem != before:
            _log.error("%s", problem)
        if not self._is_stopping.is_set():
            self._is_stopping.wait(self._retry_s)
            self._retry_s = min(self._retry_s * 2, _LAST_RETRY_S)
        elif time.monotonic() < self._give_up_at:
            time.sleep(_CLOSING_RETRY_S)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Close although the file still fails. Pending entries are lost unless they are in the journal."""
        while not self._queue.empty():
            self._take(self._queue.get_nowait())
        self._pending = deque(entry for entry in self._pending if not entry.is_journaled)
        self._finish(list(self._pending), False)

    def _run_checkpoint(self) -> None:
        try:
            self._checkpoint.run()
        except sqlite3.Error as error:
            _log.warning(
                "no checkpoint of the write-ahead log could be made; log.db-wal grows until one can: %s", error
            )
