"""An exchange in progress: one client call, its records on their way to the log, and the state of its response.

An exchange has one opening, and one round for each request that is sent for it. There are further rounds only if the
upstream refuses what the proxy made of the client's request, or if a model recalls.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec.structs import replace

from proxy.engine.ports import Archive, Client, Clock
from proxy.model.epoch import Epoch, Plan
from proxy.model.exchange import Headers, Opening, Round
from proxy.model.log import Record
from proxy.model.manifest import Manifest
from proxy.wire.format import Format

REFUSAL_BYTES = 64 * 1024
_LONG_BODY = 16 * 1024

Start = Literal["refused", "content", "undecided"]
"""The beginning of a stream: a refusal of the request, content, or nothing that tells."""


class CappedBuffer:
    """Collects the pieces of one body: its first `cap` bytes, and the size and SHA-256 of all of it."""

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
        """SHA-256 of everything that passed, or empty if all of it was kept."""
        return self._hash.digest() if self._hash is not None else b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that may refuse what was sent, as too long or because it was rewritten.

    `content` is as received and has at most `REFUSAL_BYTES`: a longer response is not a refusal.
    """

    status: int
    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class Retry:
    """The body to send in place of the refused one, and the records of that round.

    Everything else that the round refers to, such as an epoch, is in the log already.
    """

    body: bytes
    round: Round
    plan: Plan | None = None
    epoch: Epoch | None = None  # the one that it is sent under


class HiddenRounds(Protocol):
    """The rounds of an answer in which a model recalls. The client gets one response (`engine/recall/rounds`)."""

    @property
    def is_continued(self) -> bool:
        """Whether a round of the answer has ended in which the model recalled."""
        ...

    @property
    def is_stream(self) -> bool:
        """Whether the client gets a stream."""
        ...

    @property
    def head(self) -> Headers:
        """The headers of the response to the first round, as they suit what the client gets."""
        ...

    @property
    def decode(self) -> Callable[[bytes], bytes] | None:
        """Undoes the content-encoding of a round, piece by piece; None if it has none. It never raises."""
        ...

    @property
    def fault(self) -> str:
        """Why the response of a round cannot be used: its encoding, or it ended too early. Empty if it can."""
        ...

    @property
    def next_number(self) -> int:
        """The number of the client's next event, in formats that number them."""
        ...

    def take_head(self, headers: Headers, beginning: bytes) -> bool:
        """Begin to read the response of a round. Return False if it cannot be read as it arrives.

        `beginning` has the first bytes of its body if they are needed to know whether it is a stream.
        """
        ...

    def write(self, piece: bytes) -> bool:
        """Pass on what the client gets for a piece of a response. Return as `Client.write` does."""
        ...

    def withhold(self, piece: bytes) -> None:
        """Take the end of a round. What the client gets for it goes out with the next round, or with `finish`."""
        ...

    def end_round(self) -> bool:
        """End a round, whose response is complete. Return whether another one follows."""
        ...

    async def find_next(self, k: int, refusal: Refusal | None = None) -> Retry | None:
        """Return what is sent after round k, or None if the answer is complete.

        Our calls in it are executed. If it was refused, that is what is sent in its place, or None to send nothing.
        """
        ...

    def note_retry(self, body: bytes, epoch: Epoch | None) -> None:
        """Note what is sent in place of a refused request, in an answer that has several rounds."""
        ...

    def finish(self) -> bytes:
        """Return what is left of the answer: all of a body, or the end of a stream."""
        ...

    def break_off(self) -> bytes:
        """Return what the client gets of a response that broke off, beside what it has."""
        ...

    def stop(self) -> None:
        """Send nothing more of its own to the client."""
        ...

    async def list_records(self, k: int) -> Sequence[Record]:
        """Return what is recorded with the outcome of round k, the last one."""
        ...


class Retries(Protocol):
    """Decides what is sent after a refusal. No method raises: an error inside means that nothing else is sent."""

    def read_start(self, content: bytes) -> Start:
        """Classify the events at the beginning of a stream. The last event may be incomplete.

        Comments at the very beginning may be missing. Called for each chunk, so it must be fast.
        """
        ...

    async def find_retry(self, refusal: Refusal, hop: int = 0) -> Retry | None:
        """Return what to send in place of what was refused, or None to relay the refusal unchanged to the client.

        `hop` is the number of the refused round if the model had recalled before it: what is sent is the first request
        again, in another form. Cancelled when the client disconnects.
        """
        ...

    async def accept(self) -> None:
        """Note that the upstream accepted the retry, when its response begins. It must be fast."""
        ...


