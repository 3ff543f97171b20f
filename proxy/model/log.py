"""The interface values of the log: all kinds of records with their weight in memory, and the rows that it returns.

A store may write records as msgspec encodes them, so a new field must come last and have a default. Rows are ordered
oldest first unless stated otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.model.epoch import Epoch, Pin, Plan, Recalled, SourceNote, Summary
from proxy.model.exchange import (
    Headers,
    Kind,
    Mode,
    Opening,
    Outcome,
    Reading,
    ReceivedCall,
    Round,
    SessionKey,
    Timings,
    Trailer,
    Usage,
)
from proxy.model.lineage import Adoption, Lineage, Relation, Reply
from proxy.model.memory import MemoryOrder, Remembered

Derived = Lineage | Reply | Adoption | SourceNote | Epoch | Plan | Pin | Summary | Recalled | Remembered | MemoryOrder
Record = Opening | Round | Outcome | Trailer | Reading | ReceivedCall | Derived

# Bytes in memory: a node has two hashes of 16 bytes, a fingerprint a hash, a form and a name.
_NODE_WEIGHT = 200
_MARK_WEIGHT = 250
_ORIGINAL_WEIGHT = 250
_DIGEST_WEIGHT = 65 + 8


def drop_derived(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the records without those of lineage and context, so that a refused one does not lose the others."""
    return tuple(record for record in records if not isinstance(record, Derived))


def weigh_records(records: tuple[Record, ...]) -> int:
    """Return the bytes of memory that the records hold together."""
    weight = 0
    for record in records:
        weight += _WEIGHERS[type(record)](record)
    return weight


def weigh_record(record: Record) -> int:
    """Return roughly how many bytes of memory a record holds while queued; the write queue's bound is in this unit."""
    return _WEIGHERS[type(record)](record)


def _weigh_growth(record: Lineage | Reply) -> int:
    weight = 256 + len(record.nodes) * _NODE_WEIGHT + len(record.fingerprints) * _MARK_WEIGHT
    for fingerprint in record.fingerprints:
        weight += len(fingerprint.name)
    return weight


def _weigh_epoch(epoch: Epoch) -> int:
    digests = sum([len(original.digests) for original in epoch.originals])
    named = len(epoch.originals) * _ORIGINAL_WEIGHT + digests * _DIGEST_WEIGHT
    return 512 + len(epoch.edits) + sum(map(len, epoch.rendered)) + named


def _weigh_recalled(recalled: Recalled) -> int:
    answers = sum([len(raw) for each in recalled.rounds for raw in each.answer])
    return 512 + answers + sum([len(id) + len(text) for each in recalled.rounds for id, text in each.results])


def _weigh_summary(summary: Summary) -> int:
    named = len(summary.calls) + len(summary.parents) + len(summary.supersedes) + len(summary.files)
    stated = sum(map(len, summary.facts))
    return 512 + len(summary.text) + stated + 64 * named + _DIGEST_WEIGHT * len(summary.digests)


def _weigh_remembered(remembered: Remembered) -> int:
    return 512 + len(remembered.summary) + sum([256 + len(fact.text) for fact in remembered.facts])


# A table by type, for speed: every record of every call is weighed.
_WEIGHERS: Mapping[type[Record], Callable[[Any], int]] = {
    Opening: lambda record: 1024 + record.body.weight,
    Round: lambda record: 256 + (record.body.weight if record.body else 0),
    Outcome: lambda record: 512 + len(record.received),
    Trailer: lambda record: 512 + len(record.received),
    Reading: lambda record: 256 + len(record.answer),
    ReceivedCall: lambda record: 256 + record.body.weight,
    Lineage: _weigh_growth,
    Reply: _weigh_growth,
    Adoption: lambda record: 256,
    SourceNote: lambda record: 256,
    Epoch: _weigh_epoch,
    Plan: lambda record: 256,
    Pin: lambda record: 256,
    Summary: _weigh_summary,
    Recalled: _weigh_recalled,
    Remembered: _weigh_remembered,
    MemoryOrder: lambda record: 256,
}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a listing. Times are in milliseconds since the Unix epoch.

    `auxiliary` counts our own calls; no other field includes those. Sums over calls are in `Tally`.
    """

    id: str
    family: str
    upstream: str
    created_ms: int
    last_ms: int
    exchanges: int
    model: str
    parent: str = ""  # id of the session whose agent started it, if any
    branches: int = 0  # as many as `list_branches` returns
    side: int = 0  # exchanges that are side calls
    adopted: str = ""  # id of the session that it continues under another credential, if any
    seq: int = 0  # of its newest exchange; listings are sorted by it
    auxiliary: int = 0
    erased_ms: int | None = None  # when it was erased, None unless that was after its newest exchange

    @property
    def recorded(self) -> int:
        """The number of all its exchanges, and so the number of the last one."""
        return self.exchanges + self.auxiliary


@dataclass(frozen=True, slots=True)
class AuxiliaryUsage:
    """A session's auxiliary calls to one model, with their tokens as the provider counted them.

    `upstream` was called, and need not be the session's. A token count is None if no response had it.
    """

    session: str
    upstream: str
    model: str
    calls: int
    usage: Usage


SHADOW = ".shadow"
"""How the id of an exchange ends that sends the request of a client's again; before that it is the client's."""


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """A call of our own that sent the client's own request, in place of which something shorter had been sent.

    `exchange` is that of the client, its `n`-th in the session. `usage` is what the response to the shadow reported,
    `expected` what it should have used. `age` counts the messages behind what the epoch replaces; None if unknown.
    `finishes` and `answers` are those of the client's response and of the shadow's, as in `Reading`: empty where none
    came as a whole, or it is erased.
    """

    exchange: str
    session: str
    n: int
    wire: str
    upstream: str
    model: str
    status: int
    usage: Usage
    expected: Usage
    age: int | None
    finishes: tuple[str, str]
    answers: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter on sessions: prefixes of the family and of the parent's id, and an upper bound (exclusive) of `seq`.

    `tenant` is a fingerprint; empty means all of them.
    """

    family: str = ""
    parent: str = ""
    before: int = 2**63 - 1
    tenant: bytes = b""


