"""The stored decisions about a conversation's context: plans, epochs, pins and summaries.

An epoch is stored before it is used, and each new epoch is a new record. Within an epoch the messages sent upstream
only grow, so that the provider's prompt cache stays warm: first the frozen messages, then the client's own as they
arrive. A `place` is the index of a message, counted from 0 after the preamble.
"""

from typing import Literal, get_args

from msgspec import json

from proxy.model import Value

SummaryKind = Literal["leaf", "condensed"]
"""A leaf summarises messages. A condensed summary summarises other summaries, its parents."""

SummaryLevel = Literal[1, 2, 3]
"""1: a structured report. 2: a short report of five fields. 3: assembled without a model, which never fails."""


class Summary(Value, tag=True, array_like=True):
    """A summary of the messages from place `start` up to `stop`, which is shown before the ledger of these.

    `id` is also the id of a reference to those messages. It is unguessable, and the same for the same span, kind, level
    and text. `parents` are in order and without a gap. `digests` are the SHA-256 of the raw messages of a leaf, each of
    which the log has as content of the tenant; a condensed summary has its parents' digests.
    """

    id: str
    session: str
    wire: str
    start: int
    stop: int
    last: bytes  # the node of the last message
    kind: SummaryKind
    level: SummaryLevel
    is_provisional: bool  # to be made again, because its level is not the wanted one
    text: str
    tokens: int  # of `text`, by our own count
    covered: int  # tokens of the messages, by our own count
    made_ms: int
    exchange: str = ""  # the client's call after which it was made; empty if a person asked for it
    model: str = ""  # the model that wrote it; empty if none did
    reason: str = ""  # why its level is not better
    calls: tuple[str, ...] = ()  # the exchanges that asked models for it, failed ones included
    parents: tuple[str, ...] = ()  # ids of the summaries that a condensed one was made of
    supersedes: tuple[str, ...] = ()  # ids of the summaries it replaces, of the same span or within it
    files: tuple[str, ...] = ()  # ids of all references and files that its messages or parents name
    digests: tuple[bytes, ...] = ()
    block: str = ""  # the raw message of a provider's own compaction, which is sent in place of `text`
    facts: tuple[str, ...] = ()  # the lines of facts that the model stated beside its text, as it wrote them


Strategy = Literal["epochs", "turns", "snapshot"]
"""How a long context is managed: when an epoch opens, and what it holds.

`epochs`: when that pays; the newest steps, and a ledger of the rest. `turns`: with each prompt; the turn under way, and
the words of the user before it. `snapshot`: once a prompt has filled most of the budget; memory, and the newest turns.
"""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def name_view(model: str, strategy: Strategy) -> str:
    """Return the name of a view: the requests of a session to one model, managed by one strategy."""
    return model if strategy == STRATEGIES[0] else f"{model} ({strategy})"


def read_view(view: str) -> tuple[str, Strategy]:
    """Return the model and the strategy of a view."""
    for strategy in STRATEGIES[1:]:
        if view.endswith(f" ({strategy})"):
            return view[: -len(strategy) - 3], strategy
    return view, STRATEGIES[0]


Pressure = Literal["none", "soft", "hard"]
Rung = Literal["original", "epoch", "plan", "minimal"]
"""The fallback level at which a request was sent.

`original`: the client's own bytes. `epoch`: the stored rendering of an existing epoch, then the rest as the client sent
it. `plan`: the same with an epoch that was opened for this request. `minimal`: a digest of everything but the last
turn, then the last turn.
"""


class Kept(Value, tag=True, array_like=True):
    """A message as the client sent it."""

    place: int


class Replaced(Value, tag=True, array_like=True):
    """A message whose text is replaced: by a tombstone, by a file block, or by parts of its own text.

    Images and other media beside the text stay, except in a tool's output and where a `tombstone` stands for them.

    `arguments` are pairs of a call's id and its new arguments as JSON. If they are set, an empty `text` leaves the
    message's text unchanged. In a message with several results they are pairs of a call's id and the text that stands
    for its result; `text` then has what is shown of all results. Where words of the user stand beside these,
    `messages.BESIDE` names what is sent of them. A `detached` item lacks its own id, by which
    the provider would look for reasoning that is not sent; an empty `text` leaves its text unchanged, too.
    """

    place: int
    text: str
    kind: Literal["tombstone", "file", "shortened", "detached"]
    arguments: tuple[tuple[str, str], ...] = ()


class Written(Value, tag=True, array_like=True):
    """A message that we wrote in place of those from `start` up to `stop`, some of which may still be kept.

    It is a ledger, or, with the id of a summary in `report`, that summary; a summary comes before the ledger of the
    same place.
    """

    text: str
    start: int
    stop: int
    report: str = ""


