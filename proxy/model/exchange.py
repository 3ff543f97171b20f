"""The records of one exchange. Each is written once and never changed; a later fact is a later record.

An exchange is one client call. It has one `Opening`, a `Round` for every upstream call it took, an `Outcome` per round,
perhaps `Trailer`s (bytes after the end marker), and a `Reading`: what the response says, derived from the bytes. One
whose history we hold, or whose body was decoded, has a `ReceivedCall`, too.
`model/lineage` has its position in the conversation, `model/log` lists all kinds of records.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from proxy.model.epoch import Strategy
from proxy.model.manifest import Manifest

Headers = tuple[tuple[bytes, bytes], ...]
SUCCESS = range(200, 300)
"""The statuses of an accepted call."""
Mode = Literal["manage", "observe", "bypass"]
Kind = Literal["managed", "passthrough", "auxiliary", "recorded"]
"""`managed`: read and perhaps rewritten. `passthrough`: forwarded unread. `auxiliary`: our own call, for a summary.
`recorded`: made elsewhere, by a program that has told us of it; nothing was sent by us.
"""
CONVERSATION: frozenset[Kind] = frozenset({"managed", "recorded"})
"""The kinds of calls that a conversation consists of."""
Completeness = Literal["complete", "truncated", "aborted", "failed"]
"""`complete`: all of a response came. `truncated`: the upstream broke it off. `failed`: none came. `aborted`: the
client hung up, or the server ended, before all had come.
"""


MissCause = Literal["epoch", "tools", "system", "parameters", "message", "model", "idle", "provider", "unrecorded"]
"""Why a prompt was not read from a provider's cache (`context/provider_cache`).

`epoch`: what is sent for the beginning of the history was replaced by us. `tools`, `system`, `parameters` and
`message`: the client changed that part of its request. `model`: another model, or upstream, had the prompt. `idle`: the
cache was kept for less time than passed since. `provider`: nothing explains it. `unrecorded`: it may have been a change
beside the messages, which earlier versions did not record.
"""


HistoryMode = Literal["new", "server", "program", "record"]
"""What a request asks of a history that we hold: to begin one, to continue it, or to do either, for a call of a program
in this process (`program`) or a turn that it made elsewhere (`record`). No client asks for the last two by header.
"""


class SessionKey(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The identity of a session.

    `id` is derived (`engine/lineage`), so that it needs no look-up. `tenant` is a salted fingerprint (16 bytes).
    `family` is the client's own name for the session; if it gives none, `family` is empty and each call stands alone.
    `parent` is the id of the session whose agent started this one, empty if the client names none.
    """

    id: str
    tenant: bytes
    upstream: str
    family: str
    parent: str = ""


class LocalCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a program in this process, and the session that it begins or continues.

    If it was made elsewhere, and is only recorded, `told` is all that the program told of it, and `respond` writes the
    body of its response, given what we would have sent.
    """

    session: SessionKey
    told: bytes = b""
    respond: Callable[[bytes], Awaitable[bytes]] | None = None


class RequestOptions(msgspec.Struct, frozen=True, gc=False):
    """What the `x-palimpsest-` headers of a request ask for. `ceiling` is in the model's tokens, None if not asked for.

    `is_pinning`: its newest message is to stay in every rendering. `strategy` is None if it asks for none. `history`:
    we hold the history that it continues. `source` is the kind of prompt source that its newest message is
    (`context/strategies/sources`), empty if untold. `local` is no wish: it is set for calls in this process.
    `is_alone`: it is no part of a conversation.
    """

    mode: Mode = "manage"
    ceiling: int | None = None
    is_pinning: bool = False
    strategy: Strategy | None = None
    history: HistoryMode | None = None
    source: str = ""
    local: LocalCall | None = None
    is_alone: bool = False


class ClientRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as the client sent it. `target` is the raw path and query. Header names are lower case.

    If its content-encoding was undone, or what it refers to is written out in `body`, `encoded` is the body as it came.
    """

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""
    encoded: bytes = b""


class Opening(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The client's request. `target` has no query values, and `headers` only those on the allow list."""

    exchange: str
    session: SessionKey
    kind: Kind
    wire: str
    mode: Mode
    model: str
    method: str
    target: str
    headers: Headers
    body: Manifest
    opened_ms: int


class Round(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """One upstream call, the k-th of its exchange. `body` is None if the client's own bytes were sent."""

    exchange: str
    k: int
    upstream: str
    body: Manifest | None


class ReceivedRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `ReceivedCall` without its body."""

    exchange: str
    history: Literal[HistoryMode, ""]
    key: str
    digest: bytes


class ReceivedCall(ReceivedRow, frozen=True, tag="HeldCall"):
    """What a client sent, of a request whose `Opening` has something else: the whole request where we hold its history.

    `key` is its idempotency key, empty if it has none. `digest` is the SHA-256 of the messages that it brought.
    `history` is empty where the client or its provider has the history: `Opening` has its body decoded, or with all
    that it refers to.
    """

    body: Manifest


class Timings(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Milliseconds from the sending of the request to the response's head, to its first body byte, and to its end.

    `overhead_ms` passed before that: from the client's whole request until something was sent for it. It is None where
    the body streamed through, and for all rounds but the first.
    """

    head_ms: float
    first_byte_ms: float
    total_ms: float
    overhead_ms: float | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """How a round ended. `status` is 0 if no response came. `received` is the raw response body, up to the cap.

    `size` counts all body bytes; if not all were kept, `whole_digest` is the SHA-256 of all of them.
    """

    exchange: str
    k: int
    status: int
    headers: Headers
    completeness: Completeness
    received: bytes
    size: int
    whole_digest: bytes
    timings: Timings
    error: str = ""


class Trailer(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Bytes that came after the stream's end marker, when the outcome was recorded already. `i` counts from 0."""

    exchange: str
    k: int
    i: int
    received: bytes


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the provider counted them, None if it did not say. `input` includes `cached` and `written`."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    reasoning: int | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A response as one object of its wire format, assembled from the bytes.

    `value` has the shape of the format's non-streamed response. `finish` joins the finish reasons of all choices with
    commas. `is_ended` says whether the format's own end marker was seen. `error` is the provider's message, if any.
    """

    value: dict[str, object]
    usage: Usage | None = None
    finish: str = ""
    is_ended: bool = True
    error: str = ""


class Reading(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The response of a round, `Answer.value` as JSON. It may be absent, and can be derived again from the bytes."""

    exchange: str
    k: int
    answer: bytes
    usage: Usage | None
    finish: str
    error: str
