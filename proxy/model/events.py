"""Events that the engine publishes: one frozen class per kind of event, named in the past tense."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from proxy.model.card import CacheTerms, OverflowKind
from proxy.model.epoch import Epoch, EpochReason, Plan, Rung, SummaryKind, SummaryLevel
from proxy.model.erasing import Cause
from proxy.model.exchange import Completeness, Headers, Kind, MissCause, SessionKey, Usage


class ExchangeRecorded(msgspec.Struct, frozen=True, gc=False):
    """A round's outcome was handed to the log. Sizes are in bytes, times in seconds.

    If it `is_readable`, a reading or ReadingFailed follows. If it is not `is_final`, another round of the exchange
    follows, and the client gets nothing of this one. If it `is_unreached`, no response came from the upstream.
    `plan` is that of the round `k`, `error` says why it did not end well. `overhead_s` passed from the whole request of
    a client to sending it, the first time; None if that is unknown.
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
    overhead_s: float | None = None
    k: int = 0
    plan: Plan | None = None
    error: str = ""


class RequestRecorded(msgspec.Struct, frozen=True, gc=False):
    """A client's request that is read was sent, and its opening handed to the log. Published only if somebody listens.

    `nodes` are those of its messages that its session did not have, the first of which is at `place`, and `list_roles`
    returns the roles of as many of the newest as are asked for. `load` returns the node and the raw message at a place.
    Until `is_accepted`, they are no part of the session.
    """

    exchange: str
    session: SessionKey
    upstream: str
    model: str
    wire: str
    nodes: Sequence[bytes]
    place: int
    list_roles: Callable[[int], Sequence[str]]
    is_side: bool = False
    is_accepted: bool = True
    load: Callable[[int], tuple[bytes, bytes]] | None = None


class ReplyRecorded(msgspec.Struct, frozen=True, gc=False):
    """The messages of a response were handed to the log. Published only if somebody listens.

    `list_raws` returns what a client adds to its conversation for it, in the format `wire`.
    """

    exchange: str
    nodes: Sequence[bytes]
    wire: str = ""
    list_raws: Callable[[], Sequence[bytes]] | None = None


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


class AnswerUninformative(msgspec.Struct, frozen=True, gc=False):
    """A response was read. It states neither usage nor why it ended, as that of an error."""

    exchange: str
    k: int


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


class ToolsCalled(msgspec.Struct, frozen=True, gc=False):
    """A response was read that may call tools: `answer` is it as JSON. Published only if somebody listens."""

    exchange: str
    answer: bytes


class DoomLoopDetected(msgspec.Struct, frozen=True, gc=False):
    """A model has made the same call of a tool, with the same arguments, `count` times in a row (`context/loops`)."""

    exchange: str
    session: str
    tool: str
    count: int
    has_same_output: bool


class ReadingFailed(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a response could not be interpreted. The log has them anyway."""

    exchange: str
    error: str


class ResponseRead(msgspec.Struct, frozen=True, gc=False):
    """The response that a client got was read, and what it says is on its way to the log as `answer`, in JSON.

    `AnswerRead` came before, if it says anything about its usage. In place of both there may be ReadingFailed.
    """

    exchange: str
    answer: bytes
    finish: str = ""


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

    Tokens are those of the whole request, as the model counts them. `parent` and `edits` are as in `Epoch`.
    """

    epoch: str
    session: str
    exchange: str
    why: EpochReason
    tokens_before: int
    tokens_after: int
    parent: str = ""
    edits: bytes = b""

    @classmethod
    def of(cls, epoch: Epoch) -> "EpochOpened":
        """Return the event that tells of an epoch."""
        told = (epoch.id, epoch.session, epoch.exchange, epoch.why, epoch.tokens_before, epoch.tokens_after)
        return cls(*told, epoch.parent, epoch.edits)


class OutputsShortened(msgspec.Struct, frozen=True, gc=False):
    """An epoch that was opened has these edits. Published only if somebody listens.

    `load` returns the node and the raw message, in the format `wire`, at a place of the request for which it opened.
    """

    epoch: str
    parent: str
    session: str
    exchange: str
    edits: bytes
    wire: str
    load: Callable[[int], tuple[bytes, bytes]]


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
    """A call of our own has ended. `cost` is in tokens of uncached input.

    `made` counts the vectors that came, where the call was for those of passages, or of a query.
    """

    exchange: str
    session: str
    upstream: str
    model: str
    verdict: Literal["answered", "tool_call", "failed", "aborted"]
    cost: float
    seconds: float
    made: int | None = None


class CompactionStarted(msgspec.Struct, frozen=True, gc=False):
    """A summary is about to be made of so many `messages`, which have `tokens` by our own count.

    `exchange` is the client's call after which it is made, empty if a person asked for it (`is_manual`).
    """

    session: str
    exchange: str
    messages: int
    tokens: int
    is_manual: bool


class CompactionEnded(msgspec.Struct, frozen=True, gc=False):
    """A summary that was about to be made is in the log, or `error` says why it is not.

    `covered` are the tokens of what it replaces, `tokens` its own. `reason` is as in `Summary`.
    """

    session: str
    exchange: str
    seconds: float
    is_manual: bool
    error: str = ""
    summary: str = ""
    level: SummaryLevel = 1
    messages: int = 0
    covered: int = 0
    tokens: int = 0
    reason: str = ""


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


class SessionClosed(msgspec.Struct, frozen=True, gc=False):
    """A program has closed a session, whose summaries under way have ended."""

    session: str


class WebhookEnded(msgspec.Struct, frozen=True, gc=False):
    """An event was sent to a webhook, or not: refused by it, failed too often, or dropped since too many wait."""

    host: str
    verdict: Literal["delivered", "refused", "failed", "dropped"]


class SessionsErased(msgspec.Struct, frozen=True, gc=False):
    """The content of so many sessions was erased; `bytes` are those of what was stored, `sessions` are their ids."""

    count: int
    bytes: int
    cause: Cause
    sessions: tuple[str, ...] = ()


Event = (
    ExchangeRecorded
    | RequestRecorded
    | ReplyRecorded
    | AnswerRead
    | AnswerUninformative
    | ToolsCalled
    | DoomLoopDetected
    | PromptSent
    | CacheUsed
    | ReadingFailed
    | ResponseRead
    | Planned
    | EpochOpened
    | OutputsShortened
    | CeilingUnreachable
    | CeilingExceeded
    | EpochRefused
    | ReasoningRemoved
    | SilentOverflowSeen
    | CacheDiffers
    | RungFailed
    | LimitsTold
    | AuxiliaryEnded
    | CompactionStarted
    | CompactionEnded
    | SummaryAdded
    | SummaryWasted
    | Nudged
    | SessionWentIdle
    | SessionClosed
    | WebhookEnded
    | SessionsErased
)
