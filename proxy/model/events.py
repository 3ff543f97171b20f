"""Events that the engine publishes: one frozen class per kind of event, named in the past tense."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from proxy.model.card import CacheTerms, OverflowKind
from proxy.model.epoch import EpochReason, Plan, Rung, SummaryKind, SummaryLevel
from proxy.model.erasing import Cause
from proxy.model.exchange import Completeness, Headers, Kind, MissCause, Usage


class ExchangeRecorded(msgspec.Struct, frozen=True, gc=False):
    """A round's outcome was handed to the log. Sizes are in bytes, times in seconds.

    If it `is_readable`, a reading or ReadingFailed follows. If it is not `is_final`, another round of the exchange
    follows, and the client gets nothing of this one. If it `is_unreached`, no response came from the upstream.
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
    is_unreached: bool = False


class AnswerRead(msgspec.Struct, frozen=True, gc=False):
    """A response was read. `first_byte_s` is the time to its first byte, 0 if unknown; `finish` as in `Answer`.

    `told` is the cause of a cache miss, if the provider named one.
    """

    exchange: str
    k: int
    usage: Usage
    first_byte_s: float = 0.0
    finish: str = ""
    told: MissCause | Literal[""] = ""


class PromptSent(msgspec.Struct, frozen=True, gc=False):
    """A client's request was sent, perhaps rewritten. `nodes` are those of its own messages, `layers` as in `Step`.

    `terms` are what it states about caching itself.
    """

    exchange: str
    session: str
    upstream: str
    model: str
    nodes: Sequence[bytes]
    layers: bytes
    sent_ms: int
    terms: CacheTerms


class CacheUsed(msgspec.Struct, frozen=True, gc=False):
    """A response said what was read from the provider's cache, and something was missed, or saved by managing.

    `missed` tokens should have been read and were not, for this `cause`; it cost `cost` tokens of uncached input more,
    and `money` where the prices are known. `saved` and `saved_money` are what managing saved by the usage that came
    back, negative if it cost more; None if unknown.
    """

    exchange: str
    session: str
    cause: MissCause | Literal[""] = ""
    missed: int = 0
    cost: float = 0.0
    money: float | None = 0.0
    saved: float | None = None
    saved_money: float | None = None


