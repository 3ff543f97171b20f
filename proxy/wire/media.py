"""What images, documents and audio cost depends on, read from their bytes.

Rule: only what a price needs is looked at; what cannot be read is 0, and nothing raises.
"""

import base64
import binascii
import re
from collections.abc import Mapping

from proxy.model.countable import MediaKind, Medium
from proxy.wire.evidence import read_text

_KINDS: Mapping[str, MediaKind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "image_generation_call": "image",
    "file": "document",
    "input_file": "document",
    "document": "document",
    "input_audio": "audio",
    "audio": "audio",
}
_HOLDERS = ("source", "image_url", "file", "input_audio")
_CONTENTS = ("data", "url", "image_url", "file_data", "file_url", "result")
_HEAD = 256 * 1024  # of base64; a JPEG's size stands behind its thumbnail
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PAGE_COUNT = re.compile(rb"/Type\s*/Pages\b[^>]*?/Count\s+(\d+)|/Count\s+(\d+)[^>]*?/Type\s*/Pages\b")
_MOST_SIDE = 1 << 16


def read_medium(part: Mapping[str, object]) -> Medium | None:
    """The medium in a part of a message, None if it is none. A document given as text is none."""
    kind = _KINDS.get(read_text(part.get("type")))
    if kind is None:
        return None
    holders = [part, *(held for name in _HOLDERS if isinstance(held := part.get(name), dict))]
    if any(holder.get("type") in ("text", "content") for holder in holders[1:]):
        return None
    given = next((text for each in holders for name in _CONTENTS if (text := read_text(each.get(name)))), "")
    is_low = any(holder.get("detail") == "low" for holder in holders)
    return _describe(kind, given, is_low=is_low)


def tell_medium(medium: Medium) -> str:
    """A medium in a few words: `image 640x480`, `PDF, 3 pages`, `audio, 12 seconds`."""
    if medium.width:
        return f"{medium.kind} {medium.width}x{medium.height}"
    if medium.pages:
        return f"PDF, {medium.pages} page{'s' if medium.pages > 1 else ''}"
    if medium.seconds:
        return f"{medium.kind}, {medium.seconds:.0f} seconds"
    return f"{medium.kind}, {medium.size:,} bytes" if medium.size else medium.kind


def _describe(kind: MediaKind, given: str, *, is_low: bool) -> Medium:
    if given.startswith(("http:", "https:", "file-")) or not given:
        return Medium(kind, is_low=is_low)
    encoded = given[given.find(",") + 1 :] if given.startswith("data:") else given
    size = len(encoded) * 3 // 4
    if kind == "image":
        width, height = read_image_size(_decode(encoded[:_HEAD]))
        return Medium(kind, width=width, height=height, size=size, is_low=is_low)
    if kind == "document":
        return Medium(kind, pages=count_pages(_decode(encoded)), size=size)
    return Medium(kind, seconds=read_seconds(_decode(encoded[:64])), size=size)


def _decode(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def read_image_size(head: bytes) -> tuple[int, int]:
    """Width and height of a PNG, GIF, WebP or JPEG; (0, 0) of anything else."""
    width, height = 0, 0
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head.startswith(b"GIF8") and len(head) >= 10:
        width, height = _little(head[6:8]), _little(head[8:10])
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        width, height = _read_webp(head)
    elif head.startswith(b"\xff\xd8"):
        width, height = _read_jpeg(head)
    return (width, height) if 0 < width < _MOST_SIDE and 0 < height < _MOST_SIDE else (0, 0)


def _read_webp(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8 ":
        return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return _little(head[24:27]) + 1, _little(head[27:30]) + 1


def _read_jpeg(head: bytes) -> tuple[int, int]:
    """The size in the first start-of-frame segment."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return 0, 0


def count_pages(content: bytes) -> int:
    """The pages of a PDF: those it lists, or those its page tree counts; 0 where both are compressed."""
    if not content.startswith(b"%PDF"):
        return 0
    listed = sum(1 for _ in _PAGE.finditer(content))
    counted = (int(found[1] or found[2]) for found in _PAGE_COUNT.finditer(content))
    return max(listed, *counted, 0)


def read_seconds(head: bytes) -> float:
    """How long a WAV plays by its own word; 0 of any other format."""
    if not head.startswith(b"RIFF") or head[8:12] != b"WAVE" or len(head) < 44:
        return 0.0
    bytes_per_second = _little(head[28:32])
    return _little(head[4:8]) / bytes_per_second if bytes_per_second else 0.0


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")
