"""The records of one exchange. Each is written once, whole; a later fact is a later record.

An exchange is one client call. It has one `Opening`, a `Round` for every upstream call it took, an `Outcome` per round,
perhaps `Trailer`s (bytes after the end marker), and a `Reading`: what the response says, derived from the bytes.
Where it stands in its conversation is in `model/lineage`; all kinds of records are in `model/log`.
"""

from typing import Literal

import msgspec

from proxy.model.manifest import Manifest

Headers = tuple[tuple[bytes, bytes], ...]
Mode = Literal["manage", "observe", "bypass"]
Kind = Literal["managed", "passthrough", "auxiliary"]
"""Read and perhaps rewritten; passed on unread; or a call of our own, for a summary."""
Completeness = Literal["complete", "truncated", "aborted", "failed"]


# What is copied to leave out so much is worth its microsecond.


class SessionKey(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A conversation: `family` is the client's own name for it, empty where it gave none and each call stands alone.

    `id` is derived (`engine/lineage`), so that it needs no look-up; `tenant` is a salted fingerprint (16 bytes).
    `parent` is the id of the session whose agent started this one, empty where the client names none.
    """

    id: str
    tenant: bytes
    upstream: str
    family: str
    parent: str = ""


class ClientRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as the client sent it. `target` is path and query, raw; header names are lower case."""

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""


class Opening(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The client's request. `target` has its query values dropped; `headers` are the allow-listed ones."""

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
    """One upstream call, the k-th of its exchange. `body` is None where the client's own bytes were sent."""

    exchange: str
    k: int
    upstream: str
    body: Manifest | None


class Timings(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Milliseconds since the request was read whole: upstream's head, its first body byte, the end."""

    head_ms: float
    first_byte_ms: float
    total_ms: float


class Outcome(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """How a round ended. `status` 0: no response came. `received` are the upstream's raw body bytes, up to the cap.

    `size` counts all that came; where it exceeds what was kept, `whole_digest` is the SHA-256 of all of it.
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
    """Bytes that came after the outcome was recorded at the stream's end marker, in order of `i` from 0."""

    exchange: str
    k: int
    i: int
    received: bytes


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the provider counted them; None where it said nothing. `input` includes `cached` and `written`."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    reasoning: int | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A response as one object of its wire, assembled from the bytes.

    `value` has the shape of the wire's non-streamed response. `finish` joins the finish reasons of all choices with a
    comma. `is_ended` tells whether the wire's own end was seen; `error` is the provider's message, if it sent one.
    """

    value: dict[str, object]
    usage: Usage | None = None
    finish: str = ""
    is_ended: bool = True
    error: str = ""


class Reading(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The response of a round as `Answer.value` in JSON.

    Derived: may be absent, can be made again from the bytes.
    """

    exchange: str
    k: int
    answer: bytes
    usage: Usage | None
    finish: str
    error: str
