"""The events that people and programs are told of while the server runs: what `/-/api/events` sends.

Each is an object with its `type`, the time, the session, and what belongs to it. An unknown value is null. A new field
may be added to any of them, and a new type to the union: readers ignore what they do not know.
"""

from typing import Literal, get_args

import msgspec

from proxy.model.epoch import EpochReason, Rung, SummaryKind, SummaryLevel
from proxy.model.exchange import Completeness, Kind, MissCause
from proxy.model.parts import MessagePart
from proxy.model.results import CompactionResult, TokenUsage


class StreamedEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="type"):
    """What all events have: when they were told, in milliseconds since 1970, and the id of their session."""

    at_ms: int
    session: str = ""

    @property
    def payload(self) -> object:
        """What the handlers of an `EventBus` get of it."""
        return self


class CallEvent(StreamedEvent, frozen=True, gc=False, kw_only=True):
    """An event of one call. `n` is its number in the session, null while the log does not have it."""

    exchange: str
    n: int | None = None


class SessionCreatedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="SESSION_CREATED"):
    """A session's first call is in the log. `name` is the client's own for it, `parent` the session that started it."""

    name: str
    model: str
    upstream: str
    parent: str


class SessionClosedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="SESSION_CLOSED"):
    """A program has closed a session; summaries under way have ended. It stays in the log, and may be loaded again."""


class MessageCreatedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="MESSAGE_CREATED"):
    """A message is in the log. `message` is its id, the same wherever its conversation is sent again.

    `place` is its index after the system messages; null of a response.
    """

    message: str
    role: str
    place: int | None = None


class PartCreatedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="PART_CREATED"):
    """A part of a message is in the log; its texts are cut to 1,000 characters. A result is in the part of its call."""

    message: str
    part: MessagePart


class PartUpdatedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="PART_UPDATED"):
    """The part of a call stands otherwise: its result has come, or is sent in short from this call on."""

    message: str
    part: MessagePart
    why: Literal["completed", "pruned"]


class CallStartedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="CALL_STARTED"):
    """A call was sent to the upstream."""

    model: str
    upstream: str
    wire: str
    is_side: bool


class CallCompletedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="CALL_COMPLETED"):
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


class CallUnreadableEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="CALL_UNREADABLE"):
    """The response of a call is in the log and could not be interpreted."""

    error: str


class CacheMissedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="CACHE_MISSED"):
    """A provider's cache was read less than expected. `cost` is in tokens of uncached input."""

    cause: MissCause
    tokens: int
    cost: float
    money: float | None


class RungFailedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="RUNG_FAILED"):
    """A request could not be sent as intended, at the fallback level `rung`, and was sent at the next one."""

    rung: Rung
    error: str


class CeilingExceededEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="CEILING_EXCEEDED"):
    """A managed request went out with more `tokens` than are `usable` below its ceiling."""

    tokens: int
    usable: int
    error: str


class EpochOpenedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="EPOCH_OPENED"):
    """An epoch was opened for a call; `exchange` is empty if a person asked for it. Tokens are of the whole request."""

    epoch: str
    why: EpochReason
    tokens_before: int
    tokens_after: int


class EpochRevertedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="EPOCH_REVERTED"):
    """The epoch `reverted` does not apply any more: a person said so (`revert`), or an upstream refused it."""

    reverted: str
    why: EpochReason
    tokens_before: int | None = None
    tokens_after: int | None = None


class PruneCompletedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="PRUNE_COMPLETED"):
    """With an epoch, messages are sent in short: outputs by a line that names them, files by their outline, others cut.

    These are all that the epoch has in short, those of earlier epochs included.
    """

    epoch: str
    tombstones: int
    files: int
    shortened: int


class CompactionTriggeredEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="COMPACTION_TRIGGERED"):
    """A summary is about to be made of so many messages. `exchange` is the call behind which; empty by hand."""

    exchange: str
    messages: int
    tokens: int
    is_manual: bool


class CompactionCompletedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="COMPACTION_COMPLETED"):
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


class CompactionFailedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="COMPACTION_FAILED"):
    """No summary came of an attempt."""

    exchange: str
    error: str
    elapsed_ms: int
    is_manual: bool


class SummaryAddedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="SUMMARY_ADDED"):
    """A summary is in the log. `covered` are the tokens of what it replaces, `tokens` its own."""

    exchange: str
    summary: str
    kind: SummaryKind
    level: SummaryLevel
    covered: int
    tokens: int


class DoomLoopDetectedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="DOOM_LOOP_DETECTED"):
    """A model has called a tool with the same arguments `count` times in a row; perhaps it waits for another output."""

    tool: str
    count: int
    has_same_output: bool


class AgentNudgedEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="AGENT_NUDGED"):
    """An agent that nobody prompted was nudged, the `attempt`-th time in a row."""

    attempt: int


class SessionIdleEvent(CallEvent, frozen=True, gc=False, kw_only=True, tag="SESSION_IDLE"):
    """An agent has not answered so many `attempts` to nudge it."""

    attempts: int


class MapEvent(StreamedEvent, frozen=True, gc=False, kw_only=True):
    """An event of an operator that goes through a list of inputs: the id of its `run`, and which `operator` it is.

    It is told on the bus that the operator was given, and not in the stream. `session` is that of the run, or empty.
    """

    run: str
    operator: Literal["llm_map", "agentic_map"]


class MapStartedEvent(MapEvent, frozen=True, gc=False, kw_only=True, tag="MAP_STARTED"):
    """A run begins. `items` is null where the inputs come one by one."""

    model: str
    items: int | None


class MapItemCompletedEvent(MapEvent, frozen=True, gc=False, kw_only=True, tag="MAP_ITEM_COMPLETED"):
    """The result for the input at `index` is there. `item_session` is the session that worked on it, or empty."""

    index: int
    success: bool
    error: str | None = None
    attempts: int = 1
    item_session: str = ""


class MapCompletedEvent(MapEvent, frozen=True, gc=False, kw_only=True, tag="MAP_COMPLETED"):
    """A run has ended, or was cancelled. `tokens` and `money` are those of all its calls; money is null if unknown."""

    succeeded: int
    failed: int
    is_cancelled: bool
    tokens: TokenUsage
    money: float | None
    elapsed_ms: int


class ResetEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="RESET"):
    """Events may be missing before this one: load anew what they were to keep current.

    `reason`: the server was `restarted` since, or the events since have `expired`, or the id was `unknown`.
    """

    reason: Literal["restarted", "expired", "unknown"]


class StreamEndedEvent(StreamedEvent, frozen=True, gc=False, kw_only=True, tag="STREAM_ENDED"):
    """The last event of a stream. Open it again with the id of the last one that had an id.

    `reason`: its reader was too `slow`, or the server is `stopping`.
    """

    reason: Literal["slow", "stopping"]


StreamEvent = (
    SessionCreatedEvent
    | SessionClosedEvent
    | MessageCreatedEvent
    | PartCreatedEvent
    | PartUpdatedEvent
    | CallStartedEvent
    | CallCompletedEvent
    | CallUnreadableEvent
    | CacheMissedEvent
    | RungFailedEvent
    | CeilingExceededEvent
    | EpochOpenedEvent
    | EpochRevertedEvent
    | PruneCompletedEvent
    | CompactionTriggeredEvent
    | CompactionCompletedEvent
    | CompactionFailedEvent
    | SummaryAddedEvent
    | DoomLoopDetectedEvent
    | AgentNudgedEvent
    | SessionIdleEvent
    | ResetEvent
    | StreamEndedEvent
)


def name_type(kind: type[StreamedEvent]) -> str:
    """Return the type of an event as it is told."""
    return str(kind.__struct_config__.tag)


EVENT_TYPES: tuple[str, ...] = tuple(map(name_type, get_args(StreamEvent)))
"""All types that may be told, in the order of their description."""

MapEvents = MapStartedEvent | MapItemCompletedEvent | MapCompletedEvent

WEBHOOK_EVENTS: tuple[str, ...] = tuple([name for name in EVENT_TYPES if name not in ("RESET", "STREAM_ENDED")])
"""The types that webhooks may be sent: all but those that tell of a connection."""

BUS_EVENTS: tuple[str, ...] = (*WEBHOOK_EVENTS, *map(name_type, get_args(MapEvents)))
"""The types that an `EventBus` may publish."""
