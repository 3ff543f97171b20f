"""The store's settings. Their names end with their units."""

from dataclasses import dataclass
from pathlib import Path

from proxy.engine.policy import Durability


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """How the log is stored.

    A commit costs about as much as writing four records, and the two threads evict each other's code and data from the
    processor's cache: a client that never pauses took mostly 5 to 10 % less CPU per call with a `journal_batch_ms` of
    50 or 60 than with 10. Readers in other processes lag by that time.
    """

    path: Path
    durability: Durability = "normal"  # acknowledged records survive a power cut ("full") or only a kill ("normal")
    spool_bytes: int = 64 * 1024 * 1024  # of records in memory while writes fail; must exceed the largest record
    max_bytes: int = 0  # of log.db, without its write-ahead log and journal (4 MiB); 0: no cap
    busy_ms: int = 200  # how long one attempt waits for another process's lock
    batch_ms: int = 500  # how long a record that is not urgent may wait for one that is
    journal_batch_ms: int = 50  # how long any record in the journal waits for a common commit, until that is half full
    lock_ms: int = 3000  # how long a start waits for another writer, which may be a command that reads after a kill
    look_ms: int = 1000  # how often a writer with pending records checks that the log has not been replaced
    close_ms: int = 5000  # how long closing may take
    must_write: bool = False  # refuse a log that does not accept the previous server's journal, instead of retrying