class Compacted(Written, tag=True, array_like=True):
    """A message in which the provider has compacted the first `stop` messages: the summary `report`.

    It precedes all others, and the raw message `block` is sent as the provider wrote it; `text` is for people. Only the
    upstream and the model that wrote it can read it. `tokens` are those of `block`, in our own count.
    """

    block: str = ""
    tokens: int = 0


Edit = Kept | Replaced | Written | Compacted
_decoder = json.Decoder(tuple[Edit, ...])


def decode_edits(edits: bytes) -> tuple[Edit, ...]:
    """Parse the edits of an epoch. Raises ValueError, also for those of an erased epoch, which are empty."""
    return _decoder.decode(edits)


class Reference(Value, array_like=True):
    """A `ref:ID` in an edit that refers to the messages from `start` up to `stop`.

    It refers to their text, as `context/references` renders it, from the character `offset` on.
    """

    id: str
    start: int
    stop: int
    offset: int = 0


class ContextPlan(Value):
    """The edits that replace the first `through` messages, in the order they are sent. The rest is sent verbatim.

    `beyond` is 0 unless the messages that should stay leave no room for anything else; then it is their
    tokens together with the preamble's.
    """

    through: int
    edits: tuple[Edit, ...]
    references: tuple[Reference, ...]  # all references that the edits name
    tokens: int  # of the edits and the verbatim rest, without the preamble
    protected: int = 0  # the part of `tokens` that had to stay
    rung: Rung = "plan"
    beyond: int = 0


class Plan(Value, tag=True, array_like=True):
    """The decision for a round, recorded with it if there was anything to decide.

    `owed` is the balance of the view's ski-rental account after the round. `saving` is what the round saved compared
    with the client's own request: negative if it cost more, None if unknown. Both are in tokens of uncached input.
    `client_read` and `sent_read` are the tokens that should be read from the provider's cache, of the client's own
    request and of what was sent: those that were sent before. None if unknown. `own_expected` is the provider's count
    of the client's own request as its counts of earlier ones tell, `sent_expected` that of what is sent: None where
    none does. `window` are the tokens that a request may have, and `soft` is the soft mark, in the model's tokens; 0 if
    unknown.
    """

    exchange: str
    k: int
    view: str  # as `name_view` names it
    rung: Rung
    epoch: str = ""  # id of the epoch that was applied
    pressure: Pressure = "none"
    reason: str = ""  # why the request was not managed, or not as intended
    tokens_client: int | None = None  # None if not counted, like the next
    tokens_upstream: int | None = None
    usable: int = 0
    owed: float = 0.0
    saving: float | None = None
    client_read: int | None = None
    sent_read: int | None = None
    own_expected: int | None = None
    sent_expected: int | None = None
    window: int = 0
    soft: int = 0


ReducedForm = Literal["alternating", "uncompacted", "untooled", "unsigned"]
"""What an upstream may refuse of a rewritten request, and then gets it without: see `EpochReason`."""

EpochReason = Literal[
    "soft",
    "hard",
    "cold",
    "client",
    "turn",
    "memory",
    "overflow",
    "manual",
    "unsigned",
    "uncompacted",
    "untooled",
    "alternating",
    "revert",
    "refused",
]
"""Why an epoch was opened: above the soft mark because it pays, at the high mark, because the cache was known to be
cold, because the client changed the prefix itself, because a turn begins (strategy `turns`) or memory stands for turns
(strategy `snapshot`), after a "too long" error, or because a person asked for it. Under
`unsigned` the same goes out without signed reasoning, and under `uncompacted` without the provider's own compaction,
since the upstream refused that, or is to have none; under `untooled` without our tool, and under `alternating` with our
messages joined to those of the user beside them, since the upstream refused that.
`revert` (by a person) and `refused` (the upstream rejected the rewritten request) restore the state before the last
epoch."""


class Original(Value, array_like=True):
    """The messages that a reference refers to, as the log keeps them.

    `digests` are the SHA-256 of the raw messages, each of which the log has as content of the tenant. `place` is that
    of the first message, or OUTSIDE. The reference begins at the character `offset` of their text
    (`context/references`).
    """

    id: str
    digests: tuple[bytes, ...]
    wire: str
    place: int
    offset: int = 0


OUTSIDE = -1
"""The place of an original that is no message of its conversation: a file that a program has put into the log."""


def name_file(reference: str) -> str:
    """Return the id of the exchange in which the log has the file behind a reference."""
    return f"file-{reference}"


