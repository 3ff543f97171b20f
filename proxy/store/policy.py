"""The store's settings; units stand at the end of their names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Durability = Literal["full", "normal"]


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """How the log is kept.

    `durability`: whether what is acknowledged survives a power cut ("full") or a kill only ("normal"), see
    `engine/durability`. `spool_bytes`: records waiting in memory while the file cannot be written; must exceed the
    largest single record. `max_bytes`: size of log.db, 0 for no cap; the write-ahead log and the journal (4 MiB) beside
    it come on top. `busy_ms`: how long one attempt waits for another process's lock. `hold_ms`: how long a record that
    is not urgent may wait for one that is. `journal_hold_ms`: how long one that is in the journal waits for others to
    be committed with, urgent or not. A commit costs as much as writing four records or so, and the two threads drive
    each other's code and data from the processor's cache: one client that never pauses took mostly 5 to 10 % less CPU a
    call with 50 or 60 ms than with 10. Readers in other processes lag by it; a journal that is half full waits for
    nobody. `lock_ms`: how long a start waits for another process that has the log open for writing: a command that
    reads after a kill may. `look_ms`: how often a writer that has something to write looks whether the log is still
    where it was opened. `close_ms`: how long closing may take. `must_write`: refuse a log that does not take what the
    previous server left; else that waits, before all that comes.
    """

    path: Path
    durability: Durability = "normal"
    spool_bytes: int = 64 * 1024 * 1024
    max_bytes: int = 0
    busy_ms: int = 200
    hold_ms: int = 500
    journal_hold_ms: int = 50
    lock_ms: int = 3000
    look_ms: int = 1000
    close_ms: int = 5000
    must_write: bool = False
