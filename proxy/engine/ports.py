"""The engine's ports: Protocols for upstreams, clients, the log and the machine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from proxy.context.model_catalog import Encoding
from proxy.model.card import Card, LimitKey
from proxy.model.epoch import Epoch, EpochUse, StoredContext, StoredOriginal, Summary
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers, ReceivedRow, SessionKey
from proxy.model.figures import TIERS, Newest, RoundFigures, SessionHead, Tally
from proxy.model.lineage import NodeRow, StoredSession
from proxy.model.log import (
    ArchiveHealth,
    AuxiliaryUsage,
    BranchRow,
    ExchangeRow,
    Record,
    Selection,
    SessionRow,
    ShadowRow,
    UnreadRow,
    Verification,
)
from proxy.model.manifest import Manifest
from proxy.model.search import IndexedEntry, IndexHealth, QueryVector, SearchAnswer, SearchQuery
from proxy.retrieval.vectors import PassageBatch, VectorBatch

MOST_RECALLED = 64
MOST_RECALLED_ROWS = 8192
MOST_FINGERPRINTS = 32
MOST_BEARING = 8
MOST_UNREAD = 1024
MOST_EPOCHS = 64
NEWEST_EPOCHS = 4
NEWEST_USES = 4096
MOST_SOURCES = 256
MOST_SUMMARIES = 256
MOST_RECALLED_ANSWERS = 512
MOST_NOTED = 1024
MOST_HELD = 1024
MOST_SHADOWS = 1000
MOST_UNREAD_BYTES = 64 * 1024 * 1024
ALL_SESSIONS = Selection()


class UpstreamResponse(Protocol):
    """A response in progress. Body bytes are as received: no content-encoding is decoded."""

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
        """Return all bytes that have arrived since the last call, at least one, or b"" at the end.

        Raises UpstreamUnreachable if the response breaks off, is malformed, or is silent for the idle time.
        """
        ...

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Pass each piece to `take` as it arrives, until `take` returns False or the whole response has arrived.

        The piece that arrives together with the end is left to `read`. Raises as `read` does, after the pieces so far.
        """
        ...

    def close(self) -> None:
        """Release the response. If it is not complete, its connection is closed."""
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
        """Send one request. Return when the response's head has arrived.

        `target` is the client's path and query; `headers` are the client's. The upstream maps the path, and sets
        hop-by-hop headers, Host, length and a configured key. Raises BadRequest for a path that must not be forwarded,
        and UpstreamUnreachable if no response came.
        """
        ...