class ClearingTerms(Value):
    """What a request asks the provider to clear of its context, in the words of Anthropic's API.

    `tool_uses` and `thinking` are the types of its edits, empty if it asks for none.
    """

    tool_uses: str = ""
    thinking: str = ""
    trigger: int | None = None  # input tokens above which results of tools are to be cleared
    trigger_uses: int | None = None  # or calls of tools above which they are
    keep: int = 3  # newest calls whose results stay
    at_least: int = 0  # input tokens that have to be cleared at once, or nothing is
    excluded: tuple[str, ...] = ()  # tools whose results stay
    clears_inputs: bool = False  # the arguments of the calls are to be cleared, too
    thinking_turns: int | None = None  # newest turns whose reasoning stays; None: all
    unknown: tuple[str, ...] = ()  # names of options that are not understood


class ClearedContext(Value):
    """What is not sent of the context that a client sent. Tokens are the model's; those of reasoning are estimated."""

    tool_uses: int = 0  # results that are not sent as they are
    thinking_turns: int = 0  # messages whose reasoning is not sent
    tokens: int = 0  # in all
    thinking_tokens: int = 0  # the part that is reasoning


class Epoch(Value, tag=True, array_like=True):
    """A rendering of the first `depth` messages of a session after its preamble.

    It applies to requests of the view `view` whose chain contains the node `through`, that of the last of these
    messages. At depth 0 `through` is the root of the chain, and nothing is replaced.
    """

    id: str
    session: str
    view: str
    parent: str  # id of the epoch before it on its path, empty if none
    through: bytes
    depth: int
    why: EpochReason
    exchange: str  # the call it was opened for, empty if a person asked for it
    opened_ms: int
    tokens_before: int  # of the whole request, like the next
    tokens_after: int
    edits: bytes  # the plan's edits as JSON, for people
    rendered: tuple[bytes, ...]  # the raw messages that are sent
    originals: tuple[Original, ...] = ()
    tool: bytes = b""  # the raw tool that is the last one of its requests, by which a model recalls; empty if none

    def list_edits(self) -> tuple[Edit, ...]:
        """Return its edits; none where they were erased."""
        return _decoder.decode(self.edits or b"[]")

    @property
    def is_compacted(self) -> bool:
        """Whether the provider's own compaction is sent under it, which is its first edit."""
        return self.edits.startswith(b'[["Compacted",')

    @property
    def is_reversion(self) -> bool:
        """Whether this epoch undoes its parent."""
        return self.why in ("revert", "refused")


class Pin(Value, tag=True, array_like=True):
    """An order to keep a message unchanged, or to stop doing so. The newest pin of a node counts."""

    session: str
    node: bytes
    is_on: bool
    at_ms: int


class SourceNote(Value, tag=True, array_like=True):
    """What a request told of its newest message, which has this node: the kind of prompt source that it is."""

    session: str
    exchange: str
    node: bytes
    kind: str


class HiddenRound(Value, array_like=True):
    """A round of an answer in which a model recalled: its raw messages, or items, and what our tool returned.

    `results` has pairs of the id of a call and a text. The last round may have none.
    """

    answer: tuple[bytes, ...]
    results: tuple[tuple[str, str], ...] = ()


class Recalled(Value, tag=True, array_like=True):
    """The rounds of an answer in which a model recalled. The client has that answer without its recalling.

    The `count` messages of the client's that have the answer end with `node`. What is sent in their place, under an
    epoch with a tool, is made of `rounds` and has `tokens` more, by our own count.
    """

    exchange: str
    session: str
    view: str
    epoch: str  # id of the epoch under which it was made
    node: bytes
    count: int
    tokens: int
    rounds: tuple[HiddenRound, ...]


class StoredContext(Value):
    """The context records of a session, oldest first. `owed` has a pair per view, from its newest plan.

    `unsent` are the ids of epochs that a person asked for and that no plan names and no other epoch follows. `given_up`
    are the views with an epoch that went on without the provider's own compaction. `recalled` and `sources` are
    the newest.
    """

    epochs: tuple[Epoch, ...] = ()
    pins: tuple[Pin, ...] = ()
    owed: tuple[tuple[str, float], ...] = ()
    summaries: tuple[Summary, ...] = ()
    unsent: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    recalled: tuple[Recalled, ...] = ()
    sources: tuple[SourceNote, ...] = ()


class EpochUse(Value):
    """The use of an epoch that replaces messages, given by its id: for a request that ended with `node`."""

    view: str
    node: bytes
    epoch: str


class StoredOriginal(Value):
    """An original found in the log, with its session and its raw messages."""

    session: str
    original: Original
    messages: tuple[bytes, ...]
