"""What the writer knows of epochs, references and summaries. Rule: as in `known`, forgotten with it."""

import sqlite3
from dataclasses import dataclass
from typing import Any, NamedTuple

from proxy.model.epoch import Original
from proxy.store.sqlite.recent import Recent
from proxy.store.summaries import Identity, Stretch

_EPOCHS, _TARGETS, _SUMMARIES = 4096, 8192, 4096

_FIND_EPOCH = "SELECT seq FROM epoch WHERE id = ?"
_FIND_TARGET = """
    SELECT o.id, s.key, o.wire, o.place, o.start, o.messages FROM original o JOIN session s ON s.id = o.session
    WHERE o.name = ?"""
_DIGESTS = "SELECT b.digest FROM json_each(?) m JOIN blob b ON b.id = m.value ORDER BY m.key"
_FIND_SUMMARY = """
    SELECT x.seq, x.wire, x.start, x.stop, x.last, x.kind, x.level, b.digest FROM summary x JOIN blob b ON b.id = x.text
    WHERE x.id = ?"""


@dataclass(frozen=True, slots=True)
class ReferenceTarget:
    """What a reference stands for, its row id, and the key of the session that it was first named in."""

    id: int
    session: str
    original: Original


class Placed(NamedTuple):
    """A summary's row, and what it stands for."""

    seq: int
    identity: Identity


class Targets:
    """Look-ups of epochs, references and summaries by their ids, bounded in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._epochs: Recent[str, int] = Recent(_EPOCHS)
        self._targets: Recent[str, ReferenceTarget] = Recent(_TARGETS)
        self._summaries: Recent[str, Placed] = Recent(_SUMMARIES)
        self._recents: tuple[Recent[Any, Any], ...] = (self._epochs, self._targets, self._summaries)

    def forget(self) -> None:
        """Trust nothing any more."""
        for recent in self._recents:
            recent.clear()

    def age(self) -> None:
        """Let go of what has not been used for long; only between two batches."""
        for recent in self._recents:
            recent.age()

    def find_epoch(self, epoch: str) -> int | None:
        """The row of the epoch with this id."""
        found = self._epochs.get(epoch)
        if found is None:
            row = self._connection.execute(_FIND_EPOCH, (epoch,)).fetchone()
            if row:
                found = int(row[0])
                self._epochs.put(epoch, found)
        return found

    def put_epoch(self, epoch: str, seq: int) -> None:
        """Remember an epoch."""
        self._epochs.put(epoch, seq)

    def find_target(self, name: str) -> ReferenceTarget | None:
        """What the reference with this id stands for."""
        found = self._targets.get(name)
        if found is None:
            row = self._connection.execute(_FIND_TARGET, (name,)).fetchone()
            if row:
                target, session, wire, place, start, messages = row
                digests = tuple(digest for (digest,) in self._connection.execute(_DIGESTS, (messages,)))
                found = self.put_target(ReferenceTarget(target, session, Original(name, digests, wire, place, start)))
        return found

    def put_target(self, target: ReferenceTarget) -> ReferenceTarget:
        """Remember what a reference stands for."""
        self._targets.put(target.original.id, target)
        return target

    def find_summary(self, name: str) -> Placed | None:
        """The summary with this id."""
        found = self._summaries.get(name)
        if found is None:
            row = self._connection.execute(_FIND_SUMMARY, (name,)).fetchone()
            if row:
                seq, wire, start, stop, *rest = row
                found = self.put_summary(name, Placed(seq, Identity(Stretch(wire, start, stop), *rest)))
        return found

    def put_summary(self, name: str, placed: Placed) -> Placed:
        """Remember a summary."""
        self._summaries.put(name, placed)
        return placed
