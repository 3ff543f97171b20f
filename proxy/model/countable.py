"""A message as far as it costs tokens. Rule: media are described by what their price depends on, not by bytes."""

from typing import Literal

import msgspec

MediaKind = Literal["image", "document", "audio"]


class Medium(msgspec.Struct, frozen=True, gc=False):
    """An image, a document or audio. What cannot be told from the request is 0.

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


class Countable(msgspec.Struct, frozen=True, gc=False):
    """The text of a message or of tools, joined by line ends, its media, and the tokens of the frame around it."""

    text: str
    media: tuple[Medium, ...] = ()
    frame: int = 0


class Weight(msgspec.Struct, frozen=True, gc=False):
    """What was counted once: the tokens of text and frame, the media, and whether the tokens are but an estimate."""

    text_tokens: int
    media: tuple[Medium, ...] = ()
    is_estimate: bool = False
