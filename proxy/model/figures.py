"""The figures of sessions, as a log sums them up: of calls and tokens, of what is charged alike, of a timeline."""

import msgspec

from proxy.model.exchange import Headers, Usage


class SessionFigures(msgspec.Struct, frozen=True, gc=False):
    """What the calls of a session come to. Our own calls are in none of the figures, unless they are named.

    `client`, `sent` and `output` are tokens over calls whose usage is known, or that were answered and counted by us:
    of the client's own requests, of what was sent, of the responses; None where none is known. Of `told` tokens that
    were sent it is known how many were read from a cache: `read`. `ends` are the answers of the conversation that call
    no tool. `view` is that of its newest call, `window_client` and `window_sent` are of the newest whose size is known,
    `usable` is its budget. `opened_ms` is when the newest call began that is not over, and `ended_ms` when the last one
    ended; None without one. `plans` are the calls that opened an epoch, `later` are the calls after the last of these.
    """

    session: str
    mode: str = ""
    errors: int = 0
    ends: int = 0
    is_ended: bool = True  # the newest call of the conversation is an answer that calls no tool
    opened_ms: int | None = None
    ended_ms: int | None = None
    client: int | None = None
    sent: int | None = None
    output: int | None = None
    read: int = 0
    told: int = 0
    view: str = ""
    window_client: int | None = None
    window_sent: int | None = None
    usable: int = 0
    epochs: int = 0
    summaries: int = 0
    plans: int = 0
    later: int = 0


class Charge(msgspec.Struct, frozen=True, gc=False):
    """Rounds of a session that are charged alike: on one day, by one model of one upstream, at the same rates.

    `usage` is the sum of what they used, in which `input` is what was neither read nor written. `largest` is the
    input tokens of the largest. `own` is what the client's own requests would have used, and `paid` what was used
    instead, over those of which both are known; `largest_own` is the largest of the client's own. `saving` is the sum
    of the estimates of the others, None without one. `day` counts from 1970, in UTC.
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
