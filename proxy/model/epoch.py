"""Epochs and pins: what stays as it was decided once. Rule: stored before it is used; a later one is a later record.

Within an epoch what is sent upstream only grows, so that the provider's prompt cache stays warm: the frozen messages,
and behind them the client's own as they come.
"""

from typing import Literal

import msgspec

from proxy.model.summary import Summary

Why = Literal["soft", "hard", "cold", "client", "overflow", "manual", "revert", "refused"]
"""Why an epoch was opened: above the soft mark where it pays, at the high mark, because the cache was known to be cold,
because the client had broken the prefix itself, after a refusal as too long, or because a person asked for it. A
`revert` by a person, and one because the upstream `refused` what was rewritten, go back to what stood before."""


class Original(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a reference stands for, as the log keeps it.

    `digests` are the SHA-256 of the raw messages, each of which is content of the tenant in the log; `place` is that of
    the first in its conversation, `offset` the character of their text (`context/references`) at which it begins.
    """

    id: str
    digests: tuple[bytes, ...]
    wire: str
    place: int
    offset: int = 0


class Epoch(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What stands for the first `depth` messages of a session behind its preamble, the last of which is node `through`.

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
    why: Why
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
    """What the log knows of how a session is managed, oldest first. `owed` is that of the newest plan of each view.

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
