"""An exchange in progress: one client call, its records on their way to the log, and the state of its response.

An exchange has one opening, and one round for each request that is sent for it: a second or third only where the
upstream refuses what we made of the client's request (BEHAVIOUR B8, B8a, B20a).
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec.structs import replace

from proxy.engine.ports import Archive, Client, Clock
from proxy.model.epoch import Plan
from proxy.model.exchange import Headers, Opening, Round
from proxy.model.log import Record
from proxy.model.manifest import Manifest
from proxy.wire.format import Format

REFUSAL_BYTES = 64 * 1024
_LONG_BODY = 16 * 1024

Start = Literal["overflow", "content", "undecided"]
"""The beginning of a stream: a refusal as too long, content, or nothing that tells."""


class CappedBuffer:
    """Collects the pieces of one body: the first `cap` bytes, beyond these a count and a SHA-256 of everything."""

    __slots__ = ("_hash", "_kept", "_pieces", "cap", "size")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._kept = 0
        self._pieces: list[bytes] = []
        self._hash: hashlib._Hash | None = None
        self.size = 0

    def add(self, content: bytes) -> None:
        """Add one piece."""
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
        """True if more passed than was kept."""
        return self._hash is not None

    @property
    def content(self) -> bytes:
        """The bytes that were kept, in order."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def whole_digest(self) -> bytes:
        """SHA-256 of everything that passed, where not all of it was kept; else empty."""
        return self._hash.digest() if self._hash is not None else b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that may refuse what was sent, as too long or because it was rewritten; its content is as it came.

    At most `REFUSAL_BYTES` long: a longer response is not a refusal.
    """

    status: int
    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class Retry:
    """The body to send in place of the refused one, and the records of that round.

    Everything else that the round refers to, an epoch above all, is in the log already.
    """

    body: bytes
    round: Round
    plan: Plan | None = None


class RetrySource(Protocol):
    """Decides what is sent after a refusal. No method raises: an error inside means that nothing else is sent."""

    def read_start(self, content: bytes) -> Start:
        """Classify the events at the beginning of a stream, of which the last may be incomplete.

        Comments at the very beginning may be missing. Called for each chunk: it must not take long.
        """
        ...

    async def find_retry(self, refusal: Refusal) -> Retry | None:
        """Return what to send in place of what was refused; None where the refusal goes to the client as it came.

        Cancelled when the client has left.
        """
        ...

    async def accept(self) -> None:
        """Note that the upstream accepted the retry: its response begins. It must not take long."""
        ...


@dataclass(slots=True)
class OpenExchange:
    """One client call under way. Times are seconds on the monotonic clock.

    `make_records` gives the opening and what is recorded with it; it is called once, when the request is on its way,
    and None before it is known what that is, and afterwards.
    An urgent record is committed at once: the first byte of a stream waits for `commit`. Another may wait a few
    milliseconds, so that a response that is there by then shares its commit.
    `secrets` are credentials that a response may echo. `after_send` is what is done, in order and once, while the
    upstream works on the request: by `run_after_send`, before the response's head goes to the client. `has_body`: the
    request's body is at hand; else it streams through, and its end records the opening.
    `make_retries` is called with the first response that may be a refusal, None where nothing else could be sent;
    `is_guarded`: the next response is held back until its content has begun though its status says success.
    The rest is the round's: `k` is its number; `is_final`: no other round follows; `is_head_sent`: the client has the
    head of a response; `ended_at`, where the round did not end just now.
    """

    id: str
    archive: Archive
    make_records: Callable[[], tuple[Opening, *tuple[Record, ...]]] | None
    format: Format | None
    upstream: str
    client: Client
    buffer: CappedBuffer
    secrets: tuple[bytes, ...]
    is_urgent: bool = False
    has_body: bool = True
    make_retries: Callable[[], RetrySource] | None = None
    retries: RetrySource | None = None
    is_guarded: bool = False
    after_send: list[Callable[[], None]] = field(default_factory=list)
    opening: Opening | None = None
    commit: "asyncio.Future[bool] | None" = None
    k: int = 0
    began: float = 0.0
    head_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    is_head_sent: bool = False
    is_final: bool = True

    def record_opening(self) -> Opening:
        """Queue the opening, if that has not been done; what is kept of it here has only the size of a long body."""
        if self.opening is None:
            assert self.make_records is not None, "it is made once"
            records = self.make_records()
            self.make_records = None  # what it was made from may be released
            opening = records[0]
            if opening.body.size >= _LONG_BODY:
                opening = replace(opening, body=Manifest(b"", (), (), opening.body.size))
            self.opening = opening
            self.commit = self.archive.append(*records, is_urgent=self.is_urgent)
        return self.opening

    def record(self, *records: Record, is_urgent: bool = False) -> None:
        """Queue more records of this exchange; what is released from here on waits for these and all before them."""
        self.record_opening()
        self.commit = self.archive.append(*records, is_urgent=is_urgent)

    @property
    def is_durable(self) -> bool:
        """True once everything that was queued is in the log."""
        return self.commit is not None and self.commit.done()

    def run_after_send(self) -> None:
        """Do what was put off until the request was on its way, if that has not been done."""
        while self.after_send:
            self.after_send.pop(0)()

    def keep_piece(self, piece: bytes, clock: Clock) -> None:
        """Keep a piece of the response for the record."""
        if not self.first_at:
            self.first_at = clock.monotonic()
        self.buffer.add(piece)

    def begin_round(self, k: int) -> None:
        """Go on to the next round."""
        self.k = k
        self.buffer = CappedBuffer(self.buffer.cap)
        self.head_at = self.first_at = self.ended_at = 0.0
        self.is_final, self.is_guarded = True, False
