"""A round under way, and the opening of its exchange on the way to the log.

Rule: of a call there is one opening, and one flight for each of its rounds.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.engine.ports import Archive, Client, Clock
from proxy.engine.rescue import Rescuer
from proxy.engine.tape import Tape
from proxy.model.exchange import Opening
from proxy.model.record import Record
from proxy.wire.format import Format


class PendingRecord:
    """The opening of an exchange on its way to the log: appended once, when its body is known or its answer ends.

    Its content is kept no longer than the log takes: an answer may come for minutes.

    Unless it is urgent it may wait a few milliseconds for company: an answer that is there by then shares its commit. A
    streamed answer never is, for its first byte waits for `commit`.
    """

    def __init__(
        self, archive: Archive, make: Callable[[], tuple[Opening, *tuple[Record, ...]]], *, is_urgent: bool = False
    ) -> None:
        self._archive = archive
        self._make = make
        self._is_urgent = is_urgent
        self._keep: Callable[[], None] | None = None
        self._complete: Callable[[], None] | None = None
        self.opening: Opening | None = None
        self.commit: asyncio.Future[bool] | None = None

    def append(self) -> Opening:
        """Queue the opening if that has not been done, and what is to be kept behind it."""
        if self.opening is None:
            records = self._make()
            self.opening = records[0].leave_content()
            self.commit = self._archive.append(*records, is_urgent=self._is_urgent)
        if self._keep is not None:
            keep, self._keep = self._keep, None
            keep()
        return self.opening

    def append_for_wait(self) -> None:
        """Queue it, for something else may run now that leans on it; not where the body is on its way in a moment, and
        the opening comes behind that with what is to be kept.
        """
        if self._keep is None:
            self.append()

    def postpone(self, keep: Callable[[], None], complete: Callable[[], None]) -> None:
        """Have these done, which extend the entry: `keep` once the body is on its way, before anything else is
        recorded, and `complete` when it is settled.
        """
        self._keep, self._complete = keep, complete

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left that was postponed."""
        return self._complete is None

    def settle(self) -> None:
        """Do what was postponed, if that has not been done."""
        if self._complete is not None:
            complete, self._complete = self._complete, None
            complete()

    def extend(self, *records: Record, is_urgent: bool = False) -> None:
        """Queue more of the same call; what is released from here on waits for that, and so for all before it."""
        self.append()
        self.commit = self._archive.append(*records, is_urgent=is_urgent)


@dataclass(slots=True)
class Flight:
    """One round under way: who asked for what, and what has come of it so far. Times on the monotonic clock.

    `secrets` are the credentials that may be echoed; they live until the answer has been read. `is_head_out`: the
    client has had the head of an answer. `is_final`: no round follows this one. `ended_at`, where the end was not just
    now. `is_whole`: the request's body is at hand.
    """

    exchange: str
    entry: PendingRecord
    format: Format | None
    upstream: str
    client: Client
    tape: Tape
    secrets: tuple[bytes, ...]
    rescuer: Rescuer | None = None
    k: int = 0
    began: float = 0.0
    head_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    is_head_out: bool = False
    is_final: bool = True
    is_whole: bool = True

    def note(self, piece: bytes, clock: Clock) -> None:
        """Keep a piece of the answer for the record."""
        if not self.first_at:
            self.first_at = clock.monotonic()
        self.tape.add(piece)

    def go_again(self, k: int) -> "Flight":
        """The next round of the same call."""
        fresh = Tape(self.tape.cap)
        return replace(self, k=k, tape=fresh, head_at=0.0, first_at=0.0, ended_at=0.0, is_final=True)
