"""Messages independent of their API: what they say, how calls and results belong together, and what they cost.

They are made once from a raw message by `wire/format.Format` and never sent: what is sent are raw bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec

LEDGER_HEAD = "palimpsest ledger 7c1e5b"
"""The text in the first line of every ledger by which it is recognised: plain ASCII that JSON does not escape.

It must never change, because logs and other proxies hold it.
"""

RECALL_TOOL = "context_recall"
"""The name of the tool by which a model reads again what was removed from its context."""

MOST_BESIDE = 8_000
"""Characters of a text beside results up to which it stays where they are replaced: it may be the user's own."""

BESIDE = "beside"
"""The name in `Replaced.arguments` of the text that stands for those beside results."""

MediaKind = Literal["image", "document", "audio"]

Stay = Literal["", "always", "unanswered"]
"""Whether an item has to be sent as it is, with its group: never, always, or while its calls have no outputs."""


class LinkedMessage(Protocol):
    """The properties of a message that decide which messages belong together."""

    @property
    def role(self) -> str:
        """Return the role, as in `MessageStructure.role`."""
        ...

    @property
    def calls(self) -> tuple[str, ...]:
        """Return the ids of the tool calls that it makes."""
        ...

    @property
    def results(self) -> tuple[str, ...]:
        """Return the ids of the tool calls that it has results of."""
        ...


class MessageStructure(msgspec.Struct, frozen=True, gc=False):
    """The properties of a message that matter to its neighbours and to the validity of a request.

    In a format whose calls and reasoning are items of their own, it describes one item. `role` is system, user,
    assistant or tool (for whatever has a result), or else what the client sent.
    """

    role: str
    calls: tuple[str, ...] = ()  # ids of the calls that it makes
    results: tuple[str, ...] = ()  # ids of the calls that it answers
    reasoning: bytes = b""  # digest of the reasoning that must stay attached to the calls beside it, empty if none
    markers: tuple[str, ...] = ()  # the retentions of its cache markers, in order
    says_json: bool = False  # whether the word "json" occurs in it
    flaws: tuple[str, ...] = ()  # what is wrong with the message by itself
    signed: int = 0  # characters of the reasoning that the provider has signed, at least 1 if there is any
    is_leading: bool = False  # only a message of the assistant may follow directly
    stays: Stay = ""
    is_compaction: bool = False  # a provider's summary of all that was before it, which may be the first message
    reminder: bytes = b""  # of a message of the system: equal for those that are the same reminder, sent again
    item_id: str = ""  # the provider pairs the item by it with the reasoning that led to it; it may be left out


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call in a message. `arguments` is the text the model wrote, which is JSON in most formats."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, gc=False):
    """What one message says.

    `role` and `results` are those of its structure. `text` joins its text parts with line ends, tool output included.
    `media` has a short description of each image, document or audio in it. `outputs` are the texts of its results if it
    has several, `beside` the texts that stand beside results. `name` is that of the user, on wires that have one.
    `attached` are the texts, parts of `text`, of documents and search results beside the user's own words.
    `said` is what the assistant tells the user where `text` has more: what tools of the provider's returned.
    """

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    name: str = ""
    said: str | None = None
    attached: tuple[str, ...] = ()


class Medium(msgspec.Struct, frozen=True, gc=False):
    """The properties of an image, document or audio that its price depends on. An unknown value is 0."""

    kind: MediaKind
    width: int = 0  # pixels
    height: int = 0
    pages: int = 0
    seconds: float = 0.0
    size: int = 0  # bytes
    is_low: bool = False  # whether the client asked for low detail
    reference: str = ""  # the id or address of content that is not in the request


class CountedContent(msgspec.Struct, frozen=True, gc=False):
    """The parts of a message, or of tools, that cost tokens: text joined with line ends, media, tokens of the frame."""

    text: str
    media: tuple[Medium, ...] = ()
    frame: int = 0


class TokenWeight(msgspec.Struct, frozen=True, gc=False):
    """The result of counting a CountedContent. Media are kept, because their price depends on the model."""

    text_tokens: int  # of text and frame
    media: tuple[Medium, ...] = ()
    is_estimate: bool = False  # whether `text_tokens` is only an estimate


def joins_run(before: LinkedMessage, message: LinkedMessage) -> bool:
    """Return whether a message belongs to the same run as the one before it.

    Consecutive messages of the assistant, together with the results directly after them, are one run, in every format.
    A run is judged as a whole (`wire/validity`), and is the smallest part that may be removed from a history
    (`context/verbatim`).
    """
    return message.role == "tool" or (message.role == "assistant" and before.role == "assistant")


def list_run_starts(messages: Sequence[MessageStructure]) -> list[int]:
    """Return the indexes at which runs begin."""
    return [i for i, message in enumerate(messages) if not i or not joins_run(messages[i - 1], message)]


def list_led(messages: Iterable[MessageStructure]) -> Iterator[tuple[int, int]]:
    """Yield the index of each item with an id of its own, and that of the newest reasoning before it in its turn.

    The provider may ask for that reasoning: some clients send the outputs of an answer between its calls.
    """
    newest: int | None = None
    for place, message in enumerate(messages):
        if message.reasoning:
            newest = place
        elif message.role not in ("assistant", "tool"):
            newest = None
        elif message.item_id and newest is not None:
            yield place, newest
