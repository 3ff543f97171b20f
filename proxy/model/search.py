"""The values of searching the log: a query, its hits, and how current the index is.

An entry of the index is one text of a session, stored where it was new: what a message says, its reasoning, the
arguments of its calls, or what the proxy wrote about it (a ledger, a summary, an outline).
"""

from typing import Literal

import msgspec

EntryKind = Literal["message", "output", "reasoning", "arguments", "ledger", "summary", "outline", "broadcast"]
SAID: frozenset[EntryKind] = frozenset({"message", "broadcast"})
"""What people and models say to each other."""
OURS: frozenset[EntryKind] = frozenset({"ledger", "summary", "outline"})
"""What the proxy wrote."""

Visibility = Literal["sent", "in_short", "not_sent"]
"""Whether a model sees an entry now: word for word, in short since a text of ours stands for it, or not at all."""


class QueryVector(msgspec.Struct, frozen=True, gc=False):
    """The vector of a query by a model for embeddings, as a code (`retrieval/vectors`)."""

    model: str
    code: bytes


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for, and where. Any text is a valid query.

    `tenant` is a fingerprint; None means every tenant, which only the admin token may ask for. `sessions` are ids; None
    means all of the tenant. `within` are the nodes that may be found (the ancestors of a request); None means all.
    `visible` are nodes whose whole content the requester sees, and which are left out; `seen` are texts of which no
    line is told again. `context` holds the words of the requester's last three steps, newest last. `tokens` fills the
    answer with snippets up to this many tokens, in place of a number of hits (`limit`). `vector` is set if passages are
    also to be found by their similarity.
    """

    text: str
    tenant: str | None = None
    sessions: tuple[str, ...] | None = None
    within: frozenset[bytes] | None = None
    visible: frozenset[bytes] = frozenset()
    seen: tuple[str, ...] = ()
    context: str = ""
    roles: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    kinds: tuple[EntryKind, ...] = ()
    since_ms: int = 0
    until_ms: int | None = None
    limit: int = 20
    tokens: int | None = None
    vector: QueryVector | None = None


class EntryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which entry it is. `exchange` and `n` are those of the call that brought it.

    `reference` is the id by which the whole entry is read, without `ref:`; it is never empty.
    """

    reference: str
    session: str
    node: bytes
    exchange: str
    n: int
    role: str
    sender: str
    tool: str
    kind: EntryKind
    at_ms: int


class Hit(EntryFacts, frozen=True, kw_only=True):
    """An entry that was found. `snippet` has its best lines."""

    snippet: str
    score: float


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The hits of a query, best first.

    `is_complete` is False if the time limit ended the search. `behind` counts the records of the log that the index
    does not have yet.
    """

    hits: tuple[Hit, ...] = ()
    is_complete: bool = True
    behind: int = 0


class IndexedEntry(EntryFacts, frozen=True, kw_only=True):
    """The entry that an id of the index names. `tenant` is a fingerprint; `text` is the whole entry."""

    tenant: str
    text: str


class IndexHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How current the index is.

    `behind` counts the records of the log that it does not have yet; `behind_seconds` is the age of the oldest of
    these. `size` is that of its files in bytes. `is_rebuilding`: it was made anew and has not caught up yet. `fault`
    says why it cannot be used, or is empty. `vectors` counts the passages with a vector, `without_vectors` those of the
    same sessions that were not looked at yet.
    """

    behind: int = 0
    behind_seconds: float = 0.0
    size: int = 0
    is_rebuilding: bool = False
    vectors: int = 0
    without_vectors: int = 0
    fault: str = ""
