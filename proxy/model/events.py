"""The events of the engine: one frozen class per kind of event, named in the past tense.

What is heard inside alone comes last. The others are told to people and programs, too: by `/-/api/events`, webhooks and
handlers. Each of these is an object with its `type`, the time, the session, and what belongs to it. An unknown value is
null. A new field may be added to any of them, and a new type: readers ignore what they do not know.
"""

from collections.abc import Callable, Sequence
from typing import Literal, dataclass_transform

import msgspec

from proxy.model.card import CacheTerms, OverflowKind
from proxy.model.epoch import Epoch, EpochReason, Plan, Rung, SummaryKind, SummaryLevel
from proxy.model.erasing import Cause
from proxy.model.exchange import Completeness, Headers, Kind, MissCause, SessionKey, Usage
from proxy.model.lineage import Reply
from proxy.model.parts import MessagePart
from proxy.model.results import CompactionResult, TokenUsage


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Event(msgspec.Struct, frozen=True, gc=False):
    """What the bus of an engine carries. An `EngineBus` passes each to the subscribers of exactly its class."""


class StreamedEvent(Event, kw_only=True, tag_field="type"):
    """What all events have that are told: when that was, in milliseconds since 1970, and the id of their session.

    What the engine publishes has no time yet, and no number of its call: both come with the telling.
    """

    at_ms: int = 0
    session: str = ""

    @property
    def payload(self) -> object:
        """What the handlers of an `EventBus` get of it."""
        return self


class CallEvent(StreamedEvent, kw_only=True):
    """An event of one call. `n` is its number in the session, null while the log does not have it."""

    exchange: str
    n: int | None = None


class SessionCreatedEvent(StreamedEvent, kw_only=True, tag="SESSION_CREATED"):
    """A session's first call is in the log. `name` is the client's own for it, `parent` the session that started it."""

    name: str
    model: str
    upstream: str
    parent: str


class SessionClosedEvent(StreamedEvent, kw_only=True, tag="SESSION_CLOSED"):
    """A program has closed a session; summaries under way have ended. It stays in the log, and may be loaded again."""


class MessageCreatedEvent(CallEvent, kw_only=True, tag="MESSAGE_CREATED"):
    """A message is in the log. `message` is its id, the same wherever its conversation is sent again.

    `place` is its index after the system messages; null of a response.
    """

    message: str
    role: str
    place: int | None = None


class PartCreatedEvent(CallEvent, kw_only=True, tag="PART_CREATED"):
    """A part of a message is in the log; its texts are cut to 1,000 characters. A result is in the part of its call."""

    message: str
    part: MessagePart


class PartUpdatedEvent(CallEvent, kw_only=True, tag="PART_UPDATED"):
    """The part of a call stands otherwise: its result has come, or is sent in short from this call on."""

    message: str
    part: MessagePart
    why: Literal["completed", "pruned"]


class CallStartedEvent(CallEvent, kw_only=True, tag="CALL_STARTED"):
    """A call was sent to the upstream."""

    model: str
    upstream: str
    wire: str
    is_side: bool


class CallCompletedEvent(CallEvent, kw_only=True, tag="CALL_COMPLETED"):
    """A call has ended, and its record is in the log (unless `n` is null).

    `client` are the tokens of the client's own request, `sent` those of what was sent. `input`, `read` and `written`
    (from and to the provider's cache) and `output` are the provider's count, of all rounds together. `saved_money` is
    what managing saved, negative for a loss. `overhead_seconds` passed from the client's whole request until it was
    sent; null where its body streamed through.
    """

    kind: Kind
    model: str
    upstream: str
    wire: str
    is_side: bool
    status: int
    completeness: Completeness
    error: str
    client: int | None
    sent: int | None
    input: int | None
    read: int | None
    written: int | None
    output: int | None
    money: float | None
    saved_money: float | None
    epoch: str
    rung: Rung | Literal[""]
    seconds: float
    first_byte_seconds: float | None
    overhead_seconds: float | None


class CallUnreadableEvent(CallEvent, kw_only=True, tag="CALL_UNREADABLE"):
    """The response of a call is in the log and could not be interpreted."""

    error: str


class CacheMissedEvent(CallEvent, kw_only=True, tag="CACHE_MISSED"):
    """A provider's cache was read less than expected. `cost` is in tokens of uncached input."""

    cause: MissCause
    tokens: int
    cost: float
    money: float | None


class RungFailedEvent(CallEvent, kw_only=True, tag="RUNG_FAILED"):
    """A request could not be sent as intended, at the fallback level `rung`, and was sent at the next one."""

    rung: Rung
    error: str


class CeilingExceededEvent(CallEvent, kw_only=True, tag="CEILING_EXCEEDED"):
    """A managed request went out with more `tokens` than are `usable` below its ceiling."""

    tokens: int
    usable: int
    error: str


class EpochOpenedEvent(CallEvent, kw_only=True, tag="EPOCH_OPENED"):
    """An epoch was opened for a call; `exchange` is empty if a person asked for it. Tokens are of the whole request."""

    epoch: str
    why: EpochReason
    tokens_before: int
    tokens_after: int


