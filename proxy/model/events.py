"""Events that the engine publishes: one frozen value for each kind of fact, named in the past tense."""

from typing import Literal

import msgspec

from proxy.model.epoch import EpochReason, Plan, Rung, SummaryKind, SummaryLevel
from proxy.model.exchange import Completeness, Headers, Kind, Usage


class ExchangeRecorded(msgspec.Struct, frozen=True, gc=False):
    """A round's outcome was handed to the log. Sizes in bytes, times in seconds.

    `is_readable`: a reading will follow, or ReadingFailed. Where it is not final, another round of the exchange
    follows, and the client gets nothing of this one.
    """

    exchange: str
    session: str
    kind: Kind
    wire: str
    upstream: str
    status: int
    completeness: Completeness
    request_size: int
    received_size: int
    first_byte_s: float
    total_s: float
    is_readable: bool = False
    is_final: bool = True
    model: str = ""


class AnswerRead(msgspec.Struct, frozen=True, gc=False):
    """A response was read, with its usage; its first byte came after so many seconds, 0 where nobody knows."""

    exchange: str
    k: int
    usage: Usage
    first_byte_s: float = 0.0


class ReadingFailed(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a response could not be interpreted; they are in the log all the same."""

    exchange: str
    error: str


class Planned(msgspec.Struct, frozen=True, gc=False):
    """It was decided what is sent for a request."""

    session: str
    plan: Plan

    @property
    def exchange(self) -> str:
        """The id of the request's exchange."""
        return self.plan.exchange


class EpochOpened(msgspec.Struct, frozen=True, gc=False):
    """An epoch holds from now on. `exchange` is the call it was opened for, empty where a person asked for it.

    Tokens are those of the whole request, as the model counts them.
    """

    epoch: str
    session: str
    exchange: str
    why: EpochReason
    tokens_before: int
    tokens_after: int


class CeilingUnreachable(msgspec.Struct, frozen=True, gc=False):
    """So many tokens of a session must stay as they are that no epoch gets below the ceiling for long (B12)."""

    exchange: str
    session: str
    view: str
    protected: int
    usable: int


class CeilingExceeded(msgspec.Struct, frozen=True, gc=False):
    """A managed request goes out above its ceiling: with so many tokens where so many are usable, and why."""

    exchange: str
    session: str
    view: str
    tokens: int
    usable: int
    reason: str


class EpochRefused(msgspec.Struct, frozen=True, gc=False):
    """An upstream refused what an epoch made of a request, and took the client's own; its view is left alone now."""

    epoch: str
    session: str
    exchange: str
    view: str


class RungFailed(msgspec.Struct, frozen=True, gc=False):
    """A request could not be sent as it should have been; it was sent at the next fallback level (B8)."""

    exchange: str
    session: str
    rung: Rung
    problem: str


class LimitsTold(msgspec.Struct, frozen=True, gc=False):
    """A response's headers told rate limits, or the response was that there were too many requests.

    `headers` are those that are kept of it, `tenant` whose call it was.
    """

    exchange: str
    upstream: str
    tenant: bytes
    model: str
    status: int
    headers: Headers


class AuxiliaryEnded(msgspec.Struct, frozen=True, gc=False):
    """A call of our own has ended; what it cost, in tokens of uncached input, and how many seconds it took."""

    exchange: str
    session: str
    upstream: str
    model: str
    verdict: Literal["answered", "tool_call", "failed", "aborted"]
    cost: float
    seconds: float


class SummaryAdded(msgspec.Struct, frozen=True, gc=False):
    """A summary is in the log. `exchange` is the client's call it was made behind, empty where a person asked.

    Tokens, as we count them: of what it stands for, and its own.
    """

    summary: str
    session: str
    exchange: str
    kind: SummaryKind
    level: SummaryLevel
    covered: int
    tokens: int


class SummaryWasted(msgspec.Struct, frozen=True, gc=False):
    """A summary was paid for and never used; what its calls cost, in tokens of uncached input.

    `exchange` is the last of those, empty where there was none.
    """

    exchange: str
    session: str
    cost: float


Event = (
    ExchangeRecorded
    | AnswerRead
    | ReadingFailed
    | Planned
    | EpochOpened
    | CeilingUnreachable
    | CeilingExceeded
    | EpochRefused
    | RungFailed
    | LimitsTold
    | AuxiliaryEnded
    | SummaryAdded
    | SummaryWasted
)
