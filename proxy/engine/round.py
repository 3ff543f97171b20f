"""One round of an exchange under way: what is kept of its bodies, and its records on their way to the log."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from proxy.engine.ports import Archive, Client, Clock
from proxy.model.epoch import Plan
from proxy.model.exchange import Headers, Opening, Round
from proxy.model.log import Record
from proxy.wire.format import Format

Start = Literal["overflow", "content", "undecided"]

REFUSAL_BYTES = 64 * 1024


class CappedBuffer:
    """Takes the pieces of one body as they pass; holds at most `cap` bytes."""

    __slots__ = ("_hash", "_kept", "_pieces", "cap", "size")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._kept = 0
        self._pieces: list[bytes] = []
        self._hash: hashlib._Hash | None = None
        self.size = 0

    def add(self, content: bytes) -> None:
        """Take one piece."""
        self.size += len(content)
        if self._hash is not None:
            self._hash.update(content)
            return
        if self.size <= self.cap:
            self._pieces.append(content)
            self._kept += len(content)
            return
        self._hash = hashlib.sha256(b"".join(self._pieces))
        self._hash.update(content)
        self._pieces.append(content[: self.cap - self._kept])
        self._kept = self.cap

    @property
    def is_capped(self) -> bool:
        """Whether more passed than was kept."""
        return self._hash is not None

    @property
    def content(self) -> bytes:
        """What was kept, in order."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def whole_digest(self) -> bytes:
        """SHA-256 of all that passed, where not all was kept; else empty."""
        return self._hash.digest() if self._hash is not None else b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that may refuse what was sent as too long, or because it was rewritten: as it came, encoded or not.

    Of at most `REFUSAL_BYTES`: what is longer is none.
    """

    status: int
    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class Retry:
    """The body that is sent in place of the one that was refused, and what is recorded of that.

    Whatever else the round refers to, an epoch above all, is in the log already.
    """

    body: bytes
    round: Round
    plan: Plan | None = None


class RetrySource(Protocol):
    """Stands by a call. Nothing here raises: what goes wrong inside is no retry."""

    @property
    def is_guarded(self) -> bool:
        """Whether answers with a status of success are held back, too, until they have begun in earnest."""
        ...

    def read_start(self, content: bytes) -> Start:
        """What the events at the beginning of a stream are, as far as they came; a part of one may stand at the end.

        Comments at the very beginning may be missing. Called by the transport: it must not take long.
        """
        ...

    async def rescue(self, refusal: Refusal) -> Retry | None:
        """What to send in place of what was sent last; None where the answer is to go on as it came.

        Cancelled when the client has left.
        """
        ...

    async def accept(self) -> None:
        """What was sent in place of a refused request is accepted: its answer begins. It must not take long."""
        ...


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
class RoundState:
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
    tape: CappedBuffer
    secrets: tuple[bytes, ...]
    rescuer: RetrySource | None = None
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

    def go_again(self, k: int) -> "RoundState":
        """The next round of the same call."""
        fresh = CappedBuffer(self.tape.cap)
        return replace(self, k=k, tape=fresh, head_at=0.0, first_at=0.0, ended_at=0.0, is_final=True)
