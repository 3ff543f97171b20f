"""Memory of a session: what was said and done as traces, reports on whole turns, facts, and the records of the log.

Traces are derived from the messages in the log. Reports and facts are items: those of one report are one record
(`Remembered`), and what people or strategies order about items is another (`MemoryOrder`). An item counts only on paths
that contain all messages it was made of.

Ids: `turn_0001` and `rt_0001` are numbered along a path from its root, and a number depends only on what precedes it,
so that it never changes while the path grows; branches have the numbers of their common beginning, then their own.
`ep_0001` and `sem_0001` are numbered through the whole session, in the order in which items were made. Times are
seconds since the Unix epoch. `salience` and `confidence` are from 0 to 1, and 0.5 where nothing is known.
"""

from typing import Literal

import msgspec

EPISODIC_HEAD, SEMANTIC_HEAD, RECENT_HEAD = "[MEMORY:EPISODIC]", "[MEMORY:SEMANTIC]", "[RECENT TURNS]"
"""The headings in what a model is shown of memory. They must never change, because logs and other proxies hold them."""

UNKNOWN = 0.5
"""Salience or confidence of which nothing is known."""

MAX_FACTS = 20
"""The most facts that a model may state beside one report. The rules that the user stated do not count among them."""

CLAIMED = "claimed"
"""The tag of a fact that no message of the user confirms: the output of a tool, or the model, claims it."""

TraceType = Literal["user", "assistant", "tool_call", "tool_result"]
FactKind = Literal["preference", "decision", "constraint", "fact"]
CallStatus = Literal["PENDING", "SUCCESS", "ERROR"]
ItemType = Literal["raw", "episodic", "semantic"]
OrderKind = Literal["pin", "unpin", "retract", "reset", "request", "clear"]
"""What is ordered: of an item, that it comes first, no longer, or never again; of a session, that all items so far are
forgotten, that memory is to be made of its turns behind the next response, and no longer."""


class TraceMedia(msgspec.Struct, frozen=True, gc=False):
    """Descriptions of the media of a message."""

    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    video: tuple[str, ...] = ()


class RawTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a session: what was said, a call of a tool, or the result of one.

    `seq` counts from 1 within the turn. `source_event` is the id of the exchange that first had the message.
    `correlation_id` is the id by which a call and its result belong together. `tool_args` are the call's arguments, as
    a text if they are no JSON. `tool_error` says how a call failed. A long result is only in `content`; then
    `tool_result_ref` is the node of its message, in hexadecimal digits.
    """

    id: str
    ts: float
    turn_id: str
    seq: int
    trace_type: TraceType
    content: str
    source_event: str
    media: TraceMedia | None = None
    tool_name: str = ""
    tool_call_id: str = ""
    tool_args: msgspec.Raw | None = None
    tool_result: str | None = None
    tool_error: str = ""
    tool_result_ref: str = ""
    correlation_id: str = ""
    tags: tuple[str, ...] = ()


class Episodic(msgspec.Struct, frozen=True, gc=False):
    """A report on turns of a session. A tag `ref:ID` names the reference to its original."""

    id: str
    ts: float
    turn_ids: tuple[str, ...]
    summary: str
    tags: tuple[str, ...] = ()
    salience: float = UNKNOWN


class Semantic(msgspec.Struct, frozen=True, gc=False):
    """A fact. `nodes` are the messages it cites, in hexadecimal digits; `supersedes` are the ids of facts it replaces.

    A fact with the tag `CLAIMED` cites no message of the user.
    """

    id: str
    ts: float
    fact: str
    tags: tuple[str, ...] = ()
    confidence: float = UNKNOWN
    salience: float = UNKNOWN
    kind: FactKind = "fact"
    nodes: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()


class ToolInteraction(msgspec.Struct, frozen=True, gc=False):
    """A call of a tool together with its result: derived from traces."""

    tool_call_id: str
    turn_id: str
    tool_name: str
    arguments: msgspec.Raw
    result: str | None = None
    error: str | None = None
    status: CallStatus = "PENDING"


class MemoryBundle(msgspec.Struct, frozen=True, gc=False):
    """The items that a model is shown: reports oldest first, facts most important first."""

    episodic: tuple[Episodic, ...] = ()
    semantic: tuple[Semantic, ...] = ()


class LearnedFact(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A fact as it is stored. `nodes` are the messages it cites; `replaces` quotes facts that it changes."""

    kind: FactKind
    text: str
    tags: tuple[str, ...] = ()
    nodes: tuple[bytes, ...] = ()
    confidence: float = UNKNOWN
    salience: float = UNKNOWN
    replaces: str = ""


class Remembered(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A report on the messages from place `start` up to `stop`, and the facts that were learned from these.

    The messages are those of the turns from number `first_turn` to `last_turn`. The report is item `ep_` with the
    number `number`; its facts are the items `sem_` from `first_fact` on, in order.
    """

    session: str
    start: int
    stop: int
    last: bytes  # the node of the last message
    first_turn: int
    last_turn: int
    number: int
    first_fact: int
    summary: str
    made_ms: int
    tags: tuple[str, ...] = ()
    salience: float = UNKNOWN
    facts: tuple[LearnedFact, ...] = ()
    report: str = ""  # id of the stored summary, which is also a reference to the messages; empty if there is none


class MemoryOrder(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An order about an item, given by its id, or about the whole memory of a session. The newest one counts."""

    session: str
    kind: OrderKind
    item: str
    at_ms: int


class StoredMemory(msgspec.Struct, frozen=True, gc=False):
    """The memory records of a session and of those that it continues, oldest first, without what was erased.

    `entries` and `orders` are pairs of a number, which orders records of both kinds, and the record.
    """

    entries: tuple[tuple[int, Remembered], ...] = ()
    orders: tuple[tuple[int, MemoryOrder], ...] = ()