class Client(Protocol):
    """The client's side of an exchange. After the client has disconnected, every method does nothing."""

    def label(self, fields: Headers) -> None:
        """Set the headers that are added to the head of the response, also of an error response of the proxy."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Send the response's head."""
        ...

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send body bytes. `is_last` ends the response cleanly.

        Return False if the client is slow: write no more before `drain` returns.
        """
        ...

    async def drain(self) -> None:
        """Return when the client can take more bytes."""
        ...

    def fail(self, error: ProxyError) -> None:
        """Respond with this error as JSON. Once the response has started, do the same as `abort`."""
        ...

    def dismiss(self) -> None:
        """End a cancelled call. If nothing was sent and the client is still connected, tell it to try again."""
        ...

    def abort(self) -> None:
        """Break the response off after the bytes written so far, so that the client does not see a clean end.

        Do nothing after a complete response.
        """
        ...


class LogReader(Protocol):
    """Read access to the log."""

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Return sessions, newest activity first. `limit` bounds what is in memory at once.

        Unless a family is named, return only sessions with a call that is part of a conversation. Requests that the
        upstream rejected (401, 403, 404, 405), or that had neither a name nor a body, are found only by their id.
        """
        ...

    async def find_session(self, session: str) -> SessionRow:
        """Return the session with this id. Raises NotFound."""
        ...

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Return the ids of sessions with this prefix, in order, so that an exact match comes first."""
        ...

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return the exchanges of a session after number `after`, oldest first. Raises NotFound."""
        ...

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """Return what `list_exchanges` does with every `answer` empty: responses do not affect the size of a page."""
        ...

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """Return the branches of a session in the order in which they began. Calls without a `Lineage` are in none.

        Raises NotFound for an unknown session.
        """
        ...

    async def load_request(self, exchange: str) -> bytes:
        """Return the client's body, byte for byte, or its head if it was capped. Raises NotFound.

        Where we hold the history, or the provider, it is the whole request that this became, and a body in a
        content-encoding is decoded (what the client sent: `load_held`).
        """
        ...

    async def load_manifest(self, exchange: str) -> Manifest:
        """Return what `load_request` does as the log has it: the recipe, without content. Raises NotFound."""
        ...

    async def load_held(self, exchange: str) -> bytes:
        """Return what the client sent of a request whose history we hold, or whose body was decoded, byte for byte.

        Raises NotFound.
        """
        ...

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """Return the body sent upstream in round k, byte for byte. Raises NotFound."""
        ...

    async def load_received(self, exchange: str, k: int) -> bytes:
        """Return the body of the upstream's response in round k, as far as it was kept. Raises NotFound."""
        ...

    async def load_context(self, session: str) -> StoredContext:
        """Return how a session is managed: its epochs, pins, accounts and summaries. Empty if nothing is known.

        If it continues other sessions (`Adoption`), the data of at most `MOST_SOURCES` of these is included; its own
        accounts take precedence. The result has, without anything erased:
        * of each view's epochs, those that may still be used: the newest `NEWEST_EPOCHS`, and of the older ones those
          without a successor, `MOST_EPOCHS` at most. A `parent` may name an epoch that is not included.
        * the newest pin of each node of a session.
        * the summaries that no other one with the same last message replaces or was made from, `MOST_SUMMARIES` at
          most: first the newest of those that none replaces at all; the rest serve branches that diverge earlier.
        * the views of which any epoch, however old, went on without the provider's own compaction.
        * what was recalled within the newest `MOST_RECALLED_ANSWERS` answers in which a model recalled.
        * what the newest `MOST_NOTED` requests that told it said of their newest messages.
        """
        ...

    async def list_uses(self, session: str) -> Sequence[EpochUse]:
        """Return the newest uses of epochs in a session and in those that it continues, `NEWEST_USES` at most.

        Oldest first. Of each request only the last round counts: an earlier one was refused. Empty if nothing is known.
        """
        ...

    async def load_original(self, reference: str) -> StoredOriginal:
        """Return what a reference replaces, given by its id without `ref:`. Raises NotFound, or Erased, which is one.

        The id of a summary stands for the messages that it covers: for a condensed one, those of its leaves in order.
        """
        ...

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """Return all summaries of a session, oldest first. Raises NotFound.

        An erased summary has no `text`, `files` or `reason`.
        """
        ...

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """Sum up the auxiliary calls opened since then, one row per session, upstream and model, in this order."""
        ...

    async def list_shadows(self, since_ms: int, limit: int = MOST_SHADOWS) -> Sequence[ShadowRow]:
        """Return the newest calls opened since then that sent a client's own request again, newest first."""
        ...

    async def list_nodes(self, session: str) -> Sequence[NodeRow]:
        """Return the nodes of a session, parents first: the tree of its messages. Raises NotFound."""
        ...

    async def load_newest(self, sessions: Sequence[str]) -> Sequence[Newest]:
        """Return what is known of the newest calls of these sessions, in any order; nothing of those without a call."""
        ...

    async def load_tallies(
        self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = TIERS
    ) -> Sequence[Tally]:
        """Sum up the rounds of these sessions that are charged alike, None: of all sessions, in any order.

        `tiers` are the numbers of input tokens above which the rates of a model may change. Others than `TIERS` take
        much more time.
        """
        ...

    async def count_later(self, session: str) -> int:
        """Return how many of the client's calls came after the last call that opened an epoch, 0 if none did."""
        ...

    async def load_rounds(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[RoundFigures]:
        """Return the rounds of a session's exchanges after number `after`, oldest first. Raises NotFound."""
        ...

    async def load_heads(self, sessions: Sequence[str]) -> Sequence[SessionHead]:
        """Return the call with which the conversation of each of these sessions begins, in any order."""
        ...

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """Return all epochs of a session in the order in which they were opened, without `rendered`. Raises NotFound.

        `edits` is empty if it was erased.
        """
        ...

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """Return the n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        ...

    async def verify(self) -> Verification:
        """Re-derive every digest, link and recipe from what is stored."""
        ...

    async def close(self) -> None:
        """Release the log. An archive first writes pending records, for a bounded time."""
        ...


class Ancestry(Protocol):
    """Lookups in the log from which the session of a request is recognised."""

    async def recall(
        self, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Return sessions that a request may continue, newest last, `MOST_RECALLED` at most.

        `nodes` is the request's chain, first message first. `session` is the presumed session, with the tenant. In the
        order of their precedence, and then the newest first, the candidates are:
        1. that session, and the tenant's sessions that have the deepest node which is a recorded answer of the tenant;
        2. if there is no such answer, the tenant's sessions with one of the fingerprints (`name_fingerprint`), newest
           `MOST_BEARING` of each fingerprint, for the last `MOST_FINGERPRINTS` fingerprints, since each takes a lookup;
        3. in the same case, other tenants' sessions that have the deepest node which is anyone's recorded answer.
        The first two sessions are returned whatever their size. Others are left out if they do not fit into
        `MOST_RECALLED_ROWS` nodes, fingerprints and requests in total. A store may give up a lookup that others make
        slow; its result is then missing.
        """
        ...

    async def count_links(self, links: Sequence[bytes]) -> int:
        """Count the links of a chain, in its order, that are in the log. If it has one, it has all before that."""
        ...

    async def find_key(self, session: str) -> SessionKey:
        """Return the key of the session with this id. Raises NotFound."""
        ...

    async def has_sessions(self) -> bool:
        """Return False while the log has no session, so that there is nothing to recall."""
        ...


class HeldCalls(Protocol):
    """The part of the log on calls whose history we hold."""

    async def list_held(self, session: str) -> Sequence[ReceivedRow]:
        """Return the newest calls of a session whose history we hold, newest first, `MOST_HELD` at most."""
        ...


class Backlog(Protocol):
    """Recorded responses that were not read yet."""

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Return the newest responses that have bytes, a wire format and no reading, among `limit` outcomes.

        The newest is first. A response is left out if it was erased, or does not fit in `most_bytes` with the newer
        ones.
        """
        ...


class Archive(LogReader, Ancestry, HeldCalls, Backlog, Protocol):
    """The append-only log."""

    @property
    def health(self) -> ArchiveHealth:
        """The current state of the log. Cheap to read."""
        ...

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Queue records, in order, after everything queued before. Never blocks, never raises.

        The future turns True once they and all before them are durable, False if they were dropped for lack of room.
        The store may later reject a durable record (a duplicate, or a reference to nothing); `health` then counts it.
        Records of lineage and of managed context may be rejected separately from others of the same call: to know that
        one is stored, append it alone. Records that are not urgent wait for the next urgent one, for `flush`, or for a
        second at most.
        """
        ...

    def flush(self) -> None:
        """Write records that are not urgent now."""
        ...


class Index(Protocol):
    """Full-text search over the log. What it holds can be made anew from the log at any time."""

    async def search(self, query: SearchQuery) -> SearchAnswer:
        """Return what matches best. Never raises for any text. A time limit bounds it."""
        ...

    async def find_entry(self, reference: str) -> IndexedEntry | None:
        """Return the entry that an id of the index names, given without `ref:`; None if there is none (any more).

        `LogReader.load_original` knows the references of the log; it is asked first.
        """
        ...

    @property
    def health(self) -> IndexHealth:
        """How current the index is. Cheap to read."""
        ...


Embed = Callable[[SearchQuery], Awaitable[QueryVector | None]]
"""Returns the vector of a query, or None if there is none in time. Never raises."""


class PassageStore(Protocol):
    """The passages of the index, for vectors of them. Both methods raise WorkerLost and StoreUnavailable."""

    async def list_passages(self, session: str, model: str) -> PassageBatch:
        """Return the next passages of a session that need a vector of this model."""
        ...

    async def keep_vectors(self, session: str, model: str, batch: VectorBatch) -> str:
        """Store vectors of such passages. Return why they cannot be kept: then others cannot either."""
        ...


class Leases(Protocol):
    """Leases on work that only one process may do at a time. A lease ends after the time for which it was acquired.

    If the store is unavailable, no lease is given: the work can wait.
    """

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Take the lease for `seconds` from now. Return False if another owner holds it and it has not expired."""
        ...

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Extend the lease to `seconds` from now. Return False if another owner holds it, or it has expired."""
        ...

    async def release(self, key: str, owner: str) -> None:
        """Release the lease. Do nothing if the owner does not hold it."""
        ...


class Clock(Protocol):
    """Wall time, for records only, and monotonic time, for order and time limits."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds, never decreasing."""
        ...


class Tokenizer(Protocol):
    """Counts the tokens of texts. Never fails."""

    def is_ready(self, encoding: Encoding) -> bool:
        """Return whether this encoding is loaded, so that the next count need not load it."""
        ...

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        """Count the tokens of a text for a model. Return also whether the count is an estimate. Blocks."""
        ...


class Catalog(Protocol):
    """A catalog of the upstreams' models. Looking up never waits and never fails."""

    async def open(self) -> None:
        """Read the data that comes with the installation. Until then none of it is known."""
        ...

    def note_listing(self, upstream: str, content: bytes) -> None:
        """Learn from an upstream's list of its models. An empty list changes nothing. May block."""
        ...

    def note_limit(self, key: LimitKey, window: int, sent: int, *, is_stated: bool = False) -> None:
        """Learn a window when an upstream refused `sent` tokens: it `is_stated` in the refusal, or inferred from it."""
        ...

    def find(self, key: LimitKey) -> Card:
        """Return what is known of a model now."""
        ...


class Ids(Protocol):
    """A source of unique ids."""

    def next_exchange(self) -> str:
        """Return a new unique id that sorts by time."""
        ...