class Call(NamedTuple):
    """An exchange on a branch: its number in the session, its id, and the number of messages in its request."""

    n: int
    exchange: str
    depth: int


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch of a session: a tip that no other tip follows (a tip is a node at which a request ended).

    `own` are the exchanges that belong to no older branch, in the order of the conversation. `trunk` is the branch
    whose own exchanges include the node `left`, and `shared` is how many of these come before it.
    """

    tip: bytes
    depth: int  # messages of the first request that ended at `tip`
    own: tuple[Call, ...]
    relation: Relation  # of the first of `own`
    left: bytes  # the node before the first of `own`, empty if the branch shares nothing
    is_side: bool  # whether all of `own` are side calls
    trunk: "BranchRow | None" = field(default=None, compare=False, repr=False)  # chains of trunks can be too deep
    shared: int = 0

    @property
    def exchanges(self) -> tuple[Call, ...]:
        """All exchanges whose requests ended on the way to the tip, oldest first. Takes time linear in their number."""
        calls, branch = list(self.own), self
        while branch.trunk is not None:
            calls += branch.trunk.own[: branch.shared]
            branch = branch.trunk
        return tuple(sorted(calls))


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One upstream call of an exchange. `completeness` is empty while the call is open, or if a crash cut it off."""

    k: int
    upstream: str
    status: int
    completeness: str
    received_size: int
    is_capped: bool
    error: str
    finish: str


@dataclass(frozen=True, slots=True)
class RoundRow(RoundFacts):
    """A round with what its response said. `plan` is None if there was nothing to decide."""

    timings: Timings | None
    usage: Usage | None
    headers: Headers
    answer: bytes
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A call of a client, the `n`-th of its session, and its place in the conversation."""

    n: int
    id: str
    session: str
    opened_ms: int
    kind: Kind
    wire: str
    mode: Mode
    model: str
    method: str
    target: str
    relation: Relation | Literal[""]
    is_side: bool
    depth: int
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow(CallFacts):
    """One client call: its request without the body, and how each round ended. `n` counts from 1 in its session.

    `relation` to `layers` come from its `Lineage`; without one they have their defaults.
    """

    seq: int
    headers: Headers
    request_size: int
    is_capped: bool
    digest: bytes
    rounds: tuple[RoundRow, ...]
    relation: Relation | Literal[""] = ""
    is_side: bool = False
    tip: bytes = b""
    depth: int = 0
    base: int = 0
    layers: bytes = b""


@dataclass(frozen=True, slots=True)
class UnreadRow:
    """A recorded response without a reading, with all that is needed to make one.

    `received` is the outcome's, without trailers. `tip` is the last node of the request, empty if it has no `Lineage`.
    """

    exchange: str
    k: int
    wire: str
    session: SessionKey
    tip: bytes
    headers: Headers
    received: bytes


@dataclass(frozen=True, slots=True)
class LogFault:
    """A fault that `verify` found."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`: what it checked, as counts, and the faults it found."""

    exchanges: int
    rounds: int
    blobs: int
    slices: int
    faults: tuple[LogFault, ...]


class ArchiveHealth(msgspec.Struct, frozen=True, gc=False):
    """The state of the log."""

    problem: str  # empty while the log works as promised
    pending: int
    pending_bytes: int
    dropped: int  # records that are lost for good
    generation: int  # changes whenever a record is lost, or content erased; caches of the log must then be emptied
    exposed: int = 0  # records that are only in memory, and that a stop would lose if the log takes no more
    lost_at_stop: int = 0  # records that were lost that way
