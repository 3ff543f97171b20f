"""What the engine asks of the world.

Rule: one Protocol per question; implementations live in the shells and in tests.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from proxy.context.model_catalog import Encoding
from proxy.model.card import Card, LimitKey
from proxy.model.epoch import Epoch, StoredContext, StoredOriginal, Summary
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers, SessionKey
from proxy.model.lineage import StoredSession
from proxy.model.log import (
    ArchiveHealth,
    AuxiliaryUsage,
    Bill,
    BranchRow,
    ExchangeRow,
    Record,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
)

MOST_RECALLED = 64
MOST_RECALLED_ROWS = 8192
MOST_MARKS = 32
MOST_BEARING = 8
MOST_UNREAD = 1024
MOST_EPOCHS = 64
NEWEST_EPOCHS = 4
MOST_SOURCES = 256
MOST_SUMMARIES = 256
MOST_UNREAD_BYTES = 64 * 1024 * 1024
ALL_SESSIONS = Selection()


class UpstreamResponse(Protocol):
    """An answer under way. Body bytes are as they came: no decoding of any content-encoding."""

    @property
    def status(self) -> int:
        """Status code, 100 to 599."""
        ...

    @property
    def headers(self) -> Headers:
        """Header fields in order, names lower case, hop-by-hop ones included."""
        ...

    @property
    def is_received(self) -> bool:
        """True once the answer is here whole, whether read or not."""
        ...

    @property
    def is_ended(self) -> bool:
        """True once every byte of the answer has been read."""
        ...

    async def read(self) -> bytes:
        """All bytes that have come since the last call, at least one; empty at the end.

        Raises UpstreamUnreachable when the answer breaks off, is garbled, or is silent for the idle time.
        """
        ...

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Hand on what comes, the moment it comes, until `take` returns False or the answer is here whole.

        The piece that came together with the end is left to `read`. Raises as `read` does, after the pieces that came.
        """
        ...

    def close(self) -> None:
        """Let go of the answer; a connection in mid-answer is closed."""
        ...


class RequestBody(Protocol):
    """A request body that streams."""

    async def read(self) -> bytes:
        """The next bytes, empty at the end."""
        ...


class Upstream(Protocol):
    """One provider's server."""

    @property
    def name(self) -> str:
        """As in the settings."""
        ...

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> UpstreamResponse:
        """Send one request; returns when the answer's head is there.

        `target` is the client's path and query; `headers` are the client's. Mapping, hop-by-hop fields, Host, length
        and a configured key are the upstream's affair. Raises BadRequest for a path that must not be forwarded and
        UpstreamUnreachable when no answer came.
        """
        ...


class Client(Protocol):
    """Whoever asked. Every method may be called after the client has left; it then does nothing."""

    def label(self, fields: Headers) -> None:
        """What the head of the answer bears besides its own fields, our own errors included."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """The answer's head."""
        ...

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Body bytes. `is_last` ends the answer cleanly. False: the client is slow, no more before `drain` returns."""
        ...

    async def drain(self) -> None:
        """Return when the client's side can take more."""
        ...

    def fail(self, error: ProxyError) -> None:
        """Answer with this error as JSON; once the answer has started, the same as `abort`."""
        ...

    def dismiss(self) -> None:
        """The call was cancelled: where nothing was sent and the client is still there, tell it to try again."""
        ...

    def abort(self) -> None:
        """Break the answer visibly after delivering what was written: never a clean end.

        Nothing after a whole answer.
        """
        ...


