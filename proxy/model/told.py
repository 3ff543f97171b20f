"""What a message says, on any wire, as far as a plan needs to know. Rule: read from the raw message, never sent."""

import msgspec


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that a message makes; `arguments` are as the model wrote them, which is JSON on most wires."""

    id: str
    name: str
    arguments: str


class Told(msgspec.Struct, frozen=True, gc=False):
    """One message.

    `role` is that of its Shape (`model/shapes`): system, user, assistant, tool, or what the client sent instead.
    `text` joins its text parts by line ends: what a tool put out, what the user or the assistant said. `answers` are
    the ids of the calls it answers, `media` a few words on each image, document or audio in it.
    """

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
