"""What the log takes and gives back: every kind of record with its weight in memory, and rows as values.

A store may lay records down as msgspec encodes them: a new field goes to the end and has a default. Rows are read
oldest first unless said otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.model.epoch import Epoch, Pin, Plan, Rung, Summary
from proxy.model.exchange import (
    Completeness,
    Headers,
    Kind,
    Mode,
    Opening,
    Outcome,
    Reading,
    Round,
    SessionKey,
    Timings,
    Trailer,
    Usage,
)
from proxy.model.lineage import Adoption, Relation, Reply, Step

Record = Opening | Round | Outcome | Trailer | Reading | Step | Reply | Adoption | Epoch | Plan | Pin | Summary

_DERIVED = (Step, Reply, Adoption, Epoch, Plan, Pin, Summary)

# Objects in memory: a node has two hashes of 16 bytes, a mark a hash, a form and a name.
_NODE_WEIGHT = 200
_MARK_WEIGHT = 250
_ORIGINAL_WEIGHT = 250
_DIGEST_WEIGHT = 65 + 8


def drop_derived(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return records without those of lineage and context: one that is refused must not cost what it came with."""
    return tuple(record for record in records if not isinstance(record, _DERIVED))


def weigh_records(records: tuple[Record, ...]) -> int:
    """Return the bytes of memory that some records hold together."""
    weight = 0
    for record in records:
        weight += _WEIGHERS[type(record)](record)
    return weight


def weigh_record(record: Record) -> int:
    """Return the bytes of memory that a record holds while it waits, roughly; the write queue's bound is in these."""
    return _WEIGHERS[type(record)](record)


def _weigh_growth(record: Step | Reply) -> int:
    weight = 256 + len(record.nodes) * _NODE_WEIGHT + len(record.marks) * _MARK_WEIGHT
    for mark in record.marks:
        weight += len(mark.name)
    return weight


def _weigh_epoch(epoch: Epoch) -> int:
    digests = sum([len(original.digests) for original in epoch.originals])
    named = len(epoch.originals) * _ORIGINAL_WEIGHT + digests * _DIGEST_WEIGHT
    return 512 + len(epoch.edits) + sum(map(len, epoch.rendered)) + named


def _weigh_summary(summary: Summary) -> int:
    named = len(summary.calls) + len(summary.parents) + len(summary.supersedes) + len(summary.files)
    return 512 + len(summary.text) + 64 * named + _DIGEST_WEIGHT * len(summary.digests)


# By type, for this is done with every record of every call.
_WEIGHERS: Mapping[type[Record], Callable[[Any], int]] = {
    Opening: lambda record: 1024 + record.body.weight,
    Round: lambda record: 256 + (record.body.weight if record.body else 0),
    Outcome: lambda record: 512 + len(record.received),
    Trailer: lambda record: 512 + len(record.received),
    Reading: lambda record: 256 + len(record.answer),
    Step: _weigh_growth,
    Reply: _weigh_growth,
    Adoption: lambda record: 256,
    Epoch: _weigh_epoch,
    Plan: lambda record: 256,
    Pin: lambda record: 256,
    Summary: _weigh_summary,
}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a listing; times in milliseconds since the epoch.

    `parent`: id of the session whose agent started it. `adopted`: id of the session that it goes on from, under another
    credential. Each empty where there is none. `branches`: as `list_branches` has; `side`: exchanges beside them. `seq`
    is that of its newest exchange: a listing goes by it. `counted` and `sent` are the tokens of its rounds as the
    client made them and as they went out, where both were counted; `saving` is the sum of what its rounds saved, in
    tokens of uncached input, negative where they cost more, None where nobody can tell of any. `auxiliary` are calls of
    our own, which nothing else here counts; their tokens stand beside it.
    """

    id: str
    family: str
    upstream: str
    created_ms: int
    last_ms: int
    exchanges: int
    model: str
    input_tokens: int
    output_tokens: int
    parent: str = ""
    branches: int = 0
    side: int = 0
    adopted: str = ""
    seq: int = 0
    counted: int = 0
    sent: int = 0
    saving: float | None = None
    auxiliary: int = 0
    auxiliary_input: int = 0
    auxiliary_output: int = 0

    @property
    def recorded(self) -> int:
        """The number of all its exchanges, which is that of the last one."""
        return self.exchanges + self.auxiliary


@dataclass(frozen=True, slots=True)
class AuxiliaryUsage:
    """A session's auxiliary calls to one model: how many there were, and their tokens as the provider counted them.

    `upstream` is who was called, which need not be the session's; each count is None where no response told it.
    """

    session: str
    upstream: str
    model: str
    calls: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Bill:
    """A round of a call that might be managed, or of one of our own: what it was sent as, and what was counted of it.

    `seq` and `opened_ms` are those of its exchange. `rung` to `usable` are its plan's; of a round without one they are
    empty, None and 0.
    """

    seq: int
    session: str
    kind: Kind
    opened_ms: int
    upstream: str
    model: str
    usage: Usage
    rung: Rung | Literal[""] = ""
    reason: str = ""
    tokens_client: int | None = None
    usable: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The sessions to list: those whose family, and whose parent's id, begin so, and whose `seq` is lower."""

    family: str = ""
    parent: str = ""
    before: int = 2**63 - 1


