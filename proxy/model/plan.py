"""What is sent in place of a conversation. Rule: values; `context/builder` makes them, `wire/rendering` spells them.

Places count the messages behind the preamble, from 0.
"""

from typing import Literal

import msgspec

Pressure = Literal["none", "soft", "hard"]
Rung = Literal["original", "epoch", "plan", "minimal"]
"""What a request was sent as (the ladder of BEHAVIOUR B8).

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
    """What a `ref:ID` in an edit stands for: the messages from `start` up to `stop`.

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
    """What was decided for a round, recorded with it where anything was to be decided.

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
