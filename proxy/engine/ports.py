"""The engine's ports: what it needs of upstreams, clients, the log and the machine, each as a Protocol."""

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
    """A response in progress. Body bytes are as they came: no decoding of any content-encoding."""

    @property
    def status(self) -> int:
        """Status code, 100 to 599."""
        ...

    @property
    def headers(self) -> Headers:
        """Headers in order, names lower case, hop-by-hop ones included."""
        ...

    @property
    def is_received(self) -> bool:
        """True once the whole response has arrived, whether read or not."""
        ...

    @property
    def is_ended(self) -> bool:
        """True once every byte of the response has been read."""
        ...

    async def read(self) -> bytes:
        """Return all bytes that have come since the last call, at least one; empty at the end.

        Raises UpstreamUnreachable when the response breaks off, is garbled, or is silent for the idle time.
        """
        ...

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Hand on what comes, the moment it comes, until `take` returns False or the whole response has arrived.

        The piece that came together with the end is left to `read`. Raises as `read` does, after the pieces that came.
        """
        ...

    def close(self) -> None:
        """Release the response; a connection in the middle of a response is closed."""
        ...


class RequestBody(Protocol):
    """A request body that is streamed."""

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end."""
        ...


class Upstream(Protocol):
    """One provider's server."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        ...

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> UpstreamResponse:
        """Send one request; return when the response's head has arrived.

        `target` is the client's path and query; `headers` are the client's. The upstream maps the path, and sets
        hop-by-hop headers, Host, length and a configured key. Raises BadRequest for a path that must not be forwarded
        and UpstreamUnreachable when no response came.
        """
        ...


class Client(Protocol):
    """The caller's side of an exchange. Every method may be called after the client has left; it then does nothing."""

    def label(self, fields: Headers) -> None:
        """Add headers to the head of the response, our own errors included."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Send the response's head."""
        ...

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send body bytes; `is_last` ends the response cleanly.

        False: the client is slow, write no more before `drain` returns.
        """
        ...

    async def drain(self) -> None:
        """Return when the client's side can take more."""
        ...

    def fail(self, error: ProxyError) -> None:
        """Respond with this error as JSON; once the response has started, the same as `abort`."""
        ...

    def dismiss(self) -> None:
        """End a cancelled call: where nothing was sent and the client is still there, tell it to try again."""
        ...

    def abort(self) -> None:
        """Break the response off visibly after delivering what was written: never a clean end.

        Does nothing after a whole response.
        """
        ...


class LogReader(Protocol):
    """Read access to the log."""

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Return sessions, newest activity first; `limit` bounds what is in memory at once.

        Unless a family is named, only those that hold a call: what an upstream turned away (401, 403, 404, 405), or
        what was passed on without a name or a body, is in the log and found by its id, and is no conversation.
        """
        ...

    async def find_session(self, session: str) -> SessionRow:
        """Return the session with this id. Raises NotFound."""
        ...

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Return the ids of sessions that begin so, in order, so that a whole id comes before longer ones."""
        ...

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return the exchanges of a session behind number `after`, oldest first. Raises NotFound."""
        ...

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return what `list_exchanges` does, with every `answer` empty: pages do not depend on what was answered."""
        ...

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """Return the branches of a session in the order in which they began; none of calls without a `Step`.

        Raises NotFound for an unknown session.
        """
        ...

    async def load_request(self, exchange: str) -> bytes:
        """Return the client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        ...

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """Return the body sent upstream in round k, byte for byte. Raises NotFound."""
        ...

    async def load_received(self, exchange: str, k: int) -> bytes:
        """Return the body of the upstream's response in round k, as far as it was kept. Raises NotFound."""
        ...

    async def load_context(self, session: str) -> StoredContext:
        """Return how a session is managed: its epochs, pins, accounts and summaries; empty if nothing is known.

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
        """Return what a reference replaces, given by its id without `ref:`. Raises NotFound, also where it was erased.

        The id of a summary stands for the messages it covers: a condensed one for those of all its leaves, in order.
        """
        ...

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """Return all summaries of a session, oldest first. Raises NotFound.

        One that was erased has no `text`, `files` and `reason`.
        """
        ...

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """Sum up the auxiliary calls opened since then, a row for each session, upstream and model, in this order."""
        ...

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        """Return all rounds of the first exchanges behind number `after` (their `seq`), oldest first; then empty.

        Of those, `limit` at most, that have rounds, are in mode manage, and were not passed on unread.
        """
        ...

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """Return all epochs of a session in the order in which they were opened, `rendered` empty. Raises NotFound.

        `edits` are empty where they were erased.
        """
        ...

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """Return the n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        ...

    async def verify(self) -> Verification:
        """Re-derive every digest, link and recipe from what is stored."""
        ...

    async def close(self) -> None:
        """Release the log; an archive first writes what is pending, for a bounded time."""
        ...


class Ancestry(Protocol):
    """Lookups in the log that tell where a request belongs."""

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Return sessions that may hold what a request continues; newest last, `MOST_RECALLED` at most.

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
        """Count the links of a chain, in its order, that are in the log: where one is, all before it are."""
        ...

    async def find_key(self, session: str) -> SessionKey:
        """Return the key of the session with this id. Raises NotFound."""
        ...

    async def has_sessions(self) -> bool:
        """Return False while the log has none: there is nothing to recall."""
        ...


class Backlog(Protocol):
    """Recorded responses that still have to be read."""

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Return the newest responses that have bytes, a wire format and no reading, among `limit` outcomes.

        The newest is first. One that does not fit in `most_bytes` beside those that are newer is left out, as is one
        that was erased.
        """
        ...


class Archive(LogReader, Ancestry, Backlog, Protocol):
    """The append-only log."""

    @property
    def health(self) -> ArchiveHealth:
        """The state of the log now; cheap to ask."""
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
    """Leases on work that only one process may do at a time. Nobody holds one for longer than it was asked for.

    Where the store cannot be asked, no lease is given: what needs one can wait.
    """

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Take the lease for `seconds` from now; True where no other owner has it, or its time is over."""
        ...

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Extend the lease to `seconds` from now; False where its owner is another, or its time is over."""
        ...

    async def release(self, key: str, owner: str) -> None:
        """Release the lease; do nothing where the owner does not hold it."""
        ...


class Clock(Protocol):
    """Time: wall time is for records only, order and limits use the monotonic clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds, never decreasing."""
        ...


class Tokenizer(Protocol):
    """Counts text; never fails."""

    def is_ready(self, encoding: Encoding) -> bool:
        """Return whether the next count by this encoding takes no longer than its text does: nothing is loaded."""
        ...

    def count(self, text: str, encoding: Encoding) -> tuple[int, bool]:
        """Count the tokens of a text; return also whether they are but an estimate. Blocks."""
        ...


class Catalog(Protocol):
    """A catalog of the upstreams' models. Looking up never waits and never fails."""

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
        """Return what is known of a model now."""
        ...


class Ids(Protocol):
    """A source of unique ids."""

    def next_exchange(self) -> str:
        """Return a new id, unique, sortable by time."""
        ...