class ReadingFailed(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a response could not be interpreted. The log has them anyway."""

    exchange: str
    error: str


class Planned(msgspec.Struct, frozen=True, gc=False):
    """It was decided what to send for a request."""

    session: str
    plan: Plan

    @property
    def exchange(self) -> str:
        """The id of the request's exchange."""
        return self.plan.exchange


class EpochOpened(msgspec.Struct, frozen=True, gc=False):
    """An epoch was opened, for the call `exchange`, or because a person asked for it (`exchange` is then empty).

    Tokens are those of the whole request, as the model counts them.
    """

    epoch: str
    session: str
    exchange: str
    why: EpochReason
    tokens_before: int
    tokens_after: int


class CeilingUnreachable(msgspec.Struct, frozen=True, gc=False):
    """A session has so many tokens that must stay verbatim that no epoch gets below the ceiling for long."""

    exchange: str
    session: str
    view: str
    protected: int
    usable: int


class CeilingExceeded(msgspec.Struct, frozen=True, gc=False):
    """A managed request goes out with more `tokens` than are `usable` below its ceiling."""

    exchange: str
    session: str
    view: str
    tokens: int
    usable: int
    reason: str


class EpochRefused(msgspec.Struct, frozen=True, gc=False):
    """An upstream refused a request that an epoch rewrote, but took the client's own. Its view is left alone now."""

    epoch: str
    session: str
    exchange: str
    view: str


class ReasoningRemoved(msgspec.Struct, frozen=True, gc=False):
    """Signed reasoning is not sent any more, since it was made behind another beginning than that of a call.

    It stood in so many `messages`, each of which counts once. `epoch` is the one that applies, empty if none does.
    """

    exchange: str
    session: str
    view: str
    epoch: str
    messages: int


class SilentOverflowSeen(msgspec.Struct, frozen=True, gc=False):
    """An upstream accepted a request that was too long for its model. Its view gets an epoch with the next one.

    `window` is the one that this shows, None if it shows none. `sent` are the tokens that it got.
    """

    exchange: str
    session: str
    upstream: str
    view: str
    kind: OverflowKind
    window: int | None
    sent: int


class CacheDiffers(msgspec.Struct, frozen=True, gc=False):
    """A provider's cache does not behave as the map says: of what it should have kept it read next to nothing.

    `share` is the share that it reads on average by now. It is published once, and again after it has kept prompts.
    `exchange` is the call that made it certain.
    """

    exchange: str
    upstream: str
    model: str
    share: float


class RungFailed(msgspec.Struct, frozen=True, gc=False):
    """A request could not be sent at the intended fallback level and was sent at the next one."""

    exchange: str
    session: str
    rung: Rung
    problem: str


class LimitsTold(msgspec.Struct, frozen=True, gc=False):
    """A response had rate limit headers, or was a 429. `headers` are the response headers that are recorded."""

    exchange: str
    upstream: str
    tenant: bytes
    model: str
    status: int
    headers: Headers


class AuxiliaryEnded(msgspec.Struct, frozen=True, gc=False):
    """A call of our own has ended. `cost` is in tokens of uncached input."""

    exchange: str
    session: str
    upstream: str
    model: str
    verdict: Literal["answered", "tool_call", "failed", "aborted"]
    cost: float
    seconds: float


class EmbeddingEnded(msgspec.Struct, frozen=True, gc=False):
    """A call of our own for the vectors of passages, or of a query, has ended. `made` counts those that came.

    `cost` is in tokens of uncached input.
    """

    exchange: str
    session: str
    upstream: str
    model: str
    verdict: Literal["answered", "failed", "aborted"]
    made: int
    cost: float
    seconds: float


class SummaryAdded(msgspec.Struct, frozen=True, gc=False):
    """A summary is in the log. `exchange` is the client's call after which it was made, empty if a person asked for it.

    `covered` are the tokens of what it replaces, `tokens` its own, both by our own count.
    """

    summary: str
    session: str
    exchange: str
    kind: SummaryKind
    level: SummaryLevel
    covered: int
    tokens: int


class SummaryWasted(msgspec.Struct, frozen=True, gc=False):
    """A summary was paid for and never used. `cost` is that of its calls, in tokens of uncached input.

    `exchange` is the last of those calls, empty if there was none.
    """

    exchange: str
    session: str
    cost: float


class Nudged(msgspec.Struct, frozen=True, gc=False):
    """An agent that nobody prompted was nudged, the `attempt`-th time in a row, by the call `exchange`."""

    exchange: str
    session: str
    attempt: int


class SessionWentIdle(msgspec.Struct, frozen=True, gc=False):
    """An agent has not answered so many `attempts` to nudge it. Its session waits for somebody to prompt it."""

    exchange: str
    session: str
    attempts: int


class SessionsErased(msgspec.Struct, frozen=True, gc=False):
    """The content of so many sessions was erased; `bytes` are those of what was stored."""

    count: int
    bytes: int
    cause: Cause


Event = (
    ExchangeRecorded
    | AnswerRead
    | PromptSent
    | CacheUsed
    | ReadingFailed
    | Planned
    | EpochOpened
    | CeilingUnreachable
    | CeilingExceeded
    | EpochRefused
    | ReasoningRemoved
    | SilentOverflowSeen
    | CacheDiffers
    | RungFailed
    | LimitsTold
    | AuxiliaryEnded
    | EmbeddingEnded
    | SummaryAdded
    | SummaryWasted
    | Nudged
    | SessionWentIdle
    | SessionsErased
)
