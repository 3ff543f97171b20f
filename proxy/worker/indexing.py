"""What the worker process does while it has no job: it keeps the index for search up to date with the log."""

import select
from typing import BinaryIO

from proxy.model import Value
from proxy.retrieval.vectors import VectorBatch
from proxy.store.search.indexer import Indexer

WORK_SECONDS = 0.1
"""Work after which what was indexed is committed. A job that comes meanwhile waits for one message at most."""
REST_SECONDS = 0.02
"""The rest between two such pieces, so that a log which is indexed for the first time leaves others their processor."""
POLL_SECONDS = 0.5
"""How often the log is looked at, which takes 0.1 ms if nothing is new."""


class IndexJob(Value, tag="index"):
    """A question to the worker process: how current is the index? With `is_rebuilt` it is made anew first."""

    is_rebuilt: bool = False

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return 0


class PassageJob(Value, tag="passages"):
    """A question: which passages of a session, given by its id, need a vector of this model next?"""

    session: str
    model: str

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return 0


class VectorJob(Value, tag="vectors"):
    """Vectors to be stored, of passages that the answer to a `PassageJob` had."""

    session: str
    model: str
    batch: VectorBatch

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return sum([len(code) for code in self.batch.codes])


class IdleIndexing:
    """Indexes until a job comes."""

    def __init__(self, indexer: Indexer, source: BinaryIO) -> None:
        self._indexer = indexer
        # Frames come one at a time, so that nothing of the next one is in the buffer of `source`.
        self._file = source.fileno()

    def run(self) -> None:
        """Return when a job can be read, or the end of the input."""
        pause = 0.0
        while not self._is_ready(pause):
            is_left = self._indexer.run(WORK_SECONDS, self._is_ready)
            pause = REST_SECONDS if is_left else POLL_SECONDS

    def _is_ready(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self._file], [], [], seconds)[0])