class Call(NamedTuple):
    """An exchange on a branch: its number in the session, its id, and how many messages its request had."""

    n: int
    exchange: str
    depth: int


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch of a session: a tip with no other tip behind it (a tip is a node at which a request ended).

    `depth`: messages of the first request that ended there. Of what no older branch has: `own` are the exchanges, in
    the order of the conversation; `relation` is that of the first, `left` the node before it, empty where it shares
    nothing; `is_side` if all of them are side calls. `trunk` is the branch that has `left` among what is its own, and
    `shared` how many of the trunk's own exchanges go before.
    """

    tip: bytes
    depth: int
    own: tuple[Call, ...]
    relation: Relation
    left: bytes
    is_side: bool
    trunk: "BranchRow | None" = field(default=None, compare=False, repr=False)  # of branches one could fall endlessly
    shared: int = 0

    @property
    def exchanges(self) -> tuple[Call, ...]:
        """Those whose requests ended on the way to the tip, oldest first. Takes time in proportion to their number."""
        calls, branch = list(self.own), self
        while branch.trunk is not None:
            calls += branch.trunk.own[: branch.shared]
            branch = branch.trunk
        return tuple(sorted(calls))


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One upstream call of an exchange; `completeness` is empty while the call is open or was cut by a crash.

    `plan` is what was decided for it, None where nothing was.
    """

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
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One client call: what was asked (without its body) and how each round ended. `n` counts from 1 in its session.

    `relation` to `base` are those of its `Step`; of a call that has none: empty, False and 0.
    """

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
    relation: Relation | Literal[""] = ""
    is_side: bool = False
    tip: bytes = b""
    depth: int = 0
    base: int = 0


@dataclass(frozen=True, slots=True)
class UnreadRow:
    """A recorded response without a reading: what it takes to read it, and where its request stands.

    `received` is as the outcome has it, without trailers; `tip` is empty where the request has no `Step`.
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
    """A fault that `verify` found: where it stands and what is wrong."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`: how much it looked at, and what it found."""

    exchanges: int
    rounds: int
    blobs: int
    slices: int
    faults: tuple[LogFault, ...]


class ArchiveHealth(msgspec.Struct, frozen=True, gc=False):
    """The state of the log. `problem` is empty while it keeps its promise; `dropped` counts records lost for good.

    `generation` changes whenever a record was lost: whoever remembers what the log holds must forget it then.
    `exposed` counts those that wait in memory alone, which a stop would lose if the log takes no more; `lost_at_stop`
    those that were lost so.
    """

    problem: str
    pending: int
    pending_bytes: int
    dropped: int
    generation: int
    exposed: int = 0
    lost_at_stop: int = 0
