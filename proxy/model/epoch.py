"""What is decided about a conversation's context and kept: plans, epochs, pins and summaries.

An epoch is stored before it is used, and a later one is a later record. Within an epoch what is sent upstream only
grows, so that the provider's prompt cache stays warm: the frozen messages, and behind them the client's own as they
come. Places count the messages behind the preamble, from 0.
"""

from typing import Literal

import msgspec

SummaryKind = Literal["leaf", "condensed"]
"""A leaf was made of messages, a condensed one of other summaries, its parents."""

SummaryLevel = Literal[1, 2, 3]
"""1: a structured report. 2: a short one of five fields. 3: put together without a model, which never fails."""


class Summary(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A report that stands for the messages from place `start` up to `stop`, the last of which is node `last`.

    `id` is that of a reference to those messages: unguessable, and the same for the same span, kind, level and text.
    `tokens` are the text's, `covered` those of the messages, both as we count them. A provisional one is to be made
    again: its level is not what was wanted. `parents` are the ids of those that a condensed one was made of, in order
    and without a gap; `supersedes` of those it stands in place of, which were of the same span or within it. `files`
    are the ids of all references and files that its messages, or its parents, name. `digests` are the SHA-256 of the
    raw messages of a leaf, each of which is content of the tenant in the log; those of a condensed one are its
    parents'. `exchange` is the client's call it was made behind, empty where a person asked; `calls` are the
    exchanges in which models were asked for it, those in vain too; `model` is who wrote it, empty for none. `reason`
    says why it is no better than it is.
    """

    id: str
    session: str
    wire: str
    start: int
    stop: int
    last: bytes
    kind: SummaryKind
    level: SummaryLevel
    is_provisional: bool
    text: str
    tokens: int
    covered: int
    made_ms: int
    exchange: str = ""
    model: str = ""
    reason: str = ""
    calls: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    digests: tuple[bytes, ...] = ()


Pressure = Literal["none", "soft", "hard"]
Rung = Literal["original", "epoch", "plan", "minimal"]
"""What a request was sent as (BEHAVIOUR B8).

`original`: the client's own bytes. `epoch`: the stored rendering of an epoch that stood before, and the rest as the
client sent it. `plan`: the same with an epoch that was opened for this very request. `minimal`: the last turn, behind a
digest of all else.
"""


class Kept(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message as the client sent it."""

    place: int


class Replaced(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message with other words in place of its own: a tombstone, the block of a file, the beginning of a text.

    `arguments` are the new arguments of calls in it, as JSON by the calls' ids; with these an empty `text` leaves the
    words as they are.
    """

    place: int
    text: str
    kind: Literal["tombstone", "file", "shortened"]
    arguments: tuple[tuple[str, str], ...] = ()


class Written(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message of ours, a ledger, that stands for those from `start` up to `stop`; some may be kept all the same.

    With the id of a summary in `report` it is that summary, which stands before the ledger of the same place.
    """

    text: str
    start: int
    stop: int
    report: str = ""


Edit = Kept | Replaced | Written


class Reference(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `ref:ID` in an edit, which stands for the messages from `start` up to `stop`.

    Their text is that of `context/references`, from the character `offset` on.
    """

    id: str
    start: int
    stop: int
    offset: int = 0


class ContextPlan(msgspec.Struct, frozen=True, gc=False):
    """The edits that stand for the first `through` messages, in the order in which they are sent; the rest is verbatim.

    `tokens` are those of the edits and of the verbatim rest as they were counted, without the preamble; `protected`
    those among them that had to stay. `references` are all that the edits name. `beyond`: where more should have stayed
    than leaves room for anything else (BEHAVIOUR B12), the tokens of that with the preamble; else 0.
    """

    through: int
    edits: tuple[Edit, ...]
    references: tuple[Reference, ...]
    tokens: int
    protected: int = 0
    rung: Rung = "plan"
    beyond: int = 0


class Plan(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The decision for a round, recorded with it where anything was to be decided.

    `view` is the model asked for (BEHAVIOUR B4). `epoch` is the id of the one that was applied, empty for none. Tokens
    are None where nothing was counted. `owed` is what the ski-rental account of the view stood at afterwards, in tokens
    of uncached input; `saving` what the round saved against the client's own request, in the same unit, negative where
    it cost more, None where nobody can tell. `reason` says why it is not managed, or not as it would have been.
    """

    exchange: str
    k: int
    view: str
    rung: Rung
    epoch: str = ""
    pressure: Pressure = "none"
    reason: str = ""
    tokens_client: int | None = None
    tokens_upstream: int | None = None
    usable: int = 0
    owed: float = 0.0
    saving: float | None = None


EpochReason = Literal["soft", "hard", "cold", "client", "overflow", "manual", "revert", "refused"]
"""Why an epoch was opened: above the soft mark where it pays, at the high mark, because the cache was known to be cold,
because the client had broken the prefix itself, after a refusal as too long, or because a person asked for it. A
`revert` by a person, and one because the upstream `refused` what was rewritten, go back to what stood before."""


class Original(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The messages that a reference stands for, as the log keeps them.

    `digests` are the SHA-256 of the raw messages, each of which is content of the tenant in the log; `place` is that of
    the first in its conversation, `offset` the character of their text (`context/references`) at which it begins.
    """

    id: str
    digests: tuple[bytes, ...]
    wire: str
    place: int
    offset: int = 0


class Epoch(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A rendering of the first `depth` messages of a session behind its preamble, the last of which is node `through`.

    It holds for requests to the model `view` whose chain has that node; at depth 0 `through` is the root of the chain
    and nothing is replaced. `rendered` are the raw messages that are sent, `edits` the plan's edits as JSON for people.
    `parent` is the id of the epoch that it follows on its path, empty for none; `exchange` the call it was opened for,
    empty where a person asked for it. Tokens are those of the whole request, before and after.
    """

    id: str
    session: str
    view: str
    parent: str
    through: bytes
    depth: int
    why: EpochReason
    exchange: str
    opened_ms: int
    tokens_before: int
    tokens_after: int
    edits: bytes
    rendered: tuple[bytes, ...]
    originals: tuple[Original, ...] = ()

    @property
    def is_reversion(self) -> bool:
        """Whether it takes back the epoch that it follows."""
        return self.why in ("revert", "refused")


class Pin(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message that must stay as it is from now on, or need not any more; the newest of a node counts."""

    session: str
    node: bytes
    is_on: bool
    at_ms: int


class StoredContext(msgspec.Struct, frozen=True, gc=False):
    """The records of how a session is managed, oldest first. `owed` is that of the newest plan of each view.

    `unsent` are the ids of epochs that a person asked for, and that no plan names and no other epoch follows.
    """

    epochs: tuple[Epoch, ...] = ()
    pins: tuple[Pin, ...] = ()
    owed: tuple[tuple[str, float], ...] = ()
    summaries: tuple[Summary, ...] = ()
    unsent: tuple[str, ...] = ()


class StoredOriginal(msgspec.Struct, frozen=True, gc=False):
    """An original as it was found: whose it is, what it is, and its raw messages."""

    session: str
    original: Original
    messages: tuple[bytes, ...]
