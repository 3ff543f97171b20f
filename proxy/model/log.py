"""What can be read back from the log. Rule: rows as values, oldest first unless said otherwise."""

from dataclasses import dataclass

from proxy.model.exchange import Completeness, Headers, Kind, Mode, Timings, Usage


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a listing; times in milliseconds since the epoch."""

    id: str
    family: str
    upstream: str
    created_ms: int
    last_ms: int
    exchanges: int
    model: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One upstream call of an exchange; `completeness` is empty while the call is open or was cut by a crash."""

    k: int
    upstream: str
    status: int
    headers: Headers
    completeness: Completeness | str
    received_size: int
    is_capped: bool
    timings: Timings | None
    error: str
    answer: bytes
    usage: Usage | None
    finish: str


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One client call: what was asked (without its body) and how each round ended. `n` counts from 1 in its session."""

    seq: int
    id: str
    session: str
    n: int
    kind: Kind
    wire: str
    mode: Mode
    model: str
    method: str
    target: str
    headers: Headers
    request_size: int
    is_capped: bool
    digest: bytes
    opened_ms: int
    rounds: tuple[RoundRow, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something `verify` found: where it stands and what is wrong."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` looked at, and what it found."""

    exchanges: int
    rounds: int
    blobs: int
    slices: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class ArchiveHealth:
    """How the log is doing. `problem` is empty while it keeps its promise; `dropped` counts records lost for good.

    `generation` changes whenever a record was lost: whoever remembers what the log holds must forget it then.
    """

    problem: str
    pending: int
    pending_bytes: int
    dropped: int
    generation: int