class LogReader(Protocol):
    """What can be read back from the log."""

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Newest activity first; `limit` bounds what is in memory at once.

        Unless a family is named, of those that hold a call: what an upstream turned away (401, 403, 404, 405), or what
        was passed on without a name or a body, is in the log and found by its id, and is no conversation.
        """
        ...

    async def find_session(self, session: str) -> SessionRow:
        """The session with this id. Raises NotFound."""
        ...

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """The ids of sessions that begin so, in order, so that a whole id comes before longer ones."""
        ...

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """The exchanges of a session behind number `after`, oldest first. Raises NotFound for an unknown session."""
        ...

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """As `list_exchanges`, but every `answer` is empty: what a page holds does not depend on what was answered."""
        ...

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """The branches of a session in the order in which they began; none of calls without a `Step`.

        Raises NotFound for an unknown session.
        """
        ...

    async def load_request(self, exchange: str) -> bytes:
        """The client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        ...

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """The body sent upstream in round k, byte for byte. Raises NotFound."""
        ...

    async def load_received(self, exchange: str, k: int) -> bytes:
        """The body the upstream answered with in round k, as far as it was kept. Raises NotFound."""
        ...

    async def load_context(self, session: str) -> StoredContext:
        """How a session is managed: its epochs, pins, accounts and summaries. Empty where nothing is known of it.

        Where it goes on from others (`Adoption`), what is known of these is there too, of `MOST_SOURCES` at most; its
        own accounts go before theirs. Of each view's epochs those are there that may still be of use: the newest
        `NEWEST_EPOCHS`, and before them those that no other follows, `MOST_EPOCHS` at most; what an erasure touched is
        not. A `parent` may name one that is not there. Of each node of a session the newest pin is there. Of summaries
        those are there that no other one of these sessions, which holds wherever they do, was made of or stands in
        place of: `MOST_SUMMARIES` at most, first the newest of those that no other has anything to do with, for the
        rest is for branches that leave a longer one's messages; one whose text was erased is not.
        """
        ...

    async def load_original(self, reference: str) -> StoredOriginal:
        """What a reference stands for, given by its id without `ref:`. Raises NotFound, also where it was erased.

        The id of a summary stands for the messages it covers: a condensed one for those of all its leaves, in order.
        """
        ...

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """All summaries of a session, oldest first. Raises NotFound.

        One that was erased has no `text`, `files` and `reason`.
        """
        ...

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """What auxiliary calls opened since then came to, a row for each session, upstream and model, in this order."""
        ...

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        """All rounds of the first exchanges behind the one numbered `after` (its `seq`), oldest first; then empty.

        Of those, `limit` at most, that have rounds, are in mode manage, and were not passed on unread.
        """
        ...

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """All epochs of a session in the order in which they were opened, `rendered` empty. Raises NotFound.

        `edits` are empty where they were erased.
        """
        ...

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """The n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        ...

    async def verify(self) -> Verification:
        """Re-derive every digest, link and recipe from what is stored."""
        ...

    async def close(self) -> None:
        """Let go; an archive first writes what is pending, for a bounded time."""
        ...


class Ancestry(Protocol):
    """What the log knows of where a request belongs."""

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Sessions that may hold what a request continues; newest last, `MOST_RECALLED` at most.

        `nodes` are those of the request's chain, the first message's first; `session` is the one that the request is
        taken to belong to, and whose it is. They are, of this tenant: that session; those in which the deepest of the
        nodes that is a recorded answer of the tenant's stands as an answer. Where the tenant has no such answer: those
        that bear one of the marks (named by `name_mark`), of each the newest `MOST_BEARING`; and those of the others in
        which the deepest answer of anyone stands as one. Where there are too many, what is named first here counts, and
        then the newest; of too many marks the last `MOST_MARKS`, each of which is a look-up of its own. The first two
        are there whatever their size; another is left out where it does not fit into `MOST_RECALLED_ROWS` nodes, marks
        and requests beside those before it. A store may give up a look-up that others' sessions make long: what it
        would find is then missing.
        """
        ...

    async def count_links(self, links: Sequence[bytes]) -> int:
        """How many of the links of a chain, in its order, are in the log: where one is, all before it are."""
        ...

    async def find_key(self, session: str) -> SessionKey:
        """Whose the session with this id is, and what names it. Raises NotFound."""
        ...

    async def has_sessions(self) -> bool:
        """False while the log has none: there is nothing to recall."""
        ...


class Backlog(Protocol):
    """What the log holds that still has to be read."""

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """The answers among the newest `limit` outcomes that have bytes, a wire format and no reading; newest first.

        One that does not fit in `most_bytes` beside those that are newer is left out, as is one that was erased.
        """
        ...


class Archive(LogReader, Ancestry, Backlog, Protocol):
    """The append-only log."""

    @property
    def health(self) -> ArchiveHealth:
        """How the log is doing now; cheap."""
        ...

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Queue records, in order, behind everything queued before; never blocks, never raises.

        The future turns True once they (and all before them) are durable, False if they were dropped for want of room.
        A store may learn later that it cannot take what is durable (a duplicate, what refers to nothing): then `health`
        counts it. Records of lineage and of managed context may be refused without those they came with: to
        know that one is stored, append it alone.
        Records that are not urgent may wait for the next ones that are, for `flush`, or a second at most.
        """
        ...

    def flush(self) -> None:
        """Let records that are not urgent wait no longer."""
        ...


class Leases(Protocol):
    """Who does what only one may do at a time. Nobody holds a lease for longer than it was asked for.

    Where the store cannot be asked, nobody is given a lease: what needs one can wait.
    """

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Have the lease for so long from now: True where nobody else has it, or its time is over."""
        ...

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Keep it for so long from now; False where its holder is another, or its time is over."""
        ...

    async def release(self, key: str, owner: str) -> None:
        """Give it up; nothing happens where the owner does not hold it."""
        ...


class Clock(Protocol):
    """Time: wall time is for records only, order and limits use the monotonic clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds, never backwards."""
        ...


class Tokenizer(Protocol):
    """Counts text; never fails."""

    def is_ready(self, encoding: Encoding) -> bool:
        """Whether the next count by this encoding takes no longer than its text does: nothing is loaded first."""
        ...

    def count(self, text: str, encoding: Encoding) -> tuple[int, bool]:
        """The tokens of a text, and whether they are but an estimate. Blocks."""
        ...


class Catalog(Protocol):
    """What is known of upstreams' models. Looking up never waits and never fails."""

    async def open(self) -> None:
        """Read what comes with the installation; until then nothing is known from it."""
        ...

    def note_listing(self, upstream: str, content: bytes) -> None:
        """Take in an upstream's answer that lists its models; one that says nothing changes nothing. May block."""
        ...

    def note_limit(self, key: LimitKey, window: int, sent: int) -> None:
        """Take in the window that an upstream named when it refused `sent` tokens."""
        ...

    def find(self, key: LimitKey) -> Card:
        """What is known of a model now."""
        ...


class Ids(Protocol):
    """Fresh names."""

    def next_exchange(self) -> str:
        """A new id, unique, sortable by time."""
        ...
