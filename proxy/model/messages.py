"""A message as the proxy sees it, whatever API it came through: what it says, how it hangs together, what it costs.

Made once from the raw message by `wire/format.Format.parse_message`, and never sent: what is sent are raw bytes.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

LEDGER_HEAD = "palimpsest ledger 7c1e5b"
"""Stands in the first line of every ledger, by which it is known again: plain ASCII, nothing that JSON would escape.

It never changes, for logs and other proxies hold it.
"""

MediaKind = Literal["image", "document", "audio"]


class LinkedMessage(Protocol):
    """As much of a message as decides what belongs together: who speaks, and the ids of its calls and results."""

    @property
    def role(self) -> str:
        """Return who speaks, as a MessageStructure has it."""
        ...

    @property
    def calls(self) -> tuple[str, ...]:
        """Return the ids of the calls that it makes."""
        ...

    @property
    def results(self) -> tuple[str, ...]:
        """Return the ids of the calls that it answers."""
        ...


class MessageStructure(msgspec.Struct, frozen=True, gc=False):
    """A message as far as its neighbours are concerned: who speaks, what it calls, which calls it answers.

    On a wire that counts calls and reasoning as items, one item. `role` is system, user, assistant or tool (whatever
    holds a result is a tool's), or what the client sent instead. `calls` and `results` are ids of calls. `reasoning` is
    a digest of what must stay attached to the calls beside it, empty where there is none; `is_signed`: its provider has
    signed some of that. `markers` are the retentions of its cache markers in order. `flaws` are what is wrong with the
    message by itself.
    """

    role: str
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    reasoning: bytes = b""
    markers: tuple[str, ...] = ()
    says_json: bool = False
    flaws: tuple[str, ...] = ()
    is_signed: bool = False


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that a message makes; `arguments` are as the model wrote them, which is JSON on most wires."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, gc=False):
    """What one message says.

    `role` and `results` are those of its structure. `text` joins its text parts by line ends: what a tool put out, what
    the user or the assistant said. `media` are a few words on each image, document or audio in it.
    """

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    media: tuple[str, ...] = ()


class Medium(msgspec.Struct, frozen=True, gc=False):
    """An image, a document or audio, by what its price depends on. What cannot be told from the request is 0.

    `width` and `height` in pixels, `pages` of a document, `seconds` of audio; `size` in bytes; `is_low` where the
    client asked for low detail.
    """

    kind: MediaKind
    width: int = 0
    height: int = 0
    pages: int = 0
    seconds: float = 0.0
    size: int = 0
    is_low: bool = False


class CountedContent(msgspec.Struct, frozen=True, gc=False):
    """What of a message or of tools costs tokens: text joined by line ends, media, tokens of the frame around it."""

    text: str
    media: tuple[Medium, ...] = ()
    frame: int = 0


class TokenWeight(msgspec.Struct, frozen=True, gc=False):
    """What was counted once: the tokens of text and frame, the media, and whether the tokens are only an estimate."""

    text_tokens: int
    media: tuple[Medium, ...] = ()
    is_estimate: bool = False


def joins_run(before: LinkedMessage, message: LinkedMessage) -> bool:
    """Return whether a message goes on with the run of the one before it.

    What the assistant says in one go and the results directly behind it are one run, on every wire. A run is judged as
    a whole (`wire/validity`), and is the least that may be taken out of a history (`context/verbatim`).
    """
    return message.role == "tool" or (message.role == "assistant" and before.role == "assistant")


def list_run_starts(messages: Sequence[MessageStructure]) -> list[int]:
    """Return where the runs begin."""
    return [i for i, message in enumerate(messages) if not i or not joins_run(messages[i - 1], message)]