class EpochRevertedEvent(CallEvent, kw_only=True, tag="EPOCH_REVERTED"):
    """The epoch `reverted` does not apply any more: a person said so (`revert`), or an upstream refused it."""

    reverted: str
    why: EpochReason
    tokens_before: int | None = None
    tokens_after: int | None = None


class PruneCompletedEvent(CallEvent, kw_only=True, tag="PRUNE_COMPLETED"):
    """With an epoch, messages are sent in short: outputs by a line that names them, files by their outline, others cut.

    These are all that the epoch has in short, those of earlier epochs included.
    """

    epoch: str
    tombstones: int
    files: int
    shortened: int


class CompactionTriggeredEvent(StreamedEvent, kw_only=True, tag="COMPACTION_TRIGGERED"):
    """A summary is about to be made of so many messages. `exchange` is the call behind which; empty by hand."""

    exchange: str
    messages: int
    tokens: int
    is_manual: bool


class CompactionCompletedEvent(StreamedEvent, kw_only=True, tag="COMPACTION_COMPLETED"):
    """A summary was made and is in the log.

    `tokens_before` are those of what it replaces, `tokens_after` its own. `reason` says why its level is no better.
    """

    exchange: str
    summary: str
    level: SummaryLevel
    messages: int
    tokens_before: int
    tokens_after: int
    elapsed_ms: int
    reason: str
    is_manual: bool

    @property
    def payload(self) -> CompactionResult:
        """The result of the compaction."""
        return CompactionResult(
            session_id=self.session,
            summary_message_id=self.summary,
            level_used=self.level,
            compacted_message_count=self.messages,
            summary_token_count=self.tokens_after,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            elapsed_ms=self.elapsed_ms,
        )


class CompactionFailedEvent(StreamedEvent, kw_only=True, tag="COMPACTION_FAILED"):
    """No summary came of an attempt."""

    exchange: str
    error: str
    elapsed_ms: int
    is_manual: bool


class SummaryAddedEvent(StreamedEvent, kw_only=True, tag="SUMMARY_ADDED"):
    """A summary is in the log. `covered` are the tokens of its messages, `tokens` its own."""

    exchange: str
    summary: str
    kind: SummaryKind
    level: SummaryLevel
    covered: int
    tokens: int


class DoomLoopDetectedEvent(CallEvent, kw_only=True, tag="DOOM_LOOP_DETECTED"):
    """A model has called a tool with the same arguments `count` times in a row; perhaps it waits for another output."""

    tool: str
    count: int
    has_same_output: bool


class AgentNudgedEvent(CallEvent, kw_only=True, tag="AGENT_NUDGED"):
    """An agent that nobody prompted was nudged, the `attempt`-th time in a row."""

    attempt: int


class SessionIdleEvent(CallEvent, kw_only=True, tag="SESSION_IDLE"):
    """An agent has not answered so many `attempts` to nudge it."""

    attempts: int


class MapEvent(StreamedEvent, kw_only=True):
    """An event of an operator that goes through a list of inputs: the id of its `run`, and which `operator` it is.

    It is told on the bus that the operator was given, and not in the stream. `session` is that of the run, or empty.
    """

    run: str
    operator: Literal["llm_map", "agentic_map"]


class MapStartedEvent(MapEvent, kw_only=True, tag="MAP_STARTED"):
    """A run begins. `items` is null where the inputs come one by one."""

    model: str
    items: int | None


class MapItemCompletedEvent(MapEvent, kw_only=True, tag="MAP_ITEM_COMPLETED"):
    """The result for the input at `index` is there. `item_session` is the session that worked on it, or empty."""

    index: int
    success: bool
    error: str | None = None
    attempts: int = 1
    item_session: str = ""


class MapCompletedEvent(MapEvent, kw_only=True, tag="MAP_COMPLETED"):
    """A run has ended, or was cancelled. `tokens` and `money` are those of all its calls; money is null if unknown."""

    succeeded: int
    failed: int
    is_cancelled: bool
    tokens: TokenUsage
    money: float | None
    elapsed_ms: int


class ResetEvent(StreamedEvent, kw_only=True, tag="RESET"):
    """Events may be missing before this one: load anew what they were to keep current.

    `reason`: the server was `restarted` since, or the events since have `expired`, or the id was `unknown`.
    """

    reason: Literal["restarted", "expired", "unknown"]


class StreamEndedEvent(StreamedEvent, kw_only=True, tag="STREAM_ENDED"):
    """The last event of a stream. Open it again with the id of the last one that had an id.

    `reason`: its reader was too `slow`, or the server is `stopping`.
    """

    reason: Literal["slow", "stopping"]


def name_type(kind: type[StreamedEvent]) -> str:
    """Return the type of an event as it is told."""
    return str(kind.__struct_config__.tag)


TOLD: tuple[type[StreamedEvent], ...] = tuple(
    each
    for each in tuple(globals().values())
    if isinstance(each, type) and issubclass(each, StreamedEvent) and name_type(each).isupper()
)
"""All events with a type of their own, in the order of their description."""