@dataclass(slots=True)
class OpenExchange:
    """One client call under way. Times are seconds on the monotonic clock."""

    id: str
    archive: Archive
    # Makes the opening and what is recorded with it. Called once, after the request was sent. None before it is known
    # what is sent, and after the call.
    make_records: Callable[[], tuple[Opening, *tuple[Record, ...]]] | None
    format: Format | None
    upstream: str
    client: Client
    buffer: CappedBuffer
    secrets: tuple[bytes, ...]  # credentials that a response may echo
    # Commit the opening at once, since the first byte of a stream waits for it. Otherwise it may wait a few
    # milliseconds, so that a quick response shares its commit.
    is_urgent: bool = False  # the request asks for a stream
    has_body: bool = True  # the whole body is in memory; otherwise it streams through, and its end records the opening
    make_retries: Callable[[], Retries] | None = None  # None if nothing else could be sent after a refusal
    retries: Retries | None = None
    rounds: HiddenRounds | None = None  # set if a model may recall in its answer
    # Returns the rounds of the answer to a body that is sent under an epoch, or None if it has not our tool.
    make_rounds: Callable[[bytes, Epoch | None], HiddenRounds | None] | None = None
    plans: list[Plan | None] = field(default_factory=list)  # what was decided for what is sent, the newest last
    is_guarded: bool = False  # withhold the first response until its content begins, even if its status says success
    arrived: float = 0.0  # when the whole request was there; 0 if its body streams through
    overhead: float | None = None  # seconds from then until it was sent
    opening: Opening | None = None
    commit: "asyncio.Future[bool] | None" = None
    # The state of the current round, `k` being its number.
    k: int = 0
    began: float = 0.0
    head_at: float = 0.0
    first_at: float = 0.0
    beginning: bytes = b""  # of a response whose head does not say whether it is a stream; it is recorded already
    ended_at: float = 0.0  # set if the round ended earlier than it is recorded
    is_edited: bool = False  # `client` changes what it passes on, so that no content-encoding may be asked for
    dropped_beta: bytes = b""  # how a beta begins that is not asked for

    def edit(self, client: Client, *, without: bytes) -> None:
        """Give the response to a client that changes it on its way. Do not ask for the beta that begins with `without`.

        Call it before the request is bound to its headers.
        """
        self.client, self.is_edited, self.dropped_beta = client, True, without

    def record_opening(self) -> Opening:
        """Queue the opening unless it is queued already. The copy kept here has only the size of a long body."""
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
        """Queue more records of this exchange. Bytes that are released later wait for these and all earlier records."""
        self.record_opening()
        self.commit = self.archive.append(*records, is_urgent=is_urgent)

    @property
    def is_durable(self) -> bool:
        """True once everything that was queued is in the log."""
        return self.commit is not None and self.commit.done()

    @property
    def decode(self) -> Callable[[bytes], bytes] | None:
        """Undoes the content-encoding of the response, piece by piece. None: it has none, or is passed on in it."""
        return self.rounds.decode if self.rounds is not None else None

    def keep_piece(self, piece: bytes, clock: Clock) -> bytes:
        """Keep a piece of the response for the record. Return it."""
        if not self.first_at:
            self.first_at = clock.monotonic()
        self.buffer.add(piece)
        return piece

    def begin_rounds(self, body: bytes, epoch: Epoch | None) -> None:
        """Expect calls of our tool in the answer to a body, if it has that. An answer of several rounds goes on."""
        if self.rounds is not None and self.rounds.is_continued:
            self.rounds.note_retry(body, epoch)
        elif self.make_rounds is not None:
            self.rounds = self.make_rounds(body, epoch)

    async def find_next(self, refusal: Refusal | None = None) -> Retry | None:
        """Return what is sent next: in place of what was refused, or after a round of an answer. None: nothing."""
        if self.rounds is not None and (refusal is None or self.rounds.is_continued):
            return await self.rounds.find_next(self.k, refusal)
        return await self.retries.find_retry(refusal) if refusal is not None and self.retries is not None else None

    def begin_next(self, following: Retry) -> None:
        """Begin the next round: record it, and forget the response to the last one."""
        self.k = following.round.k
        self.buffer = CappedBuffer(self.buffer.cap)
        self.head_at = self.first_at = self.ended_at = 0.0
        self.beginning = b""
        self.begin_rounds(following.body, following.epoch)
        self.plans.append(following.plan)
        self.record(following.round, *([following.plan] if following.plan is not None else []))

    def release(self) -> None:
        """Release what was kept to send more: references from there to here would keep the request."""
        self.retries = self.make_retries = self.make_rounds = None
        if self.rounds is not None:
            self.rounds.stop()
            self.rounds = None
