"""The figures of sessions, as a log sums them up: of calls and tokens, of what is charged alike, of a timeline."""

import msgspec

from proxy.model.exchange import Headers, Usage

TIERS = (128_000, 200_000, 256_000, 272_000)
"""The numbers of input tokens above which providers take other rates: `Tally` is kept by these."""


class Newest(msgspec.Struct, frozen=True, gc=False):
    """The newest calls of a session. A call of the conversation is one that is neither ours nor a side call.

    `mode` is that of the newest call that is not ours, `view` that of the newest of the conversation that has one.
    `client` and `sent` are the tokens of the newest of the conversation whose size is known, and `usable` is the budget
    of the newest that has one. `is_ended`: the newest of the conversation was answered without calling a tool.
    `opened_ms` is when the newest call began that is not over, None without one.
    """

    session: str
    mode: str = ""
    view: str = ""
    client: int | None = None
    sent: int | None = None
    usable: int = 0
    is_ended: bool = True
    opened_ms: int | None = None
    epochs: int = 0
    summaries: int = 0


class Tally(msgspec.Struct, frozen=True, gc=False):
    """The sum over rounds of a session that are charged alike: on a day, by a model of an upstream, at equal rates.

    `usage` is what they used, in which `input` is what was neither read from the cache nor written to it. `largest` is
    the input of the largest. `own` is what the client's own requests would have used, and `paid` what was used instead,
    where both are known; `largest_own` is the largest of the client's own. `saving` is the sum of the estimates of
    rounds of which only that is known. `day` counts from 1970, in UTC. None of the others includes our own calls:
    `client` and `sent` are tokens of the client's requests and of what was sent, of `counted` rounds whose size is
    known. Of `told` tokens that were sent it is known how many were read: `read`. `calls` are those of clients, each
    with its last round. `ends` are answers of the conversation that call no tool, `plans` are rounds that opened an
    epoch, `held` are those that were only observed.
    """

    session: str
    day: int
    upstream: str
    model: str
    is_auxiliary: bool
    usage: Usage
    largest: int
    own: Usage | None = None
    paid: Usage | None = None
    largest_own: int = 0
    saving: float | None = None
    is_known: bool = True  # a usage came back
    rounds: int = 0
    calls: int = 0
    errors: int = 0
    ends: int = 0
    plans: int = 0
    held: int = 0
    counted: int = 0
    client: int = 0
    sent: int = 0
    told: int = 0
    read: int = 0
    output: int = 0
    ended_ms: int = 0


class SessionHead(msgspec.Struct, frozen=True, gc=False):
    """The call with which the conversation of a session begins."""

    session: str
    exchange: str
    n: int
    wire: str
    headers: Headers
    is_capped: bool


class RoundFigures(msgspec.Struct, frozen=True, gc=False):
    """A round in a timeline; a call that has none yet has one without an upstream. None is what is not known.

    `own_input` and `own_read` are what the client's own request would have used, `paid_read` is what was read in its
    place. `epoch` is the number of the epoch in its session, 0 without one. `status` is None while it is open.
    """

    n: int
    k: int
    at_ms: int
    kind: str
    mode: str
    upstream: str
    model: str
    view: str
    rung: str
    epoch: int
    status: int | None
    completeness: str
    is_side: bool
    is_last: bool
    input: int | None
    output: int | None
    read: int | None
    written: int | None
    client: int | None
    sent: int | None
    usable: int
    saving: float | None
    own_input: int | None
    own_read: int | None
    own_written: int | None
    paid_read: int | None
    first_byte_ms: float | None
    total_ms: float | None
    overhead_ms: float | None

    @property
    def is_managed(self) -> bool:
        """Whether it is a round of a call that may be managed, or of one of our own."""
        return self.mode == "manage" and self.kind in ("managed", "auxiliary") and self.k >= 0