_OF_A_CONNECTION = ("RESET", "STREAM_ENDED")

BUS_EVENTS: tuple[str, ...] = tuple(name for name in map(name_type, TOLD) if name not in _OF_A_CONNECTION)
"""The types that an `EventBus` may publish."""

WEBHOOK_EVENTS: tuple[str, ...] = tuple(name for name in BUS_EVENTS if not name.startswith("MAP_"))
"""The types that webhooks may be sent: all but those of operators, and those that tell of a connection."""

EVENT_TYPES: tuple[str, ...] = (*WEBHOOK_EVENTS, *_OF_A_CONNECTION)
"""All types that the stream may have."""


class ExchangeRecorded(Event):
    """A round's outcome was handed to the log. Sizes are in bytes, times in seconds.

    If it `is_readable`, a ResponseRead or CallUnreadableEvent follows. If it is not `is_final`, another round of the
    exchange follows, and the client gets nothing of this one. If it `is_unreached`, no response came from the upstream.
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


class RequestRecorded(Event):
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


class ResponseRead(Event):
    """The response of a round was read, and what it says is on its way to the log.

    `first_byte_s` is the time to its first byte, 0 if unknown; `finish` as in `Answer`. `told` is the cause of a cache
    miss, if the provider named one. `answer` is it as JSON, as the log has it, and `content` as it came, in the format
    `wire`. `reply` are the nodes that a client adds to its conversation for it. A round `is_hidden` in which a model
    recalled: the client gets nothing of it. `round` is how it ended, None if an earlier process recorded it. One that
    `is_informative` states its usage or why it ended, as that of an error does not.
    """

    exchange: str
    k: int
    usage: Usage = Usage()
    first_byte_s: float = 0.0
    finish: str = ""
    told: MissCause | Literal[""] = ""
    answer: bytes = b""
    content: bytes = b""
    wire: str = ""
    reply: Reply | None = None
    is_hidden: bool = False
    round: ExchangeRecorded | None = None
    is_informative: bool = True


class AnswerRead(ResponseRead):
    """A response of which all is known: what it cost, and what it tells of the provider's cache.

    `price` returns what it cost, None if unknown. `missed` tokens should have been read from the cache and were not,
    for this `cause`; it cost `missed_cost` tokens of uncached input more, and `missed_money` where prices are known.
    `saved` and `saved_money` are what managing saved by the usage that came back, negative if it cost more; None if
    unknown.
    """

    price: Callable[[], float | None] = lambda: None
    cause: MissCause | Literal[""] = ""
    missed: int = 0
    missed_cost: float = 0.0
    missed_money: float | None = 0.0
    saved: float | None = None
    saved_money: float | None = None


class PromptSent(Event):
    """A client's request was sent, perhaps rewritten. `nodes` are those of its own messages, `layers` as in `Lineage`.

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


class Planned(Event):
    """It was decided what to send for a request."""

    session: str
    plan: Plan

    @property
    def exchange(self) -> str:
        """The id of the request's exchange."""
        return self.plan.exchange


class EpochOpened(Event):
    """An epoch was opened, or a person or an upstream has taken one back. No call is behind what a person asked for.

    `load` returns the node and the raw message, in the format `wire`, at a place of the request for which it opened.
    """

    epoch: Epoch
    wire: str = ""
    load: Callable[[int], tuple[bytes, bytes]] | None = None


class CeilingUnreachable(Event):
    """A session has so many tokens that must stay verbatim that no epoch gets below the ceiling for long."""

    exchange: str
    session: str
    view: str
    protected: int
    usable: int


class ReasoningRemoved(Event):
    """Signed reasoning is not sent any more, since it was made behind another beginning than that of a call.

    It stood in so many `messages`, each of which counts once. `epoch` is the one that applies, empty if none does.
    """

    exchange: str
    session: str
    view: str
    epoch: str
    messages: int


class SilentOverflowSeen(Event):
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


class CacheDiffers(Event):
    """A provider's cache does not behave as the map says: of what it should have kept it read next to nothing.

    `share` is the share that it reads on average by now. It is published once, and again after it has kept prompts.
    `exchange` is the call that made it certain.
    """

    exchange: str
    upstream: str
    model: str
    share: float


class LimitsTold(Event):
    """A response had rate limit headers, or was a 429. `headers` are the response headers that are recorded."""

    exchange: str
    upstream: str
    tenant: bytes
    model: str
    status: int
    headers: Headers


class AuxiliaryEnded(Event):
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


class SummaryWasted(Event):
    """A summary was paid for and never used. `cost` is that of its calls, in tokens of uncached input.

    `exchange` is the last of those calls, empty if there was none.
    """

    exchange: str
    session: str
    cost: float


class WebhookEnded(Event):
    """An event was sent to a webhook, or not: refused by it, failed too often, or dropped since too many wait."""

    host: str
    verdict: Literal["delivered", "refused", "failed", "dropped"]


class SessionsErased(Event):
    """The content of so many sessions was erased; `bytes` are those of what was stored, `sessions` are their ids."""

    count: int
    bytes: int
    cause: Cause
    sessions: tuple[str, ...] = ()
